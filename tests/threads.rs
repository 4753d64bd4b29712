//! Exact totals on real threads.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a helper that meets the unexpected stops the test")]

mod stores;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use stores::{Kind, over_both};
use tollgate::{Clock, DirectLimiter, Limiter, Now, Plan, Policy, Quota};

over_both!(
    eight_threads_admit_a_burst_that_never_refills_exactly_once,
    eight_threads_admit_what_comes_back_to_the_last_unit,
    totals_are_exact_while_the_policy_is_reloaded,
    roll_backs_lose_nothing_and_admit_nobody_extra,
    requests_in_flight_are_counted_exactly,
    places_in_flight_are_counted_exactly_while_keys_move,
);

const THREADS: u64 = 8;
const CHECKS: u64 = 10_000_000;
const BURST: u64 = 10_000;

/// How many of ten million checks on eight threads `check` lets pass.
fn admitted(check: impl Fn() -> bool + Sync) -> u64 {
    let admitted = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mine = (0..CHECKS / THREADS).filter(|_| check()).count();
                admitted.fetch_add(u64::try_from(mine).unwrap(), Ordering::Relaxed);
            });
        }
    });
    admitted.into_inner()
}

fn eight_threads_admit_a_burst_that_never_refills_exactly_once<T: Kind>() {
    let quota = Quota::per_second(0).burst(BURST);
    for clock in [Clock::precise(), Clock::coarse().unwrap()] {
        let direct = DirectLimiter::with_clock(quota, clock.clone()).unwrap();
        assert_eq!(admitted(|| direct.check().is_allowed()), BURST);
        let keyed = T::make(Limiter::builder().quota(quota).clock(clock)).unwrap();
        assert_eq!(admitted(|| keyed.check("hot").is_allowed()), BURST);
        assert_eq!(keyed.len(), 1);
    }
}

/// A microsecond passes with every check, whichever thread makes it, so that threads bring their instants out of
/// order. At 320,000 a second, a unit comes back in about every third check.
fn eight_threads_admit_what_comes_back_to_the_last_unit<T: Kind>() {
    let quota = Quota::per_second(320_000).burst(BURST);
    let at = |nanos| Now::since_origin(Duration::from_nanos(nanos)).unwrap();

    let direct = DirectLimiter::new(quota).unwrap();
    let keyed = T::of(quota);
    let checks: [&(dyn Fn(u64) -> bool + Sync); 2] =
        [&|nanos| direct.check_at(at(nanos)).is_allowed(), &|nanos| keyed.check_at("hot", at(nanos)).is_allowed()];
    for check in checks {
        let clock = AtomicU64::new(0);
        // The window opens at 0: a bucket that is full gains nothing from then on.
        let mut total = u64::from(check(0));
        total += admitted(|| check(clock.fetch_add(1_000, Ordering::Relaxed)));
        let end = clock.into_inner();
        while check(end) {
            total += 1;
        }
        assert_eq!(total, BURST + end * 320_000 / 1_000_000_000);
    }
}

