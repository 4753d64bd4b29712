//! One bucket under every interleaving.
//!
//! The bucket is the library's own, on loom's atomics. What loom leaves unchecked: it lets a compare-and-swap see the
//! last value only, and a weak one never fails without cause, so that the orderings need the reason that `bucket.rs`
//! gives, and the loop needs the tests on real threads.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use loom_tests::sync::Arc;
use loom_tests::{Race, model, thread};
use tollgate::Quota;
use tollgate::internal::{Bucket, QuotaTicks};

const NOW: u64 = 1_000;

fn quota(burst: u64) -> QuotaTicks {
    // A unit takes 8 ticks to come back.
    QuotaTicks::new(Quota::per_second(1_000_000_000).burst(burst)).expect("a quota that makes sense")
}

/// Runs `bodies`, all but the first on threads of their own, and returns the sum of what they return.
fn all<const N: usize>(bodies: [fn(&Bucket) -> u64; N], bucket: &Arc<Bucket>) -> u64 {
    let [first, others @ ..] = &bodies[..] else { return 0 };
    let others: Vec<_> = others
        .iter()
        .map(|body| {
            let (body, bucket) = (*body, Arc::clone(bucket));
            thread::spawn(move || body(&bucket))
        })
        .collect();
    first(bucket) + others.into_iter().map(|thread| thread.join().expect("no model panics")).sum::<u64>()
}

fn take<const BURST: u64>(bucket: &Bucket) -> u64 {
    u64::from(bucket.take(&quota(BURST), 1, || NOW).0.is_ok())
}

fn take_and_give_back<const BURST: u64>(bucket: &Bucket) -> u64 {
    if bucket.take(&quota(BURST), 1, || NOW).0.is_ok() {
        bucket.lower(|| (8, NOW));
    }
    0
}

/// What is left in the bucket, taken one by one.
fn drain<const BURST: u64>(bucket: &Bucket) -> u64 {
    (0..2 * BURST).map(|_| take::<BURST>(bucket)).sum()
}

#[test]
fn callers_at_one_instant_share_the_burst_exactly() {
    model(|| {
        let bucket = Arc::new(Bucket::full_at(0));
        assert_eq!(all([take::<1>, take::<1>, take::<1>], &bucket), 1);
        assert_eq!(drain::<1>(&bucket), 0);
    });
    model(|| {
        let bucket = Arc::new(Bucket::full_at(0));
        assert_eq!(all([take::<2>, take::<2>, take::<2>], &bucket), 2);
        assert_eq!(drain::<2>(&bucket), 0);
    });
    model(|| {
        let bucket = Arc::new(Bucket::full_at(0));
        assert_eq!(all([take::<4>, take::<4>, take::<4>], &bucket), 3);
        assert_eq!(drain::<4>(&bucket), 1);
    });
}

/// Whoever takes while another holds a unit that it gives back may be denied, but what is kept and what is left are
/// the burst together: nothing is lifted above it, and nothing is lost.
#[test]
fn a_refund_that_races_a_take_neither_lifts_nor_loses() {
    model(|| {
        let bucket = Arc::new(Bucket::full_at(0));
        let kept = all([take::<2>, take_and_give_back::<2>, take::<2>], &bucket);
        assert_eq!(kept + drain::<2>(&bucket), 2);
    });
    Race::model(|race| {
        let bucket = Arc::new(Bucket::full_at(0));
        let (kept, _) = race.run(&bucket, |bucket| take::<1>(bucket), |bucket| take_and_give_back::<1>(bucket));
        assert_eq!(kept + drain::<1>(&bucket), 1);
    });
}

/// Half of a unit has come back by itself when all three are given back at once.
#[test]
fn refunds_that_race_stop_at_the_burst() {
    Race::model(|race| {
        let bucket = Arc::new(Bucket::full_at(0));
        assert!(bucket.take(&quota(3), 3, || NOW).0.is_ok());
        race.run(&bucket, |bucket| bucket.lower(|| (8, NOW + 4)), |bucket| bucket.lower(|| (16, NOW + 4)));
        assert_eq!(bucket.tat(), NOW + 4);
    });
}

/// An instant is read before the decision is taken, and another thread with a later one may come between.
#[test]
fn instants_out_of_order_refill_nothing_twice() {
    fn late(bucket: &Bucket) -> u64 {
        u64::from(bucket.take(&quota(1), 1, || NOW + 8).0.is_ok())
    }
    model(|| {
        let bucket = Arc::new(Bucket::full_at(0));
        // Within the 8 ticks of one unit: 1 + 1 at most, and the later instant alone is one too.
        let admitted = all([take::<1>, late, take::<1>], &bucket);
        assert!((1..=2).contains(&admitted), "{admitted}");
        assert_eq!(bucket.take(&quota(1), 1, || NOW + 8).0, Err(bucket.tat()));
    });
}
