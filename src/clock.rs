//! Where the time of a decision comes from.

use std::time::Instant;

use crate::ticks::Now;

#[cfg(feature = "test-util")]
pub use test_clock::TestClock;

/// A monotonic clock that counts from its making. Clones count from the same origin.
///
/// A limiter reads it once for each decision, unless the caller brings the time with one of the `_at` methods.
///
/// | clock | a read costs | for |
/// |---|---|---|
/// | [`precise`](Clock::precise), the default | one TSC read, 8 to 18 ns on the virtual machines it was measured on | almost everybody |
/// | [`std`](Clock::std) | one `Instant::now`, about twice that | hosts whose TSC can't be trusted |
/// | `TestClock` (feature `test-util`) | one load | tests |
///
/// After nine years ([`Now::MAX`]) a clock stands still, and nothing refills any more.
///
/// ```
/// use tollgate::{Clock, Limiter, Quota};
///
/// let limiter = Limiter::builder().quota(Quota::per_second(10)).clock(Clock::std()).build()?;
/// # assert!(limiter.check("alice").is_allowed());
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Precise {
        clock: quanta::Clock,
        origin: u64,
        made: Instant,
    },
    Std {
        origin: Instant,
    },
    #[cfg(feature = "test-util")]
    Test(TestClock),
}

impl Clock {
    /// The processor's time stamp counter, by way of [`quanta`]; where there is none that can be used, what the
    /// system offers.
    ///
    /// The first one made in a process calibrates the counter, which can take 200 ms: make limiters at start, not in
    /// a first request.
    pub fn precise() -> Self {
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        Self(Source::Precise { clock, origin, made: Instant::now() })
    }

    /// The system's monotonic clock.
    pub fn std() -> Self {
        Self(Source::Std { origin: Instant::now() })
    }

    /// The time since this clock was made, to the nanosecond.
    ///
    /// It never goes backwards by more than what the counters of two cores differ by, and a limiter refills nothing
    /// twice when it does.
    #[inline]
    pub fn now(&self) -> Now {
        match &self.0 {
            Source::Precise { clock, origin, .. } => Now::from_nanos(clock.delta_as_nanos(*origin, clock.raw())),
            Source::Std { origin } => Now::from_nanos(nanos_since(*origin)),
            #[cfg(feature = "test-util")]
            Source::Test(clock) => clock.now(),
        }
    }

    /// How much faster than the system's clock a precise clock has run since it was made, in parts per million;
    /// negative if slower, `None` for any other clock.
    ///
    /// A host whose time stamp counter can be trusted stays under some 100 ppm. Worth a gauge: a limiter's rate is
    /// wrong by as much as its clock. Give it a second at least; over less, the two readings themselves blur it.
    pub fn drift_ppm(&self) -> Option<f64> {
        match &self.0 {
            Source::Precise { clock, origin, made } => {
                let precise = clock.delta_as_nanos(*origin, clock.raw());
                let std = nanos_since(*made).max(1);
                Some((precise as f64 / std as f64 - 1.0) * 1e6)
            }
            _ => None,
        }
    }
}

impl Default for Clock {
    /// [`Clock::precise`].
    fn default() -> Self {
        Self::precise()
    }
}

fn nanos_since(origin: Instant) -> u64 {
    u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(feature = "test-util")]
mod test_clock {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::{Clock, Source};
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
        nanos: Arc<AtomicU64>,
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
            let _ = self.nanos.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_add(step)));
        }

        /// Sets the clock to `elapsed` after its origin, be it forwards or backwards.
        pub fn set(&self, elapsed: Duration) {
            self.nanos.store(nanos(elapsed), Ordering::Relaxed);
        }

        /// Where the clock stands.
        pub fn now(&self) -> Now {
            Now::from_nanos(self.nanos.load(Ordering::Relaxed))
        }
    }

    fn nanos(duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
    }
}
