//! A policy that is replaced while others decide by it, under every interleaving.
//!
//! All is at one instant unless a model says otherwise, so that nothing comes back by time: what is left of a burst is
//! the burst without what was admitted, whichever policy admitted it. Under loom the policy in force is behind loom's
//! reader-writer lock, and the shards are lists; `sync.rs` says what that leaves unchecked.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use loom_tests::Race;
use loom_tests::keyed::{A, B, Identity, Keyed, allow, at, builder, count, fast, left, slow};
use tollgate::{Plan, PlanLimiter, Policy, Quota, Unit};

/// The bound of models of three threads or three reloads: without one, the fastest takes a minute and others more than
/// eight.
const FEW: usize = 4;

const ONE: [(Unit, u64); 1] = [(Unit::REQUESTS, 1)];

/// A limiter of one plan.
fn limiter(plan: impl Into<Plan>) -> Keyed {
    builder(10).plan("default", plan).build().expect("a plan that makes sense")
}

/// A limiter of the default plan and of `x`.
fn limiter_with_x() -> (Keyed, PlanLimiter<u64, Identity>) {
    let plans = builder(10).plan("default", slow(4)).plan("x", slow(4)).default_plan("default");
    let limiter = plans.build().expect("plans that make sense");
    let x = limiter.plan("x").expect("there is one");
    (limiter, x)
}

fn reload_at(limiter: &Keyed, plan: impl Into<Plan>, nanos: u64) {
    limiter.reload_at(Policy::new().plan("default", plan), at(nanos)).expect("a policy that makes sense");
}

/// Puts the policy of that plan alone in force.
fn reload(limiter: &Keyed, plan: impl Into<Plan>) {
    reload_at(limiter, plan, 100);
}

fn take(limiter: &Keyed, key: u64) -> u64 {
    count(&limiter.check_at(&key, at(100)))
}

fn take_on(x: &PlanLimiter<u64, Identity>) -> u64 {
    count(&x.check_costs_at(&A, &ONE, at(100)))
}

/// Takes what is left, one by one.
fn drain(limiter: &Keyed, key: u64) -> u64 {
    (0..8).map(|_| take(limiter, key)).sum()
}

/// A unit that is taken meanwhile is used under the new quota, be that smaller or larger, whichever of the two admitted
/// it, and once the reload has returned no decision is by the old one.
#[test]
fn what_is_taken_during_a_reload_is_used_after_it() {
    for (old, new) in [(2, 1), (3, 2), (2, 3), (1, 2)] {
        Race::model(move |race| {
            let limiter = limiter(slow(old));
            assert_eq!(take(&limiter, A), 1);
            let ((), taken) = race.run(&limiter, move |limiter| reload(limiter, slow(new)), |limiter| take(limiter, A));
            let taken = 1 + taken;
            assert!(taken <= old.max(new));
            let after = limiter.check_at(&A, at(100));
            assert_eq!(after.limit(), new);
            assert_eq!(count(&after) + drain(&limiter, A), new - taken.min(new));
        });
    }
}

/// The rate changes and the burst does not: units are carried over and not time, so that one that is left is taken
/// once, and none where all are used up. Of costs by kind of unit, which find the state another way, the same is true.
#[test]
fn units_and_not_time_are_carried_over_to_another_rate() {
    let by_kind: fn(&Keyed) -> u64 = |limiter| count(&limiter.check_costs_at(&A, &ONE, at(100)));
    let plain: fn(&Keyed) -> u64 = |limiter| take(limiter, A);
    for (old, new) in [(Quota::per_day(1), Quota::per_hour(1)), (Quota::per_hour(1), Quota::per_day(1))] {
        for take in [plain, by_kind] {
            for used in [1, 2] {
                Race::model(move |race| {
                    let limiter = limiter(old.burst(2));
                    assert_eq!((0..used).map(|_| take(&limiter)).sum::<u64>(), used);
                    let ((), taken) = race.run(
                        &limiter,
                        move |limiter| reload(limiter, new.burst(2)),
                        move |limiter| [take(limiter), take(limiter)],
                    );
                    assert_eq!(taken, [2 - used, 0]);
                    assert_eq!(drain(&limiter, A), 0);
                });
            }
        }
    }
}

