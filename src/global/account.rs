//! What the background thread knows of one ledger.

use std::sync::Arc;

use super::authority::Rule;
use super::ledger::Ledger;
use super::protocol::MICRO;
use super::stats::Counts;

/// How many parts of a window a node tells apart in its own use.
const PARTS: usize = 8;

/// One ledger with something going on.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) ledger: Arc<Ledger>,
    pub(super) shard: u16,
    /// Units that are in the balance, as far as is known: what is missing of them has been used.
    pub(super) put: u32,
    /// The sub-window that they are charged to.
    pub(super) lease: u64,
    /// When they can't be spent any more.
    pub(super) deadline: u64,
    /// Before this they are not given back for want of use: a request is expected to come again for them.
    pub(super) hold_until: u64,
    /// Units of the lease that were used, or given up, and not reported.
    pub(super) used: u32,
    pub(super) returned: u32,
    /// The lease that the first of these were of.
    pub(super) returned_of: u64,
    /// Units that were admitted on this node's own authority and not reported.
    pub(super) away_used: u32,
    /// Whether the balance was given by this node itself.
    pub(super) away: bool,
    /// Overdraft that was in the word when it was looked at last.
    pub(super) overdraft: u32,
    /// The most that was refused for want of a lease.
    pub(super) need: u32,
    /// Units that were asked for since demand was measured last.
    pub(super) attempts: u32,
    pub(super) measured_at: u64,
    /// Units a tick.
    pub(super) demand: f64,
    pub(super) used_at: u64,
    /// When anything was asked for last, whether it was admitted or not.
    pub(super) active_at: u64,
    /// What the authority had left.
    pub(super) room: u32,
    /// When that was, 0 for never.
    pub(super) heard_at: u64,
    /// Before this the window is full.
    pub(super) denied_until: u64,
    /// When what was used is to be reported, so that it is charged to the sub-window in which it was used.
    pub(super) date_at: u64,
    pub(super) granted_at: u64,
    pub(super) wanted: u32,
    /// In the shard's list.
    pub(super) is_queued: bool,
    /// In the shard's batch under way.
    pub(super) is_sent: bool,
    /// Somebody waits for news of it.
    pub(super) is_watched: bool,
    /// The authority can't make sense of what it has.
    pub(super) is_broken: bool,
    /// When to ask again, if so.
    pub(super) retry_at: u64,
    /// When to look at it again, 0 for not at all: the next time, and the time that it may be forgotten. Each is in the heap
    /// of timers once.
    pub(super) timer: u64,
    pub(super) far_timer: u64,
    pub(super) own: OwnUse,
}

impl Account {
    pub(super) fn new(ledger: Arc<Ledger>, shard: u16, now: u64) -> Self {
        let room = ledger.quota().limit();
        Self {
            ledger,
            shard,
            put: 0,
            lease: 0,
            deadline: 0,
            hold_until: 0,
            used: 0,
            returned: 0,
            returned_of: 0,
            away_used: 0,
            away: false,
            overdraft: 0,
            need: 0,
            attempts: 0,
            measured_at: now,
            demand: 0.0,
            used_at: now,
            active_at: now,
            room,
            heard_at: 0,
            denied_until: 0,
            date_at: 0,
            granted_at: 0,
            wanted: 0,
            is_queued: false,
            is_sent: false,
            is_watched: false,
            is_broken: false,
            retry_at: 0,
            timer: 0,
            far_timer: 0,
            own: OwnUse::default(),
        }
    }

    /// Notes what was used of the balance since it was looked at last, `left` being what is there now: more than there was
    /// if something was given back that was used, and is not reported yet.
    pub(super) fn settle(&mut self, left: u32, now: u64, window: u64, counts: &mut Counts) {
        let (account, count) = match self.away {
            true => (&mut self.away_used, &mut counts.admitted_away),
            false => (&mut self.used, &mut counts.leased),
        };
        if left >= self.put {
            let units = left - self.put;
            *account = account.saturating_sub(units);
            *count = count.saturating_sub(units.into());
        } else {
            let units = self.put - left;
            *account = account.saturating_add(units);
            *count += u64::from(units);
            self.note_admitted(units, now, window);
        }
    }

    /// Notes that `units` have been admitted, whatever they were taken from.
    pub(super) fn note_admitted(&mut self, units: u32, now: u64, window: u64) {
        self.note_attempts(units, now);
        self.used_at = now;
        self.own.add(units, now, window);
    }

