//! Each fault alone, with its figure, and what the protocol does by itself.

use std::time::Duration;

use tollgate::global::{AuthorityError, Books, Reply, WhenAway, WireName};
use tollgate::internal::{Answered, Event, Ledger, Protocol, Settings};

use super::check::most_in;
use super::node::TICKS;
use super::scenario::{Fault, How, Key, MILLI, Manner, SECOND, Scenario, Shared};
use super::world::{self, From, Outcome};

const INTERVAL: Duration = Duration::from_millis(100);
const NODES: usize = 4;
const LIMIT: u64 = 200;

/// Four nodes, 200 units in 5 s, and twice as much is asked for.
fn fleet(overdraft: u32, when_away: WhenAway) -> Scenario {
    let quota =
        Shared::of_window(LIMIT as u32, Duration::from_secs(5), 20, Some(overdraft), false, when_away, INTERVAL);
    Scenario::calm(NODES, quota, Key::plain(80.0, Manner::Waits), 25 * SECOND)
}

/// Units by which the worst window of 20 seeds exceeds the limit. What is promised is checked on the way.
fn over(scenario: &Scenario) -> u64 {
    let worst = |seed| {
        let scenario = Scenario { seed, ..scenario.clone() };
        let outcome = world::run(&scenario).unwrap_or_else(|fault| panic!("{fault}\n\n{scenario:#?}"));
        most_in(&sorted(&outcome), scenario.quotas[0].window).0.saturating_sub(LIMIT)
    };
    (1..=20).map(worst).max().unwrap_or(0)
}

fn sorted(outcome: &Outcome) -> Vec<world::Admission> {
    let mut log = outcome.log[0].clone();
    log.sort_by_key(|admission| admission.at);
    log
}

pub(crate) fn faults_of_nodes_and_network_add_nothing() {
    let strict = fleet(0, WhenAway::Deny);
    let at = 7 * SECOND;
    let faults = [
        Fault::Crash { node: 1, back_after: SECOND },
        Fault::Pause { node: 1, lasts: 3 * SECOND },
        Fault::Stall { node: 1, lasts: 3 * SECOND },
        Fault::Cut { nodes: 0b0110, lasts: 3 * SECOND },
        Fault::Lossy { loss: 0.3, lasts: 5 * SECOND },
        Fault::Slow { by: 200 * MILLI, lasts: 5 * SECOND },
        Fault::Outage { how: How::Errors, lasts: 3 * SECOND },
        Fault::Outage { how: How::Silence, lasts: 3 * SECOND },
        // The books stand still, or go on from where they were.
        Fault::Step { by: -2_000_000 },
        Fault::Step { by: -60_000_000 },
    ];
    for fault in faults {
        assert_eq!(over(&strict.clone().with(at, fault.clone())), 0, "{fault:?}");
    }
    let drifting = Scenario { drifts: vec![500, -500, 500, -500], ..strict };
    assert_eq!(over(&drifting), 0);
}

pub(crate) fn an_overdraft_adds_its_units_once_on_each_node() {
    let over = over(&fleet(2, WhenAway::Deny));
    assert!(over <= 2 * NODES as u64, "{over}");
}

pub(crate) fn losses_of_the_authority_add_what_was_lost() {
    let strict = fleet(0, WhenAway::Deny);
    let at = 7 * SECOND;
    let cases = [
        // At most the limit once, and what the log of 10 s makes good is less.
        (Fault::Flush, LIMIT),
        (Fault::Evict { key: 0 }, LIMIT),
        // What was admitted in the oldest two fifths of a window: here that can be all.
        (Fault::Step { by: 2_000_000 }, LIMIT),
        // What was charged in a second.
        (Fault::LosesTail { tail: SECOND }, LIMIT * 2 / 5),
    ];
    for (fault, most) in cases {
        let over = over(&strict.clone().with(at, fault.clone()));
        assert!(over <= most, "{fault:?}: {over} of {most}");
    }
}

