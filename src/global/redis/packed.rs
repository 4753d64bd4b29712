//! Batches and replies as `window.lua` takes and gives them: numbers in little-endian order, one after the other.
//!
//! | of a batch | bytes |
//! |---|---|
//! | node, number | 8, 8 |
//! | whether `after` matters, and what it is | 1, 8 |
//! | how many rules there are | 2 |
//! | each rule: 1 a window, 2 a smooth one, 3 a bucket, 0 none that can be counted by | 1 |
//! | its limit or burst; sub-windows or units; sub-window or period; life of a bucket's leases | 4, 4, 6, 6 |
//! | each run of records of a kind: 1 to 3 reports, 4 exact costs, 5 statuses, 6 repairs; and 128 if there are some before about the same keys | 1 |
//! | which rule, from 1; how many records | 2, 2 |
//! | of a run of reports: the lease | 7 |
//! | each report: five numbers, of 2, 3 or 5 bytes each, as they fit | 10, 15 or 25 |
//! | each exact cost | 4 |
//! | each repair: how many charges, and of each the sub-window, whether it is added, and units | 4, 14 each |
//!
//! The five numbers of a report are what leaves the lease, what is spent, kept, needed and wanted.
//!
//! What can be worked out from what the node knows is not sent: a window's waits are said as numbers of sub-windows, and a
//! bucket says what it lacks and nothing else.

use std::collections::HashSet;

use crate::global::{Answer, Batch, Body, Record, Reply, Report, Rule};

/// The longest sub-window, period or life that the script can count in, in microseconds: 203 days.
const LONGEST: u64 = 1 << 44;

/// The most sub-windows that the script can count.
const MOST_SUBS: u16 = 65_000;

/// The most units of a charge that is told again. No sub-window holds so many.
const MOST_UNITS: u64 = (1 << 48) - 1;

/// A sub-window that has a higher number is told by this one. It is in no window either.
const NO_SUB_WINDOW: u64 = (1 << 56) - 1;

/// Added to what a record is if one before it is about the same key.
const SAME_KEY: u8 = 128;

/// The bits of an answer, as in the script.
const CREATED: u8 = 1;
const FAILED: u8 = 2;
const KEPT: u8 = 4;
const LESS: u8 = 8;
const MUCH: u8 = 16;
const WAITS: u8 = 32;

/// A batch, ready to be sent.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "internal; what runs the script takes it apart")]
pub struct Packed {
    /// All share a slot.
    pub keys: Vec<Vec<u8>>,
    /// The one argument.
    pub argument: Vec<u8>,
}

/// Kind, rule and lease: what all records of a run have in common.
type Start = (u8, u16, Option<u64>);

impl Packed {
    /// A batch whose keys begin with `start`, which has a tag. `None` if it has more rules than can be numbered.
    pub fn new(batch: &Batch, start: &str) -> Option<Self> {
        let key = |rest: &[u8]| [start.as_bytes(), rest].concat();
        let mut keys = Vec::with_capacity(batch.records.len() + 3);
        keys.push(key(format!("d:{:016x}:{}", batch.node, batch.shard).as_bytes()));
        keys.push(key(b"t"));
        keys.push(key(b"n"));

        let mut rules: Vec<Rule> = Vec::new();
        let mut records = Vec::new();
        // What all records of the run at work have in common, how many it has, and where that is said.
        let mut run: Option<(Start, u16, usize)> = None;
        let mut names = HashSet::with_capacity(batch.records.len());
        for record in &batch.records {
            keys.push(key(&name(record.name.0)));
            let known = rules.iter().position(|rule| *rule == record.rule);
            let place = known.unwrap_or(rules.len());
            if known.is_none() {
                rules.push(record.rule);
            }
            let again = if names.insert(record.name) { 0 } else { SAME_KEY };
            let (kind, lease) = kind(record);
            let start = (kind | again, u16::try_from(place + 1).ok()?, lease);
            match &mut run {
                Some((of, count, at)) if *of == start && *count < u16::MAX => {
                    *count += 1;
                    records[*at..*at + 2].copy_from_slice(&count.to_le_bytes());
                }
                _ => {
                    records.push(start.0);
                    records.extend(start.1.to_le_bytes());
                    run = Some((start, 1, records.len()));
                    records.extend(1_u16.to_le_bytes());
                    if let Some(lease) = lease {
                        write(&mut records, lease, 7);
                    }
                }
            }
            write_record(&mut records, record);
        }

        let mut argument = Vec::with_capacity(27 + 21 * rules.len() + records.len());
        argument.extend(batch.node.to_le_bytes());
        argument.extend(batch.number.to_le_bytes());
        argument.push(batch.after.is_some().into());
        argument.extend(batch.after.unwrap_or(0).to_le_bytes());
        argument.extend(u16::try_from(rules.len()).ok()?.to_le_bytes());
        for rule in &rules {
            write_rule(&mut argument, rule);
        }
        argument.append(&mut records);
        Some(Self { keys, argument })
    }
}

