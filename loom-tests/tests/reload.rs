//! A policy that is replaced while others decide by it, under every interleaving.
//!
//! All is at one instant unless a model says otherwise, so that nothing comes back by time: what is left of a burst is
//! the burst without what was admitted, whichever policy admitted it. Under loom the policy in force is behind loom's
//! reader-writer lock, and the shards are lists; `sync.rs` says what that leaves unchecked.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use loom_tests::keyed::{A, B, Keyed, allow, at, builder, count, fast, left, slow};
use loom_tests::{model, model_within, thread};
use tollgate::{Decision, Plan, Policy, Quota};

/// The bound of models in which three locks are fought for at a time: without one they take the better part of an hour.
const FEW: usize = 4;

/// A limiter of one plan.
fn limiter(plan: impl Into<Plan>) -> Keyed {
    builder(10).plan("default", plan).build().expect("a plan that makes sense")
}

/// The policy of one plan.
fn policy(plan: impl Into<Plan>) -> Policy<u64> {
    Policy::new().plan("default", plan)
}

fn reload(limiter: &Keyed, policy: Policy<u64>, nanos: u64) {
    limiter.reload_at(policy, at(nanos)).expect("a policy that makes sense");
}

/// Reloads on a thread of its own.
fn reloads(limiter: &Keyed, policy: Policy<u64>) -> thread::JoinHandle<()> {
    let limiter = limiter.clone();
    thread::spawn(move || reload(&limiter, policy, 100))
}

fn take(limiter: &Keyed, key: u64) -> u64 {
    count(&limiter.check_at(&key, at(100)))
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
        model(move || {
            let limiter = limiter(slow(old));
            assert_eq!(take(&limiter, A), 1);
            let thread = reloads(&limiter, policy(slow(new)));
            let taken = 1 + take(&limiter, A);
            thread.join().expect("no model panics");
            assert!(taken <= old.max(new));
            let after = limiter.check_at(&A, at(100));
            assert_eq!(after.limit(), new);
            assert_eq!(count(&after) + drain(&limiter, A), new - taken.min(new));
        });
    }
}

/// The rate changes and the burst does not: units are carried over and not time, so that what is used up stays so.
#[test]
fn what_is_used_up_stays_so_under_another_rate() {
    for (old, new) in [(Quota::per_day(1), Quota::per_hour(1)), (Quota::per_hour(1), Quota::per_day(1))] {
        model(move || {
            let limiter = limiter(old.burst(2));
            assert_eq!(take(&limiter, A), 1);
            let thread = reloads(&limiter, policy(new.burst(2)));
            assert_eq!(take(&limiter, A) + take(&limiter, A), 1);
            thread.join().expect("no model panics");
            assert_eq!(drain(&limiter, A), 0);
        });
    }
}

/// Two take meanwhile: each unit is used once, whichever policy admitted it.
#[test]
fn two_that_take_during_a_reload_are_both_counted() {
    model_within(FEW, || {
        let limiter = limiter(slow(3));
        assert_eq!(take(&limiter, A), 1);
        let reload = reloads(&limiter, policy(slow(2)));
        let other = limiter.clone();
        let thread = thread::spawn(move || take(&other, A));
        let taken = 1 + take(&limiter, A) + thread.join().expect("no model panics");
        reload.join().expect("no model panics");
        assert!((2..=3).contains(&taken));
        assert_eq!(drain(&limiter, A), 0);
    });
    model_within(FEW, || {
        let limiter = limiter(slow(3));
        let reload = reloads(&limiter, policy(slow(4)));
        let other = limiter.clone();
        let thread = thread::spawn(move || take(&other, A));
        let taken = take(&limiter, A) + thread.join().expect("no model panics");
        reload.join().expect("no model panics");
        assert_eq!((taken, drain(&limiter, A)), (2, 2));
    });
}