pub(crate) fn a_share_comes_on_top_of_what_the_others_have_admitted() {
    let outage = Fault::Outage { how: How::Silence, lasts: 6 * SECOND };
    let local = over(&fleet(0, WhenAway::Local).with(7 * SECOND, outage.clone()));
    assert!(local <= LIMIT, "{local}");
    // With all asking for as much, each has had its share by then.
    assert!(local <= LIMIT / 2, "{local}");
    let scenario = Scenario { seed: 3, ..fleet(0, WhenAway::Allow).with(7 * SECOND, outage) };
    let outcome = world::run(&scenario).unwrap();
    assert!(sorted(&outcome).iter().any(|admission| matches!(admission.from, From::Away { .. })));
}

pub(crate) fn whoever_waits_is_admitted() {
    let quota = Shared::window(60, Duration::from_secs(5), 20, 0, INTERVAL);
    // One request in 20 s.
    let rare = Scenario::calm(8, quota.clone(), Key::plain(0.05, Manner::Waits), 200 * SECOND);
    let outcome = world::run(&rare).unwrap();
    assert_eq!(outcome.log[0].len(), outcome.arrivals[0].len());
    assert!(outcome.longest_wait < 20 * MILLI, "{}", outcome.longest_wait);
    // More than half of what there is.
    let large = Key { costs: vec![45], ..Key::plain(0.1, Manner::Waits) };
    let outcome = world::run(&Scenario::calm(8, quota.clone(), large, 100 * SECOND)).unwrap();
    assert!(outcome.log[0].len() + 1 >= outcome.arrivals[0].len());
    // Large and small ones together: the small ones get what the large one can't use.
    let mixed = Key { costs: vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 50], ..Key::plain(3.0, Manner::Waits) };
    let outcome = world::run(&Scenario::calm(2, quota, mixed, 100 * SECOND)).unwrap();
    let admitted = |units| outcome.log[0].iter().filter(|admission| admission.units == units).count();
    let arrived = |cost| outcome.arrivals[0].iter().filter(|(_, one)| *one == cost).count();
    assert!(admitted(1) * 10 > arrived(1) * 7, "{} of {}", admitted(1), arrived(1));
    assert!(admitted(50) > 0, "0 of {}", arrived(50));
}

/// A protocol by itself, and a ledger.
fn alone(limit: u32, shards: u16) -> (Protocol, Ledger) {
    let settings = Settings { node: 1, interval: 100 * MILLI * TICKS, shards, chance: 7 };
    let quota = Shared::window(limit, Duration::from_secs(10), 20, 0, INTERVAL);
    (Protocol::new(settings, TICKS), Ledger::new(WireName(1), quota.compiled))
}

/// By a clock that is slow by 500 ppm, with a message that took no time at all, and an answer that came late.
pub(crate) fn a_lease_ends_before_the_sub_window_that_it_is_charged_to() {
    let (mut protocol, ledger) = alone(100, 1);
    let (ledger, mut books) = (std::sync::Arc::new(ledger), Books::default());
    let ticks = |time: u64| time * TICKS - time * TICKS / 2_000;
    // Just after a sub-window of 500 ms began, so that the lease is as long as can be.
    let time = 10 * SECOND + 1;
    ledger.spend(1, ticks(time));
    protocol.on_news(&ledger, ticks(time));
    let batch = protocol.poll_batch(ticks(time)).unwrap();
    let reply = books.apply(&batch, time / 1_000);
    protocol.on_reply(batch.shard, batch.number, Ok(reply), ticks(time + 40 * MILLI));
    let ends = 11 * SECOND;
    assert!(matches!(ledger.peek(1, ticks(ends - 4 * MILLI)), Answered::Lease { .. }));
    assert!(!ledger.peek(1, ticks(ends)).is_allowed());
}

pub(crate) fn what_was_kept_and_is_not_charged_any_more_is_void() {
    let (mut protocol, ledger) = alone(100, 1);
    let (ledger, mut books) = (std::sync::Arc::new(ledger), Books::default());
    let mut answer = |cost, time: u64, evicts: bool| {
        ledger.spend(cost, time * TICKS);
        protocol.on_news(&ledger, time * TICKS);
        let batch = protocol.poll_batch(time * TICKS).unwrap();
        assert_eq!(books.evict(WireName(1)), evicts);
        let reply = books.apply(&batch, time / 1_000);
        protocol.on_reply(batch.shard, batch.number, Ok(reply), time * TICKS);
        ledger.peek(0, time * TICKS)
    };
    let time = 10 * SECOND + MILLI;
    assert!(matches!(answer(10, time, false), Answered::Lease { left: 10, .. }));
    // Eleven beside the ten that it holds, which are lost by then.
    let next = answer(21, time + 100 * MILLI, true);
    assert!(matches!(next, Answered::Lease { left: 11, .. }), "{next:?}");
}