/// Two take meanwhile: each unit is used once, whichever policy admitted it.
#[test]
fn two_that_take_during_a_reload_are_both_counted() {
    for (new, remaining) in [(2, 0), (4, 1)] {
        Race::model_within(FEW, move |race| {
            let limiter = limiter(slow(3));
            assert_eq!(take(&limiter, A), 1);
            let one = |limiter: &Keyed| take(limiter, A);
            let ((), taken) = race.run(
                &limiter,
                move |limiter| reload(limiter, slow(new)),
                move |limiter| race.run(limiter, one, one),
            );
            // Under the smaller one there is one unit left, and both may be admitted by the larger one.
            assert!(if new == 2 { taken.0 + taken.1 >= 1 } else { taken == (1, 1) });
            assert_eq!(drain(&limiter, A), remaining);
        });
    }
}

/// A plan of one quota gets a second one, which starts full: what is taken by the new policy is taken of both.
#[test]
fn a_quota_that_comes_with_a_reload_counts_from_then_on() {
    let [a, b] = [slow(4).named("a"), slow(2).named("b")];
    Race::model(move |race| {
        let limiter = limiter(a);
        assert_eq!(take(&limiter, A), 1);
        // The numbers are those of the tighter quota: by them it can be told which policy it was.
        let ((), by_new) = race.run(
            &limiter,
            move |limiter| reload(limiter, [a, b]),
            |limiter| u64::from(limiter.check_at(&A, at(100)).limit() == 2),
        );
        assert_eq!(left(&limiter, A, at(100)), [2, 2 - by_new]);
    });
}

/// A plan of two quotas loses one: what was used of the other stays used.
#[test]
fn a_quota_that_stays_keeps_its_use_when_another_goes() {
    let [a, b] = [slow(2).named("a"), slow(4).named("b")];
    Race::model(move |race| {
        let limiter = limiter([a, b]);
        assert_eq!(take(&limiter, A), 1);
        let ((), taken) = race.run(&limiter, move |limiter| reload(limiter, b), |limiter| take(limiter, A));
        assert_eq!(taken, 1);
        assert_eq!(left(&limiter, A, at(100)), [2]);
    });
}

/// A plan is removed while its key is taken from on the default plan: the use of both is in one place afterwards.
#[test]
fn a_plan_that_goes_takes_its_use_along() {
    for x_first in [true, false] {
        Race::model(move |race| {
            let (limiter, x) = limiter_with_x();
            let taken = if x_first { [take_on(&x), take(&limiter, A)] } else { [take(&limiter, A), take_on(&x)] };
            assert_eq!(taken, [1, 1]);
            let ((), taken) = race.run(&limiter, |limiter| reload(limiter, slow(4)), |limiter| take(limiter, A));
            assert_eq!(taken, 1);
            assert_eq!(limiter.len(), 1);
            assert_eq!(left(&limiter, A, at(100)), [1]);
            assert_eq!(take_on(&x) + take(&limiter, A), 1);
        });
    }
}

/// The same for who takes on the plan that goes, by a handle, and is on the default plan from some instant on.
#[test]
fn a_handle_moves_with_its_plan_and_leaves_nothing_behind() {
    Race::model(|race| {
        let (limiter, x) = limiter_with_x();
        assert_eq!(take_on(&x), 1);
        let ((), taken) = race.run(&limiter, |limiter| reload(limiter, slow(4)), move |_| take_on(&x));
        assert_eq!(taken, 1);
        assert_eq!(limiter.len(), 1);
        assert_eq!(left(&limiter, A, at(100)), [2]);
    });
}

/// The quotas stay as they are: what was taken before is given back exactly, during the reload or not.
#[test]
fn a_refund_is_not_lost_where_the_quotas_stay() {
    let [a, b] = [slow(4).named("a"), slow(3).named("b")];
    fn stays<const N: usize>(quotas: [Quota; N]) {
        Race::model(move |race| {
            let limiter = limiter(quotas);
            assert_eq!(take(&limiter, A), 1);
            let one = allow(limiter.check_at(&A, at(100)));
            race.run(
                &limiter,
                move |limiter| reload(limiter, quotas),
                move |limiter| limiter.refund_at(&A, one, at(100)),
            );
            assert_eq!(left(&limiter, A, at(100)), quotas.map(|quota| quota.limit() - 1));
        });
    }
    stays([a]);
    stays([a, b]);
}

/// The quota changes: a refund is worth its unit before the change and nothing after, and never more.
#[test]
fn a_refund_that_races_a_change_of_its_quota_is_worth_its_take_or_nothing() {
    for new in [slow(2), slow(4), Quota::per_hour(1).burst(3)] {
        Race::model(move |race| {
            let limiter = limiter(slow(3));
            assert_eq!(take(&limiter, A), 1);
            let one = allow(limiter.check_at(&A, at(100)));
            race.run(&limiter, move |limiter| reload(limiter, new), move |limiter| limiter.refund_at(&A, one, at(100)));
            let used = new.limit() - drain(&limiter, A);
            assert!(used == 1 || used == 2, "{used}");
        });
    }
}

