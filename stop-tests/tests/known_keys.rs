//! Checks of known keys do not wait for threads that stand still in the middle of something else.
//!
//! A known key here is one with units of its own in use, so that no newcomer may take its place. In
//! the fixed store its checks wait for no thread. In the sharded store they take a lock for
//! reading, and wait for no thread that has it for reading too. Newcomers may wait for newcomers,
//! and no check here is one.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a helper that meets the unexpected stops the test")]

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stop_tests::{Case, play};
use tollgate::{Builder, Decision, Fixed, Limiter, Now, Plan, Policy, Quota, Sharded, Stores, Unit};

/// How often the threads of a case are stopped.
const STOPS: u64 = 100;

/// How many checks each of the two check threads makes at each stop.
const CHECKS: u64 = 5_000;

/// Keys that are checked while threads stand still, and others beside them.
const KEYS: [&str; 4] = ["known 0", "known 1", "known 2", "known 3"];
const OTHERS: [&str; 4] = ["other 0", "other 1", "other 2", "other 3"];

/// The same places for the same keys in each run.
type Hasher = BuildHasherDefault<DefaultHasher>;

/// What the plan of all keys consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Quotas {
    One,
    /// The second allows one unit a nanosecond and no two at once. So of two threads that check a
    /// key at one instant, one may find the second quota used up after it has taken from the first.
    Two,
    /// The same two, and requests in flight.
    InFlight,
}
use Quotas::{InFlight, One, Two};

impl Quotas {
    /// The policy of an even turn, or of an odd one: the use of each key has to be carried from one
    /// to the other.
    fn policy(self, turn: u64) -> Policy {
        // What is taken here does not come back within the test, so that no key is ever idle.
        let plenty = Quota::per_second(1_000 + turn % 2).burst(1_000_000_000).named("plenty");
        let one_at_once = Quota::per_second(1_000_000_000 - turn % 2).burst(1).named("one at once");
        Policy::new().plan(
            "default",
            match self {
                One => Plan::new([plenty]),
                Two => Plan::new([plenty, one_at_once]),
                InFlight => Plan::new([plenty, one_at_once]).in_flight(3),
            },
        )
    }
}

/// What the threads of a case share.
struct Shared<T: Stores<str, Hasher>> {
    limiter: Limiter<str, Hasher, T>,
    quotas: Quotas,
    /// Half the nanoseconds of virtual time that have passed: two checks fall on one instant.
    halves: AtomicU64,
    allowed: AtomicU64,
}

impl<T: Stores<str, Hasher>> Shared<T> {
    /// All keys are known, and none is in the overflow.
    fn new(quotas: Quotas, make: impl FnOnce(Builder<str, Hasher>) -> Builder<str, Hasher, T>) -> Self {
        let builder = Limiter::builder().policy(quotas.policy(0)).hasher(Hasher::default());
        let limiter = make(builder).build().unwrap();
        let shared = Self { limiter, quotas, halves: AtomicU64::new(0), allowed: AtomicU64::new(0) };
        for key in KEYS.into_iter().chain(OTHERS) {
            for _ in 0..1_000 {
                assert!(shared.limiter.check_at(key, shared.next_instant()).is_allowed());
                shared.next_instant();
            }
        }
        assert_eq!((shared.limiter.len(), shared.limiter.stats().overflow), (8, 0), "all have a place of their own");
        shared
    }

    fn next_instant(&self) -> Now {
        at(self.halves.fetch_add(1, Ordering::Relaxed))
    }

    fn instant(&self) -> Now {
        at(self.halves.load(Ordering::Relaxed))
    }

    /// Checks all keys that are checked, over and over.
    fn checks(&self) {
        let mut allowed = 0;
        for turn in 0..CHECKS {
            // Every other check is of one key, on which the threads meet.
            let key = if turn % 2 == 0 { KEYS[0] } else { cycle(&KEYS, turn / 2) };
            let now = self.next_instant();
            allowed += u64::from(if self.quotas == InFlight && turn % 8 < 2 {
                self.limiter.enter_costs_at(key, &[(Unit::REQUESTS, 1)], now).is_ok()
            } else {
                self.limiter.check_at(key, now).is_allowed()
            });
        }
        self.allowed.fetch_add(allowed, Ordering::Relaxed);
    }

