//! Requests in flight under every interleaving: who enters, who leaves, and who keeps a key from being dropped.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]
#![allow(clippy::result_large_err, reason = "a denial has its numbers in it, and no decision allocates")]

use loom_tests::Race;
use loom_tests::keyed::{A, B, Identity, Keyed, at, builder, count, fast, left, slow};
use tollgate::{Deny, InFlight, Plan, PlanLimiter, Policy, Quota, Reason, Unit};

const ONE: [(Unit, u64); 1] = [(Unit::REQUESTS, 1)];

/// A plan with a limit of requests in flight.
fn plan(quota: Quota, limit: u32) -> Plan {
    Plan::new([quota]).in_flight(limit)
}

/// A limiter of one plan, with a key that is known and has taken a unit at 100.
fn limiter(plan: Plan) -> Keyed {
    let limiter = builder(10).plan("default", plan).build().expect("a plan that makes sense");
    assert!(limiter.check_at(&A, at(100)).is_allowed());
    limiter
}

fn enter(limiter: &Keyed, nanos: u64) -> Result<InFlight, Deny> {
    limiter.enter_costs_at(&A, &ONE, at(nanos))
}

/// How many more may be in flight: enters at no cost until it is denied, and leaves again.
fn places(limiter: &Keyed, nanos: u64) -> usize {
    let mut guards = Vec::new();
    loop {
        match limiter.enter_costs_at(&A, &[], at(nanos)) {
            Ok(guard) => guards.push(guard),
            Err(deny) => {
                assert_eq!(deny.reason(), Reason::InFlight);
                return guards.len();
            }
        }
    }
}

fn leave(guard: InFlight) -> impl FnOnce(&Keyed) + Send + 'static {
    move |_| drop(guard)
}

/// Puts the policy of one plan in force.
fn reload(limiter: &Keyed, name: &str, plan: Plan) {
    limiter.reload_at(Policy::new().plan(name, plan), at(100)).expect("a policy that makes sense");
}

/// The only denial of two that have entered.
fn denial(results: &(Result<InFlight, Deny>, Result<InFlight, Deny>)) -> Reason {
    match results {
        (Ok(_), Err(deny)) | (Err(deny), Ok(_)) => Some(deny.reason()),
        _ => None,
    }
    .expect("one is in and the other is not")
}

/// Two enter at a limit of one, be the key known or new: one is in, and one unit is taken.
#[test]
fn of_two_that_enter_at_a_limit_of_one_one_is_in() {
    for known in [true, false] {
        Race::model(move |race| {
            let limiter = builder(10).plan("default", plan(slow(4), 1)).build().expect("a plan that makes sense");
            if known {
                assert!(limiter.check_at(&A, at(100)).is_allowed());
            }
            let results = race.run(&limiter, |limiter| enter(limiter, 100), |limiter| enter(limiter, 100));
            assert_eq!(denial(&results), Reason::InFlight);
            // Units, and places in flight.
            assert_eq!(left(&limiter, A, at(100)), [3 - u64::from(known), 0]);
            assert_eq!(places(&limiter, 100), 0);
            drop(results);
            assert_eq!(places(&limiter, 100), 1);
        });
    }
}

/// There are two places and one unit: who fails to take it gives its place back.
#[test]
fn who_enters_and_finds_no_unit_leaves_again() {
    Race::model(|race| {
        let limiter = limiter(plan(slow(2), 2));
        let results = race.run(&limiter, |limiter| enter(limiter, 100), |limiter| enter(limiter, 100));
        assert_eq!(denial(&results), Reason::TooSoon);
        assert_eq!(places(&limiter, 100), 1);
    });
}

/// The unit goes to a plain check, which takes no place: a place is taken if and only if the other has the unit.
#[test]
fn a_check_that_takes_the_last_unit_takes_no_place() {
    Race::model(|race| {
        let limiter = limiter(plan(slow(2), 1));
        let (guard, checked) =
            race.run(&limiter, |limiter| enter(limiter, 100), |limiter| count(&limiter.check_at(&A, at(100))));
        assert_eq!(u64::from(guard.is_ok()) + checked, 1);
        assert_eq!(places(&limiter, 100), usize::from(guard.is_err()));
    });
}

/// Who enters while another leaves is in or is denied, and either way the place is there once.
#[test]
fn a_place_that_is_left_is_taken_once() {
    Race::model(|race| {
        let limiter = limiter(plan(slow(4), 1));
        let first = enter(&limiter, 100).expect("nobody else is there");
        let ((), second) = race.run(&limiter, leave(first), |limiter| enter(limiter, 100));
        assert_eq!(places(&limiter, 100), usize::from(second.is_err()));
        let entered = u64::from(second.is_ok());
        // Units, and places in flight.
        assert_eq!(left(&limiter, A, at(100)), [2 - entered, 1 - entered]);
    });
}

/// The buckets are idle at 102, and a newcomer looks for what it can drop: not a key that is in flight.
#[test]
fn a_key_that_is_in_flight_is_not_dropped() {
    Race::model(|race| {
        let limiter = limiter(plan(fast(2), 1));
        let guard = enter(&limiter, 100).expect("nobody else is there");
        let (second, newcomer) =
            race.run(&limiter, |limiter| enter(limiter, 102), |limiter| count(&limiter.check_at(&B, at(102))));
        assert_eq!(second.expect_err("one is in flight").reason(), Reason::InFlight);
        assert_eq!((newcomer, limiter.stats().evictions, places(&limiter, 102)), (1, 0, 0));
        drop(guard);
        assert!(enter(&limiter, 102).is_ok());
    });
}

