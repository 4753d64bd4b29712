//! What a node counts, each count alone, in virtual time: a protocol, ledgers and books, and nobody else.
//!
//! That the sums are right whatever goes wrong is checked in the simulator.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate::global::{
    Answer, Authority, AuthorityError, Batch, Body, Books, BreakerState, Call, Fleet, FleetStats, GlobalQuota, Record,
    Reply, Rule, WhenAway, WireName,
};
use tollgate::internal::{Answered, Depths, FleetQuota, Ledger, Protocol, Settings, snapshot};
use tollgate::{Limiter, Plan, Quota};

const INTERVAL: Duration = Duration::from_millis(100);

/// Ticks in a millisecond.
const MILLI: u64 = 8_000_000;

const KEY: WireName = WireName(1);

/// That of the windows below.
const RULE: Rule = Rule::Window { limit: 100, sub: 500_000, subs: 20, smooth: false };

/// A node with one ledger.
struct Node {
    protocol: Protocol,
    ledger: Arc<Ledger>,
    books: Books,
    /// In ticks, which is also what the authority's clock shows.
    now: u64,
}

fn window(limit: u64, overdraft: u32) -> GlobalQuota {
    // Sub-windows of half a second, leases of one at most.
    GlobalQuota::sliding_window(limit, Duration::from_secs(10)).sub_windows(20).overdraft(overdraft)
}

impl Node {
    fn new(quota: GlobalQuota) -> Self {
        let settings = Settings { node: 1, interval: 100 * MILLI, shards: 1, chance: 7 };
        let quota: Arc<FleetQuota> = quota.compile("test", INTERVAL).unwrap();
        let now = 10_000 * MILLI + MILLI;
        Self {
            protocol: Protocol::new(settings, now),
            ledger: Arc::new(Ledger::new(KEY, quota)),
            books: Books::default(),
            now,
        }
    }

    fn stats(&self) -> FleetStats {
        snapshot(&self.protocol, Depths::default(), self.now)
    }

    fn spend(&mut self, units: u32) -> Answered {
        let spent = self.ledger.spend(units, self.now);
        if spent.news {
            self.look();
        }
        spent.answer
    }

    fn look(&mut self) {
        self.protocol.on_news(&self.ledger, self.now);
    }

    fn pass(&mut self, millis: u64) {
        self.now += millis * MILLI;
        self.protocol.on_tick(self.now);
    }

    fn batch(&mut self) -> Option<Arc<Batch>> {
        self.protocol.poll_batch(self.now)
    }

    /// What another node spends.
    fn spend_elsewhere(&mut self, number: u64, units: u32) {
        let record = Record { name: KEY, rule: RULE, body: Body::Exact { cost: units } };
        let batch = Batch { node: 2, shard: 0, number, after: None, records: vec![record] };
        let Reply::Done { answers, .. } = self.books.apply(&batch, self.now / MILLI * 1_000) else { panic!() };
        assert_eq!(answers[0].granted, units);
    }

    /// Has the authority answer what there is to say, `millis` later.
    fn answer_after(&mut self, millis: u64) {
        while let Some(batch) = self.batch() {
            let reply = self.books.apply(&batch, self.now / MILLI * 1_000);
            self.pass(millis);
            self.protocol.on_reply(0, batch.number, Ok(reply), self.now);
        }
    }

    /// Until nothing is on its way.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.answer_after(0);
            self.pass(20);
        }
    }
}