/// The quota changes and changes back, and the use that the smaller one had no place for is forgotten: a refund gives
/// back of it, or nothing.
#[test]
fn a_refund_does_not_outlive_its_quota() {
    Race::model(|race| {
        let limiter = limiter(slow(3));
        let one = allow(limiter.check_at(&A, at(100)));
        assert_eq!(take(&limiter, A) + take(&limiter, A), 2);
        race.run(
            &limiter,
            |limiter| {
                reload(limiter, slow(1));
                reload(limiter, slow(3));
            },
            move |limiter| limiter.refund_at(&A, one, at(100)),
        );
        assert_eq!(drain(&limiter, A), 2);
    });
}

/// Somebody takes at the same time: what was admitted and kept, before and after, is the burst at most.
#[test]
fn a_refund_and_a_take_during_a_reload_stay_within_the_burst() {
    Race::model_within(FEW, |race| {
        let limiter = limiter(slow(2));
        assert_eq!(take(&limiter, A), 1);
        let one = allow(limiter.check_at(&A, at(100)));
        let ((), ((), taken)) = race.run(
            &limiter,
            |limiter| reload(limiter, Quota::per_hour(1).burst(2)),
            move |limiter| {
                race.run(limiter, move |limiter| limiter.refund_at(&A, one, at(100)), |limiter| take(limiter, A))
            },
        );
        assert!(1 + taken + drain(&limiter, A) <= 2);
    });
}

/// A newcomer takes the bucket of one policy, and its unit is used under the other if that is the new one.
#[test]
fn a_newcomer_during_a_reload_is_carried_over_too() {
    for (old, new) in [(2, 3), (3, 2), (2, 1)] {
        Race::model(move |race| {
            let limiter = limiter(slow(old));
            assert_eq!(take(&limiter, A), 1);
            let ((), taken) = race.run(&limiter, move |limiter| reload(limiter, slow(new)), |limiter| take(limiter, B));
            assert_eq!(taken, 1);
            assert_eq!((limiter.len(), drain(&limiter, A), drain(&limiter, B)), (2, new - 1, new - 1));
        });
    }
}

/// The key is idle, and dropped by the reload or by the newcomer: it is full from then on, and not before.
#[test]
fn a_key_that_a_reload_drops_is_not_full_earlier() {
    Race::model(|race| {
        let limiter = limiter(fast(1));
        assert_eq!(take(&limiter, A), 1);
        let ((), taken) = race.run(
            &limiter,
            |limiter| reload_at(limiter, fast(2), 102),
            |limiter| count(&limiter.check_at(&B, at(102))),
        );
        assert_eq!((taken, limiter.len()), (1, 1));
        assert_eq!(take(&limiter, A), 0);
        assert_eq!((0..3).map(|_| count(&limiter.check_at(&A, at(102)))).sum::<u64>(), 2);
    });
}

/// Two reloads and a take: one of the two policies is in force in the end, and whatever was taken is used by it.
#[test]
fn of_two_reloads_one_stays_and_nothing_is_forgotten() {
    Race::model_within(FEW, |race| {
        let limiter = limiter(slow(3));
        assert_eq!(take(&limiter, A), 1);
        let (decision, _) = race.run(
            &limiter,
            |limiter| limiter.check_at(&A, at(100)),
            move |limiter| race.run(limiter, |limiter| reload(limiter, slow(4)), |limiter| reload(limiter, slow(5))),
        );
        assert!(decision.is_allowed());
        assert!([3, 4, 5].contains(&decision.limit()));
        let after = limiter.peek_at(&A, at(100));
        assert!([4, 5].contains(&after.limit()));
        assert_eq!(after.remaining(), after.limit() - 2);
    });
}

/// One thread reloads twice, so that its first policy is the older one: it is not in force in the end, however the
/// other reload comes between. Of two that were called at once no caller can tell which is the newer, nor can a model.
#[test]
fn an_older_reload_never_takes_the_place_of_a_newer_one() {
    Race::model_within(FEW, |race| {
        let limiter = limiter(slow(3));
        assert_eq!(take(&limiter, A), 1);
        let ((), taken) = race.run(
            &limiter,
            |limiter| {
                reload(limiter, slow(2));
                reload(limiter, slow(5));
            },
            |limiter| {
                reload(limiter, slow(4));
                take(limiter, A)
            },
        );
        let after = limiter.peek_at(&A, at(100));
        assert!([4, 5].contains(&after.limit()));
        assert_eq!((taken, after.remaining()), (1, after.limit() - 2));
    });
}