/// The request leaves while the newcomer looks: the key is dropped or not, and there is one place afterwards.
#[test]
fn who_leaves_while_a_newcomer_looks_has_left() {
    Race::model(|race| {
        let limiter = limiter(plan(fast(2), 1));
        let guard = enter(&limiter, 100).expect("nobody else is there");
        let ((), newcomer) = race.run(&limiter, leave(guard), |limiter| count(&limiter.check_at(&B, at(102))));
        assert_eq!((newcomer, places(&limiter, 102)), (1, 1));
        assert!(enter(&limiter, 102).is_ok());
    });
}

/// The quota changes, so that the state of the key is made anew: who is in flight stays so, and who leaves or enters
/// meanwhile has left or entered.
#[test]
fn places_are_carried_over_by_a_reload() {
    Race::model(|race| {
        let limiter = limiter(plan(slow(4), 1));
        let guard = enter(&limiter, 100).expect("nobody else is there");
        let ((), second) =
            race.run(&limiter, |limiter| reload(limiter, "default", plan(slow(3), 1)), |limiter| enter(limiter, 100));
        assert_eq!(second.expect_err("one is in flight").reason(), Reason::InFlight);
        assert_eq!(places(&limiter, 100), 0);
        drop(guard);
        assert_eq!(places(&limiter, 100), 1);
    });
    Race::model(|race| {
        let limiter = limiter(plan(slow(4), 1));
        let guard = enter(&limiter, 100).expect("nobody else is there");
        let ((), second) = race.run(
            &limiter,
            |limiter| reload(limiter, "default", plan(slow(3), 1)),
            move |limiter| {
                drop(guard);
                enter(limiter, 100)
            },
        );
        assert!(second.is_ok());
        assert_eq!(places(&limiter, 100), 0);
        drop(second);
        assert_eq!(places(&limiter, 100), 1);
    });
}

/// A limiter of two plans, with a key in flight on the second one.
fn in_flight_on_x() -> (Keyed, PlanLimiter<u64, Identity>, InFlight) {
    let plans = builder(10).plan("default", plan(slow(4), 1)).plan("x", plan(slow(4), 1)).default_plan("default");
    let limiter = plans.build().expect("plans that make sense");
    let x = limiter.plan("x").expect("there is one");
    let guard = x.enter_costs_at(&A, &ONE, at(100)).expect("nobody else is there");
    (limiter, x, guard)
}

/// The plan goes, and its requests in flight to the default plan: who leaves meanwhile leaves where it is counted, be
/// that a plan that was there before, or one that came with the reload.
#[test]
fn who_leaves_while_its_plan_goes_has_left() {
    for name in ["default", "new"] {
        for known_on_default in [false, true] {
            Race::model(move |race| {
                let (limiter, _, guard) = in_flight_on_x();
                if known_on_default {
                    assert!(limiter.check_at(&A, at(100)).is_allowed());
                }
                race.run(&limiter, leave(guard), move |limiter| reload(limiter, name, plan(slow(4), 1)));
                assert_eq!(places(&limiter, 100), 1);
            });
        }
    }
}

/// A further policy removes the plan that it went to, too.
#[test]
fn who_leaves_while_one_plan_after_another_goes_has_left() {
    Race::model(|race| {
        let (limiter, _, guard) = in_flight_on_x();
        let two = |limiter: &Keyed| {
            reload(limiter, "default", plan(slow(4), 1));
            reload(limiter, "new", plan(slow(4), 1));
        };
        race.run(&limiter, leave(guard), two);
        assert_eq!(places(&limiter, 100), 1);
    });
}

/// The use of the key is moved to the default plan, and its places with it.
#[test]
fn who_leaves_while_its_key_is_moved_has_left() {
    for known_on_default in [false, true] {
        Race::model(move |race| {
            let (limiter, _, guard) = in_flight_on_x();
            if known_on_default {
                assert!(limiter.check_at(&A, at(100)).is_allowed());
            }
            let (moved, ()) =
                race.run(&limiter, |limiter| limiter.move_plan_at(&A, "x", "default", at(100)), leave(guard));
            assert_eq!((moved, places(&limiter, 100)), (Ok(true), 1));
        });
    }
}

/// Who is in flight on the plan that goes is so on the default plan once the reload has returned, and has it kept full.
#[test]
fn who_stays_while_its_plan_goes_is_counted() {
    Race::model(|race| {
        let (limiter, x, guard) = in_flight_on_x();
        let (second, ()) = race.run(
            &limiter,
            move |_| x.enter_costs_at(&A, &ONE, at(100)),
            |limiter| reload(limiter, "default", plan(slow(4), 1)),
        );
        assert_eq!(second.expect_err("one is in flight").reason(), Reason::InFlight);
        assert_eq!(places(&limiter, 100), 0);
        drop(guard);
        assert_eq!(places(&limiter, 100), 1);
    });
}
