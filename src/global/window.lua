-- Carries a batch out: what authority.rs says that an authority does, in one step, on whatever speaks Redis 6.2 or later.
--
-- KEYS  1 what the node was told last, 2 the time, 3 the nodes that were heard of lately, then one key for each record.
--       All of them share a slot.
-- ARGV  1 the batch, as packed.rs writes it.
--
-- The reply is a string: 'S' for a stale batch, 'G' and a number for a gap, 'D', the time, the nodes and the answers.
--
-- All numbers are doubles here, which are whole and exact up to 2^53: so are times in microseconds until the year 2255. Where
-- a product may be larger it is worked out digit by digit, in `share`, for periods and sub-windows of up to 2^44
-- microseconds, 203 days. packed.rs sends no longer ones. A bucket lacks 2^50 units at most. Numbers of batches are compared
-- in two halves, and never as strings, whose order depends on the locale of the server.
--
-- An error does not undo what a script has written. So everything that can fail is done before the first write, which is
-- refused as a whole where nothing may be written: on a replica, or without memory. Of a key nothing is written unless all of
-- its record was carried out.

local call, try = redis.call, redis.pcall
local spread, pack, unpack = unpack, struct.pack, struct.unpack
local byte, format, rep, sub = string.byte, string.format, string.rep, string.sub
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

local EXACT = 2 ^ 53
-- A count of so many is that or more.
local FULL = 2 ^ 32 - 1
-- The most that a bucket lacks.
local DRY = 2 ^ 50
-- How long it is known at least by how much the time is ahead of the clock, in milliseconds: a day.
local A_DAY = 86400000
-- How long it is known what a node was told and that it is there, in microseconds.
local LATELY = 60000000
-- The most that a clock goes back by unless it was set back, in microseconds.
local SLACK = 5000000
-- How many keys are read at once: as many as the stack is good for.
local READ_AT_ONCE = 1000
-- The longest time to live, in milliseconds: a century. Beyond some 10^18 the server takes none.
local CENTURY = 3155760000000

-- The first bytes of values.
local NARROW, BUCKET, TOLD, TIME, WIDE = 1, 2, 3, 4, 5
-- What records are.
local LAST_REPORT, EXACTLY, STATUS, REPAIR = 3, 4, 5, 6
-- Added to that where a record before is about the same key.
local SAME_KEY = 128
-- The numbers of reports by their width, and how many bytes they take.
local REPORTS, REPORT_SIZES = { '<HHHHH', '<I3I3I3I3I3', '<I5I5I5I5I5' }, { 10, 15, 25 }
-- The lowest of these bits of an answer: the key was not known; it could not be made sense of; less than all was kept; the
-- wait is shorter than to the end of a sub-window; the bucket lacks much; waits are said.
local CREATED, FAILED, KEPT, LESS, MUCH, WAITS = 1, 2, 4, 8, 16, 32

local UNKNOWN = pack('<B', FAILED)

-- A time to live, for microseconds. Never 0, which is refused, and never less than what is asked for: the server's own clock
-- counts in milliseconds.
local function millis(micros)
  return min(ceil(micros / 1000) + 2, CENTURY)
end

-- a * b / m, rounded down, and the remainder: for 0 <= a < m <= 2^44 and 0 <= b < 2^48.
local function share(a, b, m)
  local product = a * b
  if product < EXACT then
    local whole = floor(product / m)
    return whole, product - whole * m
  end
  local whole, part, scale = 0, 0, 2 ^ 40
  while scale >= 1 do
    local sum = part * 256 + a * (floor(b / scale) % 256)
    local digit = floor(sum / m)
    whole, part, scale = whole * 256 + digit, sum - digit * m, scale / 256
  end
  return whole, part
end

-- What is granted: half the room at most, but no less than what is needed.
local function grant(room, need, want)
  if need > room then return 0 end
  local half = (room + room % 2) / 2
  if want < half then half = want end
  return need > half and need or half
end

-- What a value is, nil if it is none of this script's.
local function form_of(value)
  if type(value) ~= 'string' then return nil end
  local form, size = byte(value), #value
  if (form == NARROW and size > 25 and size % 2 == 1) or (form == WIDE and size > 32 and size % 4 == 0)
    or (form == BUCKET and size == 35) then
    return form
  end
end

local batch = ARGV[1]
local node = sub(batch, 1, 8)
local low, high, has_after, after_low, after_high, count, at = unpack('<I4I4I1I4I4I2', batch, 9)

