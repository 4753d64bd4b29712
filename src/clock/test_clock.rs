//! A clock for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::shown::Shown;
use super::{Clock, ClockSteps, Source};
use crate::ticks::Now;

/// A clock that stands still until it is told otherwise, for tests. Clones are the same clock.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Quota, TestClock};
///
/// let clock = TestClock::new();
/// let limiter = Limiter::builder().quota(Quota::per_second(1)).clock(clock.clock()).build()?;
/// assert!(limiter.check("alice").is_allowed());
/// assert_eq!(limiter.check("alice").retry_after(), Some(Duration::from_secs(1)));
/// clock.advance(Duration::from_secs(1));
/// assert!(limiter.check("alice").is_allowed());
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[derive(Clone, Default, Debug)]
pub struct TestClock {
    inner: Arc<Inner>,
}

#[derive(Default, Debug)]
struct Inner {
    /// What it was set to.
    nanos: AtomicU64,
    shown: Shown,
}

// Relaxed, below: a test that moves the clock on one thread and reads it on another orders the two itself.
impl TestClock {
    /// A clock that stands at [`Now::ORIGIN`].
    pub fn new() -> Self {
        Self::default()
    }

    /// This clock, as limiters take it.
    pub fn clock(&self) -> Clock {
        Clock(Source::Test(self.clone()))
    }

    /// Moves the clock on by `step`; at [`Now::MAX`] it stays.
    pub fn advance(&self, step: Duration) {
        let step = nanos(step);
        let _ =
            self.inner.nanos.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_add(step)));
    }

    /// Sets the clock to `elapsed` after its origin, be it forwards or backwards.
    pub fn set(&self, elapsed: Duration) {
        self.inner.nanos.store(nanos(elapsed), Ordering::Relaxed);
    }

    /// Where the clock stands, as it was set. Limiters on it go by that and the steps back that they have followed, which
    /// [`Clock::steps`] counts.
    pub fn now(&self) -> Now {
        Now::from_nanos(self.inner.nanos.load(Ordering::Relaxed))
    }

    /// The time that limiters go by.
    pub(super) fn shown(&self) -> Now {
        Now::from_ticks(self.inner.shown.read(|| self.now().ticks()))
    }

    pub(super) fn settle(&self, instant: u64) -> bool {
        self.inner.shown.settle(instant, || self.now().ticks())
    }

    pub(super) fn steps(&self) -> ClockSteps {
        self.inner.shown.steps()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
