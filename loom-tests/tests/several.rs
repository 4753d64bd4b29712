//! Several quotas on one key under every interleaving: all or nothing, and what a roll-back leaves behind.
//!
//! All is at one instant, so that nothing comes back by time and what is left can be told to the unit.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use loom_tests::Race;
use loom_tests::keyed::{A, Keyed, allow, at, builder, count, left, slow};
use tollgate::Unit;

/// A plan of two quotas, with a key that is known: newcomers take turns, and would not race.
fn limiter(requests: u64, tokens: u64) -> Keyed {
    let plan = [slow(requests).named("a"), slow(tokens).named("b").unit(Unit::TOKENS)];
    let limiter = builder(10).plan("p", plan).build().expect("a plan that makes sense");
    assert_eq!(take(&limiter, 1, 0), 1);
    limiter
}

fn take(limiter: &Keyed, requests: u64, tokens: u64) -> u64 {
    count(&limiter.check_costs_at(&A, &[(Unit::REQUESTS, requests), (Unit::TOKENS, tokens)], at(100)))
}

/// Of two that both find the last unit of the second quota one has it, and the other gives back what it took of the
/// first.
#[test]
fn who_fails_on_the_second_quota_leaves_the_first_as_it_was() {
    Race::model(|race| {
        let plan = [slow(4).named("a"), slow(2).named("b")];
        let limiter = builder(10).plan("p", plan).build().expect("a plan that makes sense");
        assert!(limiter.check_at(&A, at(100)).is_allowed());
        let one = |limiter: &Keyed| count(&limiter.check_at(&A, at(100)));
        let (a, b) = race.run(&limiter, one, one);
        assert_eq!(a + b, 1);
        assert_eq!(left(&limiter, A, at(100)), [2, 0]);
    });
}

/// The same with costs that differ by thread and by kind of unit: what is rolled back is the cost of who failed.
#[test]
fn what_is_rolled_back_is_what_was_taken_of_each_kind() {
    Race::model(|race| {
        let limiter = limiter(6, 4);
        let (a, b) = race.run(&limiter, |limiter| take(limiter, 2, 3), |limiter| take(limiter, 3, 2));
        assert_eq!(a + b, 1);
        assert_eq!(left(&limiter, A, at(100)), [5 - 2 * a - 3 * b, 4 - 3 * a - 2 * b]);
    });
}

/// A third thread asks the first quota alone and may be denied by what is just being given back, but admits nothing
/// extra, and whoever denied it was admitted.
#[test]
fn a_take_amid_a_roll_back_is_neither_extra_nor_in_vain() {
    // Unbounded, three threads take ten minutes.
    Race::model_within(5, |race| {
        let limiter = limiter(3, 1);
        let both = |limiter: &Keyed| take(limiter, 1, 1);
        let (plain, (a, b)) =
            race.run(&limiter, |limiter| take(limiter, 1, 0), move |limiter| race.run(limiter, both, both));
        assert!(a + b <= 1, "there is one token");
        assert!(plain + a + b >= 1);
        assert_eq!(left(&limiter, A, at(100)), [2 - plain - a - b, 1 - a - b]);
    });
}

/// Who lacks a unit of the second quota takes none of the first, not even for a moment: it never denies another.
#[test]
fn a_denial_that_is_certain_disturbs_nobody() {
    Race::model(|race| {
        let limiter = limiter(2, 1);
        assert_eq!(take(&limiter, 0, 1), 1);
        let answers = race.run(&limiter, |limiter| take(limiter, 1, 0), |limiter| take(limiter, 1, 1));
        assert_eq!(answers, (1, 0));
        assert_eq!(left(&limiter, A, at(100)), [0, 0]);
    });
}

/// An allow of both quotas is given back while another takes: what is kept and what is left are the burst together, of
/// each quota.
#[test]
fn a_refund_of_several_that_races_a_take_neither_lifts_nor_loses() {
    Race::model(|race| {
        let limiter = limiter(4, 4);
        let costs = [(Unit::REQUESTS, 2), (Unit::TOKENS, 3)];
        let first = allow(limiter.check_costs_at(&A, &costs, at(100)));
        let give_back = |limiter: &Keyed| limiter.refund_at(&A, first, at(100));
        let ((), second) = race.run(&limiter, give_back, |limiter| take(limiter, 1, 2));
        assert_eq!(left(&limiter, A, at(100)), [3 - second, 4 - 2 * second]);
    });
}
