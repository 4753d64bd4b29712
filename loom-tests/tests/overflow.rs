//! The buckets that newcomers share when there is no room, under every interleaving with a policy that is replaced.
//!
//! All is at one instant, so that nothing comes back by time. There is room for one key, and `A` has it.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use loom_tests::keyed::{A, B, Keyed, allow, at, builder, count, slow};
use loom_tests::{model, thread};
use tollgate::{InFlight, Plan, PlanLimiter, Policy, Quota, Unit};

const ONE: [(Unit, u64); 1] = [(Unit::REQUESTS, 1)];

/// A limiter of one plan that has no room left.
fn limiter(plan: impl Into<Plan>) -> Keyed {
    let limiter = builder(1).plan("default", plan).build().expect("a plan that makes sense");
    assert_eq!(take(&limiter, A), 1);
    limiter
}

/// The same with a second plan, `x`.
fn limiter_with_x(plan: impl Into<Plan> + Clone) -> (Keyed, PlanLimiter<u64, loom_tests::keyed::Identity>) {
    let plans = builder(1).plan("default", plan.clone()).plan("x", plan).default_plan("default");
    let limiter = plans.build().expect("plans that make sense");
    assert_eq!(take(&limiter, A), 1);
    let x = limiter.plan("x").expect("there is one");
    (limiter, x)
}

/// The policy of one plan.
fn policy(plan: impl Into<Plan>) -> Policy<u64> {
    Policy::new().plan("default", plan)
}

fn reload(limiter: &Keyed, policy: Policy<u64>) {
    limiter.reload_at(policy, at(100)).expect("a policy that makes sense");
}

/// Reloads on a thread of its own.
fn reloads(limiter: &Keyed, policy: Policy<u64>) -> thread::JoinHandle<()> {
    let limiter = limiter.clone();
    thread::spawn(move || reload(&limiter, policy))
}

fn take(limiter: &Keyed, key: u64) -> u64 {
    count(&limiter.check_at(&key, at(100)))
}

/// Whether one more request of `B` may be in flight on the default plan.
fn enter(limiter: &Keyed) -> Option<InFlight> {
    limiter.enter_costs_at(&B, &[], at(100)).ok()
}

/// What a newcomer takes meanwhile is used under the new quota, whichever policy admitted it.
#[test]
fn what_overflow_admits_during_a_reload_is_used_after_it() {
    for (old, new) in [(2, 3), (3, 2)] {
        model(move || {
            let limiter = limiter(slow(old));
            assert_eq!(take(&limiter, B), 1);
            let thread = reloads(&limiter, policy(slow(new)));
            assert_eq!(take(&limiter, B), 1);
            thread.join().expect("no model panics");
            assert_eq!((0..4).map(|_| take(&limiter, B)).sum::<u64>(), new - 2);
        });
    }
}

/// A newcomer has used up the burst: whichever policy decides, there is no unit for it.
#[test]
fn what_is_used_up_of_the_overflow_stays_so() {
    for (old, new) in [(slow(2), slow(1)), (slow(2), Quota::per_hour(1).burst(2))] {
        model(move || {
            let limiter = limiter(old);
            assert_eq!(take(&limiter, B) + take(&limiter, B), 2);
            let thread = reloads(&limiter, policy(new));
            assert_eq!(take(&limiter, B), 0);
            thread.join().expect("no model panics");
            assert_eq!(take(&limiter, B), 0);
        });
    }
}

/// What was used up is the overflow of a plan that goes: from then on that of the default plan has its use.
#[test]
fn the_overflow_of_a_plan_that_goes_takes_its_use_along() {
    model(|| {
        let (limiter, x) = limiter_with_x(slow(2));
        let on_x = || count(&x.check_costs_at(&B, &ONE, at(100)));
        assert_eq!(on_x() + on_x(), 2);
        let thread = reloads(&limiter, policy(slow(2)));
        assert_eq!(on_x(), 0);
        thread.join().expect("no model panics");
        assert_eq!(on_x() + take(&limiter, B), 0);
    });
}

/// The same for who gets buckets of its own meanwhile, since `A` makes room: they start with what it used in overflow.
#[test]
fn who_gets_room_while_its_plan_goes_has_no_second_burst() {
    model(|| {
        let plans = builder(1).plan("default", slow(2)).plan("x", slow(2)).default_plan("default");
        let limiter = plans.build().expect("plans that make sense");
        let x = limiter.plan("x").expect("there is one");
        let on_x = || count(&x.check_costs_at(&B, &ONE, at(100)));
        let idle = allow(limiter.check_at(&A, at(100)));
        assert_eq!(on_x() + on_x(), 2);
        limiter.refund_at(&A, idle, at(100));
        let thread = reloads(&limiter, policy(slow(2)));
        assert_eq!(on_x(), 0);
        thread.join().expect("no model panics");
        assert_eq!(on_x() + take(&limiter, B), 0);
    });
}

/// What overflow took is given back while its quota changes: worth a unit or nothing, and the change is made once.
#[test]
fn a_refund_of_the_overflow_undoes_no_reload() {
    model(|| {
        let limiter = limiter(slow(3));
        // So that there is a version before that of the refund, and in it nothing else.
        reload(&limiter, policy(slow(3)));
        let one = allow(limiter.check_at(&B, at(100)));
        assert_eq!(take(&limiter, B) + take(&limiter, B), 2);
        let thread = reloads(&limiter, policy(Quota::per_hour(1).burst(3)));
        limiter.refund_at(&B, one, at(100));
        thread.join().expect("no model panics");
        assert!(take(&limiter, B) + take(&limiter, B) <= 1);
    });
}

/// Who is in flight in the overflow leaves it during a reload, and its place is free afterwards, be the plan still there
/// or not.
#[test]
fn who_leaves_the_overflow_during_a_reload_has_left() {
    let plan = || Plan::new([slow(4)]).in_flight(1);
    model(move || {
        let limiter = limiter(plan());
        let guard = enter(&limiter).expect("nobody else is there");
        let thread = reloads(&limiter, policy(Plan::new([slow(3)]).in_flight(1)));
        drop(guard);
        thread.join().expect("no model panics");
        let first = enter(&limiter);
        assert!(first.is_some() && enter(&limiter).is_none());
    });
    model(move || {
        let (limiter, x) = limiter_with_x(plan());
        let guard = x.enter_costs_at(&B, &ONE, at(100)).expect("nobody else is there");
        let thread = reloads(&limiter, policy(plan()));
        drop(guard);
        thread.join().expect("no model panics");
        let first = enter(&limiter);
        assert!(first.is_some() && enter(&limiter).is_none());
    });
}
