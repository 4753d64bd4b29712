//! Several quotas on one key under every interleaving: all or nothing, and what a roll-back leaves behind.
//!
//! All is at one instant, so that nothing comes back by time and what is left can be told to the unit.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use loom_tests::keyed::{A, Keyed, allow, at, builder, count, left, slow};
use loom_tests::{model, model_within, thread};
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
    model(|| {
        let plan = [slow(4).named("a"), slow(2).named("b")];
        let limiter = builder(10).plan("p", plan).build().expect("a plan that makes sense");
        assert!(limiter.check_at(&A, at(100)).is_allowed());
        let other = limiter.clone();
        let thread = thread::spawn(move || count(&other.check_at(&A, at(100))));
        let admitted = count(&limiter.check_at(&A, at(100))) + thread.join().expect("no model panics");
        assert_eq!(admitted, 1);
        assert_eq!(left(&limiter, A, at(100)), [2, 0]);
    });
}

/// The same with costs that differ by thread and by kind of unit: what is rolled back is the cost of who failed.
#[test]
fn what_is_rolled_back_is_what_was_taken_of_each_kind() {
    model(|| {
        let limiter = limiter(6, 4);
        let other = limiter.clone();
        let thread = thread::spawn(move || take(&other, 3, 2));
        let one = take(&limiter, 2, 3);
        let three = thread.join().expect("no model panics");
        assert_eq!(one + three, 1);
        assert_eq!(left(&limiter, A, at(100)), [5 - 2 * one - 3 * three, 4 - 3 * one - 2 * three]);
    });
}

/// A third thread asks the first quota alone and may be denied by what is just being given back, but admits nothing
/// extra, and whoever denied it was admitted.
#[test]
fn a_take_amid_a_roll_back_is_neither_extra_nor_in_vain() {
    // Without a bound it takes ten minutes.
    model_within(5, || {
        let limiter = limiter(3, 1);
        let others = [1, 1].map(|tokens| {
            let limiter = limiter.clone();
            thread::spawn(move || take(&limiter, 1, tokens))
        });
        let plain = take(&limiter, 1, 0);
        let both: u64 = others.into_iter().map(|thread| thread.join().expect("no model panics")).sum();
        assert!(both <= 1, "there is one token");
        assert!(plain + both >= 1);
        assert_eq!(left(&limiter, A, at(100)), [2 - plain - both, 1 - both]);
    });
}

/// Who lacks a unit of the second quota takes none of the first, not even for a moment: it never denies another.
#[test]
fn a_denial_that_is_certain_disturbs_nobody() {
    model(|| {
        let limiter = limiter(2, 1);
        assert_eq!(take(&limiter, 0, 1), 1);
        let other = limiter.clone();
        let thread = thread::spawn(move || take(&other, 1, 1));
        assert_eq!(take(&limiter, 1, 0), 1);
        assert_eq!(thread.join().expect("no model panics"), 0);
        assert_eq!(left(&limiter, A, at(100)), [0, 0]);
    });
}

/// An allow of both quotas is given back while another takes: what is kept and what is left are the burst together, of
/// each quota.
#[test]
fn a_refund_of_several_that_races_a_take_neither_lifts_nor_loses() {
    model(|| {
        let limiter = limiter(4, 4);
        let costs = [(Unit::REQUESTS, 2), (Unit::TOKENS, 3)];
        let first = allow(limiter.check_costs_at(&A, &costs, at(100)));
        let other = limiter.clone();
        let thread = thread::spawn(move || other.refund_at(&A, first, at(100)));
        let second = take(&limiter, 1, 2);
        thread.join().expect("no model panics");
        assert_eq!(left(&limiter, A, at(100)), [3 - second, 4 - 2 * second]);
    });
}
