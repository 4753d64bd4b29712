//! Where the time of a decision comes from.

#[cfg(not(loom))]
mod coarse;
#[cfg(not(loom))]
mod looks;
mod processor;
#[cfg(feature = "test-util")]
mod shown;
mod steps;
#[cfg(feature = "test-util")]
mod test_clock;

use std::sync::OnceLock;
use std::time::Instant;

use crate::decision::Seen;
use crate::ticks::{Now, SECOND};
use processor::Processor;

#[cfg(not(loom))]
pub use coarse::{ClockError, CoarseClock, CoarseStats};
pub use steps::ClockSteps;
#[cfg(feature = "test-util")]
pub use test_clock::TestClock;

/// A monotonic clock. Clones are the same clock, and all but a `TestClock` count from one origin in a process, see [`Now`].
///
/// A limiter reads it once for each decision, unless the caller brings the time with one of the `_at` methods.
///
/// | clock | its price | a read costs | for |
/// |---|---|---|---|
/// | [`precise`](Clock::precise), the default | limits are as exact as the processor's counter | one TSC read, 8 to 18 ns on the virtual machines it was measured on | almost everybody |
/// | [`coarse`](Clock::coarse) | `rate` × 1 ms more may be admitted, and up to a burst more if its thread [stalls](CoarseClock); a thread that wakes up a thousand times a second, one for all limiters; no global quotas | one load | millions of checks a second; processors with a slow counter; bounded leaps after a suspend or a move |
/// | [`std`](Clock::std) | | one `Instant::now`, about twice the TSC read | hosts whose TSC can't be trusted |
/// | an instant of the caller's, as in [`check_at`](crate::Limiter::check_at) | whatever its age is, as for a coarse clock; denials are not looked at twice, and a step back is waited for | nothing | servers that have read the time of their event loop's turn; replay |
/// | `TestClock` (feature `test-util`) | | one load | tests |
///
/// After nine years ([`Now::MAX`]) a clock stands still, and nothing refills any more.
///
/// # Steps back
///
/// A counter may start over after a sleep or a restored snapshot, and a user's clock may be set back. No key waits for the size
/// of such a step: a denial that outlasts all that its quota can stand ahead, by more than a second, asks the clock. It is read
/// anew, since the decision may have been late. If it has stepped back it goes on from where it was, for all its clones, and so
/// for all keys of all limiters on it; the request is then decided again. So a key is served as its use allows, after its
/// quota's fill time and a second at the most. [`steps`](Self::steps) counts.
///
/// | clock | a step back | what it adds to the bound |
/// |---|---|---|
/// | precise | goes on from what [`Instant`] tells, if that is more than a second later; else the denial stands | nothing beyond `rate` × the time by [`Instant`] |
/// | std | there is none | |
/// | coarse | that of the clock below it; a leap that it has left out may come back | that of the clock below it |
/// | `TestClock` | goes on from the latest time that it has shown; after the first step, only if the size of a further one has passed since | `rate` × the length of each step that was followed, at most |
///
/// The bound is `burst + rate × t` with *t* by the clock as it goes on. A precise clock that leaps ahead is followed, and what it
/// granted there is waited for when it comes back. A clock that goes back and forth is not followed beyond its first step:
/// denials stand until it is where it was.
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
    Precise(&'static Processor),
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
        Self(Source::Precise(Processor::of_process()))
    }

    /// The system's monotonic clock.
    pub fn std() -> Self {
        Self(Source::Std(origin()))
    }

    /// The time of a precise clock as a thread publishes it every millisecond, which ends with the last clone of this:
    /// [`CoarseClock`] says what that costs, and has the options. One is enough for all limiters of a process.
    ///
    /// # Errors
    ///
    /// [`ClockError`] if the system has no thread left.
    #[cfg(not(loom))]
    pub fn coarse() -> Result<Self, ClockError> {
        CoarseClock::new().start()
    }

    /// The time since the origin, to the nanosecond; of a coarse clock, what was published last.
    ///
    /// But for [steps back](Self#steps-back) it never goes backwards by more than what the counters of two cores differ by,
    /// and a limiter refills nothing twice when it does.
    #[inline(always)]
    pub fn now(&self) -> Now {
        match &self.0 {
            Source::Precise(processor) => processor.now(),
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
            Source::Test(clock) => clock.shown(),
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

    /// Whether what was `seen` is to be looked at again at the [latest](Self::latest) time: it is denied for longer than its
    /// quota can stand ahead, and this clock was merely late, or has stepped back and goes on now from where it was.
    #[inline]
    pub(crate) fn settles(&self, seen: &Seen) -> bool {
        seen.later_instant().is_some_and(|instant| self.settle(instant))
    }

    /// Whether this clock, read anew, tells `instant` less a second or later, a step back having been settled.
    #[cold]
    fn settle(&self, instant: u64) -> bool {
        match &self.0 {
            Source::Precise(processor) => processor.settle(instant),
            Source::Std(_) => self.now().ticks().saturating_add(SECOND) >= instant,
            // What is published does not step back, and a look has settled what it is of.
            #[cfg(not(loom))]
            Source::Coarse(_) => false,
            #[cfg(feature = "test-util")]
            Source::Test(clock) => clock.settle(instant),
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

    /// Returns how often this clock was found to have stepped back; of a coarse clock, the one that it publishes. All precise clocks of a
    /// process are one, and the [system's](Self::std) never steps back.
    pub fn steps(&self) -> ClockSteps {
        match &self.0 {
            Source::Precise(processor) => ClockSteps { followed: processor.followed(), refused: 0 },
            Source::Std(_) => ClockSteps::default(),
            #[cfg(not(loom))]
            Source::Coarse(clock) => clock.of().steps(),
            #[cfg(feature = "test-util")]
            Source::Test(clock) => clock.steps(),
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

    /// Returns how much faster than the system's clock the precise clock has run since the first one was made in this process, or since
    /// its last step back, in parts per million; negative if slower, `None` for any other clock but a coarse one of a precise
    /// one.
    ///
    /// A host whose time stamp counter can be trusted stays under some 100 ppm. Worth a gauge: a limiter's rate is
    /// wrong by as much as its clock. Give it a second at least; over less, the two readings themselves blur it.
    pub fn drift_ppm(&self) -> Option<f64> {
        match &self.0 {
            Source::Precise(processor) => Some(processor.drift_ppm()),
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

    /// Whether a denial by what was `seen` is to be taken again at the [latest](Self::latest) time. A step back of the clock has
    /// been settled then.
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
            _ => self.settles(seen),
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

/// The time by the system's monotonic clock since the origin, in ticks.
fn system_ticks() -> u64 {
    Now::from_nanos(nanos_since(origin())).ticks()
}

/// The instant that all clocks of this process count from: when the first of them was made.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

fn nanos_since(origin: Instant) -> u64 {
    u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
