//! The fixed store under every interleaving: keys that come, go, come back, and are carried over.
//!
//! They go in by the limiter's own front door. Under loom a set has one way, and there are as many sets as keys are expected,
//! so that a key that is not idle leaves no room for another one of its sets.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use loom_tests::keyed::{self, A, B, C, Identity, allow, at, count, fast, slow};
use loom_tests::{Race, thread};
use tollgate::{Builder, Fixed, InFlight, Limiter, Plan, PlanLimiter, Policy, Quota, Unit};

type Keyed = Limiter<u64, Identity, Fixed>;

const REQUEST: [(Unit, u64); 1] = [(Unit::REQUESTS, 1)];
const TOKEN: [(Unit, u64); 1] = [(Unit::TOKENS, 1)];

fn builder(sets: u64) -> Builder<u64, Identity, Fixed> {
    keyed::builder(1).fixed(sets)
}

/// A limiter of one set and one plan.
fn limiter(plan: impl Into<Plan>) -> Keyed {
    builder(1).plan("default", plan).build().expect("a plan that makes sense")
}

fn take(limiter: &Keyed, key: u64, nanos: u64) -> u64 {
    count(&limiter.check_at(&key, at(nanos)))
}

/// Takes what is left, one by one.
fn drain(limiter: &Keyed, key: u64, nanos: u64) -> u64 {
    (0..6).map(|_| take(limiter, key, nanos)).sum()
}

/// Each finds it, or is the one newcomer.
#[test]
fn two_that_bring_the_same_new_key_share_its_burst() {
    Race::model(|race| {
        let limiter = limiter(fast(2));
        let (one, two) = race.run(
            &limiter,
            |limiter| take(limiter, A, 100),
            |limiter| take(limiter, A, 100) + take(limiter, A, 100),
        );
        assert_eq!(one + two, 2);
        assert_eq!(limiter.stats().keys, 1);
    });
}

/// The same where the way of the key is in its second set, since another has the first.
#[test]
fn two_that_bring_the_same_key_to_its_second_set_share_its_burst() {
    Race::model(|race| {
        // `C` is 6, whose second set of two is the other one.
        let limiter = builder(2).quota(slow(2)).build().expect("a quota that makes sense");
        assert_eq!(take(&limiter, A, 100), 1);
        let (one, two) = race.run(
            &limiter,
            |limiter| take(limiter, C, 100),
            |limiter| take(limiter, C, 100) + take(limiter, C, 100),
        );
        assert_eq!(one + two, 2);
        assert_eq!((limiter.stats().keys, limiter.stats().overflow, drain(&limiter, A, 100)), (2, 0, 1));
    });
}

/// `A` is idle at 102. One thread takes it, one claims its way for a newcomer; whoever is first, it has one unit at 102.
#[test]
fn a_take_that_races_the_eviction_of_its_key_counts_once() {
    Race::model(|race| {
        let limiter = limiter(fast(1));
        assert_eq!(take(&limiter, A, 100), 1);
        let (taken, newcomer) = race.run(&limiter, |limiter| take(limiter, A, 102), |limiter| take(limiter, B, 102));
        assert_eq!(newcomer + taken, 2);
        assert_eq!(take(&limiter, A, 102) + take(&limiter, B, 102), 0);
    });
}

/// The same when the newcomer is ahead in time: what it has claimed at 105 is no fresh bucket at 102.
#[test]
fn a_key_that_was_evicted_later_is_not_full_earlier() {
    Race::model(|race| {
        let limiter = limiter(fast(1));
        assert_eq!(take(&limiter, A, 100), 1);
        let (early, _) = race.run(&limiter, |limiter| take(limiter, A, 102), |limiter| take(limiter, B, 105));
        assert!(early + take(&limiter, A, 102) <= 1);
    });
}

