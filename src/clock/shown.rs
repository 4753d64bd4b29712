//! A clock of the user's that may step back: the latest time that it has shown, and how it goes on from there.
//!
//! There is no second clock to ask whether it is right. So its first step back is followed, whatever its size: an offset makes
//! it go on from the mark, the latest time that it has shown. A clock that goes back and forth would gain its whole way each
//! time. So a later step is followed only if at least its size has passed since the last one, by [`Instant`]: over any time the
//! steps add no more than that time, and the first of them. The others are counted, and denials stand until the clock is
//! there again.
//!
//! # Order
//!
//! A reading takes the offset first and the clock then: an older time with a newer offset would be a time that never was. A
//! suspicion takes the mark first and the clock then: a mark that is written later proves nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::Instant;

use super::ClockSteps;
use crate::ticks::{MAX_NOW, SECOND, from_duration};

/// A step back from this late an instant is not followed. What has shown such a time had the wrong unit, and to go on from there
/// would be to stand still: 2^59 ticks, two years before the end.
const TOO_LATE: u64 = MAX_NOW - (1 << 59);

/// What has been seen of a clock. In ticks.
#[derive(Default, Debug)]
pub(super) struct Shown {
    /// The latest time that was shown.
    mark: AtomicU64,
    /// All steps that were followed, which the clock's own time is behind by.
    offset: AtomicU64,
    /// Whether the clock is behind for a step that is counted already as not followed.
    is_behind: AtomicBool,
    /// When the last step was followed.
    last: Mutex<Option<Instant>>,
    followed: AtomicU64,
    refused: AtomicU64,
}

impl Shown {
    /// The time, with what was followed, of a `clock` that tells its own time.
    pub(super) fn read(&self, clock: impl FnOnce() -> u64) -> u64 {
        // Acquire: pairs with the Release in `follow`, and keeps the reading behind it.
        let offset = self.offset.load(Ordering::Acquire);
        let now = clock().saturating_add(offset).min(MAX_NOW);
        // Relaxed: the maximum below does not go by it.
        let mark = self.mark.load(Ordering::Relaxed);
        if now >= mark {
            if now > mark {
                // Release: pairs with the Acquire in `settle`. The clock that is read after the mark is read after this reading.
                self.mark.fetch_max(now, Ordering::Release);
            }
            // Relaxed: it only keeps a step from being counted twice.
            if self.is_behind.load(Ordering::Relaxed) {
                self.is_behind.store(false, Ordering::Relaxed);
            }
        }
        now
    }

    /// Whether the clock, read anew, tells `instant` less a second or later, or goes on now from the latest time that it has
    /// shown.
    #[cold]
    pub(super) fn settle(&self, instant: u64, clock: impl Fn() -> u64) -> bool {
        self.settle_at(instant, clock, Instant::now)
    }