/// A plan of one quota gets a second one, which starts full: what is taken by the new policy is taken of both.
#[test]
fn a_quota_that_comes_with_a_reload_counts_from_then_on() {
    let [a, b] = [slow(4).named("a"), slow(2).named("b")];
    model(move || {
        let limiter = limiter(a);
        assert_eq!(take(&limiter, A), 1);
        let thread = reloads(&limiter, policy([a, b]));
        // The numbers are those of the tighter quota: by them it can be told which policy it was.
        let by_new = u64::from(limiter.check_at(&A, at(100)).limit() == 2);
        thread.join().expect("no model panics");
        assert_eq!(left(&limiter, A, at(100)), [2, 2 - by_new]);
    });
}

/// A plan of two quotas loses one: what was used of the other stays used.
#[test]
fn a_quota_that_stays_keeps_its_use_when_another_goes() {
    let [a, b] = [slow(2).named("a"), slow(4).named("b")];
    model(move || {
        let limiter = limiter([a, b]);
        assert_eq!(take(&limiter, A), 1);
        let thread = reloads(&limiter, policy(b));
        assert_eq!(take(&limiter, A), 1);
        thread.join().expect("no model panics");
        assert_eq!(left(&limiter, A, at(100)), [2]);
    });
}

/// A plan is removed while its key is taken from on the default plan: the use of both is in one place afterwards.
#[test]
fn a_plan_that_goes_takes_its_use_along() {
    for x_first in [true, false] {
        model(move || {
            let limiter = builder(10).plan("default", slow(4)).plan("x", slow(4)).default_plan("default");
            let limiter = limiter.build().expect("plans that make sense");
            let x = limiter.plan("x").expect("there is one");
            let on_x = || count(&x.check_costs_at(&A, &[(tollgate::Unit::REQUESTS, 1)], at(100)));
            assert_eq!(if x_first { [on_x(), take(&limiter, A)] } else { [take(&limiter, A), on_x()] }, [1, 1]);
            let thread = reloads(&limiter, policy(slow(4)));
            let taken = 2 + take(&limiter, A);
            thread.join().expect("no model panics");
            assert_eq!(taken, 3);
            assert_eq!(limiter.len(), 1);
            assert_eq!(left(&limiter, A, at(100)), [1]);
            assert_eq!(on_x() + take(&limiter, A), 1);
        });
    }
}

/// The same for who takes on the plan that goes, by a handle, and is on the default plan from some instant on.
#[test]
fn a_handle_moves_with_its_plan_and_leaves_nothing_behind() {
    model(|| {
        let limiter = builder(10).plan("default", slow(4)).plan("x", slow(4)).default_plan("default");
        let limiter = limiter.build().expect("plans that make sense");
        let x = limiter.plan("x").expect("there is one");
        let on_x = || count(&x.check_costs_at(&A, &[(tollgate::Unit::REQUESTS, 1)], at(100)));
        assert_eq!(on_x(), 1);
        let thread = reloads(&limiter, policy(slow(4)));
        assert_eq!(on_x(), 1);
        thread.join().expect("no model panics");
        assert_eq!(limiter.len(), 1);
        assert_eq!(left(&limiter, A, at(100)), [2]);
    });
}

/// The quotas stay as they are: what was taken before is given back exactly, during the reload or not.
#[test]
fn a_refund_is_not_lost_where_the_quotas_stay() {
    let [a, b] = [slow(4).named("a"), slow(3).named("b")];
    for plan in [vec![a], vec![a, b]] {
        model(move || {
            let limiter = limiter(plan.clone());
            assert_eq!(take(&limiter, A), 1);
            let one = allow(limiter.check_at(&A, at(100)));
            let thread = reloads(&limiter, policy(plan.clone()));
            limiter.refund_at(&A, one, at(100));
            thread.join().expect("no model panics");
            let expected: Vec<u64> = plan.iter().map(|quota| quota.limit() - 1).collect();
            assert_eq!(left(&limiter, A, at(100)), expected);
        });
    }
}

/// The quota changes: a refund is worth its unit before the change and nothing after, and never more.
#[test]
fn a_refund_that_races_a_change_of_its_quota_is_worth_its_take_or_nothing() {
    for new in [slow(2), slow(4), Quota::per_hour(1).burst(3)] {
        model(move || {
            let limiter = limiter(slow(3));
            assert_eq!(take(&limiter, A), 1);
            let one = allow(limiter.check_at(&A, at(100)));
            let thread = reloads(&limiter, policy(new));
            limiter.refund_at(&A, one, at(100));
            thread.join().expect("no model panics");
            let used = new.limit() - drain(&limiter, A);
            assert!(used == 1 || used == 2, "{used}");
        });
    }
}

