//! One node of the fleet: ledgers, the queue of those with news, and the protocol that a background thread drives.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tollgate::global::WireName;
use tollgate::internal::{Answered, Ledger, Protocol, Settings};

use super::scenario::{MILLI, Manner, Scenario};

/// Ticks of a node's clock in a nanosecond.
pub(crate) const TICKS: u64 = 8;

/// A clock that starts when it is made, and is fast by parts per million.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalClock {
    made_at: u64,
    fast: i64,
}

impl LocalClock {
    /// Not 0, as no clock shows that by the time that something is done.
    const BEGIN: u64 = 1_000_000;

    const fn pace(self) -> u128 {
        (1_000_000 + self.fast) as u128 * TICKS as u128
    }

    pub(crate) const fn ticks(self, time: u64) -> u64 {
        Self::BEGIN + ((time - self.made_at) as u128 * self.pace() / 1_000_000) as u64
    }

    /// The first time at which it shows `ticks`.
    pub(crate) fn time_of(self, ticks: u64) -> u64 {
        let passed = u128::from(ticks.saturating_sub(Self::BEGIN)) * 1_000_000;
        u64::try_from(u128::from(self.made_at) + passed.div_ceil(self.pace())).unwrap_or(u64::MAX)
    }
}

/// Somebody with a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) id: u64,
    pub(crate) node: usize,
    pub(crate) key: usize,
    pub(crate) cost: u32,
    pub(crate) manner: Manner,
    pub(crate) came: u64,
    pub(crate) tries: u32,
    /// It waits for room.
    pub(crate) is_in_line: bool,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) clock: LocalClock,
    pub(crate) ledgers: Vec<Option<Arc<Ledger>>>,
    pub(crate) protocol: Protocol,
    news: VecDeque<Arc<Ledger>>,
    places: usize,
    overflowed: bool,
    /// When the background thread runs next.
    pub(crate) wake_at: u64,
    /// The first of its regular looks, and how far they are apart.
    phase: u64,
    interval: u64,
    pub(crate) up: bool,
    pub(crate) paused_until: u64,
    pub(crate) stalled_until: u64,
    /// How many nodes it took there to be when the authority was silent last.
    pub(crate) nodes_heard: u32,
    pub(crate) waiting: BTreeMap<usize, Vec<Caller>>,
}

impl Node {
    pub(crate) fn new(id: u64, index: usize, scenario: &Scenario, time: u64, chance: u64) -> Self {
        let clock = LocalClock { made_at: time, fast: scenario.drifts[index] };
        let interval = scenario.interval.as_nanos() as u64;
        let settings = Settings { node: id, interval: interval * TICKS, shards: scenario.shards, chance };
        Self {
            id,
            clock,
            ledgers: vec![None; scenario.keys.len()],
            protocol: Protocol::new(settings, clock.ticks(time)),
            news: VecDeque::new(),
            places: scenario.places,
            overflowed: false,
            wake_at: u64::MAX,
            phase: chance % interval,
            interval,
            up: true,
            paused_until: 0,
            stalled_until: 0,
            nodes_heard: 1,
            waiting: BTreeMap::new(),
        }
    }

    pub(crate) const fn is_paused(&self, time: u64) -> bool {
        time < self.paused_until
    }

    pub(crate) fn ledger(&mut self, scenario: &Scenario, key: usize) -> Arc<Ledger> {
        let make = || Arc::new(Ledger::new(name_of(key), Arc::clone(&scenario.quota_of(key).compiled)));
        Arc::clone(self.ledgers[key].get_or_insert_with(make))
    }

    /// Puts a ledger on the queue, if there is a place; else all are looked through.
    pub(crate) fn push(&mut self, ledger: Arc<Ledger>) {
        if self.news.len() < self.places {
            self.news.push_back(ledger);
        } else {
            self.overflowed = true;
        }
    }

    /// What the background thread does first: it takes the news, and looks at its timers.
    pub(crate) fn look(&mut self, time: u64) {
        let now = self.clock.ticks(time);
        while let Some(ledger) = self.news.pop_front() {
            self.protocol.on_news(&ledger, now);
        }
        if std::mem::take(&mut self.overflowed) {
            for ledger in self.ledgers.iter().flatten().filter(|ledger| ledger.is_dirty()) {
                self.protocol.on_news(ledger, now);
            }
        }
        self.protocol.on_tick(now);
    }

    /// When the background thread has to run again.
    pub(crate) fn due(&self, time: u64) -> u64 {
        let due = self.clock.time_of(self.protocol.next_due());
        let regular = if self.news.is_empty() && !self.overflowed { u64::MAX } else { self.next_regular(time) };
        due.min(regular).max(self.stalled_until).max(self.paused_until)
    }

    /// The next regular look at the news.
    pub(crate) const fn next_regular(&self, time: u64) -> u64 {
        time + self.interval - (time + self.phase) % self.interval
    }

    /// What it gives itself goes by how many nodes it has heard of; what it still holds, by how many those were before.
    pub(crate) fn note_silence(&mut self, time: u64) {
        let now = self.clock.ticks(time);
        let is_own = |ledger: &&Arc<Ledger>| matches!(ledger.peek(0, now), Answered::Lease { away: true, .. });
        let heard = self.protocol.nodes().unwrap_or(1);
        let holds = self.ledgers.iter().flatten().any(|ledger| is_own(&ledger));
        self.nodes_heard = if holds { heard.min(self.nodes_heard) } else { heard };
    }

    /// Drops the ledgers that equal new ones.
    pub(crate) fn forget(&mut self, time: u64) {
        let now = self.clock.ticks(time);
        for ledger in &mut self.ledgers {
            if ledger.as_ref().is_some_and(|ledger| ledger.is_idle(now)) {
                *ledger = None;
            }
        }
    }

    pub(crate) fn take_waiting(&mut self, key: usize) -> Vec<Caller> {
        self.waiting.remove(&key).unwrap_or_default()
    }
}

/// How many may wait for one key on one node.
pub(crate) const MOST_WAITING: usize = 32;

/// How long somebody who waits for news of a key waits at a time.
pub(crate) const NEWS_WITHIN: u64 = 5 * MILLI;

pub(crate) const fn name_of(key: usize) -> WireName {
    // Spread over the shards, which go by the upper bits.
    WireName((key as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
}

pub(crate) const fn key_of(name: WireName, keys: usize) -> Option<usize> {
    let mut key = 0;
    while key < keys {
        if name_of(key).0 == name.0 {
            return Some(key);
        }
        key += 1;
    }
    None
}
