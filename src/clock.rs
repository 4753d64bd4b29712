//! Where the time of a decision comes from.

#[cfg(not(loom))]
mod coarse;

use std::time::Instant;

use crate::decision::Seen;
use crate::ticks::{MAX_NOW, Now, PER_NANO};

#[cfg(not(loom))]
pub use coarse::{ClockError, CoarseClock, CoarseStats};
#[cfg(feature = "test-util")]
pub use test_clock::TestClock;

/// A monotonic clock that counts from its making. Clones count from the same origin.
///
/// A limiter reads it once for each decision, unless the caller brings the time with one of the `_at` methods.
///
/// | clock | its price | a read costs | for |
/// |---|---|---|---|
/// | [`precise`](Clock::precise), the default | limits are as exact as the processor's counter | one TSC read, 8 to 18 ns on the virtual machines it was measured on | almost everybody |
/// | [`coarse`](Clock::coarse) | `rate` × 1 ms more may be admitted, and up to a burst more if its thread [stalls](CoarseClock); a thread that wakes up a thousand times a second; no global quotas | one load | millions of checks a second; processors with a slow counter; bounded leaps after a suspend or a move |
/// | [`std`](Clock::std) | | one `Instant::now`, about twice the TSC read | hosts whose TSC can't be trusted |
/// | an instant of the caller's, as in [`check_at`](crate::Limiter::check_at) | whatever its age is, as for a coarse clock, and denials are not looked at twice | nothing | servers that have read the time of their event loop's turn; replay |
/// | `TestClock` (feature `test-util`) | | one load | tests |
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

// A tag of its own: which source it is takes eight instructions where that is packed into what a source has.
#[derive(Clone, Debug)]
#[repr(u8)]
enum Source {
    Precise(Counter),
    Std(Instant),
    #[cfg(not(loom))]
    Coarse(coarse::Coarse),
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

    /// The time of a precise clock as a thread publishes it every millisecond, which ends with the last clone of this:
    /// [`CoarseClock`] says what that costs, and has the options.
    ///
    /// # Errors
    ///
    /// [`ClockError`] if the system has no thread left.
    #[cfg(not(loom))]
    pub fn coarse() -> Result<Self, ClockError> {
        CoarseClock::new().start()
    }

    /// The time since this clock was made, to the nanosecond; of a coarse clock, what was published last.
    ///
    /// It never goes backwards by more than what the counters of two cores differ by, and a limiter refills nothing
    /// twice when it does.
    #[inline(always)]
    pub fn now(&self) -> Now {
        match &self.0 {
            Source::Precise(counter) => counter.now(),
            #[cfg(not(loom))]
            Source::Coarse(clock) => Now::from_ticks(clock.now()),
            _ => self.of_few(),
        }
    }

    /// Kept out of the callers, which would else be the larger for clocks that few use.
    #[cold]
    fn of_few(&self) -> Now {
        match &self.0 {
            Source::Std(origin) => Now::from_nanos(nanos_since(*origin)),
            #[cfg(feature = "test-util")]
            Source::Test(clock) => clock.now(),
            _ => Now::ORIGIN,
        }
    }

    /// The time, which a coarse clock asks the one for that it publishes. No instant that was read before is later.
    #[inline]
    pub(crate) fn latest(&self) -> Now {
        match &self.0 {
            #[cfg(not(loom))]
            Source::Coarse(clock) => Now::from_ticks(clock.latest()),
            _ => self.now(),
        }
    }

    #[cfg(not(loom))]
    pub(crate) const fn is_coarse(&self) -> bool {
        matches!(self.0, Source::Coarse(_))
    }

    /// How well the thread of a coarse clock has kept its time; `None` for any other clock.
    #[cfg(not(loom))]
    pub fn coarse_stats(&self) -> Option<CoarseStats> {
        match &self.0 {
            Source::Coarse(clock) => Some(clock.stats()),
            _ => None,
        }
    }

    /// Publishes the time as the thread of a coarse clock does; nothing, for any other clock. For tests, with
    /// [`CoarseClock::by_hand`].
    #[cfg(all(feature = "test-util", not(loom)))]
    pub fn publish(&self) {
        if let Source::Coarse(clock) = &self.0 {
            clock.publish();
        }
    }

    /// How much faster than the system's clock a precise clock has run since it was made, in parts per million;
    /// negative if slower, `None` for any other clock but a coarse one of a precise one.
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
            #[cfg(not(loom))]
            Source::Coarse(clock) => clock.of().drift_ppm(),
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

/// What a decision goes by: a clock, or an instant that the caller brings.
pub(crate) trait Time {
    /// The time, as cheap as it is to be had.
    fn now(&self) -> Now;

    /// The time, which no instant that was read before is later than.
    fn latest(&self) -> Now;

    /// Whether a denial by what was `seen` is to be taken again at the [latest](Self::latest) time.
    fn doubts(&self, seen: &Seen) -> bool;
}

impl Time for &Clock {
    #[inline(always)]
    fn now(&self) -> Now {
        Clock::now(self)
    }

    #[inline]
    fn latest(&self) -> Now {
        Clock::latest(self)
    }

    #[inline]
    fn doubts(&self, seen: &Seen) -> bool {
        match &self.0 {
            #[cfg(not(loom))]
            Source::Coarse(clock) => clock.doubts(seen),
            _ => {
                _ = seen;
                false
            }
        }
    }
}

impl Time for Now {
    #[inline(always)]
    fn now(&self) -> Now {
        *self
    }

    #[inline]
    fn latest(&self) -> Now {
        *self
    }

    #[inline]
    fn doubts(&self, _: &Seen) -> bool {
        false
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

    #[inline(always)]
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
