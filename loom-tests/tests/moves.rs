//! Use that is moved to another plan, or forgotten, while others take and give back, under every interleaving.
//!
//! All is at one instant, so that nothing comes back by time.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use loom_tests::Race;
use loom_tests::keyed::{A, Identity, Keyed, allow, at, builder, count, slow};
use tollgate::{PlanLimiter, Policy, Unit};

const ONE: [(Unit, u64); 1] = [(Unit::REQUESTS, 1)];

/// A limiter of two plans, on both of which a key has taken a unit.
fn limiter() -> (Keyed, PlanLimiter<u64, Identity>) {
    let plans = builder(10).plan("default", slow(4)).plan("x", slow(4)).default_plan("default");
    let limiter = plans.build().expect("plans that make sense");
    let x = limiter.plan("x").expect("there is one");
    assert_eq!(take(&limiter) + take_on(&x), 2);
    (limiter, x)
}

fn take(limiter: &Keyed) -> u64 {
    count(&limiter.check_at(&A, at(100)))
}

fn take_on(x: &PlanLimiter<u64, Identity>) -> u64 {
    count(&x.check_costs_at(&A, &ONE, at(100)))
}

/// Moves all use of `x`; where that is gone already, its use has been moved by that.
fn move_use(limiter: &Keyed) {
    let _ = limiter.move_plan_at(&A, "x", "default", at(100));
}

/// What is taken meanwhile is used on the one plan or on the other, and what is moved is used once.
#[test]
fn use_that_is_moved_is_used_once() {
    Race::model(|race| {
        let (limiter, x) = limiter();
        let on_x = x.clone();
        let ((), taken) = race.run(&limiter, move_use, move |limiter| take(limiter) + take_on(&on_x));
        assert_eq!(taken, 2);
        let left = [x.peek_costs_at(&A, &ONE, at(100)), limiter.peek_at(&A, at(100))].map(|peek| peek.remaining());
        assert!(left == [4, 0] || left == [3, 1], "{left:?}");
    });
}

/// A reload removes the plan, and so moves the use itself.
#[test]
fn use_is_moved_by_a_reload_or_by_a_move() {
    Race::model(|race| {
        let (limiter, _) = limiter();
        let reload = |limiter: &Keyed| {
            limiter.reload_at(Policy::new().plan("default", slow(4)), at(100)).expect("a policy that makes sense");
            take(limiter)
        };
        assert_eq!(race.run(&limiter, move_use, reload), ((), 1));
        assert_eq!((limiter.len(), limiter.peek_at(&A, at(100)).remaining()), (1, 1));
    });
}

/// The bucket is made full and taken from: a refund of what was taken before gives nothing to it.
#[test]
fn a_refund_that_races_a_reset_gives_nothing_to_the_next_life() {
    Race::model(|race| {
        let limiter = builder(10).quota(slow(3)).build().expect("a quota that makes sense");
        let one = allow(limiter.check_at(&A, at(100)));
        let reset = |limiter: &Keyed| (limiter.reset(&A), take(limiter) + take(limiter));
        let (reset, ()) = race.run(&limiter, reset, move |limiter| limiter.refund_at(&A, one, at(100)));
        assert_eq!(reset, (true, 2));
        assert_eq!(take(&limiter) + take(&limiter), 1);
    });
}