/// `Kong/kong PR#11859`: what was reported was counted again with the next report.
pub(crate) fn ten_requests_with_a_report_between_each_count_ten() {
    let (mut protocol, ledger) = alone(100, 1);
    let (ledger, mut books) = (std::sync::Arc::new(ledger), Books::default());
    let (mut time, mut admitted) = (SECOND, 0);
    while admitted < 10 {
        time += 150 * MILLI;
        let now = time * TICKS;
        let spent = ledger.spend(1, now);
        admitted += u32::from(spent.answer.is_allowed());
        if spent.news {
            protocol.on_news(&ledger, now);
        }
        protocol.on_tick(now);
        while let Some(batch) = protocol.poll_batch(now) {
            // Each is carried out twice, and answered twice.
            for _ in 0..2 {
                let reply = books.apply(&batch, time / 1_000);
                protocol.on_reply(batch.shard, batch.number, Ok(reply), now + TICKS);
            }
        }
    }
    protocol.close(time * TICKS);
    while let Some(batch) = protocol.poll_batch(time * TICKS) {
        let reply = books.apply(&batch, time / 1_000);
        protocol.on_reply(batch.shard, batch.number, Ok(reply), time * TICKS);
        time += 50 * MILLI;
    }
    assert!(protocol.is_settled());
    assert_eq!(books.counted(WireName(1), time / 1_000), 10);
    assert!(!ledger.spend(1, time * TICKS).answer.is_allowed());
}

/// `gravitee-io/gravitee-api-management PR#18482`: each of those that failed together tried again by itself.
pub(crate) fn three_hundred_that_fail_together_leave_one_try_pending() {
    let (mut protocol, _) = alone(100, 300);
    let quota = Shared::window(100, Duration::from_secs(10), 20, 0, INTERVAL).compiled;
    let ledgers: Vec<_> = (0..300_u128)
        .map(|shard| std::sync::Arc::new(Ledger::new(WireName(shard << 96), std::sync::Arc::clone(&quota))))
        .collect();
    let mut now = SECOND * TICKS;
    for ledger in &ledgers {
        assert!(matches!(ledger.spend(1, now).answer, Answered::NoLease { .. }));
        protocol.on_news(ledger, now);
    }
    let mut pending: Vec<_> = std::iter::from_fn(|| protocol.poll_batch(now)).collect();
    assert_eq!(pending.len(), 300);
    let (mut tries, mut waits, mut last) = (0, Vec::new(), 0);
    // All fail at once, and so does each try that is made again, for a minute.
    while now < 61 * SECOND * TICKS {
        for batch in pending.drain(..) {
            protocol.on_reply(batch.shard, batch.number, Err(AuthorityError::new("away")), now);
        }
        protocol.on_tick(now);
        pending = std::iter::from_fn(|| protocol.poll_batch(now)).collect();
        if protocol.is_silent() && !pending.is_empty() {
            assert!(pending.len() <= 1, "{} at once", pending.len());
            waits.push(now - last);
            last = now;
            tries += 1;
        }
        now += MILLI * TICKS;
    }
    assert!((25..=60).contains(&tries), "{tries} tries in a minute");
    assert!(waits.iter().skip(10).all(|wait| *wait >= 1_500 * MILLI * TICKS));
    assert_eq!(protocol.take_events().iter().filter(|event| matches!(event, Event::Silent)).count(), 1);
    // It is back, and so are all.
    let mut books = Books::default();
    for _ in 0..2_000 {
        now += MILLI * TICKS;
        protocol.on_tick(now);
        pending.extend(std::iter::from_fn(|| protocol.poll_batch(now)));
        for batch in pending.drain(..) {
            let reply: Reply = books.apply(&batch, now / TICKS / 1_000);
            protocol.on_reply(batch.shard, batch.number, Ok(reply), now);
        }
    }
    assert!(!protocol.is_silent());
    assert_eq!(protocol.counts.granted, 300);
}