/// A refund makes `A` idle at once, and a newcomer may have its way before, after, or not at all.
#[test]
fn a_refund_that_races_the_eviction_of_its_key_gives_nothing_to_the_next_life() {
    Race::model(|race| {
        let limiter = limiter(fast(2));
        let allow = allow(limiter.check_at(&A, at(100)));
        let give_back = |limiter: &Keyed| limiter.refund_at(&A, allow, at(100));
        let ((), newcomer) = race.run(&limiter, give_back, |limiter| take(limiter, B, 100));
        assert_eq!(newcomer, 1);
        // One of the two is in the overflow, and both have a burst of two.
        assert_eq!(drain(&limiter, B, 100), 1);
        assert!(drain(&limiter, A, 100) <= 2);
    });
}

/// A take that has read the word before a refund, an eviction and a newcomer's own take finds it as it was: it is not
/// admitted twice, and the newcomer has no more than its burst.
#[test]
fn a_take_is_charged_whatever_became_of_its_way() {
    Race::model_within(2, |race| {
        let limiter = limiter(fast(2));
        let allow = allow(limiter.check_at(&A, at(100)));
        let change = |limiter: &Keyed| {
            limiter.refund_at(&A, allow, at(100));
            take(limiter, B, 100)
        };
        let (b, a) = race.run(&limiter, change, |limiter| take(limiter, A, 100));
        assert!(a + drain(&limiter, A, 100) <= 2 && b + drain(&limiter, B, 100) <= 2);
    });
}

/// `A` is idle at 102, two newcomers race for its way, and the other is charged to the overflow. Whatever room there is later,
/// neither has a second unit at 102.
#[test]
#[cfg_attr(not(loom), ignore = "a set has seven ways then, and room for all")]
fn who_was_charged_to_the_overflow_has_no_second_burst() {
    Race::model_within(2, |race| {
        let limiter = limiter(fast(1));
        assert_eq!(take(&limiter, A, 100), 1);
        let (c, b) = race.run(&limiter, |limiter| limiter.check_at(&C, at(102)), |limiter| take(limiter, B, 102));
        let stats = limiter.stats();
        assert_eq!((stats.keys, stats.evictions, stats.overflow), (1, 1, 1));
        assert_eq!((count(&c), b), (1, 1));
        // Whoever has the way lets go of it: `C` gives back, and is idle at once.
        limiter.refund_at(&C, allow(c), at(102));
        assert_eq!(drain(&limiter, B, 102), 0);
    });
}

/// Both have to allow it. A newcomer claims the words one after the other, the first one last: whoever is first, `A` has one
/// unit at 102.
#[test]
fn a_take_on_two_quotas_that_races_the_eviction_of_its_key_counts_once() {
    Race::model_within(2, |race| {
        let limiter = limiter([fast(2).named("a"), fast(1).named("b")]);
        assert_eq!(take(&limiter, A, 100), 1);
        let (taken, newcomer) = race.run(&limiter, |limiter| take(limiter, A, 102), |limiter| take(limiter, B, 102));
        assert_eq!((taken, newcomer), (1, 1));
        assert_eq!(take(&limiter, A, 102) + take(&limiter, B, 102), 0);
    });
}

/// The second word alone is moved, so that the claim of the first one finds nothing changed.
#[test]
fn a_take_of_the_second_quota_alone_that_races_the_eviction_counts_once() {
    Race::model_within(2, |race| {
        let limiter = limiter([fast(1), fast(1).unit(Unit::TOKENS)]);
        assert_eq!(count(&limiter.check_costs_at(&A, &TOKEN, at(100))), 1);
        let token = |limiter: &Keyed| count(&limiter.check_costs_at(&A, &TOKEN, at(102)));
        let newcomer = |limiter: &Keyed| count(&limiter.check_costs_at(&B, &REQUEST, at(102)));
        let (taken, newcomer) = race.run(&limiter, token, newcomer);
        assert_eq!((taken, newcomer), (1, 1));
        assert_eq!(token(&limiter), 0);
    });
}

/// Who is in flight keeps its way, or was let in to the overflow.
#[test]
fn a_place_in_flight_is_taken_once() {
    Race::model_within(2, |race| {
        let limiter = limiter(Plan::new([fast(4)]).in_flight(1));
        assert_eq!(take(&limiter, A, 100), 1);
        let enter = |limiter: &Keyed, key: u64| limiter.enter_costs_at(&key, &[], at(110)).ok();
        let (a, b): (Option<InFlight>, Option<InFlight>) =
            race.run(&limiter, move |limiter| enter(limiter, A), move |limiter| enter(limiter, B));
        assert!(a.is_some() && b.is_some());
        assert!(enter(&limiter, A).is_none() && enter(&limiter, B).is_none());
        drop((a, b));
        let again = enter(&limiter, A);
        assert!(again.is_some());
    });
}