    /// Takes a unit of `key` and gives it back.
    fn refund(&self, key: &str) {
        let now = self.next_instant();
        if self.quotas == InFlight {
            if let Ok(mut running) = self.limiter.enter_costs_at(key, &[(Unit::REQUESTS, 1)], now) {
                self.limiter.refund_at(key, running.take_allow(), now);
            }
        } else if let Decision::Allow(allow) = self.limiter.check_at(key, now) {
            self.limiter.refund_at(key, allow, now);
        }
    }

    /// Takes a unit of `key` at an instant at which another thread may take it too.
    fn race(&self, key: &str) {
        let now = self.instant();
        if self.quotas == InFlight {
            _ = self.limiter.enter_costs_at(key, &[(Unit::REQUESTS, 1)], now);
        } else {
            _ = self.limiter.check_at(key, now);
        }
        self.next_instant();
    }

    fn reload(&self, turn: u64) {
        self.limiter.reload_at(self.quotas.policy(turn), self.instant()).unwrap();
    }

    fn play(&self, name: &str, stops: u64, workers: Vec<Box<dyn Fn(u64) + Sync + '_>>, reloads: bool) {
        let check = || Box::new(|| self.checks()) as Box<dyn Fn() + Sync + '_>;
        let beside = reloads.then(|| Box::new(|turn| self.reload(turn)) as Box<dyn Fn(u64) + Sync + '_>);
        let case = Case { workers, beside, checks: vec![check(), check()] };
        play(&format!("{name}, {:?}", self.quotas), &case, stops, 1);
        let all = 2 * CHECKS * (stops + 1);
        assert!(self.allowed.load(Ordering::Relaxed) > all / 4, "most checks found nothing, or no units");
    }
}

fn at(halves: u64) -> Now {
    Now::since_origin(Duration::from_nanos(halves / 2)).unwrap()
}

/// A store that all cases of a kind are played on.
trait Over: Stores<str, Hasher> + Sized {
    fn each(name: &str, quotas: Quotas, play: impl Fn(&str, &Shared<Self>));
}

impl Over for Fixed {
    /// With two sets, so that all keys share a set with others, and with some more.
    fn each(name: &str, quotas: Quotas, play: impl Fn(&str, &Shared<Self>)) {
        for keys in [8, 100] {
            let shared = Shared::new(quotas, |builder| builder.fixed(keys));
            play(&format!("{name}, fixed({keys})"), &shared);
        }
    }
}

impl Over for Sharded {
    fn each(name: &str, quotas: Quotas, play: impl Fn(&str, &Shared<Self>)) {
        play(&format!("{name}, sharded"), &Shared::new(quotas, |builder| builder.shards(2)));
    }
}

fn boxed<'a>(work: impl Fn(u64) + Sync + 'a) -> Box<dyn Fn(u64) + Sync + 'a> {
    Box::new(work)
}

fn cycle(keys: &'static [&'static str], turn: u64) -> &'static str {
    keys[turn as usize % keys.len()]
}

fn refunds_of_other_keys<T: Over>(quotas: Quotas) {
    T::each("refunds of other keys", quotas, |name, shared| {
        let refund = || boxed(|turn| shared.refund(cycle(&OTHERS, turn)));
        shared.play(name, STOPS, vec![refund(), refund()], false);
    });
}

fn refunds_of_the_same_keys<T: Over>(quotas: Quotas) {
    T::each("refunds of the same keys", quotas, |name, shared| {
        let refund = || boxed(|turn| shared.refund(cycle(&KEYS, turn)));
        shared.play(name, STOPS, vec![refund(), refund()], false);
    });
}

/// Threads that race for the last unit of the second quota, so that some have to give back one of
/// the first.
fn rollbacks<T: Over>(quotas: Quotas) {
    T::each("rollbacks of the same key and of another", quotas, |name, shared| {
        let race = |key| boxed(move |_| shared.race(key));
        shared.play(name, 2 * STOPS, vec![race(KEYS[0]), race(KEYS[0]), race(OTHERS[0]), race(OTHERS[0])], false);
    });
}