#[test]
fn units_are_told_apart_by_what_answered_them() {
    let mut node = Node::new(window(100, 0));
    assert_eq!(node.stats().lease_hit_ratio(), None);
    assert!(matches!(node.spend(4), Answered::NoLease { .. }));
    assert_eq!((node.stats().missed, node.stats().lease_hit_ratio()), (4, Some(0.0)));
    node.answer_after(1);
    assert!(matches!(node.spend(3), Answered::Lease { left: 1, .. }));
    node.look();
    let stats = node.stats();
    assert_eq!((stats.granted, stats.leased, stats.overdraft, stats.missed, stats.full), (4, 3, 0, 4, 0));
    assert_eq!(stats.lease_hit_ratio(), Some(3.0 / 7.0));
    // Another node has the rest.
    node.spend_elsewhere(1, 96);
    node.settle();
    assert!(matches!(node.spend(7), Answered::NoLease { .. }));
    node.settle();
    assert!(matches!(node.spend(7), Answered::Full { .. }));
    node.look();
    let stats = node.stats();
    assert_eq!((stats.leased, stats.missed, stats.full), (3, 11, 7));
    assert_eq!(stats.lease_hit_ratio(), Some(3.0 / 14.0), "what is known to be full is no miss");
}

#[test]
fn what_was_given_back_was_not_leased() {
    let mut node = Node::new(window(100, 0));
    node.spend(4);
    node.answer_after(1);
    let taken = node.spend(3);
    // Told before the thread looks: of what it has looked at nothing is given back.
    let other = node.ledger.spend(1, node.now).answer;
    assert!(!node.ledger.unspend(3, taken) && node.ledger.unspend(1, other));
    node.look();
    assert_eq!(node.stats().leased, 3);
}

#[test]
fn an_overdraft_is_an_overshoot_where_nothing_is_left() {
    let mut node = Node::new(window(100, 2));
    assert!(matches!(node.spend(2), Answered::Overdraft { .. }));
    assert_eq!((node.stats().overdraft, node.stats().overshoot), (2, 0));
    node.answer_after(1);
    assert_eq!((node.stats().overdraft, node.stats().overshoot), (2, 0), "there was room for it");

    let mut node = Node::new(window(100, 2));
    node.spend_elsewhere(1, 100);
    node.spend(2);
    node.answer_after(1);
    assert_eq!((node.stats().overdraft, node.stats().overshoot), (2, 2));
    assert_eq!(node.books.counted(KEY, node.now / MILLI * 1_000), 102);
}

#[test]
fn units_of_a_lease_that_ends_unspent_are_stranded_and_those_given_back_before_are_not() {
    let mut node = Node::new(window(100, 0));
    node.spend(4);
    node.answer_after(1);
    node.spend(1);
    node.look();
    // It ends after less than a second.
    node.pass(990);
    node.pass(10);
    assert_eq!((node.stats().granted, node.stats().leased, node.stats().stranded), (4, 1, 3));
    node.settle();
    assert_eq!((node.stats().stranded, node.stats().returned), (3, 3), "the window has them again");

    let mut node = Node::new(window(100, 0));
    node.spend(4);
    node.answer_after(1);
    node.protocol.close(node.now);
    node.settle();
    assert_eq!((node.stats().stranded, node.stats().returned), (0, 4));

    // A bucket does not get them back: it has filled meanwhile.
    let mut node =
        Node::new(GlobalQuota::token_bucket(Quota::per_second(10).burst(100)).overdraft(0).when_away(WhenAway::Deny));
    node.spend(4);
    node.answer_after(1);
    node.pass(5_000);
    node.settle();
    assert_eq!((node.stats().granted, node.stats().stranded, node.stats().returned), (4, 4, 0));
}

#[test]
fn the_round_trip_is_smoothed_and_its_worst_is_that_of_the_last_two_minutes() {
    let mut node = Node::new(window(100, 0));
    for wait in [4, 4, 40] {
        assert!(!matches!(node.spend(1), Answered::Lease { .. }));
        node.answer_after(wait);
        node.pass(11_000);
    }
    let stats = node.stats();
    // An eighth of the way from 4 ms to 40 ms.
    assert_eq!(stats.round_trip, Duration::from_micros(8_500));
    assert_eq!(stats.round_trip_worst, Duration::from_millis(40));
    node.pass(60_000);
    assert_eq!(node.stats().round_trip_worst, Duration::from_millis(40));
    node.pass(60_000);
    assert_eq!(node.stats().round_trip_worst, Duration::ZERO);
}

