//! Random work of several threads on every store, round after round, with totals that have to come out.
//!
//! A budget that never refills counts to the last unit. Each hot key has one on its plan, whatever policy comes and goes:
//! once it is drained, what was admitted and not given back is at most the budget, and at least what of it no refund has
//! been lost of. Meanwhile keys come, are given back all they took, and go, so that ways change hands all the time.
//!
//! `scripts/soak` runs it for long.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it stops at what is wrong, and says how far it is")]

mod stores;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use stores::Kind;
use tollgate::{Decision, Fixed, Limiter, Now, Plan, Policy, Quota, RandomState, Sharded};

const THREADS: u64 = 4;
const HOT: u64 = 6;
const BUDGET: u64 = 2_000;
const IN_FLIGHT: u32 = 3;

/// What came of a hot key.
#[derive(Default)]
struct Ledger {
    taken: AtomicU64,
    given_back: AtomicU64,
    inside: AtomicI64,
}

fn policy(which: usize) -> Policy<u64> {
    let never = Quota::per_second(0).burst(BUDGET).named("never");
    let plenty = Quota::per_second(1_000_000_000);
    let day = Quota::per_day(1 << 40);
    match which % 5 {
        0 => Policy::new().plan("default", Plan::new([never]).in_flight(IN_FLIGHT)),
        1 => Policy::new()
            .plan("default", Plan::new([plenty, never]).in_flight(IN_FLIGHT))
            .plan("other", plenty)
            .default_plan("default"),
        2 => Policy::new().plan("default", Plan::new([never, plenty, day]).in_flight(IN_FLIGHT)),
        3 => Policy::new().plan("renamed", Plan::new([day, never]).in_flight(IN_FLIGHT)),
        _ => Policy::new().plan("default", never),
    }
}

/// One round: `ops` of each thread on a limiter for `keys` keys, with `reloads` policies or without.
fn round<T: Kind<u64>>(seed: u64, keys: u64, ops: u64, reloads: bool) {
    let limiter: Limiter<u64, RandomState, T> =
        T::roomy(Limiter::builder().keys().policy(policy(0)).shards(2), keys).unwrap();
    let ledgers: [Ledger; HOT as usize] = Default::default();
    // Hot keys are there before the others, so that none of them is ever in overflow.
    for key in 0..HOT {
        assert!(limiter.check(&key).is_allowed());
        ledgers[key as usize].taken.store(1, Ordering::Relaxed);
    }
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, ledgers) = (&limiter, &ledgers);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed ^ thread << 48);
                let mut held = Vec::new();
                let mut newcomer = (thread + 1) << 40;
                for _ in 0..ops {
                    let key = random.random_range(0..HOT);
                    let ledger = &ledgers[key as usize];
                    match random.random_range(0..100) {
                        0 if reloads && thread == 0 => limiter.reload(policy(random.random_range(0..5))).unwrap(),
                        0..40 => {
                            let cost = random.random_range(1..4);
                            if let Decision::Allow(allow) = limiter.check_cost(&key, cost) {
                                ledger.taken.fetch_add(cost, Ordering::Relaxed);
                                held.push((key, cost, allow));
                            }
                        }
                        40..60 => {
                            if !held.is_empty() {
                                let (key, cost, allow) = held.swap_remove(random.random_range(0..held.len()));
                                // Before, so that a take of what is given back is not counted earlier.
                                ledgers[key as usize].given_back.fetch_add(cost, Ordering::Relaxed);
                                limiter.refund(&key, allow);
                            }
                        }
                        60..70 if !reloads => {
                            if let Ok(guard) = limiter.enter_costs(&key, &[]) {
                                let inside = ledger.inside.fetch_add(1, Ordering::Relaxed) + 1;
                                assert!(inside <= i64::from(IN_FLIGHT), "{inside} in flight, seed {seed}");
                                thread::yield_now();
                                ledger.inside.fetch_sub(1, Ordering::Relaxed);
                                drop(guard);
                            }
                        }
                        60..70 => drop(limiter.enter_costs(&key, &[])),
                        70..72 => assert!(limiter.peek_cost(&key, BUDGET + 1).is_denied()),
                        _ => {
                            newcomer += 1;
                            if let Decision::Allow(allow) = limiter.check(&newcomer) {
                                limiter.refund(&newcomer, allow);
                            }
                        }
                    }
                }
            });
        }
    });
    limiter.reload(policy(0)).unwrap();
    for (key, ledger) in (0..).zip(&ledgers) {
        let mut taken = ledger.taken.load(Ordering::Relaxed);
        while limiter.check(&key).is_allowed() {
            taken += 1;
        }
        let given_back = ledger.given_back.load(Ordering::Relaxed);
        assert!(taken <= BUDGET + given_back, "{taken} of {key}, {given_back} given back, seed {seed}");
        if !reloads {
            // No refund is lost, so the budget is used up to the last unit.
            assert_eq!(taken, BUDGET + given_back, "of {key}, seed {seed}");
        }
        // All have left.
        let guards: Vec<_> = (0..=IN_FLIGHT).filter_map(|_| limiter.enter_costs(&key, &[]).ok()).collect();
        assert_eq!(guards.len(), IN_FLIGHT as usize, "of {key}, seed {seed}");
    }
    assert!(limiter.stats().evictions > 0, "nobody came and went, seed {seed}");
}