/// A unit that is taken meanwhile is used under the new quota, whichever of the two admitted it.
#[test]
fn what_is_taken_during_a_reload_is_used_after_it() {
    for (old, new) in [(2, 1), (2, 3)] {
        Race::model(move |race| {
            let limiter = limiter(slow(old));
            assert_eq!(take(&limiter, A, 100), 1);
            let reload = move |limiter: &Keyed| {
                limiter
                    .reload_at(Policy::new().plan("default", slow(new)), at(100))
                    .expect("a policy that makes sense");
            };
            let ((), taken) = race.run(&limiter, reload, |limiter| take(limiter, A, 100));
            let taken = 1 + taken;
            assert!(taken <= old.max(new));
            assert_eq!(drain(&limiter, A, 100), new - taken.min(new));
        });
    }
}

/// A newcomer that comes meanwhile is counted under the new quota.
#[test]
fn who_comes_during_a_reload_is_carried_over() {
    for (old, new) in [(2, 1), (1, 2)] {
        Race::model(move |race| {
            let limiter = limiter(slow(old));
            let reload = move |limiter: &Keyed| {
                limiter
                    .reload_at(Policy::new().plan("default", slow(new)), at(100))
                    .expect("a policy that makes sense");
            };
            let ((), taken) = race.run(&limiter, reload, |limiter| take(limiter, A, 100));
            assert_eq!(taken, 1);
            assert_eq!(drain(&limiter, A, 100), new - 1);
            // Of the next one it knows too.
            reload(&limiter);
            assert_eq!(drain(&limiter, A, 100), 0);
        });
    }
}

/// A key evicted while the policy is replaced: no word is left of the version before.
#[test]
fn a_way_that_changes_hands_during_a_reload_is_of_the_new_policy() {
    Race::model_within(2, |race| {
        let limiter = limiter(fast(2));
        assert_eq!(take(&limiter, A, 100), 1);
        let reload = |limiter: &Keyed, burst: u64| {
            limiter.reload_at(Policy::new().plan("default", fast(burst)), at(110)).expect("a policy that makes sense");
        };
        let ((), taken) = race.run(&limiter, move |limiter| reload(limiter, 3), |limiter| take(limiter, B, 110));
        assert_eq!(taken, 1);
        assert_eq!(limiter.peek_at(&B, at(110)).remaining(), 2);
        reload(&limiter, 2);
        assert_eq!(drain(&limiter, B, 110), 1);
    });
}

/// The same where nobody looks before the next policy comes, by which a word of the version before the last would look like one of
/// its own.
#[test]
fn a_way_that_changes_hands_during_a_reload_is_not_passed_by() {
    Race::model_within(2, |race| {
        let limiter = limiter(Quota::per_second(200_000_000).burst(2));
        assert_eq!(take(&limiter, A, 100), 1);
        let reload = |limiter: &Keyed, burst: u64| {
            limiter.reload_at(Policy::new().plan("default", fast(burst)), at(110)).expect("a policy that makes sense");
        };
        let ((), taken) = race.run(&limiter, move |limiter| reload(limiter, 3), |limiter| take(limiter, B, 110));
        reload(&limiter, 2);
        assert_eq!((taken, drain(&limiter, B, 110)), (1, 1));
    });
}

fn with_x() -> (Keyed, PlanLimiter<u64, Identity, Fixed>) {
    let plans = builder(2).plan("default", slow(3)).plan("x", slow(3)).default_plan("default");
    let limiter = plans.build().expect("plans that make sense");
    let x = limiter.plan("x").expect("there is one");
    (limiter, x)
}