#[test]
fn batches_that_fail_are_sent_again_and_counted() {
    let mut node = Node::new(window(100, 0));
    node.spend(1);
    let batch = node.batch().unwrap();
    assert_eq!((node.stats().batches, node.stats().records, node.stats().resent), (1, 1, 0));
    node.protocol.on_reply(0, batch.number, Err(AuthorityError::new("no")), node.now);
    node.answer_after(3);
    let stats = node.stats();
    assert_eq!((stats.batches, stats.records, stats.resent, stats.errors, stats.timeouts), (2, 1, 1, 1, 0));
    // Of which of the two this is the answer nobody knows.
    assert_eq!((stats.round_trip, stats.round_trip_worst), (Duration::ZERO, Duration::from_millis(3)));
    assert_eq!((stats.silences, stats.away), (0, Duration::ZERO), "one failure can be a lost packet");

    node.pass(11_000);
    node.spend(1);
    node.batch().unwrap();
    node.pass(300);
    assert_eq!((node.stats().errors, node.stats().timeouts), (1, 1));
}

#[test]
fn the_breaker_opens_tries_and_closes_and_the_time_in_between_is_counted() {
    let mut node = Node::new(window(100, 0));
    let fail = |node: &mut Node, batch: Arc<Batch>| {
        node.protocol.on_reply(0, batch.number, Err(AuthorityError::new("no")), node.now);
    };
    for silences in 1..=2 {
        let before = node.stats().away;
        assert_eq!(node.stats().breaker, BreakerState::Closed);
        node.spend(1);
        let (began, batch) = (node.now, node.batch().unwrap());
        node.pass(10);
        fail(&mut node, batch);
        assert_eq!((node.stats().breaker, node.stats().silences), (BreakerState::Closed, silences - 1));
        let batch = node.batch().unwrap();
        fail(&mut node, batch);
        assert_eq!((node.stats().breaker, node.stats().silences), (BreakerState::Open, silences));
        assert!(node.stats().is_silent);
        assert!(node.batch().is_none(), "not before the time for a try");
        node.pass(90);
        // As long as it lasts already.
        assert_eq!(node.stats().away, before + Duration::from_millis(100));
        let batch = node.batch().unwrap();
        assert_eq!(node.stats().breaker, BreakerState::HalfOpen);
        let reply = node.books.apply(&batch, node.now / MILLI * 1_000);
        node.pass(5);
        node.protocol.on_reply(0, batch.number, Ok(reply), node.now);
        let stats = node.stats();
        assert_eq!((stats.breaker, stats.is_silent), (BreakerState::Closed, false));
        let silence = Duration::from_nanos((node.now - began) / 8);
        assert_eq!(stats.away, before + silence);
        node.pass(20_000);
        assert_eq!(node.stats().away, before + silence, "it goes on no more");
        node.settle();
    }
}

#[test]
fn what_a_node_admits_by_itself_is_counted_apart() {
    let mut node = Node::new(window(100, 0).nodes(4).when_away(WhenAway::Local));
    node.spend(1);
    // Longer than a lease lives.
    for _ in 0..30 {
        if let Some(batch) = node.batch() {
            node.protocol.on_reply(0, batch.number, Err(AuthorityError::new("no")), node.now);
        }
        node.pass(100);
        node.look();
    }
    let admitted = (0..50).filter(|_| node.spend(1).is_allowed()).count() as u64;
    assert!(admitted > 0);
    node.look();
    let stats = node.stats();
    assert_eq!((stats.admitted_away, stats.leased, stats.overdraft, stats.granted), (admitted, 0, 0, 0));
}