    /// Notes that `units` have been asked for.
    pub(super) fn note_attempts(&mut self, units: u32, now: u64) {
        if units > 0 {
            self.attempts = self.attempts.saturating_add(units);
            self.active_at = now;
        }
    }

    /// Notes that `units` were refused while the window was full. Nobody told of them, so they can be old.
    pub(super) fn note_refused(&mut self, units: u32, now: u64, interval: u64) {
        if now < self.denied_until + 2 * interval {
            self.note_attempts(units, now);
        }
    }

    /// From when on what is unspent is of more use to others, if nobody asks for anything: after two intervals, or five times
    /// as long as the next request was to be expected in.
    pub(super) fn idle_from(&self, interval: u64) -> u64 {
        let patience = (5.0 / self.demand).min(u64::MAX as f64 / 4.0) as u64;
        (self.active_at + patience.max(2 * interval)).max(self.hold_until)
    }

    /// Notes that `units` taken out of the balance are not used.
    pub(super) fn note_withdrawn(&mut self, units: u32) {
        if !self.away && units > 0 {
            if self.returned == 0 {
                self.returned_of = self.lease;
            }
            self.returned = self.returned.saturating_add(units);
        }
    }

    /// Brings the estimate of what is asked for up to date. Over less than half an `interval` it would be mere noise.
    pub(super) fn measure(&mut self, now: u64, interval: u64) {
        let passed = now.saturating_sub(self.measured_at);
        if passed < interval / 2 {
            return;
        }
        let passed = passed as f64;
        let weight = 1.0 - (-passed / (3.0 * interval as f64)).exp();
        self.demand += weight * (f64::from(self.attempts) / passed - self.demand);
        (self.attempts, self.measured_at) = (0, now);
    }

    /// Units that are asked for in `ticks`.
    pub(super) fn demand_in(&self, ticks: u64) -> u32 {
        // A cast of a float saturates.
        (self.demand * ticks as f64).ceil() as u32
    }

    /// The lease that suits the demand: long while there is room and short near the limit, and none where less than a
    /// unit is asked for in that time.
    pub(super) fn target(&self, interval: u64, longest: u64) -> u32 {
        let limit = u64::from(self.ledger.quota().limit());
        let room = u64::from(self.room);
        let horizon = if room * 2 > limit {
            longest.max(interval * 3 / 2)
        } else if room * 5 > limit {
            interval * 3
        } else {
            interval * 3 / 2
        };
        if self.demand * (horizon as f64) < 1.0 { 0 } else { self.demand_in(horizon) }
    }

    /// Notes when the authority's sub-window ends: what was used is told a little before, `early`. A bucket does not mind
    /// when it is told.
    pub(super) fn date_by(&mut self, sub_ends: u64, early: u64) {
        self.date_at = match self.ledger.quota().rule() {
            Rule::Window { .. } => sub_ends.saturating_sub(early),
            Rule::Bucket { .. } => u64::MAX,
        };
    }

    /// Where nothing was used, the end of the next sub-window is what counts.
    pub(super) fn skip_dates(&mut self, now: u64) {
        if let Rule::Window { sub, .. } = self.ledger.quota().rule()
            && self.used == 0
            && now >= self.date_at
        {
            let sub = sub * MICRO;
            self.date_at += ((now - self.date_at) / sub + 1) * sub;
        }
    }

    /// Whether there is anything to tell the authority.
    pub(super) const fn has_news(&self) -> bool {
        self.used > 0 || self.returned > 0 || self.away_used > 0 || self.overdraft > 0
    }
}

/// What a node has itself admitted of a key in the last window, no less.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct OwnUse {
    parts: [u32; PARTS + 1],
    /// Which part was the last to be added to.
    last: u64,
}

impl OwnUse {
    fn slide(&mut self, now: u64, window: u64) {
        let part = now / (window / PARTS as u64).max(1);
        // A clock that goes back adds to the last part.
        let gone = part.saturating_sub(self.last).min(self.parts.len() as u64);
        for step in 1..=gone {
            self.parts[((self.last + step) % self.parts.len() as u64) as usize] = 0;
        }
        // More than all of them: which one is the last does not matter to those that are 0.
        self.last = self.last.max(part);
    }

    fn add(&mut self, units: u32, now: u64, window: u64) {
        self.slide(now, window);
        let part = &mut self.parts[(self.last % (PARTS as u64 + 1)) as usize];
        *part = part.saturating_add(units);
    }

    /// Units that were admitted in the last `window` ticks, and up to an eighth more of it.
    pub(super) fn sum(&mut self, now: u64, window: u64) -> u32 {
        self.slide(now, window);
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
    }
}
