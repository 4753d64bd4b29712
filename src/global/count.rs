//! What an authority counts of one key, and what it does about a record.

use super::authority::{Answer, Body, Report, Rule};
use super::bucket::Bucket;
use super::window::Window;

/// What is counted of one key, and how.
#[derive(Clone, Debug)]
pub(super) enum Count {
    Window { window: Window, limit: u32, smooth: bool },
    Bucket(Bucket),
}

impl Count {
    /// Nothing yet. `None` if the rule makes no sense: no sub-windows, or nothing that ever comes back, which would have to be
    /// remembered for good.
    pub(super) fn new(rule: &Rule, time: u64) -> Option<Self> {
        match *rule {
            Rule::Window { limit, sub, subs, smooth } => {
                Window::new(sub, subs, time).map(|window| Self::Window { window, limit, smooth })
            }
            Rule::Bucket { burst, units, period, life } => {
                let has_sense = units > 0 && period > 0 && life > 0;
                has_sense.then(|| Self::Bucket(Bucket::new(burst, units, period, life, time)))
            }
        }
    }

    /// Whether this is a count that `rule` can go on with at `time`.
    pub(super) fn goes_on(&self, rule: &Rule, time: u64) -> bool {
        let has_the_form = match (self, *rule) {
            (Self::Window { window, .. }, Rule::Window { sub, subs, .. }) => window.has(sub, subs),
            (Self::Bucket(_), Rule::Bucket { units, period, life, .. }) => units > 0 && period > 0 && life > 0,
            _ => false,
        };
        has_the_form && !self.is_gone(time)
    }

    /// Counts by `rule` from now on, with which it can go on.
    pub(super) fn adopt(&mut self, rule: &Rule) {
        match (self, *rule) {
            (Self::Window { limit, smooth, .. }, Rule::Window { limit: new_limit, smooth: new_smooth, .. }) => {
                (*limit, *smooth) = (new_limit, new_smooth);
            }
            (Self::Bucket(bucket), Rule::Bucket { burst, units, period, life }) => {
                bucket.adopt(burst, units, period, life)
            }
            _ => {}
        }
    }

    /// Whether nothing that may ever have been charged is counted at `time`.
    pub(super) fn is_gone(&self, time: u64) -> bool {
        match self {
            Self::Window { window, .. } => window.is_gone(time),
            Self::Bucket(bucket) => bucket.is_gone(time),
        }
    }

    /// Moves on to `time`: all below is about that.
    pub(super) fn advance(&mut self, time: u64) {
        match self {
            Self::Window { window, .. } => window.advance(time),
            Self::Bucket(bucket) => bucket.advance(time),
        }
    }

    pub(super) fn carry_out(&mut self, body: &Body, time: u64) -> Answer {
        let mut answer = Answer::default();
        let mut needed = 0;
        match body {
            Body::Report(report) => {
                needed = report.need;
                answer.kept = self.settle(report);
                answer.granted = grant(self.room(time), report.need, report.want);
                self.lend(answer.granted);
            }
            Body::Exact { cost } => {
                needed = *cost;
                if *cost <= self.room(time) {
                    answer.granted = *cost;
                    self.spend(*cost);
                }
            }
            Body::Status => {}
            Body::Repair(charges) => self.repair(charges),
        }
        // What was granted is not needed any more.
        let missing = if answer.granted > 0 { 1 } else { needed.max(1) };
        answer.room = self.room(time);
        answer.retry_after = self.retry_after(missing, time);
        answer.reset_after = self.reset_after(time);
        answer
    }

    /// Carries out what a report says of the past, and returns how much of what was kept goes on.
    fn settle(&mut self, report: &Report) -> u32 {
        let &Report { lease, used, kept, returned, overdraft, .. } = report;
        match self {
            Self::Window { window, .. } => {
                let all = u64::from(used) + u64::from(kept) + u64::from(returned);
                let taken = window.take_off(lease, all);
                window.charge(window.current(), u64::from(used) + u64::from(overdraft));
                let kept = kept.min(taken.try_into().unwrap_or(u32::MAX));
                window.charge(window.head(), u64::from(kept));
                kept
            }
            Self::Bucket(bucket) => {
                bucket.take_back(lease, returned.into());
                bucket.take(overdraft.into());
                kept
            }
        }
    }

    /// Charges what is yet to be spent.
    fn lend(&mut self, units: u32) {
        match self {
            Self::Window { window, .. } => window.charge(window.head(), units.into()),
            Self::Bucket(bucket) => bucket.take(units.into()),
        }
    }

    /// Charges what is spent now.
    fn spend(&mut self, units: u32) {
        match self {
            Self::Window { window, .. } => window.charge(window.current(), units.into()),
            Self::Bucket(bucket) => bucket.take(units.into()),
        }
    }

    fn repair(&mut self, charges: &[(u64, i64)]) {
        match self {
            Self::Window { window, .. } => {
                // Charged by a clock that was ahead of this one. Only what is given can be taken off again: it was never
                // in this window.
                let mut beyond = 0_u64;
                for &(sub_window, units) in charges {
                    let many = units.unsigned_abs();
                    match (sub_window > window.head(), units > 0) {
                        (true, true) => beyond = beyond.saturating_add(many),
                        (true, false) => beyond = beyond.saturating_sub(many),
                        (false, true) => window.charge(sub_window, many),
                        (false, false) => _ = window.take_off(sub_window, many),
                    }
                }
                window.charge(window.head(), beyond);
            }
            Self::Bucket(bucket) => {
                let sum = charges.iter().fold(0_i128, |sum, (_, units)| sum.saturating_add(i128::from(*units)));
                let many = sum.unsigned_abs().try_into().unwrap_or(u64::MAX);
                if sum > 0 { bucket.take(many) } else { bucket.put_back(many) }
            }
        }
    }

    pub(super) fn counted(&self, time: u64) -> u64 {
        match self {
            Self::Window { window, smooth, .. } => window.counted(time, *smooth),
            Self::Bucket(bucket) => bucket.counted(),
        }
    }

    const fn limit(&self) -> u32 {
        match self {
            Self::Window { limit, .. } => *limit,
            Self::Bucket(bucket) => bucket.burst(),
        }
    }

    fn room(&self, time: u64) -> u32 {
        self.limit().saturating_sub(self.counted(time).try_into().unwrap_or(u32::MAX))
    }

    /// The wait until there is room for `units`, which are at least 1.
    fn retry_after(&self, units: u32, time: u64) -> u64 {
        let Some(most) = self.limit().checked_sub(units) else { return u64::MAX };
        match self {
            Self::Window { window, smooth, .. } => window.wait(most.into(), time, *smooth),
            Self::Bucket(bucket) => bucket.wait(most.into()),
        }
    }

    fn reset_after(&self, time: u64) -> u64 {
        match self {
            Self::Window { window, .. } => window.wait_for_none(time),
            Self::Bucket(bucket) => bucket.wait(0),
        }
    }
}

/// Half the room at most, that there be something for the others; but what is of no use is not granted.
fn grant(room: u32, need: u32, want: u32) -> u32 {
    if need > room { 0 } else { want.min(room.div_ceil(2)).max(need) }
}