/// Somebody takes at the same time: what was admitted and kept, before and after, is the burst at most.
#[test]
fn a_refund_and_a_take_during_a_reload_stay_within_the_burst() {
    model_within(FEW, || {
        let limiter = limiter(slow(2));
        assert_eq!(take(&limiter, A), 1);
        let one = allow(limiter.check_at(&A, at(100)));
        let threads = [reloads(&limiter, policy(Quota::per_hour(1).burst(2))), {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.refund_at(&A, one, at(100)))
        }];
        let taken = take(&limiter, A);
        for thread in threads {
            thread.join().expect("no model panics");
        }
        assert!(1 + taken + drain(&limiter, A) <= 2);
    });
}

/// A newcomer takes the bucket of one policy, and its unit is used under the other if that is the new one.
#[test]
fn a_newcomer_during_a_reload_is_carried_over_too() {
    for (old, new) in [(2, 3), (3, 2), (2, 1)] {
        model(move || {
            let limiter = limiter(slow(old));
            assert_eq!(take(&limiter, A), 1);
            let thread = reloads(&limiter, policy(slow(new)));
            assert_eq!(take(&limiter, B), 1);
            thread.join().expect("no model panics");
            assert_eq!((limiter.len(), drain(&limiter, A), drain(&limiter, B)), (2, new - 1, new - 1));
        });
    }
}

/// The key is idle, and dropped by the reload or by the newcomer: it is full from then on, and not before.
#[test]
fn a_key_that_a_reload_drops_is_not_full_earlier() {
    model(|| {
        let limiter = limiter(fast(1));
        assert_eq!(take(&limiter, A), 1);
        let thread = {
            let limiter = limiter.clone();
            thread::spawn(move || reload(&limiter, policy(fast(2)), 102))
        };
        assert!(limiter.check_at(&B, at(102)).is_allowed());
        thread.join().expect("no model panics");
        assert_eq!(limiter.len(), 1);
        assert_eq!(take(&limiter, A), 0);
        assert_eq!((0..3).map(|_| count(&limiter.check_at(&A, at(102)))).sum::<u64>(), 2);
    });
}

/// Two reloads and a take: one of the two policies is in force in the end, whatever was taken is used by it, and a third
/// that was there first never comes back.
#[test]
fn of_two_reloads_one_stays_and_nothing_is_forgotten() {
    model_within(FEW, || {
        let limiter = limiter(slow(3));
        assert_eq!(take(&limiter, A), 1);
        let threads = [4, 5].map(|burst| reloads(&limiter, policy(slow(burst))));
        let decision = limiter.check_at(&A, at(100));
        for thread in threads {
            thread.join().expect("no model panics");
        }
        assert!(decision.is_allowed());
        assert!([3, 4, 5].contains(&decision.limit()));
        let after = limiter.peek_at(&A, at(100));
        assert!([4, 5].contains(&after.limit()));
        assert_eq!(after.remaining(), after.limit() - 2);
    });
}

/// One thread reloads twice, so that its first policy is the older one: it is not in force in the end, however the other
/// reload comes between.
#[test]
fn an_older_reload_never_takes_the_place_of_a_newer_one() {
    model_within(FEW, || {
        let limiter = limiter(slow(3));
        assert_eq!(take(&limiter, A), 1);
        let other = limiter.clone();
        let thread = thread::spawn(move || {
            reload(&other, policy(slow(2)), 100);
            reload(&other, policy(slow(5)), 100);
        });
        reload(&limiter, policy(slow(4)), 100);
        let taken = 1 + take(&limiter, A);
        thread.join().expect("no model panics");
        let after: Decision = limiter.peek_at(&A, at(100));
        assert!([4, 5].contains(&after.limit()));
        assert_eq!(after.remaining(), after.limit() - taken);
    });
}
