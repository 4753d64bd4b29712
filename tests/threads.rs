//! Exact totals on real threads.
#![allow(clippy::unwrap_used, reason = "a helper that meets the unexpected stops the test")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::{DirectLimiter, Limiter, Now, Quota};

const THREADS: u64 = 8;
const CHECKS: u64 = 10_000_000;
const BURST: u64 = 10_000;

/// How many of ten million checks on eight threads `check` lets pass.
fn admitted(check: impl Fn() -> bool + Sync) -> u64 {
    let admitted = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mine = (0..CHECKS / THREADS).filter(|_| check()).count();
                admitted.fetch_add(u64::try_from(mine).unwrap(), Ordering::Relaxed);
            });
        }
    });
    admitted.into_inner()
}

#[test]
fn eight_threads_admit_a_burst_that_never_refills_exactly_once() {
    let quota = Quota::per_second(0).burst(BURST);
    let direct = DirectLimiter::new(quota).unwrap();
    assert_eq!(admitted(|| direct.check().is_allowed()), BURST);
    let keyed = Limiter::new(quota).unwrap();
    assert_eq!(admitted(|| keyed.check("hot").is_allowed()), BURST);
    assert_eq!(keyed.len(), 1);
}

/// A microsecond passes with every check, whichever thread makes it, so that threads bring their instants out of
/// order. At 320,000 a second, a unit comes back in about every third check.
#[test]
fn eight_threads_admit_what_comes_back_to_the_last_unit() {
    let quota = Quota::per_second(320_000).burst(BURST);
    let at = |nanos| Now::since_origin(Duration::from_nanos(nanos)).unwrap();

    let direct = DirectLimiter::new(quota).unwrap();
    let keyed = Limiter::new(quota).unwrap();
    let checks: [&(dyn Fn(u64) -> bool + Sync); 2] =
        [&|nanos| direct.check_at(at(nanos)).is_allowed(), &|nanos| keyed.check_at("hot", at(nanos)).is_allowed()];
    for check in checks {
        let clock = AtomicU64::new(0);
        // The window opens at 0: a bucket that is full gains nothing from then on.
        let mut total = u64::from(check(0));
        total += admitted(|| check(clock.fetch_add(1_000, Ordering::Relaxed)));
        let end = clock.into_inner();
        while check(end) {
            total += 1;
        }
        assert_eq!(total, BURST + end * 320_000 / 1_000_000_000);
    }
}