/// The way that the key had on a plan that goes is taken over once, by the sweep or not.
#[test]
fn the_keys_of_a_plan_that_goes_keep_their_use() {
    Race::model_within(2, |race| {
        let (limiter, x) = with_x();
        assert_eq!(count(&x.check_at(&A, at(100))), 1);
        let reload = |limiter: &Keyed| {
            limiter.reload_at(Policy::new().plan("default", slow(3)), at(100)).expect("a policy that makes sense");
        };
        let ((), taken) = race.run(&limiter, reload, move |_| count(&x.check_at(&A, at(100))));
        assert_eq!(taken, 1);
        assert_eq!(drain(&limiter, A, 100), 1);
    });
}

/// What is taken meanwhile is used on the one plan or on the other; on both, where the way was moved under the take, which can't
/// tell then.
#[test]
fn use_that_is_moved_is_used() {
    Race::model_within(2, |race| {
        let (limiter, x) = with_x();
        assert_eq!(count(&x.check_at(&A, at(100))), 1);
        let on_x = x.clone();
        let (moved, taken) = race.run(
            &limiter,
            |limiter| limiter.move_plan_at(&A, "x", "default", at(100)).expect("plans that there are"),
            move |_| count(&on_x.check_at(&A, at(100))),
        );
        assert_eq!((moved, taken), (true, 1));
        let left = [x.peek_at(&A, at(100)), limiter.peek_at(&A, at(100))].map(|peek| peek.remaining());
        assert!([[3, 1], [2, 2], [2, 1]].contains(&left), "{left:?}");
    });
}

/// The key that is moved is idle, and a newcomer who waits for another latch claims its way before that, after it, or not at all.
#[test]
#[cfg_attr(not(loom), ignore = "a set has seven ways then, and room for all")]
fn a_move_that_races_the_eviction_of_its_key_moves_nobody_else() {
    // The first set of both is the other one, and the second one of `THERE` that too, of `NEWCOMER` that of `A`.
    const THERE: u64 = 1 << 63 | A;
    const NEWCOMER: u64 = 1 << 63 | C;
    Race::model_within(2, |race| {
        let plans = builder(2).plan("default", fast(1)).plan("x", fast(1)).default_plan("default");
        let limiter = plans.build().expect("plans that make sense");
        let x = limiter.plan("x").expect("there is one");
        assert_eq!((count(&x.check_at(&A, at(100))), take(&limiter, THERE, 102)), (1, 1));
        let (_, taken) = race.run(
            &limiter,
            |limiter| limiter.move_plan_at(&A, "x", "default", at(102)),
            |limiter| take(limiter, NEWCOMER, 102),
        );
        // From a way of its own or, while that of `A` is frozen, from the overflow.
        assert_eq!((taken, take(&limiter, NEWCOMER, 102)), (1, 0));
    });
}

/// A key that is reset has its burst again, but for what was taken since.
#[test]
fn a_reset_forgets_what_was_taken_before_it() {
    Race::model(|race| {
        let limiter = limiter(slow(2));
        let before = allow(limiter.check_at(&A, at(100)));
        let (known, taken) = race.run(&limiter, |limiter| limiter.reset(&A), |limiter| take(limiter, A, 100));
        assert_eq!((known, taken), (true, 1));
        limiter.refund_at(&A, before, at(100));
        let left = drain(&limiter, A, 100);
        assert!((1..=2).contains(&left), "{left}");
    });
}

/// `C` lets go of its way in the first set, full since 101 as most of what it took was given back, and has one in the second set
/// at 102. What it took before is worth nothing there, whenever that is given back.
#[test]
#[cfg_attr(not(loom), ignore = "a set has seven ways then, and room for all")]
fn a_refund_after_its_key_has_changed_sets_is_worth_nothing() {
    Race::model_within(2, |race| {
        let limiter = builder(2).quota(fast(4)).build().expect("a quota that makes sense");
        let three = allow(limiter.check_cost_at(&C, 3, at(100)));
        let one = allow(limiter.check_at(&C, at(100)));
        limiter.refund_at(&C, three, at(100));
        assert_eq!(take(&limiter, B, 102), 1);
        let give_back = |limiter: &Keyed| limiter.refund_at(&C, one, at(102));
        let (taken, ()) = race.run(&limiter, |limiter| count(&limiter.check_cost_at(&C, 4, at(102))), give_back);
        assert_eq!((taken, limiter.stats().overflow, take(&limiter, C, 102)), (1, 0, 0));
    });
}