/// Takes of a key from several threads whose instants are out of order, as others come and go: in no window are more than the
/// bound.
fn windows<T: Kind<u64>>(seed: u64, keys: u64, ops: u64) {
    const RATE: u64 = 1_000_000;
    const BURST: u64 = 20;
    let quota = Quota::per_second(RATE).burst(BURST);
    let limiter: Limiter<u64, RandomState, T> =
        T::sized(Limiter::builder().keys().quota(quota).shards(2), keys).unwrap();
    let clock = AtomicU64::new(0);
    let mut all: Vec<(u64, u64, u64)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (limiter, clock) = (&limiter, &clock);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed ^ thread << 48);
                    let mut mine = Vec::new();
                    for _ in 0..ops {
                        // Now and then long enough for all to be idle.
                        let step =
                            if random.random_range(0..1_000) == 0 { 50_000 } else { random.random_range(0..700) };
                        let nanos = clock.fetch_add(step, Ordering::Relaxed);
                        let now = Now::since_origin(Duration::from_nanos(nanos)).unwrap();
                        let (key, cost) = (random.random_range(0..keys * 2), random.random_range(1..4));
                        match limiter.check_cost_at(&key, cost, now) {
                            // A refund at an instant that others are ahead of may be worth more than it should. So what is
                            // given back is of other keys, which share what that needs.
                            Decision::Allow(allow) if key % 2 == 1 => limiter.refund_at(&key, allow, now),
                            Decision::Allow(_) => mine.push((key, nanos, cost)),
                            Decision::Deny(_) => {}
                        }
                    }
                    mine
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_unstable();
    for of_key in all.chunk_by(|one, other| one.0 == other.0) {
        // The worst window that ends here, as what a bucket that is full at first would owe.
        let (mut owed, mut last) = (0, 0);
        for (key, nanos, cost) in of_key {
            owed = u64::saturating_sub(owed, (nanos - last) * RATE / 1_000) + cost * 1_000_000;
            last = *nanos;
            assert!(owed <= BURST * 1_000_000, "{owed} of {key} at {nanos}, seed {seed}");
        }
    }
}

fn all_rounds(seed: u64, ops: u64) {
    for reloads in [false, true] {
        round::<Sharded>(seed, 0, ops, reloads);
        for keys in [12, 100] {
            round::<Fixed>(seed, keys, ops, reloads);
        }
    }
    windows::<Sharded>(seed, 30, ops);
    windows::<Fixed>(seed, 30, ops);
}

#[test]
fn a_slice() {
    all_rounds(1, 20_000);
}

#[test]
#[ignore = "for minutes or hours: `scripts/soak`"]
fn soak() {
    let number = |name, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let seconds = number("TOLLGATE_SOAK_SECONDS", 600);
    let first = number("TOLLGATE_SOAK_SEED", 1);
    let (begun, mut told) = (Instant::now(), 0);
    for seed in first.. {
        all_rounds(seed, 100_000);
        let passed = begun.elapsed().as_secs();
        if passed / 10 > told || passed >= seconds {
            told = passed / 10;
            println!("{passed} s: seeds {first} to {seed} passed");
        }
        if passed >= seconds {
            break;
        }
    }
}
