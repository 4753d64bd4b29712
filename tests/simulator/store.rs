//! The authority: books on a machine that may lose what it has, and whose clock may be set.

use std::collections::{HashMap, VecDeque};

use tollgate::global::{Batch, Body, Books, Reply, WireName};

use super::scenario::{MICRO, MILLI, SECOND};

/// What is charged at most, and when.
#[derive(Clone, Copy, Debug)]
struct Charge {
    at: u64,
    name: WireName,
    units: u64,
}

/// The last batch of each node and shard, and what was answered.
type Last = HashMap<(u64, u16), (u64, Reply)>;

#[derive(Clone, Debug)]
pub(crate) struct Store {
    books: Books,
    /// Microseconds that its clock shows when the run begins, and how much it was set by since.
    clock: i64,
    last: Last,
    /// Units that each node has told to have used.
    pub(crate) told: HashMap<(u64, WireName), u64>,
    recent: VecDeque<Charge>,
    snapshots: VecDeque<(u64, Books, Last)>,
    pub(crate) keeps_snapshots: bool,
    pub(crate) applied: u64,
}

/// As far back as a store may fall.
const TAIL: u64 = 2 * SECOND;

impl Store {
    pub(crate) fn new(books: Books, clock: i64) -> Self {
        Self {
            books,
            clock,
            last: HashMap::new(),
            told: HashMap::new(),
            recent: VecDeque::new(),
            snapshots: VecDeque::new(),
            keeps_snapshots: false,
            applied: 0,
        }
    }

    pub(crate) const fn time(&self, time: u64) -> u64 {
        (self.clock + (time / MICRO) as i64) as u64
    }

    /// Carries a batch out, and checks that it is what an authority is to do: once for each number, and not without what
    /// came before.
    pub(crate) fn carry_out(&mut self, batch: &Batch, time: u64) -> Result<(Reply, bool), String> {
        if self.keeps_snapshots && self.snapshots.back().is_none_or(|(at, ..)| time >= at + 100 * MILLI) {
            self.snapshots.push_back((time, self.books.clone(), self.last.clone()));
            while self.snapshots.len() > 2 && self.snapshots[1].0 + TAIL < time {
                self.snapshots.pop_front();
            }
        }
        let reply = self.books.apply(batch, self.time(time));
        let place = (batch.node, batch.shard);
        let known = self.last.get(&place).cloned();
        let have = known.as_ref().map_or(0, |(number, _)| *number);
        let is_first = match (&reply, &known) {
            (answer, Some((number, before))) if *number == batch.number => {
                if answer != before {
                    return Err(format!("{batch:?} was answered by {before:?} and then by {answer:?}"));
                }
                false
            }
            (Reply::Stale, _) => {
                if have <= batch.number {
                    return Err(format!("stale, and the last was {have}: {batch:?}"));
                }
                false
            }
            (Reply::Gap { have: said }, _) => {
                if *said != have || batch.after.is_none_or(|after| after == have) {
                    return Err(format!("a gap from {said}, and the last was {have}: {batch:?}"));
                }
                false
            }
            (Reply::Done { .. }, _) => {
                if batch.number <= have || batch.after.is_some_and(|after| after != have) {
                    return Err(format!("carried out, and the last was {have}: {batch:?}"));
                }
                true
            }
        };
        if is_first {
            self.applied += 1;
            self.last.insert(place, (batch.number, reply.clone()));
            self.note(batch, &reply, time);
        }
        Ok((reply, is_first))
    }

    fn note(&mut self, batch: &Batch, reply: &Reply, time: u64) {
        let Reply::Done { answers, .. } = reply else { return };
        for (record, answer) in batch.records.iter().zip(answers) {
            let units = match &record.body {
                Body::Report(report) => {
                    let used = u64::from(report.used) + u64::from(report.overdraft);
                    *self.told.entry((batch.node, record.name)).or_default() += used;
                    used + u64::from(answer.kept) + u64::from(answer.granted)
                }
                Body::Exact { .. } => u64::from(answer.granted),
                Body::Repair(charges) => charges.iter().map(|(_, units)| (*units).max(0) as u64).sum(),
                _ => 0,
            };
            if units > 0 {
                self.recent.push_back(Charge { at: time, name: record.name, units });
            }
        }
        let first = self.snapshots.front().map_or(time, |(at, ..)| *at);
        while self.recent.front().is_some_and(|charge| charge.at < first) {
            self.recent.pop_front();
        }
    }

    /// Units of a key that are counted.
    pub(crate) fn counted(&self, name: WireName, time: u64) -> u64 {
        self.books.counted(name, self.time(time))
    }

    pub(crate) fn evict(&mut self, name: WireName) {
        _ = self.books.evict(name);
    }

    pub(crate) fn flush(&mut self) {
        self.books.flush();
        self.last.clear();
    }

    /// Loses what it was told in the last `tail`, and says which units that may have been.
    pub(crate) fn lose(&mut self, tail: u64, time: u64) -> Vec<(WireName, u64)> {
        let Some(place) = self.snapshots.iter().rposition(|(at, ..)| *at + tail <= time) else { return Vec::new() };
        let (at, books, last) = self.snapshots[place].clone();
        (self.books, self.last) = (books, last);
        self.snapshots.truncate(place + 1);
        let lost =
            self.recent.iter().filter(|charge| charge.at >= at).map(|charge| (charge.name, charge.units)).collect();
        self.recent.retain(|charge| charge.at < at);
        lost
    }

    pub(crate) const fn set_clock(&mut self, by: i64) {
        self.clock += by;
    }
}