/// Full at 102 by the old quota, and far from it by the new one: a newcomer that finds the new one in force does not take `A` for
/// idle, whether its word is carried over by then or not.
#[test]
fn a_newcomer_during_a_reload_finds_no_key_idle_by_the_old_policy() {
    Race::model_within(2, |race| {
        let limiter = limiter(fast(2));
        assert_eq!(count(&limiter.check_cost_at(&A, 2, at(100))), 1);
        let reload = |limiter: &Keyed| {
            let slower = Quota::per_second(100_000_000).burst(4);
            let policy = Policy::new().plan("default", slower).plan("x", slower).default_plan("default");
            limiter.reload_at(policy, at(101)).expect("a policy that makes sense");
        };
        let newcomer = |limiter: &Keyed| {
            while limiter.plan("x").is_err() {
                thread::yield_now();
            }
            take(limiter, B, 103)
        };
        race.run(&limiter, reload, newcomer);
        // One of two was used at 101, and so is one of four then; in two nanoseconds a fifth of it has come back.
        assert_eq!(drain(&limiter, A, 103), 3);
    });
}

/// A reset that races a take: the take is wiped, and then it can't be given back, or it is not.
#[test]
fn a_take_that_a_reset_wipes_is_not_given_back() {
    Race::model(|race| {
        let limiter = limiter(Quota::per_second(0).burst(2));
        assert_eq!(take(&limiter, A, 100), 1);
        let (_, one) = race.run(&limiter, |limiter| limiter.reset(&A), |limiter| limiter.check_at(&A, at(100)));
        let taken = drain(&limiter, A, 100);
        limiter.refund_at(&A, allow(one), at(100));
        assert!(taken + drain(&limiter, A, 100) <= 2);
    });
}

/// The units of both quotas are taken or none, whether a refund of the key is under way or not.
#[test]
fn a_rollback_that_races_a_refund_takes_nothing_twice() {
    Race::model_within(2, |race| {
        let limiter = limiter([slow(3).named("a"), slow(2).named("b")]);
        let first = allow(limiter.check_at(&A, at(100)));
        let give_back = |limiter: &Keyed| limiter.refund_at(&A, first, at(100));
        let (taken, ()) = race.run(&limiter, |limiter| count(&limiter.check_cost_at(&A, 2, at(100))), give_back);
        let left = drain(&limiter, A, 100);
        assert!(2 * taken + left <= 2, "{taken} {left}");
    });
}

/// A plan that shrinks to one quota: what is taken of it meanwhile is used after it, though its word changes its place.
#[test]
fn the_use_of_a_quota_that_is_left_alone_follows_it() {
    Race::model_within(2, |race| {
        let limiter = limiter([fast(4).named("a"), slow(3).named("b")]);
        assert_eq!(take(&limiter, A, 100), 1);
        let reload = |limiter: &Keyed| {
            let shrunk = Policy::new().plan("default", slow(3).named("b"));
            limiter.reload_at(shrunk, at(100)).expect("a policy that makes sense");
        };
        let ((), taken) = race.run(&limiter, reload, |limiter| take(limiter, A, 100));
        // A take that was carried over on the one quota and finds the other gone is charged once more at most.
        let left = drain(&limiter, A, 100);
        assert!(taken == 1 && left <= 1, "{taken} {left}");
    });
}

/// The word of the first quota is carried over between the take of it and that of the second: the unit is taken once all the same.
#[test]
fn a_check_of_two_quotas_that_races_a_reload_is_charged_once() {
    Race::model_within(2, |race| {
        let limiter = limiter([slow(3).named("a"), slow(3).named("b")]);
        assert_eq!(take(&limiter, A, 100), 1);
        let reload = |limiter: &Keyed| {
            let policy = Policy::new().plan("default", [slow(4).named("a"), slow(4).named("b")]);
            limiter.reload_at(policy, at(100)).expect("a policy that makes sense");
        };
        let ((), taken) = race.run(&limiter, reload, |limiter| take(limiter, A, 100));
        assert_eq!((taken, drain(&limiter, A, 100)), (1, 2));
    });
}