/// 22 letters and digits, `-` and `_`: of those, six bits each.
fn name(name: u128) -> [u8; 22] {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    std::array::from_fn(|place| LETTERS[(name >> (6 * place)) as usize & 63])
}

fn write_rule(to: &mut Vec<u8>, rule: &Rule) {
    let (form, limit, other, length, life) = match *rule {
        Rule::Window { limit, sub, subs, smooth }
            if (1..=LONGEST).contains(&sub) && (1..=MOST_SUBS).contains(&subs) =>
        {
            (1 + u8::from(smooth), limit, u32::from(subs), sub, 0)
        }
        Rule::Bucket { burst, units, period, life }
            if units > 0 && (1..=LONGEST).contains(&period) && (1..=LONGEST).contains(&life) =>
        {
            (3, burst, units, period, life)
        }
        _ => (0, 0, 0, 0, 0),
    };
    to.push(form);
    to.extend(limit.to_le_bytes());
    to.extend(other.to_le_bytes());
    write(to, length, 6);
    write(to, life, 6);
}

/// What leaves the lease, what is spent, kept, needed and wanted.
fn numbers(rule: &Rule, report: &Report) -> [u64; 5] {
    let &Report { used, kept, returned, overdraft, need, want, .. } = report;
    let [used, kept, returned, overdraft] = [used, kept, returned, overdraft].map(u64::from);
    match rule {
        Rule::Window { .. } => [used + kept + returned, used + overdraft, kept, need.into(), want.into()],
        // What is used or kept of a lease was charged when it was given.
        Rule::Bucket { .. } => [returned, overdraft, 0, need.into(), want.into()],
    }
}

/// How many bytes each of a report's numbers takes.
fn width(numbers: [u64; 5]) -> usize {
    match numbers.into_iter().max().unwrap_or(0) {
        0..0x1_0000 => 2,
        0x1_0000..0x100_0000 => 3,
        0x100_0000.. => 5,
    }
}

/// What a record is, and the lease that it is about if it is a report.
fn kind(record: &Record) -> (u8, Option<u64>) {
    match &record.body {
        Body::Report(report) => {
            let kind = match width(numbers(&record.rule, report)) {
                2 => 1,
                3 => 2,
                _ => 3,
            };
            (kind, Some(report.lease.min(NO_SUB_WINDOW)))
        }
        Body::Exact { .. } => (4, None),
        Body::Status => (5, None),
        Body::Repair(_) => (6, None),
    }
}

fn write_record(to: &mut Vec<u8>, record: &Record) {
    match &record.body {
        Body::Report(report) => {
            let numbers = numbers(&record.rule, report);
            for number in numbers {
                write(to, number, width(numbers));
            }
        }
        Body::Exact { cost } => to.extend(cost.to_le_bytes()),
        Body::Status => {}
        Body::Repair(charges) => {
            write(to, charges.len() as u64, 4);
            for &(sub_window, units) in charges {
                write(to, sub_window.min(NO_SUB_WINDOW), 7);
                to.push((units > 0).into());
                write(to, units.unsigned_abs().min(MOST_UNITS), 6);
            }
        }
    }
}