    fn settle_at(&self, instant: u64, clock: impl Fn() -> u64, system: impl FnOnce() -> Instant) -> bool {
        let reach = |now: u64| now.saturating_add(SECOND);
        // Acquire: pairs with the Release in `read`.
        let mark = self.mark.load(Ordering::Acquire);
        let now = self.read(&clock);
        if reach(now) >= instant {
            return true;
        }
        if reach(now) >= mark {
            return false;
        }
        // Not waited for: after `fork`, the thread that has it may be in the other process. While one follows the step, the
        // others decide again.
        let mut last = match self.last.try_lock() {
            Ok(last) => last,
            Err(TryLockError::Poisoned(last)) => last.into_inner(),
            Err(TryLockError::WouldBlock) => return true,
        };
        // Acquire: as above. Another thread may have followed it before this one had the lock.
        let mark = self.mark.load(Ordering::Acquire);
        let now = self.read(&clock);
        if reach(now) >= mark {
            return true;
        }
        let (size, system) = (mark - now, system());
        let passed = |last: Instant| from_duration(system.saturating_duration_since(last)) >= u128::from(size);
        if mark > TOO_LATE || !last.is_none_or(passed) {
            if !self.is_behind.swap(true, Ordering::Relaxed) {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            return false;
        }
        *last = Some(system);
        // Release: pairs with the Acquire in `read`.
        self.offset.fetch_add(size, Ordering::Release);
        self.followed.fetch_add(1, Ordering::Relaxed);
        true
    }

    pub(super) fn steps(&self) -> ClockSteps {
        // Relaxed: each count is for itself.
        let [followed, refused] = [&self.followed, &self.refused].map(|count| count.load(Ordering::Relaxed));
        ClockSteps { followed, refused }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    /// A clock that says what it is told, in seconds, and what has been seen of it.
    struct Bench {
        own: Cell<u64>,
        shown: Shown,
        begun: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self { own: Cell::new(0), shown: Shown::default(), begun: Instant::now() }
        }

        fn set(&self, seconds: u64) -> u64 {
            self.own.set(seconds);
            self.read()
        }

        fn read(&self) -> u64 {
            self.shown.read(|| self.own.get() * SECOND) / SECOND
        }

        /// Suspects a step from what was last shown, so many seconds after the beginning.
        fn settle(&self, at: u64) -> bool {
            let (mark, at) = (self.shown.mark.load(Ordering::Relaxed), self.begun + Duration::from_secs(at));
            self.shown.settle_at(mark, || self.own.get() * SECOND, || at)
        }
    }

    #[test]
    fn the_first_step_is_followed_whatever_its_size() {
        for back in [2, 11, 100, 1_000_000] {
            let bench = Bench::new();
            bench.set(1_000_000);
            bench.set(1_000_000 - back);
            assert!(bench.settle(0));
            assert_eq!((bench.read(), bench.set(1_000_001 - back)), (1_000_000, 1_000_001), "{back} s back");
        }
    }

    #[test]
    fn a_later_step_is_followed_once_its_size_has_passed() {
        let bench = Bench::new();
        bench.set(100);
        bench.set(89);
        assert!(bench.settle(0));
        assert_eq!(bench.set(100), 111);
        assert_eq!(bench.set(89), 100);
        assert!(!bench.settle(10) && !bench.settle(10));
        assert_eq!((bench.read(), bench.shown.steps()), (100, ClockSteps { followed: 1, refused: 1 }));
        assert!(bench.settle(11));
        assert_eq!((bench.read(), bench.shown.steps()), (111, ClockSteps { followed: 2, refused: 1 }));
    }

    #[test]
    fn a_step_that_is_not_followed_is_counted_once() {
        let bench = Bench::new();
        bench.set(100);
        bench.set(0);
        assert!(bench.settle(0));
        for _ in 0..3 {
            bench.set(100);
            bench.set(0);
            assert!((0..5).all(|_| !bench.settle(1)));
        }
        assert_eq!(bench.shown.steps(), ClockSteps { followed: 1, refused: 3 });
    }

    #[test]
    fn a_second_is_no_step_and_a_late_instant_is_none_either() {
        let bench = Bench::new();
        bench.set(100);
        bench.set(99);
        assert!(bench.settle(0), "late, at the most");
        assert!(!bench.shown.settle(200 * SECOND, || 99 * SECOND), "it is where it was");
        assert_eq!((bench.read(), bench.shown.steps()), (99, ClockSteps::default()));
    }

    #[test]
    fn a_clock_that_has_shown_the_end_comes_back_from_it() {
        let bench = Bench::new();
        bench.shown.read(|| u64::MAX);
        bench.set(100);
        assert!(!bench.settle(0));
        assert_eq!((bench.read(), bench.shown.steps()), (100, ClockSteps { followed: 0, refused: 1 }));
    }

    /// The clock steps back, and the step is followed, between this reading's offset and its time.
    #[test]
    fn a_reading_that_meets_a_step_is_never_late() {
        let bench = Bench::new();
        bench.set(100);
        let now = bench.shown.read(|| {
            bench.own.set(89);
            assert!(bench.settle(0));
            bench.own.get() * SECOND
        });
        assert_eq!((now / SECOND, bench.read()), (89, 100));
    }
}
