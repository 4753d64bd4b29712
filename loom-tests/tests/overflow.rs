//! The buckets that newcomers share when there is no room, under every interleaving with a policy that is replaced.
//!
//! All is at one instant, so that nothing comes back by time. There is room for one key, and `A` has it.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use loom_tests::Race;
use loom_tests::keyed::{A, B, Identity, Keyed, allow, at, builder, count, slow};
use tollgate::{InFlight, Plan, PlanLimiter, Policy, Quota, Unit};

const ONE: [(Unit, u64); 1] = [(Unit::REQUESTS, 1)];

/// A limiter of one plan that has no room left.
fn limiter(plan: impl Into<Plan>) -> Keyed {
    let limiter = builder(1).plan("default", plan).build().expect("a plan that makes sense");
    assert_eq!(take(&limiter, A), 1);
    limiter
}

/// A limiter of two plans alike, the default plan and `x`.
fn limiter_with_x(plan: impl Into<Plan> + Clone) -> (Keyed, PlanLimiter<u64, Identity>) {
    let plans = builder(1).plan("default", plan.clone()).plan("x", plan).default_plan("default");
    let limiter = plans.build().expect("plans that make sense");
    let x = limiter.plan("x").expect("there is one");
    (limiter, x)
}

/// Puts the policy of one plan in force.
fn reload(limiter: &Keyed, plan: impl Into<Plan>) {
    limiter.reload_at(Policy::new().plan("default", plan), at(100)).expect("a policy that makes sense");
}

fn take(limiter: &Keyed, key: u64) -> u64 {
    count(&limiter.check_at(&key, at(100)))
}

fn take_on(x: &PlanLimiter<u64, Identity>) -> u64 {
    count(&x.check_costs_at(&B, &ONE, at(100)))
}

/// A place in flight of `B` on the default plan, if there is one.
fn enter(limiter: &Keyed) -> Option<InFlight> {
    limiter.enter_costs_at(&B, &[], at(100)).ok()
}

/// What a newcomer takes meanwhile is used under the new quota, whichever policy admitted it.
#[test]
fn what_overflow_admits_during_a_reload_is_used_after_it() {
    for (old, new) in [(2, 3), (3, 2)] {
        Race::model(move |race| {
            let limiter = limiter(slow(old));
            assert_eq!(take(&limiter, B), 1);
            let ((), taken) = race.run(&limiter, move |limiter| reload(limiter, slow(new)), |limiter| take(limiter, B));
            assert_eq!(taken, 1);
            assert_eq!((0..4).map(|_| take(&limiter, B)).sum::<u64>(), new - 2);
        });
    }
}

/// A newcomer has used up the burst: whichever policy decides, there is no unit for it.
#[test]
fn what_is_used_up_of_the_overflow_stays_so() {
    for (old, new) in [(slow(2), slow(1)), (slow(2), Quota::per_hour(1).burst(2))] {
        Race::model(move |race| {
            let limiter = limiter(old);
            assert_eq!(take(&limiter, B) + take(&limiter, B), 2);
            let ((), taken) = race.run(&limiter, move |limiter| reload(limiter, new), |limiter| take(limiter, B));
            assert_eq!(taken + take(&limiter, B), 0);
        });
    }
}

/// The plan goes meanwhile: what its overflow admits is used under the default plan, be it the first that it admits or
/// not.
#[test]
fn what_overflow_admits_while_its_plan_goes_is_used_after_it() {
    for used in [0, 1] {
        Race::model(move |race| {
            let (limiter, x) = limiter_with_x(slow(3));
            assert_eq!(take(&limiter, A), 1);
            assert_eq!((0..used).map(|_| take_on(&x)).sum::<u64>(), used);
            let ((), taken) = race.run(&limiter, |limiter| reload(limiter, slow(3)), move |_| take_on(&x));
            assert_eq!(taken, 1);
            assert_eq!((0..4).map(|_| take(&limiter, B)).sum::<u64>(), 2 - used);
        });
    }
}

/// What was used up is the overflow of a plan that goes: from then on that of the default plan has its use.
#[test]
fn the_overflow_of_a_plan_that_goes_takes_its_use_along() {
    Race::model(|race| {
        let (limiter, x) = limiter_with_x(slow(2));
        assert_eq!(take(&limiter, A), 1);
        assert_eq!(take_on(&x) + take_on(&x), 2);
        let on_x = x.clone();
        let ((), taken) = race.run(&limiter, |limiter| reload(limiter, slow(2)), move |_| take_on(&on_x));
        assert_eq!(taken + take_on(&x) + take(&limiter, B), 0);
    });
}

/// The same for who gets buckets of its own meanwhile, since `A` makes room: they start with what it used in overflow.
#[test]
fn who_gets_room_while_its_plan_goes_has_no_second_burst() {
    Race::model(|race| {
        let (limiter, x) = limiter_with_x(slow(2));
        let idle = allow(limiter.check_at(&A, at(100)));
        assert_eq!(take_on(&x) + take_on(&x), 2);
        limiter.refund_at(&A, idle, at(100));
        let on_x = x.clone();
        let ((), taken) = race.run(&limiter, |limiter| reload(limiter, slow(2)), move |_| take_on(&on_x));
        assert_eq!(taken + take_on(&x) + take(&limiter, B), 0);
    });
}

/// What overflow took is given back while its quota changes: worth a unit or nothing, and the change is made once.
#[test]
fn a_refund_of_the_overflow_undoes_no_reload() {
    Race::model(|race| {
        let limiter = limiter(slow(3));
        // So that there is a version before that of the refund, and in it nothing else.
        reload(&limiter, slow(3));
        let one = allow(limiter.check_at(&B, at(100)));
        assert_eq!(take(&limiter, B) + take(&limiter, B), 2);
        race.run(
            &limiter,
            |limiter| reload(limiter, Quota::per_hour(1).burst(3)),
            move |limiter| limiter.refund_at(&B, one, at(100)),
        );
        assert!(take(&limiter, B) + take(&limiter, B) <= 1);
    });
}

/// Who is in flight in the overflow leaves it during a reload, and its place is free afterwards.
#[test]
fn who_leaves_the_overflow_during_a_reload_has_left() {
    Race::model(|race| {
        let limiter = limiter(Plan::new([slow(4)]).in_flight(1));
        let guard = enter(&limiter).expect("nobody else is there");
        race.run(&limiter, move |_| drop(guard), |limiter| reload(limiter, Plan::new([slow(3)]).in_flight(1)));
        let first = enter(&limiter);
        assert!(first.is_some() && enter(&limiter).is_none());
    });
}

/// The same where the plan goes, and the place with it to the overflow of the default plan, be there one or not.
#[test]
fn who_leaves_the_overflow_while_its_plan_goes_has_left() {
    for used_on_default in [false, true] {
        Race::model(move |race| {
            let plan = || Plan::new([slow(4)]).in_flight(1);
            let (limiter, x) = limiter_with_x(plan());
            assert_eq!(take(&limiter, A), 1);
            if used_on_default {
                assert_eq!(take(&limiter, B), 1);
            }
            let guard = x.enter_costs_at(&B, &ONE, at(100)).expect("nobody else is there");
            race.run(&limiter, move |_| drop(guard), move |limiter| reload(limiter, plan()));
            let first = enter(&limiter);
            assert!(first.is_some() && enter(&limiter).is_none());
        });
    }
}