fn refunds_and_reloads<T: Over>(quotas: Quotas) {
    T::each("refunds of other keys, with reloads", quotas, |name, shared| {
        let refund = || boxed(|turn| shared.refund(cycle(&OTHERS, turn)));
        shared.play(name, STOPS, vec![refund(), refund()], true);
    });
    T::each("refunds of the same keys, with reloads", quotas, |name, shared| {
        let refund = || boxed(|turn| shared.refund(cycle(&KEYS, turn)));
        shared.play(name, STOPS, vec![refund(), refund()], true);
    });
}

fn rollbacks_and_reloads<T: Over>(quotas: Quotas) {
    T::each("rollbacks, with reloads", quotas, |name, shared| {
        let race = |key| boxed(move |_| shared.race(key));
        shared.play(name, 2 * STOPS, vec![race(KEYS[0]), race(KEYS[0]), race(OTHERS[0])], true);
    });
}

/// The thread that reloads stands still.
fn a_reload<T: Over>(quotas: Quotas) {
    T::each("a reload", quotas, |name, shared| {
        shared.play(name, STOPS, vec![boxed(|turn| shared.reload(turn))], false);
    });
}

/// Checks find words of the policy before while a reload runs, and renew them. They stand still in
/// that, and the reload too.
fn renewals<T: Over>(quotas: Quotas) {
    T::each("renewals of the same keys and of others", quotas, |name, shared| {
        let check = |keys: &'static [&'static str]| boxed(move |turn| shared.race(cycle(keys, turn)));
        let reload = boxed(|turn| shared.reload(turn));
        shared.play(name, STOPS, vec![reload, check(&KEYS), check(&OTHERS)], false);
    });
    T::each("renewals, with reloads", quotas, |name, shared| {
        let check = |keys: &'static [&'static str]| boxed(move |turn| shared.race(cycle(keys, turn)));
        shared.play(name, STOPS, vec![check(&KEYS), check(&OTHERS)], true);
    });
}

/// Newcomers stand still in the middle of taking the place of others that are idle again.
fn newcomers<T: Over>(quotas: Quotas) {
    T::each("newcomers", quotas, |name, shared| {
        let come = |from: u64| {
            boxed(move |turn| {
                let key = format!("newcomer {}", from + turn);
                // A unit that is kept would have the key in use for a millisecond, and the table
                // full.
                let now = shared.next_instant();
                if let Decision::Allow(allow) = shared.limiter.check_at(&key, now) {
                    shared.limiter.refund_at(&key, allow, now);
                }
                shared.next_instant();
            })
        };
        shared.play(name, STOPS, vec![come(0), come(1 << 40)], false);
        let stats = shared.limiter.stats();
        assert!(stats.evictions > STOPS, "newcomers have found places: {stats:?}");
    });
}

/// Resets of other keys, which stand still.
fn resets<T: Over>(quotas: Quotas) {
    T::each("resets of other keys", quotas, |name, shared| {
        let reset = || {
            boxed(|turn| {
                let key = cycle(&OTHERS, turn);
                shared.limiter.reset(key);
                shared.race(key);
            })
        };
        shared.play(name, STOPS, vec![reset(), reset()], true);
    });
}

/// One test for each plan.
macro_rules! each {
    ($store:ident: $($test:ident($($name:ident $quotas:ident),*);)*) => {
        $(mod $test {
            $(#[test] fn $name() { super::super::$test::<tollgate::$store>(super::super::$quotas); })*
        })*
    };
}

mod fixed {
    each! {
        Fixed:
        refunds_of_other_keys(one One, two Two, in_flight InFlight);
        refunds_of_the_same_keys(one One, two Two, in_flight InFlight);
        rollbacks(two Two, in_flight InFlight);
        refunds_and_reloads(one One, two Two, in_flight InFlight);
        rollbacks_and_reloads(two Two, in_flight InFlight);
        a_reload(one One, two Two, in_flight InFlight);
        renewals(one One, two Two, in_flight InFlight);
        newcomers(one One, two Two, in_flight InFlight);
        resets(one One, two Two, in_flight InFlight);
    }
}

mod sharded {
    each! {
        Sharded:
        refunds_of_other_keys(one One, two Two, in_flight InFlight);
        refunds_of_the_same_keys(one One, two Two, in_flight InFlight);
        rollbacks(two Two, in_flight InFlight);
    }
}