#[test]
fn a_gap_and_what_is_told_again_are_counted() {
    let mut node = Node::new(window(100, 0));
    for _ in 0..3 {
        node.spend(5);
        node.settle();
        node.spend(5);
        node.settle();
    }
    let sent = node.stats().batches;
    assert_eq!((node.stats().gaps, node.stats().replayed_batches, node.stats().replayed_records), (0, 0, 0));
    node.books.flush();
    node.spend(5);
    node.settle();
    let stats = node.stats();
    // All of them, in one record, and the one that found out.
    assert_eq!((stats.gaps, stats.replayed_batches, stats.replayed_records), (1, sent, 1));
    assert_eq!((stats.lost_batches, stats.lost_keys), (0, 0));

    // Once they are too old they are lost.
    node.pass(11_000);
    node.books.flush();
    node.spend(5);
    node.settle();
    let stats = node.stats();
    assert_eq!((stats.gaps, stats.replayed_batches, stats.replayed_records), (2, sent, 1));
    assert!(stats.lost_batches > sent, "{stats:?}");
}

#[test]
fn a_key_that_the_authority_has_lost_alone_is_counted() {
    let mut node = Node::new(window(100, 0));
    node.spend(5);
    node.settle();
    node.spend(5);
    node.settle();
    assert!(node.books.evict(KEY));
    node.spend(5);
    node.settle();
    let stats = node.stats();
    assert_eq!((stats.lost_keys, stats.replayed_records, stats.gaps), (1, 1, 0));
}

#[test]
fn keys_that_are_broken_are_counted_as_long_as_they_are_and_asked_about_again() {
    let fail = |node: &mut Node| {
        let batch = node.batch().unwrap();
        let answers = vec![Answer { failed: true, ..Answer::default() }; batch.records.len()];
        node.protocol.on_reply(0, batch.number, Ok(Reply::Done { time: 0, nodes: 1, answers }), node.now);
    };
    for when_away in [WhenAway::Deny, WhenAway::Local, WhenAway::Allow] {
        let mut node = Node::new(window(100, 0).nodes(4).when_away(when_away));
        node.spend(1);
        for _ in 0..3 {
            fail(&mut node);
            assert_eq!(node.stats().broken_keys, 1, "once, however often it fails");
            // As long as a lease can live.
            for _ in 0..19 {
                node.pass(50);
                node.spend(1);
                node.look();
                assert!(node.batch().is_none(), "{when_away:?}");
            }
            node.pass(300);
            node.spend(1);
            node.look();
            node.pass(200);
        }
        node.settle();
        assert_eq!(node.stats().broken_keys, 0, "{when_away:?}");
    }

    let mut node = Node::new(window(100, 0));
    node.spend(1);
    fail(&mut node);
    node.pass(60_000);
    assert_eq!((node.stats().active_keys, node.stats().broken_keys), (0, 0), "forgotten");
}

/// Has the thread wait in a call until the sender is dropped, and tells when it does.
struct Stuck(Sender<()>, Mutex<Receiver<()>>);

impl Authority for Stuck {
    fn call(&self, _: Call) {
        _ = self.0.send(());
        _ = self.1.lock().unwrap_or_else(PoisonError::into_inner).recv();
    }
}

#[test]
fn keys_for_which_there_is_no_room_in_the_queue_are_counted_and_looked_for() {
    let (release, stuck) = mpsc::channel();
    let (tell, is_stuck) = mpsc::channel();
    let fleet = Fleet::builder(Stuck(tell, Mutex::new(stuck))).start().unwrap();
    // Dropped before the fleet, whose thread waits for that, also where an assertion fails.
    let release = release;
    assert!(fleet.stats().dirty_bound > 0, "from the beginning");
    let quota = GlobalQuota::sliding_window(1_000, Duration::from_secs(600)).overdraft(1).nodes(1);
    let limiter = Limiter::builder().fleet(&fleet).plan("api", Plan::new([]).global(quota)).build().unwrap();
    assert!(limiter.check("first").is_allowed());
    // It takes nothing from the queue any more.
    is_stuck.recv().unwrap();
    let keys = 1 << 17;
    assert_eq!(fleet.stats().dirty_bound, keys, "half of which is for each queue");
    for key in 0..keys {
        assert!(limiter.check(&key.to_string()).is_allowed());
    }
    drop(release);
    while fleet.stats().active_keys <= keys {
        std::thread::yield_now();
    }
    assert!(fleet.stats().dirty_full >= 1);
    assert_eq!(fleet.stats().dirty, 0);
}