-- The time, which never goes back: it stands still while the clock is a little behind, and is ahead of it from then on if the
-- clock was set back.
local tm = call('TIME')
local clock = tm[1] * 1000000 + tm[2]
local time, ahead, keep_until = clock, 0, 0
local known = try('GET', KEYS[2])
if type(known) == 'string' and #known == 25 and byte(known) == TIME then
  local last
  last, ahead, keep_until = unpack('<I8I8I8', known, 2)
  time = clock + ahead
  local back = last - time
  if back > SLACK then ahead = ahead + back end
  if back > 0 then time = last end
end
-- What lives until some time has to live so much longer by the clock.
local behind = time - ahead - clock

local told = try('GET', KEYS[1])
local have_low, have_high
if type(told) == 'string' and #told > 17 and byte(told) == TOLD then
  local heard
  heard, have_low, have_high = unpack('<I8I4I4', told, 2)
  if time - heard >= LATELY then have_low = nil end
end

-- The first write. Where it is refused, it is the reply that says so.
local stamp = format('%.0f', time)
local written = try('ZADD', KEYS[3], stamp, node)
if type(written) == 'table' and written.err then
  if not written.err:find('WRONGTYPE', 1, true) then return written end
  call('DEL', KEYS[3])
  call('ZADD', KEYS[3], stamp, node)
end
local a_minute = format('%.0f', millis(LATELY + behind))
call('PEXPIRE', KEYS[3], a_minute)

-- Writes the time, to be known for as long as there are keys that were written by it.
local function note_time(longest)
  local now = floor(clock / 1000)
  keep_until = max(keep_until, now + max(longest, A_DAY))
  local lasts = format('%.0f', min(keep_until - now, CENTURY))
  call('SET', KEYS[2], pack('<I1I8I8I8', TIME, time, ahead, keep_until), 'PX', lasts)
end

local reply
if have_low and low == have_low and high == have_high then
  reply = sub(told, 18)
elseif have_low and (high < have_high or (high == have_high and low < have_low)) then
  reply = 'S'
elseif has_after == 1 and not (have_low and after_low == have_low and after_high == have_high) then
  reply = have_low and 'G' .. sub(told, 10, 17) or 'G\0\0\0\0\0\0\0\0'
end
if reply then
  if have_low then
    call('SETRANGE', KEYS[1], 1, pack('<I8', time))
    call('PEXPIRE', KEYS[1], a_minute)
  end
  note_time(0)
  return reply
end

-- A window's value is: NARROW or WIDE, a count for each of the sub-windows n - subs to n + 1, their sum, n, and the length of a
-- sub-window. What is charged to n and n + 1, and the sum, are next to each other, and while n stays what it is nothing else
-- is written, whatever the number of sub-windows. Counts have two bytes, or four once one of them has to: so the values of
-- most keys are half as long. Two windows of the same length of sub-window do not have the same size unless their counts are
-- as wide: a narrow one's is odd, and a wide one's is not.

-- The most that a narrow count is.
local NARROWEST = 2 ^ 16 - 1

-- The window that is at work. Of `value` the last two counts, and what follows them, are not looked at.
local now, subs, value, width, current, head, total, is_rewritten

local function count_at(place)
  return (unpack(width == 2 and '<H' or '<I', value, 2 + width * place))
end

-- Where among the counts that of a sub-window other than the last two is, nil if it is not in the window.
local function position(sub_window)
  local place = sub_window - now + subs
  if place >= 0 and place < subs then return place end
end

local function widen()
  local counts = { pack('<B', WIDE) }
  for place = 0, subs - 1 do counts[place + 2] = pack('<I', count_at(place)) end
  value, width, is_rewritten = table.concat(counts), 4, true
end

local function put_count(place, count)
  if count > NARROWEST and width == 2 then widen() end
  local at = 2 + width * place
  value, is_rewritten = sub(value, 1, at - 1) .. pack(width == 2 and '<H' or '<I', count) .. sub(value, at + width), true
end

-- Takes units off a sub-window, as many as it has, and returns how many those were. A full count is not lowered, since what
-- it stands for is not known.
local function take_off(from, units)
  local has, place
  if from == now + 1 then has = head
  elseif from == now then has = current
  else
    place = position(from)
    if not place then return 0 end
    has = count_at(place)
  end
  if units > has then units = has end
  if has < FULL and units > 0 then
    total = total - units
    if place then put_count(place, has - units)
    elseif from == now then current = has - units
    else head = has - units end
  end
  return units
end

