//! Limiters in forked processes: a child decides by its own time, and its parent goes on as before.
//!
//! The time here is real. The question is whether it moves on in a process without the thread that
//! publishes it, which no virtual time can answer. No test asserts how long anything takes: on a
//! machine that is slow more units come back, not fewer.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a helper that meets the unexpected stops the test")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use stop_tests::fork;
use tollgate::{Clock, Decision, Limiter, Quota};

/// One test at a time, so that no other test's thread is in the middle of anything when a test
/// forks.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn limiter(quota: Quota, clock: Clock) -> Limiter {
    Limiter::builder().quota(quota).clock(clock).build().unwrap()
}

/// How many of a client's requests are allowed that come every 20 ms, which is half as often as
/// they may.
fn allowed_of(limiter: &Limiter, requests: u64) -> u64 {
    let allowed = (0..requests).filter(|_| {
        thread::sleep(Duration::from_millis(20));
        limiter.check("client").is_allowed()
    });
    u64::try_from(allowed.count()).unwrap()
}

fn hundred_a_second() -> Quota {
    Quota::per_second(100).burst(20)
}

#[test]
fn a_client_below_its_limit_is_allowed_in_a_child_without_the_thread_of_the_clock() {
    let _alone = alone();
    let limiter = limiter(hundred_a_second(), Clock::coarse().unwrap());
    assert!(limiter.check("client").is_allowed());
    fork(|| assert_eq!(allowed_of(&limiter, 100), 100)).join();
}

#[test]
fn a_client_below_its_limit_is_allowed_in_a_child_of_a_child() {
    let _alone = alone();
    let limiter = limiter(hundred_a_second(), Clock::coarse().unwrap());
    assert!(limiter.check("client").is_allowed());
    fork(|| {
        assert_eq!(allowed_of(&limiter, 30), 30);
        fork(|| assert_eq!(allowed_of(&limiter, 50), 50)).join();
        assert_eq!(allowed_of(&limiter, 30), 30);
    })
    .join();
}

#[test]
fn a_client_above_its_limit_is_limited_in_a_child_without_the_thread_of_the_clock() {
    let _alone = alone();
    let limiter = limiter(Quota::per_hour(10), Clock::coarse().unwrap());
    assert!(limiter.check_cost("client", 7).is_allowed());
    fork(|| {
        let allowed = (0..10_000).filter(|_| limiter.check("client").is_allowed()).count();
        assert_eq!(allowed, 3);
    })
    .join();
    assert_eq!(limiter.peek("client").remaining(), 3, "a child's takes are its own");
}

#[test]
fn the_last_clone_of_a_coarse_clock_can_be_dropped_in_a_child() {
    let _alone = alone();
    let clock = Clock::coarse().unwrap();
    fork(move || drop(clock)).join();

    let mut limiter = Some(limiter(hundred_a_second(), Clock::coarse().unwrap()));
    fork(|| {
        assert!(limiter.as_ref().unwrap().check("client").is_allowed());
        // The child's copy, of which there is no other clone.
        drop(limiter.take());
    })
    .join();
    assert!(limiter.unwrap().check("client").is_allowed());
}

#[test]
fn a_parent_goes_on_as_before() {
    let _alone = alone();
    let limiter = limiter(hundred_a_second(), Clock::coarse().unwrap());
    assert_eq!(allowed_of(&limiter, 10), 10);
    let child = fork(|| assert_eq!(allowed_of(&limiter, 10), 10));
    assert_eq!(allowed_of(&limiter, 50), 50);
    child.join();
    assert_eq!(allowed_of(&limiter, 25), 25);
    while limiter.check("client").is_allowed() {}
    thread::sleep(Duration::from_millis(500));
    assert_eq!((0..20).filter(|_| limiter.check("client").is_allowed()).count(), 20);
}

#[test]
fn a_coarse_clock_made_in_a_child_has_a_thread() {
    let _alone = alone();
    let in_parent = limiter(hundred_a_second(), Clock::coarse().unwrap());
    fork(|| {
        let own = limiter(hundred_a_second(), Clock::coarse().unwrap());
        let before = own.now();
        // Only its thread publishes a later time here.
        while own.now() == before {
            thread::yield_now();
        }
        assert_eq!(allowed_of(&own, 40), 40);
        drop(own);
        assert_eq!(allowed_of(&in_parent, 40), 40);
    })
    .join();
}

#[test]
fn a_child_decides_as_its_parent_by_a_precise_clock() {
    let _alone = alone();
    for clock in [Clock::precise(), Clock::std()] {
        let sharded = limiter(Quota::per_hour(10), clock.clone());
        let fixed = Limiter::builder().quota(Quota::per_hour(10)).clock(clock.clone()).fixed(100).build().unwrap();
        assert!(sharded.check_cost("client", 7).is_allowed() && fixed.check_cost("client", 7).is_allowed());
        // At one instant, the same in the child as here.
        let now = sharded.now();
        let (of_sharded, of_fixed) = (sharded.peek_at("client", now), fixed.peek_at("client", now));
        fork(|| {
            assert_eq!(sharded.peek_at("client", now).to_string(), of_sharded.to_string());
            assert_eq!(fixed.peek_at("client", now).to_string(), of_fixed.to_string());
            assert!(sharded.now() >= now, "the child's time goes on from the parent's");
            for _ in 0..3 {
                assert!(sharded.check("client").is_allowed() && fixed.check("client").is_allowed());
            }
            assert!(sharded.check("client").is_denied() && fixed.check("client").is_denied());
            assert!(sharded.check("new").is_allowed() && fixed.check("new").is_allowed());
        })
        .join();
        assert_eq!(sharded.peek("client").remaining(), 3);
        assert_eq!(fixed.peek("client").remaining(), 3);

        let moving = limiter(hundred_a_second(), clock);
        fork(|| assert_eq!(allowed_of(&moving, 40), 40)).join();
    }
}

/// The other thread stays behind in the parent, wherever it was in its check. The child's checks
/// are of keys that both know: a lock that is held for a newcomer at that moment stays so in the
/// child, as locks do.
#[test]
fn a_child_forked_while_another_thread_checks_goes_on() {
    let _alone = alone();
    let quota = Quota::per_second(1_000).burst(1_000_000_000);
    for clock in [Clock::precise(), Clock::coarse().unwrap()] {
        let sharded = limiter(quota, clock.clone());
        let fixed = Limiter::builder().quota(quota).clock(clock.clone()).fixed(8).build().unwrap();
        let denied = limiter(Quota::per_hour(1), clock.clone());
        let known = ["client 0", "client 1", "client 2"];
        let all = |cost| {
            let allow = |decision: Decision| u64::from(decision.is_allowed());
            let of = |key| allow(sharded.check_cost(key, cost)) + allow(fixed.check_cost(key, cost));
            // Denied for long, so that a coarse clock looks at the time itself now and then.
            known.into_iter().map(|key| of(key) + u64::from(denied.check(key).is_denied())).sum::<u64>()
        };
        all(1_000_000);
        let (over, turns) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    black_box(all(1));
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
            for fork_number in 0..50_u64 {
                let seen = turns.load(Ordering::Relaxed);
                while turns.load(Ordering::Relaxed) < seen + fork_number {
                    thread::yield_now();
                }
                fork(|| (0..300).for_each(|_| assert_eq!(all(1), 9))).join();
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(all(1), 9);
    }
}
