//! Where the time of a decision comes from.

use std::time::Instant;

use crate::ticks::{MAX_NOW, Now, PER_NANO};

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
    Precise(Counter),
    Std(Instant),
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
        Self(Source::Precise(Counter::new()))
    }

    /// The system's monotonic clock.
    pub fn std() -> Self {
        Self(Source::Std(Instant::now()))
    }

    /// The time since this clock was made, to the nanosecond.
    ///
    /// It never goes backwards by more than what the counters of two cores differ by, and a limiter refills nothing
    /// twice when it does.
    #[inline]
    pub fn now(&self) -> Now {
        match &self.0 {
            Source::Precise(counter) => counter.now(),
            Source::Std(origin) => std_now(*origin),
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
            Source::Precise(counter) => {
                let precise = counter.now().ticks() as f64 / PER_NANO as f64;
                let std = nanos_since(counter.made).max(1);
                Some((precise / std as f64 - 1.0) * 1e6)
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

/// A `quanta` clock with the step from its counts to ticks in one multiplication.
#[derive(Clone, Debug)]
struct Counter {
    clock: quanta::Clock,
    origin: u64,
    /// Ticks a count, in units of 2^-(64 - shift).
    scale: u64,
    /// The least that makes `scale` fit.
    shift: u32,
    /// The number of counts after which the clock stands still.
    last: u64,
    made: Instant,
}

impl Counter {
    fn new() -> Self {
        let clock = quanta::Clock::new();
        // Ticks in 2^40 counts: to some 10^-12 what quanta goes by, be a count a third of a nanosecond or 40 of them.
        let ticks = u128::from(clock.delta_as_nanos(0, 1 << 40)) * u128::from(PER_NANO);
        let shift = u128::BITS - (ticks >> 40).leading_zeros();
        let scale = ((ticks << 24) >> shift) as u64;
        let last =
            (u128::from(MAX_NOW) << 40).checked_div(ticks).unwrap_or(0).min(u128::from(u64::MAX >> shift)) as u64;
        let origin = clock.raw();
        Self { clock, origin, scale, shift, last, made: Instant::now() }
    }

    #[inline]
    fn now(&self) -> Now {
        let raw = self.clock.raw();
        let counts = raw.wrapping_sub(self.origin);
        if counts > self.last {
            return out_of_range(raw, self.origin);
        }
        Now::from_ticks(((u128::from(counts << self.shift) * u128::from(self.scale)) >> 64) as u64)
    }
}

/// Another core's counter may be behind the origin for a moment; and in nine years, the end is reached.
#[cold]
fn out_of_range(raw: u64, origin: u64) -> Now {
    if raw < origin { Now::ORIGIN } else { Now::MAX }
}

/// Kept out of the callers, which would else be the larger for a clock that few use.
#[inline(never)]
fn std_now(origin: Instant) -> Now {
    Now::from_nanos(nanos_since(origin))
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