-- Charges units to a sub-window, if that is in the window.
local function charge(to, units)
  local has, place
  if to == now + 1 then has = head
  elseif to == now then has = current
  else
    place = position(to)
    if not place then return end
    has = count_at(place)
  end
  if units > FULL - has then units = FULL - has end
  total = total + units
  if place then put_count(place, has + units)
  elseif to == now then current = has + units
  else head = has + units end
end

-- What is counted of a smooth window: of the oldest sub-window only the part that is still in it, rounded up.
local function smoothed(length)
  local oldest = count_at(0)
  local gone = min(max(time - now * length, 0), length)
  if oldest == 0 or gone == 0 then return total end
  local whole, part = share(length - gone, oldest, length)
  return total - oldest + whole + (part > 0 and 1 or 0)
end

-- Takes up the window that a value is, moved on to now, or a new one if it is none that goes on, and returns whether it is
-- new; nil if the value is none of this script's.
local function open_window(rule, found)
  subs, now, is_rewritten, value = rule.subs, rule.now, false, found
  -- An error is a table, and has no length.
  local layout = value and rule.layouts[#value]
  if layout then
    local last, length
    current, head, total, last, length = unpack(layout.all, value, layout.place)
    local steps = now - last
    if byte(value) == layout.form and length == rule.length and last % 1 == 0 and steps < subs + 2 then
      width = layout.width
      if steps > 0 then
        for place = 0, steps - 1 do total = total - count_at(place) end
        -- Those of the last two that stay are read where they were.
        value = sub(value, 1, 1) .. sub(value, 2 + width * steps, 1 + width * (subs + 2)) .. rep('\0', width * steps)
        current, head, is_rewritten = count_at(subs), count_at(subs + 1), true
      else
        -- If the time was lost, this is ahead of it: it stays where it is.
        now = last
      end
      return false
    end
  end
  if value and not form_of(value) then return nil end
  value, width, is_rewritten, current, head, total = rule.empty, 2, true, 0, 0, 0
  return true
end

-- The wait until no more than `most` units are counted, in sub-windows, the current one included, and by how much less than
-- to the end of the last of those it is.
local function wait(most, smooth)
  local later = total
  for place = 0, subs + 1 do
    local count
    if place < subs then count = count_at(place)
    elseif place == subs then count = current
    else count = head end
    later = later - count
    if later <= most then
      -- This is the one that has to go, or down to what may stay of it. It has more than that.
      return place + 1, smooth and share(most - later, smooth, count) or 0
    end
  end
  return 0, 0
end

-- The wait until nothing is counted, in sub-windows, the current one included.
local function wait_for_none()
  if head > 0 then return subs + 2 end
  if current > 0 then return subs + 1 end
  if total > 0 then
    for place = subs - 1, 0, -1 do
      if count_at(place) > 0 then return place + 1 end
    end
  end
  return 0
end

-- Carries a record out and returns the answer.
local function on_window(rule, key, found, kind, lease, all, spent, kept, need, want, charges)
  local is_new = open_window(rule, found)
  if is_new == nil then return UNKNOWN end
  local limit, smooth, granted, still_kept = rule.limit, rule.smooth, 0, kept
  if kind <= LAST_REPORT then
    local taken = take_off(lease, all)
    if taken < kept then still_kept = taken end
    if spent > 0 then charge(now, spent) end
    if still_kept > 0 then charge(now + 1, still_kept) end
    granted = grant(limit - (smooth and smoothed(smooth) or total), need, want)
    if granted > 0 then charge(now + 1, granted) end
  elseif kind == EXACTLY then
    if need <= limit - (smooth and smoothed(smooth) or total) then
      granted = need
      charge(now, granted)
    end
  elseif kind == REPAIR then
    -- What is beyond the head was charged by a clock that was ahead of this one. Only what is given can be taken off again:
    -- it was never in this window.
    local beyond = 0
    for _, change in ipairs(charges) do
      local to, units = change[1], change[2]
      if to > now + 1 then beyond = max(beyond + units, 0)
      elseif units > 0 then charge(to, units)
      else take_off(to, -units) end
    end
    charge(now + 1, beyond)
  end

  local room = limit - (smooth and smoothed(smooth) or total)
  -- What was granted is not needed any more.
  local missing = granted > 0 and 1 or need > 1 and need or 1
  local retry, less, reset = 0, 0, head > 0 and subs + 2 or wait_for_none()
  if missing > room and missing <= limit then retry, less = wait(limit - missing, smooth) end
  if room < 0 then room = 0 end
  local late = now - rule.now
  if late > 0 then
    if retry > 0 then retry = min(retry + late, 65535) end
    if reset > 0 then reset = min(reset + late, 65535) end
  end

  if kind ~= STATUS then
    if width == 2 and max(current, head) > NARROWEST then widen() end
    local layout = width == 2 and rule.narrow or rule.wide
    local ending = pack(layout.last, current, head, total)
    if is_rewritten then
      value = sub(value, 1, 1 + width * subs) .. ending .. pack('<dd', now, rule.length)
      call('SET', key, value, 'PX', rule.lasts)
    else
      call('SETRANGE', key, layout.offset, ending)
    end
  end

  local flags, more = is_new and CREATED or 0, ''
  if retry > 0 or head == 0 or late > 0 then flags, more = flags + WAITS, pack('<HH', retry, reset) end
  if still_kept < kept then flags, more = flags + KEPT, more .. pack('<I', still_kept) end
  if less > 0 then flags, more = flags + LESS, more .. pack('<I6', less) end
  return pack('<BII', flags, granted, room) .. more
end

-- A bucket's value is: BUCKET, burst, units, period, what it lacks in whole units and in parts of a unit, of which there are
-- as many as the period has microseconds, and when it lacked that. So what comes back in a microsecond is a whole number of
-- parts, and nothing is lost to rounding.

local longest = 0

local function on_bucket(rule, key, value, kind, lease, returned, overdraft, _, need, want, charges)
  local form = value and form_of(value)
  if form == nil then return UNKNOWN end
  local burst, units, period = rule.limit, rule.units, rule.length
  local whole, part, at, flags = 0, 0, time, CREATED
  if form == BUCKET then
    local old_burst, old_units, old_period, old_whole, old_part, old_at = unpack('<I4I4I6I7I6I7', value, 2)
    local elapsed = max(time - old_at, 0)
    local turns = floor(elapsed / old_period)
    local back, rest = share(elapsed - turns * old_period, old_units, old_period)
    back = back + turns * old_units
    local is_full = back > old_whole or (back == old_whole and rest >= old_part)
    if not (is_full and back >= old_burst) then
      flags, at = 0, max(old_at, time)
      if not is_full then
        whole, part = old_whole - back, old_part - rest
        if part < 0 then whole, part = whole - 1, part + old_period end
      end
      if period ~= old_period then
        -- It lacks at least as much afterwards.
        local over
        part, over = share(part, period, old_period)
        if over > 0 then part = part + 1 end
        if part == period then whole, part = whole + 1, 0 end
      end
    end
  end

  local function put_back(many)
    if many > whole then whole, part = 0, 0 else whole = whole - many end
  end

  local function take(many)
    whole = min(whole + many, DRY)
  end

  local function room()
    return max(burst - whole - (part > 0 and 1 or 0), 0)
  end

  local granted = 0
  if kind <= LAST_REPORT then
    -- What is left of a lease that is over was made up for long ago.
    if floor(at / rule.life) <= lease then put_back(returned) end
    take(overdraft)
    granted = grant(room(), need, want)
  elseif kind == EXACTLY then
    if need <= room() then granted = need end
  elseif kind == REPAIR then
    local sum = 0
    for _, change in ipairs(charges) do sum = sum + change[2] end
    if sum > 0 then take(sum) else put_back(-sum) end
  end
  take(granted)

  if kind ~= STATUS then
    local lasts = millis(max(whole + 1, burst) * period / units + behind)
    longest = max(longest, lasts)
    value = pack('<I1I4I4I6I7I6I7', BUCKET, burst, units, period, whole, part, at)
    call('SET', key, value, 'PX', format('%.0f', lasts))
  end

  if whole > FULL then return pack('<I1I4I7I6', flags + MUCH, granted, whole, part) end
  return pack('<I1I4I4I6', flags, granted, whole, part)
end

local function on_nonsense()
  return UNKNOWN
end

-- How the windows of a rule are laid out, by the size of their values, and by the width of their counts.
local function layouts_of(subs)
  local narrow = { form = NARROW, width = 2, most = NARROWEST, all = '<HHIdd', last = '<HHI' }
  -- A count that is FULL is left to `take_off` and `charge`.
  local wide = { form = WIDE, width = 4, most = FULL - 1, all = '<III7dd', last = '<III7' }
  for _, layout in ipairs({ narrow, wide }) do
    local before = 1 + layout.width * subs
    layout.place, layout.offset = before + 1, format('%.0f', before)
  end
  return narrow, wide, { [25 + 2 * subs] = narrow, [32 + 4 * subs] = wide }
end

local rules = {}
for i = 1, count do
  local form, limit, other, length, life
  form, limit, other, length, life, at = unpack('<I1I4I4I6I6', batch, at)
  local rule = { limit = limit, length = length, carry_out = on_nonsense }
  if form == 1 or form == 2 then
    local lasts = millis((other + 3) * length + behind)
    rule.carry_out, rule.smooth, rule.subs = on_window, form == 2 and length, other
    rule.now = floor(time / length)
    rule.narrow, rule.wide, rule.layouts = layouts_of(other)
    rule.empty = pack('<B', NARROW) .. rep('\0', 2 * other)
    rule.lasts = format('%.0f', lasts)
    longest = max(longest, lasts)
  elseif form == 3 then
    rule.carry_out, rule.units, rule.life = on_bucket, other, life
  end
  rules[i] = rule
end

-- To read many at once costs half as much as one by one.
local keys, records = KEYS, #KEYS - 3
local found = {}
for first = 1, records, READ_AT_ONCE do
  local last = min(first + READ_AT_ONCE - 1, records)
  local values = call('MGET', spread(keys, first + 3, last + 3))
  if first == 1 then found = values
  else
    for place, value in ipairs(values) do found[first + place - 1] = value end
  end
end

local function at_length(rule, record, is_again, kind, lease, all, spent, kept, need, want, charges)
  local key, value = keys[record + 3], found[record]
  -- Where there is no string there may be something else; or the record before has written it.
  if not value or is_again then value = try('GET', key) end
  return rule.carry_out(rule, key, value, kind, lease, all, spent, kept, need, want, charges)
end

local NONE = {}
local answers, done = {}, 0
while done < records do
  local kind, which, many
  kind, which, many, at = unpack('<BHH', batch, at)
  local rule, is_again = rules[which], kind >= SAME_KEY
  kind = kind % SAME_KEY
  if kind <= LAST_REPORT then
    local lease, layout, all_of, last_of, place, offset, most
    lease, at = unpack('<I7', batch, at)
    -- Nearly all records are reports about a lease that is charged to this sub-window or the next one, and still is, and
    -- about a window that is there, has moved on to now and has room left. They are carried out here, as `on_window` does
    -- it, for a third of what that costs. All others go to `on_window`, before anything is written.
    local now, length, limit, numbers, size = rule.now, rule.length, rule.limit, REPORTS[kind], REPORT_SIZES[kind]
    local is_ahead = lease ~= now
    local is_usual = rule.layouts and not rule.smooth and not is_again and (not is_ahead or lease == now + 1)
    local layouts = is_usual and rule.layouts or NONE
    for record = done + 1, done + many do
      local all, spent, kept, need, want = unpack(numbers, batch, at)
      at = at + size
      local value, answer = found[record], nil
      local its = value and layouts[#value]
      if its then
        if its ~= layout then
          layout, all_of, last_of, place, offset, most = its, its.all, its.last, its.place, its.offset, its.most
        end
        local current, head, total, last, its_length = unpack(all_of, value, place)
        if last == now and its_length == length then
          local has, taken = is_ahead and head or current, all
          if taken > has then taken = has end
          total = total - taken + kept + spent
          local room = limit - total
          if has <= most and kept <= taken and need <= room then
            local granted = want
            if want + want > room or need > want then granted = grant(room, need, want) end
            if is_ahead then head = head - taken else current = current - taken end
            current, head = current + spent, head + kept + granted
            if room > granted and 0 < head and head <= most and current <= most then
              call('SETRANGE', keys[record + 3], offset, pack(last_of, current, head, total + granted))
              answer = pack('<BII', 0, granted, room - granted)
            end
          end
        end
      end
      answers[record] = answer or at_length(rule, record, is_again, kind, lease, all, spent, kept, need, want)
    end
  else
    for record = done + 1, done + many do
      local need, charges = 0, nil
      if kind == EXACTLY then
        need, at = unpack('<I', batch, at)
      elseif kind == REPAIR then
        local changes
        changes, at = unpack('<I', batch, at)
        charges = {}
        for change = 1, changes do
          local to, gives, units
          to, gives, units, at = unpack('<I7BI6', batch, at)
          charges[change] = { to, gives == 1 and units or -units }
        end
      end
      answers[record] = at_length(rule, record, is_again, kind, 0, 0, 0, 0, need, 0, charges)
    end
  end
  done = done + many
end

call('ZREMRANGEBYSCORE', KEYS[3], '-inf', format('%.0f', time - LATELY))
reply = 'D' .. pack('<I8I4', time, call('ZCARD', KEYS[3])) .. table.concat(answers)
call('SET', KEYS[1], pack('<I1I8I4I4', TOLD, time, low, high) .. reply, 'PX', a_minute)
note_time(longest)
return reply
