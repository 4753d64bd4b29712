//! Refunds of one key under every interleaving, with the count that bounds what they are worth.
//!
//! Loom treats each access as at least as strong as its comment in `refunds.rs` asks for, so that it checks the order of
//! the steps; the orderings themselves stand on their written reasons.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use std::time::Duration;

use loom_tests::sync::{Arc, Mutex};
use loom_tests::{model, thread};
use tollgate::internal::{KeyState, QuotaTicks, Refunds, Visited};
use tollgate::{Allow, Decision, Now, Quota};

/// A unit comes back in a nanosecond.
fn quota(burst: u64) -> QuotaTicks {
    QuotaTicks::new(Quota::per_second(1_000_000_000).burst(burst)).expect("a quota that makes sense")
}

/// One key with a word of its own.
struct One {
    state: KeyState,
    refunds: Refunds,
}

impl One {
    fn new() -> Self {
        Self { state: KeyState::new(0), refunds: Refunds::none() }
    }

    fn visited(&self) -> Visited<'_> {
        Visited::new(&self.state, &self.refunds, 1)
    }

    fn refund(&self, quota: &QuotaTicks, allow: &Allow, clock: impl Fn() -> Now) {
        self.visited().refund(quota, allow, clock);
    }
}

fn at(nanos: u64) -> Now {
    Now::since_origin(Duration::from_nanos(nanos)).expect("an early instant")
}

fn take(state: &One, burst: u64, cost: u64, nanos: u64) -> Option<Allow> {
    match state.visited().take(&quota(burst), cost, || at(nanos)) {
        Decision::Allow(allow) => Some(allow),
        Decision::Deny(_) => None,
    }
}

/// Three units are given back while a fourth is taken. When all has come back by itself and the whole burst is taken
/// again, a refund of that fourth is worth nothing, whichever way it raced with the other.
#[test]
fn a_take_that_raced_a_refund_is_worth_no_more_than_is_left_of_it() {
    model(|| {
        let state = Arc::new(One::new());
        let three = take(&state, 4, 3, 100).expect("a full bucket");
        let other = Arc::clone(&state);
        let thread = thread::spawn(move || other.refund(&quota(4), &three, || at(100)));
        let fourth = take(&state, 4, 1, 100).expect("one is left");
        thread.join().expect("no model panics");

        assert!(take(&state, 4, 4, 102).is_some(), "full at 101");
        state.refund(&quota(4), &fourth, || at(102));
        assert!(take(&state, 4, 1, 102).is_none());
    });
}

/// The same with two refunds that race each other.
#[test]
fn refunds_that_race_each_other_are_worth_no_more_than_is_left_of_them() {
    model(|| {
        let state = Arc::new(One::new());
        let two = take(&state, 4, 2, 100).expect("a full bucket");
        let one = take(&state, 4, 1, 100).expect("two are left");
        let last = take(&state, 4, 1, 100).expect("one is left");
        let others = [(two, Arc::clone(&state)), (one, Arc::clone(&state))];
        let threads = others.map(|(allow, state)| thread::spawn(move || state.refund(&quota(4), &allow, || at(100))));
        for thread in threads {
            thread.join().expect("no model panics");
        }
        assert!(take(&state, 4, 4, 102).is_some(), "full at 101");
        state.refund(&quota(4), &last, || at(102));
        assert!(take(&state, 4, 1, 102).is_none());
    });
}

/// A refund reads the time and is then preempted, while the unit comes back by itself and the whole burst is taken. The
/// clock is a mutex, since unlike a plain atomic of the model a real one never shows an old time.
#[test]
fn a_refund_that_was_preempted_reads_the_time_again() {
    model(|| {
        let state = Arc::new(One::new());
        let clock = Arc::new(Mutex::new(100));
        let one = take(&state, 2, 1, 100).expect("a full bucket");
        let thread = {
            let (state, clock) = (Arc::clone(&state), Arc::clone(&clock));
            thread::spawn(move || state.refund(&quota(2), &one, || at(*clock.lock().expect("no model panics"))))
        };
        *clock.lock().expect("no model panics") = 103;
        assert!(take(&state, 2, 2, 103).is_some(), "full at 101");
        thread.join().expect("no model panics");
        assert!(take(&state, 2, 1, 103).is_none());
    });
}

/// At one instant nothing comes back by itself: takers that give back leave the burst as it was, to the unit.
#[test]
fn what_is_taken_and_given_back_at_one_instant_is_all_there() {
    model(|| {
        let state = Arc::new(One::new());
        let threads = [(); 2].map(|()| {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                if let Some(allow) = take(&state, 2, 1, 100) {
                    state.refund(&quota(2), &allow, || at(100));
                }
            })
        });
        for thread in threads {
            thread.join().expect("no model panics");
        }
        assert!(take(&state, 2, 2, 100).is_some());
        assert!(take(&state, 2, 1, 100).is_none());
    });
}
