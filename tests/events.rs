//! What a fleet tells by `tracing`: one event for each change of state, and none for each request, try or shard.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is how a test fails")]

mod capture;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::global::{Answer, Authority, AuthorityError, Call, Fleet, GlobalQuota, MemoryAuthority, Reply, WhenAway};
use tollgate::{Limiter, Plan, TestClock};

use capture::told;

/// An authority with whims.
#[derive(Clone)]
struct Fickle {
    inner: MemoryAuthority,
    whim: Arc<AtomicU64>,
}

const WELL: u64 = 0;
const AWAY: u64 = 1;
const REPLICA: u64 = 2;
const FULL: u64 = 3;
const CONFUSED: u64 = 4;

impl Authority for Fickle {
    fn call(&self, call: Call) {
        let error = AuthorityError::new;
        match self.whim.load(Ordering::Relaxed) {
            AWAY => call.answer(Err(error("connection refused"))),
            REPLICA => call.answer(Err(error("it is a replica").because_of("READONLY"))),
            FULL => call.answer(Err(error("it has no memory").because_of("OOM"))),
            CONFUSED => {
                let answers = vec![Answer { failed: true, ..Answer::default() }; call.batch().records.len()];
                call.answer(Ok(Reply::Done { time: 0, nodes: 1, answers }));
            }
            _ => self.inner.call(call),
        }
    }
}

struct World {
    node: u64,
    clock: TestClock,
    authority: Fickle,
    fleet: Fleet,
    limiter: Limiter,
}

impl World {
    fn new(node: u64) -> Self {
        capture::start();
        let clock = TestClock::new();
        let authority = Fickle { inner: MemoryAuthority::new(), whim: Arc::default() };
        let fleet = Fleet::builder(authority.clone()).clock(clock.clock()).node(node).start().unwrap();
        let quota = GlobalQuota::sliding_window(1_000_000, Duration::from_secs(10)).overdraft(0);
        let plan = Plan::new([]).global(quota.when_away(WhenAway::Deny));
        let limiter = Limiter::builder().fleet(&fleet).plan("api", plan).build().unwrap();
        Self { node, clock, authority, fleet, limiter }
    }

    fn whim(&self, whim: u64) {
        self.authority.whim.store(whim, Ordering::Relaxed);
    }

    /// Lets requests of twenty clients come, and a millisecond pass for each, until `done`.
    fn until(&self, mut done: impl FnMut(&Self) -> bool) {
        let mut client = 0;
        while !done(self) {
            _ = self.limiter.check(&format!("client {}", client % 20));
            client += 1;
            self.clock.advance(Duration::from_millis(1));
            thread::sleep(Duration::from_micros(20));
        }
    }

    fn for_tries(&self, tries: u64) {
        let errors = self.fleet.stats().errors;
        self.until(|world| world.fleet.stats().errors >= errors + tries);
    }

    fn is_well(&self) -> bool {
        let all_admitted = || (0..20).all(|client| self.limiter.check(&format!("client {client}")).is_allowed());
        !self.fleet.stats().is_silent && all_admitted()
    }

    /// That these were told since the last time, in this order.
    #[track_caller]
    fn assert_told(&self, before: &mut usize, expected: &[&[&str]]) {
        let told = told(self.node).split_off(*before);
        *before += told.len();
        assert_eq!(told.len(), expected.len(), "{told:#?}");
        for (line, words) in told.iter().zip(expected) {
            assert!(words.iter().all(|word| line.contains(word)), "{line}");
        }
    }
}

#[test]
fn an_authority_that_goes_away_and_comes_back_is_told_once_each() {
    let (world, mut seen) = (World::new(101), 0);
    world.until(World::is_well);
    world.assert_told(&mut seen, &[]);
    for _ in 0..2 {
        world.whim(AWAY);
        world.for_tries(8);
        world.assert_told(&mut seen, &[&["WARN", "does not answer", "connection refused"]]);
        world.whim(WELL);
        world.until(World::is_well);
        world.assert_told(&mut seen, &[&["INFO", "answers again"]]);
    }
}

#[test]
fn what_the_authority_says_is_wrong_is_told_once_for_as_long_as_it_lasts() {
    let (world, mut seen) = (World::new(102), 0);
    world.until(World::is_well);
    world.whim(REPLICA);
    world.for_tries(8);
    let refuses: &[_] = &["WARN", "refuses", "trouble=\"READONLY\"", "it is a replica"];
    world.assert_told(&mut seen, &[refuses, &["WARN", "does not answer"]]);
    // Another trouble, and the first one again right after: no retry is told.
    for whim in [FULL, REPLICA, FULL] {
        world.whim(whim);
        world.for_tries(2);
    }
    world.assert_told(&mut seen, &[&["WARN", "refuses", "trouble=\"OOM\""]]);
    world.whim(WELL);
    world.until(World::is_well);
    world.assert_told(&mut seen, &[&["answers again"]]);
    // It is new after that.
    world.whim(REPLICA);
    world.for_tries(4);
    world.assert_told(&mut seen, &[refuses, &["does not answer"]]);
}

#[test]
fn a_loss_that_all_shards_notice_is_told_once_and_the_next_one_again() {
    let (world, mut seen) = (World::new(103), 0);
    world.until(World::is_well);
    for _ in 0..2 {
        let gaps = world.fleet.stats().gaps;
        world.authority.inner.books(|books| books.flush());
        // Twenty clients are in more than two of the sixteen shards.
        world.until(|world| world.fleet.stats().gaps >= gaps + 3);
        world.until(|world| {
            let before = world.fleet.stats().batches;
            world.until(|world| world.fleet.stats().batches > before + 64);
            true
        });
        world.assert_told(&mut seen, &[&["WARN", "lost what it was told", "repaired="]]);
    }
}

#[test]
fn keys_that_break_are_told_and_so_is_that_they_are_mended() {
    let (world, mut seen) = (World::new(104), 0);
    world.until(World::is_well);
    world.assert_told(&mut seen, &[]);
    world.whim(CONFUSED);
    world.until(|world| world.fleet.stats().broken_keys == 20);
    let records = world.fleet.stats().records;
    world.until(|world| world.fleet.stats().records > records + 60);
    let broken = told(104);
    assert!(broken.iter().all(|line| line.contains("WARN") && line.contains("can't make sense")), "{broken:#?}");
    assert_eq!(sum_of_keys(&broken), 20, "each once, however often it is asked about");
    seen += broken.len();
    world.whim(WELL);
    world.until(|world| world.fleet.stats().broken_keys == 0);
    world.until(World::is_well);
    let mut mended = told(104).split_off(seen);
    // It has not noted what it made no sense of, and so it seems to have lost that.
    mended.retain(|line| !line.contains("lost what it was told"));
    assert!(mended.iter().all(|line| line.contains("INFO") && line.contains("counted again")), "{mended:#?}");
    assert_eq!(sum_of_keys(&mended), 20);
}

fn sum_of_keys(lines: &[String]) -> usize {
    let of = |line: &String| {
        let (_, keys) = line.split_once("keys=")?;
        keys.split(' ').next()?.parse::<usize>().ok()
    };
    lines.iter().map(|line| of(line).expect("it says how many")).sum()
}
