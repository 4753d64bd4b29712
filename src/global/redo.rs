//! What an authority was told lately, so that it can be told again if it has lost that.

use std::collections::{BTreeMap, VecDeque};

use super::authority::{Answer, Body, Record, Rule, WireName};
use super::protocol::MICRO;

/// The most that is kept of one shard: with 16 shards 4 MiB.
const MAX_EFFECTS: usize = 4_096;

/// What one record did to one key.
#[derive(Clone, Copy, Debug)]
struct Effect {
    number: u64,
    name: WireName,
    rule: Rule,
    /// Units by sub-window.
    charges: [(u64, i64); 3],
}

/// The effects of the batches of one shard, oldest first.
#[derive(Default, Debug)]
pub(super) struct Log {
    effects: VecDeque<(u64, Effect)>,
    /// The number of the last batch of which something is not in here any more.
    forgotten: u64,
}

/// What is to be told again.
pub(super) struct Repairs {
    pub(super) records: Vec<Record>,
    /// How many batches that makes good, and how many were too old for that, in full or in part.
    pub(super) repaired: u64,
    pub(super) lost: u64,
}

impl Log {
    /// Notes what `record` of the batch `number` did, as `answer` says that it was done at `time`.
    pub(super) fn push(&mut self, number: u64, now: u64, record: &Record, answer: &Answer, time: u64) {
        if answer.failed {
            return;
        }
        let rule = record.rule;
        let (sub, head) = (rule.sub_at(time), rule.head_at(time));
        let charges = match &record.body {
            Body::Report(report) => {
                let [used, kept, returned, overdraft] =
                    [report.used, report.kept, report.returned, report.overdraft].map(i64::from);
                let granted = i64::from(answer.granted);
                if matches!(rule, Rule::Bucket { .. }) {
                    // What is used was taken with the grant, and what is kept stays taken.
                    [(0, overdraft + granted - returned), (0, 0), (0, 0)]
                } else {
                    [
                        (report.lease, -(used + kept + returned)),
                        (sub, used + overdraft),
                        (head, i64::from(answer.kept) + granted),
                    ]
                }
            }
            Body::Exact { .. } => [(sub, i64::from(answer.granted)), (0, 0), (0, 0)],
            Body::Status => return,
            Body::Repair(charges) => {
                // As long as it is in the log under its first number, so that it is told again if it is lost again.
                for chunk in charges.chunks(3) {
                    let mut part = [(0, 0); 3];
                    part[..chunk.len()].copy_from_slice(chunk);
                    self.add(now, Effect { number, name: record.name, rule, charges: part });
                }
                return;
            }
        };
        self.add(now, Effect { number, name: record.name, rule, charges });
    }

    fn add(&mut self, now: u64, effect: Effect) {
        if effect.charges.iter().all(|(_, units)| *units == 0) {
            return;
        }
        if self.effects.len() == MAX_EFFECTS {
            self.forget_first();
        }
        self.effects.push_back((now, effect));
    }

    fn forget_first(&mut self) {
        if let Some((_, effect)) = self.effects.pop_front() {
            self.forgotten = self.forgotten.max(effect.number);
        }
    }

    /// Forgets what was noted before `instant`.
    pub(super) fn forget(&mut self, instant: u64) {
        while self.effects.front().is_some_and(|(at, _)| *at < instant) {
            self.forget_first();
        }
    }

    /// Whether something was told of that key before the batch `number` that is so recent that it still has to be counted at
    /// `now`. An authority that knows nothing of older things has not lost them.
    pub(super) fn knows(&self, name: WireName, number: u64, now: u64) -> bool {
        let counted_for = |rule: Rule| match rule {
            Rule::Window { sub, subs, .. } => sub * u64::from(subs),
            Rule::Bucket { .. } => rule.memory(),
        };
        let counts = |at: u64, effect: &Effect| now < at.saturating_add(counted_for(effect.rule).saturating_mul(MICRO));
        let is_it = |effect: &Effect| effect.name == name && effect.number < number;
        self.effects.iter().any(|(at, effect)| is_it(effect) && counts(*at, effect))
    }

    /// Takes out what was told of these keys before the batch `number`. It will be there again under the number of the
    /// repair.
    pub(super) fn take(&mut self, names: &[WireName], number: u64) -> Vec<Record> {
        let is_taken = |effect: &Effect| effect.number < number && names.contains(&effect.name);
        let records = coalesce(self.effects.iter().map(|(_, effect)| effect).filter(|effect| is_taken(effect)));
        self.effects.retain(|(_, effect)| !is_taken(effect));
        records
    }

    /// What was told after the batch `have`, `last` being the last that was carried out.
    pub(super) fn since(&mut self, have: u64, last: Option<u64>) -> Repairs {
        let records = coalesce(self.effects.iter().map(|(_, effect)| effect).filter(|effect| effect.number > have));
        let lost = self.forgotten.saturating_sub(have);
        let repaired = last.unwrap_or(have).saturating_sub(have).saturating_sub(lost);
        // They will be there again under the numbers of the repairs.
        while self.effects.back().is_some_and(|(_, effect)| effect.number > have) {
            self.effects.pop_back();
        }
        self.forgotten = self.forgotten.min(have);
        Repairs { records, repaired, lost }
    }
}

/// One record for each key with all that was charged.
fn coalesce<'a>(effects: impl Iterator<Item = &'a Effect>) -> Vec<Record> {
    let mut charges: BTreeMap<WireName, (Rule, BTreeMap<u64, i64>)> = BTreeMap::new();
    for effect in effects {
        let (rule, subs) = charges.entry(effect.name).or_insert_with(|| (effect.rule, BTreeMap::new()));
        *rule = effect.rule;
        for (sub, units) in effect.charges {
            if units != 0 {
                let sum = subs.entry(sub).or_default();
                *sum = sum.saturating_add(units);
            }
        }
    }
    let record = |(name, (rule, subs)): (WireName, (Rule, BTreeMap<u64, i64>))| {
        let charges: Vec<_> = subs.into_iter().filter(|(_, units)| *units != 0).collect();
        (!charges.is_empty()).then_some(Record { name, rule, body: Body::Repair(charges) })
    };
    charges.into_iter().filter_map(record).collect()
}
