//! Refunds of one key under every interleaving, with the count that bounds what they are worth.
//!
//! Loom treats each access as at least as strong as its comment in `refunds.rs` asks for, so that it checks the order
//! of the steps; the orderings themselves stand on their written reasons.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use std::time::Duration;

use loom_tests::Race;
use loom_tests::sync::{Arc, Mutex};
use tollgate::internal::{QuotaTicks, Slot, Visited};
use tollgate::{Allow, Decision, Now, Quota};

/// A unit comes back in a nanosecond.
fn quota(burst: u64) -> QuotaTicks {
    QuotaTicks::new(Quota::per_second(1_000_000_000).burst(burst)).expect("a quota that makes sense")
}

/// The one key.
const ID: u64 = 1;

fn refund(slot: &Slot, quota: &QuotaTicks, allow: &Allow, clock: impl Fn() -> Now) {
    Visited::new(slot, ID).refund(quota, allow, clock);
}

fn at(nanos: u64) -> Now {
    Now::since_origin(Duration::from_nanos(nanos)).expect("an early instant")
}

fn take(slot: &Slot, burst: u64, cost: u64, nanos: u64) -> Option<Allow> {
    match Visited::new(slot, ID).take(&quota(burst), cost, at(nanos)) {
        Decision::Allow(allow) => Some(allow),
        Decision::Deny(_) => None,
    }
}

/// Three units are given back while a fourth is taken. When all has come back by itself and the whole burst is taken
/// again, a refund of that fourth is worth nothing, whichever way it raced with the other.
#[test]
fn a_take_that_raced_a_refund_is_worth_no_more_than_is_left_of_it() {
    Race::model(|race| {
        let slot = Arc::new(Slot::new(0, 0));
        let three = take(&slot, 4, 3, 100).expect("a full bucket");
        let give_back = move |slot: &Arc<Slot>| refund(slot, &quota(4), &three, || at(100));
        let (fourth, ()) = race.run(&slot, |slot| take(slot, 4, 1, 100).expect("one is left"), give_back);

        assert!(take(&slot, 4, 4, 102).is_some(), "full at 101");
        refund(&slot, &quota(4), &fourth, || at(102));
        assert!(take(&slot, 4, 1, 102).is_none());
    });
}

/// The same with two refunds that race each other.
#[test]
fn refunds_that_race_each_other_are_worth_no_more_than_is_left_of_them() {
    Race::model(|race| {
        let slot = Arc::new(Slot::new(0, 0));
        let two = take(&slot, 4, 2, 100).expect("a full bucket");
        let one = take(&slot, 4, 1, 100).expect("two are left");
        let last = take(&slot, 4, 1, 100).expect("one is left");
        let [two, one] = [two, one].map(|allow| move |slot: &Arc<Slot>| refund(slot, &quota(4), &allow, || at(100)));
        race.run(&slot, two, one);
        assert!(take(&slot, 4, 4, 102).is_some(), "full at 101");
        refund(&slot, &quota(4), &last, || at(102));
        assert!(take(&slot, 4, 1, 102).is_none());
    });
}

/// A refund reads the time and is then preempted, while the unit comes back by itself and the whole burst is taken. The
/// clock is a mutex, since unlike a plain atomic of the model a real one never shows an old time.
#[test]
fn a_refund_that_was_preempted_reads_the_time_again() {
    Race::model(|race| {
        let slot = Arc::new((Slot::new(0, 0), Mutex::new(100)));
        let one = take(&slot.0, 2, 1, 100).expect("a full bucket");
        let give_back = move |slot: &Arc<(Slot, Mutex<u64>)>| {
            refund(&slot.0, &quota(2), &one, || at(*slot.1.lock().expect("no model panics")));
        };
        let take_all = |slot: &Arc<(Slot, Mutex<u64>)>| {
            *slot.1.lock().expect("no model panics") = 103;
            assert!(take(&slot.0, 2, 2, 103).is_some(), "full at 101");
        };
        race.run(&slot, give_back, take_all);
        assert!(take(&slot.0, 2, 1, 103).is_none());
    });
}

/// At one instant nothing comes back by itself: takers that give back leave the burst as it was, to the unit.
#[test]
fn what_is_taken_and_given_back_at_one_instant_is_all_there() {
    Race::model(|race| {
        let slot = Arc::new(Slot::new(0, 0));
        let take_and_give_back = |slot: &Arc<Slot>| {
            if let Some(allow) = take(slot, 2, 1, 100) {
                refund(slot, &quota(2), &allow, || at(100));
            }
        };
        race.run(&slot, take_and_give_back, take_and_give_back);
        assert!(take(&slot, 2, 2, 100).is_some());
        assert!(take(&slot, 2, 1, 100).is_none());
    });
}