/// The policy changes hundreds of times meanwhile, and with it the number of quotas, their order, their names and the plan
/// that the key is on; the burst that never refills stays what it is.
fn totals_are_exact_while_the_policy_is_reloaded<T: Kind>() {
    let never = Quota::per_second(0).burst(BURST).named("never");
    let plenty = Quota::per_second(1_000_000_000);
    let policies: [Policy; 4] = [
        Policy::new().plan("default", never),
        Policy::new()
            .plan("default", Plan::new([plenty, never]).in_flight(1_000))
            .plan("other", plenty)
            .default_plan("default"),
        Policy::new().plan("default", [never, plenty, Quota::per_day(1 << 40)]),
        Policy::new().plan("renamed", never),
    ];
    let limiter = T::roomy(Limiter::builder().policy(policies[0].clone()), 2_000).unwrap();
    for other in 0..1_000 {
        assert!(limiter.check(&format!("other {other}")).is_allowed());
    }
    let over = AtomicBool::new(false);
    let reloads = AtomicU64::new(0);
    let total = thread::scope(|scope| {
        scope.spawn(|| {
            for policy in policies.iter().cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                limiter.reload(policy.clone()).unwrap();
                reloads.fetch_add(1, Ordering::Relaxed);
            }
        });
        let admitted = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (limiter, admitted, reloads) = (&limiter, &admitted, &reloads);
                scope.spawn(move || {
                    let (mut mine, mut seen) = (0, 0);
                    // A few times in each reload, so that the units last.
                    while seen < 400 {
                        let cost = 1 + thread % 2;
                        mine += u64::from(limiter.check_cost("hot", cost).is_allowed()) * cost;
                        while seen == reloads.load(Ordering::Relaxed) {
                            thread::yield_now();
                        }
                        seen = reloads.load(Ordering::Relaxed);
                    }
                    while limiter.check("hot").is_allowed() {
                        mine += 1;
                    }
                    admitted.fetch_add(mine, Ordering::Relaxed);
                });
            }
        });
        over.store(true, Ordering::Relaxed);
        admitted.into_inner()
    });
    if T::NEVER_PASSES_OVER {
        assert_eq!(total, BURST);
    }
    assert!((1..=BURST).contains(&total), "{total}");
    assert!(reloads.into_inner() >= 400);
}

/// Two quotas that are taken from together, of which one always runs out first: what is given back is all there.
fn roll_backs_lose_nothing_and_admit_nobody_extra<T: Kind>() {
    let [few, many] = [BURST / 2, BURST].map(|burst| Quota::per_second(0).burst(burst));
    let limiter = T::make(Limiter::builder().plan("default", [many.named("many"), few.named("few")])).unwrap();
    assert_eq!(admitted(|| limiter.check("hot").is_allowed()), BURST / 2);
    let left: Vec<_> = limiter.peek_all("hot").iter().map(|one| one.remaining()).collect();
    assert_eq!(left, [BURST / 2, 0]);
}

/// Never more than four are in flight at once, and in the end none is.
fn requests_in_flight_are_counted_exactly<T: Kind>() {
    let plan = Plan::new([Quota::per_second(1_000_000_000)]).in_flight(4);
    let limiter = T::make(Limiter::builder().plan("default", plan)).unwrap();
    let (inside, most) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..50_000 {
                    if let Ok(guard) = limiter.enter("hot") {
                        most.fetch_max(inside.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        drop(guard);
                    }
                }
            });
        }
    });
    assert!((1..=4).contains(&most.into_inner()));
    let guards: Vec<_> = (0..5).filter_map(|_| limiter.enter("hot").ok()).collect();
    assert_eq!(guards.len(), 4);
}

/// A place that is taken while the key moves, by hand or since its plan is gone, is counted once and given back once.
fn places_in_flight_are_counted_exactly_while_keys_move<T: Kind<u64>>() {
    let plan = || Plan::new([Quota::per_second(1_000_000_000), Quota::per_hour(1 << 40)]).in_flight(1_000);
    let both = || Policy::<u64>::new().plan("one", plan()).plan("two", plan()).default_plan("one");
    let limiter = T::sized(Limiter::builder().keys().policy(both()), 4).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for handle in ["one", "two"].map(|name| limiter.plan(name).unwrap()) {
            let over = &over;
            scope.spawn(move || {
                for turn in 0..30_000_u64 {
                    drop(handle.enter(&(turn % 3)).unwrap());
                }
                over.store(true, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            for turn in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let key = turn % 3;
                if turn % 7 == 0 {
                    limiter.reload(Policy::new().plan("one", plan())).unwrap();
                    limiter.reload(both()).unwrap();
                }
                limiter.move_plan(&key, "one", "two").unwrap();
                limiter.move_plan(&key, "two", "one").unwrap();
            }
        });
    });
    limiter.reload(Policy::new().plan("one", plan())).unwrap();
    for key in 0..3 {
        let left = limiter.peek_all(&key).iter().map(|one| one.remaining()).next_back();
        assert_eq!(left, Some(1_000), "of {key}");
    }
}