/// The lowest `bytes` bytes of a number.
fn write(to: &mut Vec<u8>, number: u64, bytes: usize) {
    to.extend(&number.to_le_bytes()[..bytes]);
}

/// The reply to `batch`. `None` if these bytes are none.
///
/// Answers that do not fit are those to another batch under the same number: for this one it is [`Reply::Stale`].
pub fn unpack(reply: &[u8], batch: &Batch) -> Option<Reply> {
    let mut rest = Bytes(reply);
    match rest.number(1)? as u8 {
        b'D' => {
            let (time, nodes) = (rest.number(8)?, rest.number(4)? as u32);
            let answers = batch.records.iter().map(|record| answer(&mut rest, &record.rule, &record.body, time));
            let answers = answers.collect::<Option<_>>().filter(|_| rest.0.is_empty());
            Some(answers.map_or(Reply::Stale, |answers| Reply::Done { time, nodes, answers }))
        }
        b'G' => rest.number(8).map(|have| Reply::Gap { have }),
        b'S' => Some(Reply::Stale),
        _ => None,
    }
}

/// What is left to be read.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    /// The next number, of up to 8 bytes.
    fn number(&mut self, bytes: usize) -> Option<u64> {
        let (first, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(first.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

fn answer(from: &mut Bytes<'_>, rule: &Rule, body: &Body, time: u64) -> Option<Answer> {
    let flags = from.number(1)? as u8;
    if flags & FAILED != 0 {
        return Some(Answer { failed: true, ..Answer::default() });
    }
    let granted = from.number(4)? as u32;
    let (kept, needed) = match body {
        Body::Report(report) => (report.kept, report.need),
        Body::Exact { cost } => (0, *cost),
        _ => (0, 0),
    };
    // What was granted is not needed any more.
    let missing = if granted > 0 { 1 } else { needed.max(1) };
    let most = rule.limit().checked_sub(missing);
    let answer = Answer { kept, granted, created: flags & CREATED != 0, ..Answer::default() };
    match *rule {
        Rule::Window { sub, subs, .. } => {
            let room = from.number(4)? as u32;
            // If nothing is said, there is something in the newest sub-window, and room for one more.
            let (retry, reset) =
                if flags & WAITS != 0 { (from.number(2)?, from.number(2)?) } else { (0, u64::from(subs) + 2) };
            let kept = if flags & KEPT != 0 { from.number(4)? as u32 } else { kept };
            let less = if flags & LESS != 0 { from.number(6)? } else { 0 };
            let now = rule.sub_at(time);
            // To the end of so many sub-windows, the current one included.
            let wait = |subs: u64, less: u64| match subs {
                0 => 0,
                _ => now.saturating_add(subs).saturating_mul(sub).saturating_sub(less).saturating_sub(time),
            };
            let retry_after = if most.is_some() { wait(retry, less) } else { u64::MAX };
            Some(Answer { kept, room, retry_after, reset_after: wait(reset, 0), ..answer })
        }
        Rule::Bucket { burst, units, period, .. } => {
            let whole = from.number(if flags & MUCH != 0 { 7 } else { 4 })?;
            let part = from.number(6)?;
            let lacks = whole.saturating_add(u64::from(part > 0));
            let room = burst.saturating_sub(lacks.try_into().unwrap_or(u32::MAX));
            let debt = u128::from(whole) * u128::from(period) + u128::from(part);
            let wait = |most: u32| {
                let excess = debt.saturating_sub(u128::from(most) * u128::from(period));
                excess.div_ceil(u128::from(units).max(1)).try_into().unwrap_or(u64::MAX)
            };
            Some(Answer { room, retry_after: most.map_or(u64::MAX, wait), reset_after: wait(0), ..answer })
        }
    }
}
