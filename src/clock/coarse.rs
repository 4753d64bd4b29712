//! A clock whose reading is one load: a thread publishes the time of another clock.
//!
//! # What stale time costs
//!
//! Let a bucket be taken from *k* times in a window of true time from *A* to *A + t*, in the order in which its word was
//! changed. Each take reads an instant *n*, moves `tat` on by its charge from `max(tat, n)`, and leaves it at most
//! `n + burst` (the burst as a time). Just before the first, `max(tat, n₁) ≥ n₁`, and just after the last,
//! `tat ≤ nₖ + burst`, so all charges together are at most `burst + nₖ − n₁`. No published instant is later than the truth,
//! so `nₖ ≤ A + t`; and `n₁ ≥ A − s` where *s* is how far behind the time was at the first of them. In units:
//!
//! `burst + rate × (t + s)`
//!
//! - The instants in between have no part in it. So it does no harm that time goes back for a thread that decides on the
//!   time itself, as after a doubtful denial, and then on what is published; nor that two threads see two times.
//! - While the thread is on time *s* is at most the resolution.
//! - In a stall the published instant stands still at *P*, and takes are either at *P* or not before *A*. By the same
//!   argument those up to the last at *P* are at most `burst + P − P`, and those after it, which are at *A* or later, at
//!   most `burst + rate × t`: what a stall adds is at most one burst, too. A thread that is stopped between reading the time
//!   and publishing it ends one stall and begins another.
//! - A leap is left out of the time for good, `lost` in the code, so that it adds nothing to *s*.
//!
//! A refund is worth what the time since its take leaves of it, see `refunds.rs`, which needs an instant that is no earlier
//! than those of the takes since. So what gives back reads the time itself. All but checks do.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::{Clock, Source};
use crate::decision::Seen;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::ticks::{from_duration, to_duration};

const SHORTEST_RESOLUTION: Duration = Duration::from_micros(100);
const LONGEST_RESOLUTION: Duration = Duration::from_millis(100);

/// A step of so many resolutions is a stall: a thread that waits for its turn on a busy machine is late by a few.
const STALL: u32 = 10;

/// The options of a [coarse clock](Clock::coarse): a thread publishes the time, so that a check reads it with one load.
///
/// # What it costs
///
/// - **More is admitted.** In any window of length *t* a key is admitted at most `burst + rate × (t + s)` units, where *s* is
///   how far behind the time was when the window began: at most the resolution while the thread is on time. 100 a second at
///   1 ms is a tenth of a unit. When the thread stalls *s* grows, and what that adds is `rate × s`, but not more than another
///   `burst` for each stall.
/// - **Numbers lag.** `retry_after` and `reset_after` of a check are at most *s* too long, `remaining` at most `rate × s` too
///   low.
/// - **A thread** that wakes up once a resolution: a thousand times a second unless told otherwise.
///
/// Nobody is refused for stale time: a denial that might not stand two resolutions later is taken again on the clock whose
/// time is published, as is one in 64 of all others, by which a thread that stalls is noticed: the time of that second look
/// is then published for all, and [counted](Clock::coarse_stats). A key that is refused for long costs no more than its load.
///
/// It is what checks and [`enter`](crate::Limiter::enter) go by. What takes nothing, gives back, moves or reloads reads the
/// other clock: it has to be exact, and is not called as often.
///
/// # Leaps
///
/// A published step that is longer than [`max_step`](Self::max_step), as after a suspend, or the move of a virtual machine to a
/// host with another counter, counts as that. The rest of it is left out for good.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{CoarseClock, Limiter, Quota};
///
/// let clock = CoarseClock::new().resolution(Duration::from_micros(500)).start()?;
/// let limiter = Limiter::builder().quota(Quota::per_second(10)).clock(clock).build()?;
/// assert!(limiter.check("alice").is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "these are options: `start` makes the clock"]
pub struct CoarseClock {
    of: Option<Clock>,
    resolution: Duration,
    max_step: Duration,
}

impl CoarseClock {
    /// The time of [`Clock::precise`] every millisecond, and no step longer than a second.
    pub const fn new() -> Self {
        Self { of: None, resolution: Duration::from_millis(1), max_step: Duration::from_secs(1) }
    }

    /// How often the time is published, every millisecond by default, from 100 µs to 100 ms. The system adds what it takes to
    /// wake a thread, on Linux some 50 µs.
    pub fn resolution(self, resolution: Duration) -> Self {
        Self { resolution, ..self }
    }

    /// The longest published step that counts in full, a second by default, at least ten resolutions. A longer one counts as
    /// this, so that no bucket gains more than `rate × max_step` by it. [`Duration::MAX`] lets all count.
    ///
    /// The thread does nothing but to publish. Where it has not for a second, the process or the whole machine stood still, or
    /// the clock has leapt. No request was decided in that time, and whoever asks after it waits no longer than if it had been
    /// cut out; [`Clock::std`] leaves out a suspend likewise on Linux. If only this thread starves, doubtful denials publish in
    /// its place, each a step of its own.
    pub fn max_step(self, max_step: Duration) -> Self {
        Self { max_step, ..self }
    }

    /// The clock whose time is published, [`Clock::precise`] by default: [`Clock::std`] where the time stamp counter can't be
    /// trusted.
    pub fn of(self, clock: Clock) -> Self {
        Self { of: Some(clock), ..self }
    }

    /// Makes the clock and starts its thread, which ends when the last clone of the clock is dropped, before that drop
    /// returns.
    ///
    /// # Errors
    ///
    /// [`ClockError`] if an option is out of its range, the clock to publish is a coarse one itself, or the system has no
    /// thread left.
    pub fn start(self) -> Result<Clock, ClockError> {
        let shared = self.shared()?;
        let publisher = Publisher::start(&shared).map_err(ClockError::NoThread)?;
        Ok(Clock(Source::Coarse(Coarse { shared, _publisher: Some(Arc::new(publisher)) })))
    }

    /// Makes the clock without a thread: for tests, which [publish](Clock::publish) by hand the time of a
    /// [`TestClock`](crate::TestClock).
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), but for the thread.
    #[cfg(feature = "test-util")]
    pub fn by_hand(self) -> Result<Clock, ClockError> {
        Ok(Clock(Source::Coarse(Coarse { shared: self.shared()?, _publisher: None })))
    }

    fn shared(self) -> Result<Arc<Shared>, ClockError> {
        let Self { of, resolution, max_step } = self;
        if !(SHORTEST_RESOLUTION..=LONGEST_RESOLUTION).contains(&resolution) {
            return Err(ClockError::BadResolution { resolution });
        }
        let shortest = resolution * STALL;
        if max_step < shortest {
            return Err(ClockError::MaxStepTooShort { max_step, shortest });
        }
        if of.as_ref().is_some_and(Clock::is_coarse) {
            return Err(ClockError::CoarseOfCoarse);
        }
        let of = of.unwrap_or_default();
        let ticks = |duration| u64::try_from(from_duration(duration)).unwrap_or(u64::MAX);
        Ok(Arc::new(Shared {
            published: CachePadded::new(AtomicU64::new(of.now().ticks())),
            of,
            resolution,
            slack: ticks(resolution),
            doubtful: ticks(resolution * 2),
            stall: ticks(shortest),
            max_step: ticks(max_step),
            lost: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            leaps: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }))
    }
}

impl Default for CoarseClock {
    /// [`CoarseClock::new`].
    fn default() -> Self {
        Self::new()
    }
}

/// Why a coarse clock was not made.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClockError {
    /// The resolution is not from 100 µs to 100 ms.
    BadResolution {
        /// The resolution that was refused.
        resolution: Duration,
    },
    /// The longest step is under ten resolutions, so that a busy machine would slow the clock down.
    MaxStepTooShort {
        /// The longest step that was refused.
        max_step: Duration,
        /// The least that it may be at this resolution.
        shortest: Duration,
    },
    /// The clock whose time is to be published is a coarse one itself.
    CoarseOfCoarse,
    /// The system did not give a thread.
    NoThread(io::Error),
}

impl fmt::Display for ClockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadResolution { resolution } => write!(
                f,
                "a resolution of {resolution:?}: give one from {SHORTEST_RESOLUTION:?} to {LONGEST_RESOLUTION:?}"
            ),
            Self::MaxStepTooShort { max_step, shortest } => {
                write!(f, "a longest step of {max_step:?}: give at least {shortest:?}, ten resolutions")
            }
            Self::CoarseOfCoarse => {
                f.write_str("a coarse clock of a coarse clock: give `Clock::precise()` or `Clock::std()`")
            }
            Self::NoThread(error) => write!(f, "the thread of the clock could not be started: {error}"),
        }
    }
}

impl std::error::Error for ClockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoThread(error) => Some(error),
            _ => None,
        }
    }
}

/// How well the thread of a [coarse clock](Clock::coarse) has kept its time so far, for a gauge.
///
/// More counts will come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CoarseStats {
    /// How often the published time was found to be more than ten resolutions behind. If this grows the machine is short of
    /// processors, and limits are kept the less exactly.
    pub stalls: u64,
    /// How many of these were longer than [`max_step`](CoarseClock::max_step).
    pub leaps: u64,
    /// What was left out because of these.
    pub lost: Duration,
    /// The furthest that the published time was found to be behind.
    pub longest: Duration,
}

impl fmt::Display for CoarseStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stalls, leaps, lost, longest } = self;
        write!(f, "{stalls} stalls of at most {longest:?}, {leaps} leaps of which {lost:?} do not count")
    }
}

/// The clock as a [`Clock`] has it.
#[derive(Clone)]
pub(super) struct Coarse {
    // Not by way of the publisher: that would be one more load for each reading.
    shared: Arc<Shared>,
    _publisher: Option<Arc<Publisher>>,
}

impl Coarse {
    /// What is published.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        // Relaxed: an instant is all there is to it, and any is right that was published.
        self.shared.published.load(Ordering::Relaxed)
    }

    /// The time itself. It is published if what is published is more than a resolution behind.
    #[cold]
    pub(super) fn latest(&self) -> u64 {
        self.shared.look(self.shared.slack)
    }

    /// Whether to look again whether a denial by what was `seen` at what is published is one in truth.
    #[inline]
    pub(super) fn doubts(&self, seen: &Seen) -> bool {
        seen.stands_for() <= self.shared.doubtful || is_one_in_64()
    }

    /// Publishes the time.
    #[cfg(feature = "test-util")]
    pub(super) fn publish(&self) {
        self.shared.look(0);
    }

    pub(super) fn of(&self) -> &Clock {
        &self.shared.of
    }

    pub(super) fn stats(&self) -> CoarseStats {
        // Relaxed: each count is for itself.
        let [stalls, leaps, lost, longest] =
            [&self.shared.stalls, &self.shared.leaps, &self.shared.lost, &self.shared.longest]
                .map(|count| count.load(Ordering::Relaxed));
        CoarseStats { stalls, leaps, lost: to_duration(lost), longest: to_duration(longest) }
    }
}

impl fmt::Debug for Coarse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { of, resolution, .. } = &*self.shared;
        f.debug_struct("Coarse").field("of", of).field("resolution", resolution).field("stats", &self.stats()).finish()
    }
}

/// What readers and the thread have in common. In ticks, but for the resolution.
struct Shared {
    /// The time, in a cache line of its own: it is written once a resolution, and read all the time.
    published: CachePadded<AtomicU64>,
    of: Clock,
    resolution: Duration,
    /// The resolution: how far behind a second look lets the published time be.
    slack: u64,
    /// Two resolutions.
    doubtful: u64,
    stall: u64,
    max_step: u64,
    /// By how much this clock is behind the other for good, because of leaps.
    lost: AtomicU64,
    stalls: AtomicU64,
    leaps: AtomicU64,
    longest: AtomicU64,
    is_over: AtomicBool,
}

impl Shared {
    /// The time, no earlier than what is published. It is published if that is more than `slack` ticks behind.
    ///
    /// `lost` is read before the time and the published instant, and must still be the same after both: else the step between
    /// the two is measured by a time that has a leap in it which somebody has left out already. So of those who find a leap one
    /// leaves it out, and the others look again.
    fn look(&self, slack: u64) -> u64 {
        self.look_by(slack, || self.of.now().ticks())
    }

    #[inline]
    fn look_by(&self, slack: u64, clock: impl Fn() -> u64) -> u64 {
        loop {
            let lost = self.lost.load(Ordering::Acquire);
            let now = clock().saturating_sub(lost);
            // Acquire: pairs with the Release below. Who sees the instant sees what was lost before it, at the latest in the
            // compare-and-swap.
            let published = self.published.load(Ordering::Acquire);
            let step = now.saturating_sub(published);
            if step <= slack {
                return now.max(published);
            }
            let leap = step.saturating_sub(self.max_step);
            // AcqRel: pairs with itself and the load above.
            if self.lost.compare_exchange(lost, lost + leap, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            // Release: pairs with the Acquire above. The maximum, since whoever was stopped right here brings an old time.
            let before = self.published.fetch_max(now - leap, Ordering::Release);
            self.note(step.saturating_sub(before.saturating_sub(published)), leap);
            return before.max(now - leap);
        }
    }

    /// Notes that the published time was `step` behind, and `leap` of it does not count.
    fn note(&self, step: u64, leap: u64) {
        // Relaxed: each count is for itself.
        if step > self.stall {
            self.stalls.fetch_add(1, Ordering::Relaxed);
        }
        if leap > 0 {
            self.leaps.fetch_add(1, Ordering::Relaxed);
        }
        if step > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(step, Ordering::Relaxed);
        }
    }
}

/// The owner of the thread.
struct Publisher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let of_thread = Arc::clone(shared);
        let run = move || {
            // Relaxed: it says no more than that it is over, and who sets it wakes the thread up.
            while !of_thread.is_over.load(Ordering::Relaxed) {
                of_thread.look(0);
                thread::park_timeout(of_thread.resolution);
            }
        };
        let thread = thread::Builder::new().name("tollgate-clock".to_owned()).spawn(run)?;
        Ok(Self { shared: Arc::clone(shared), thread: Some(thread) })
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does not panic.
            _ = thread.join();
        }
    }
}

/// True one time in 64, by chance: were it every 64th time, two limiters that a thread asks in turn could have it that it is
/// always the same one. Each thread has a state of its own, so that those who are refused write to nothing that they share.
// How often it is false until it is true is drawn at once, and counted down: 5 instructions less than a draw each time.
#[inline]
fn is_one_in_64() -> bool {
    LEFT.with(|left| match left.get() {
        0 => is_due(left),
        more => {
            left.set(more - 1);
            false
        }
    })
}

thread_local! {
    /// How often it is false yet.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    /// What is drawn by; 0 while nothing was.
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// Draws how often it is false until it is true again, and says whether it is true now: for a thread's first time that is
/// drawn too.
#[cold]
fn is_due(left: &Cell<u32>) -> bool {
    STATE.with(|state| {
        if state.get() == 0 {
            state.set(seed());
            if let Some(more) = draw(state).checked_sub(1) {
                left.set(more);
                return false;
            }
        }
        left.set(draw(state));
        true
    })
}

/// How often what happens one time in 64 does not until it does: geometrically distributed.
fn draw(state: &Cell<u64>) -> u32 {
    // Knuth's constants for 64 bits (MMIX). The top bits are the random ones.
    let next = state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    state.set(next);
    // From 2^-32 to 1, by inversion of the distribution function: at most 1,408.
    let chance = ((next >> 32) + 1) as f64 / (1_u64 << 32) as f64;
    (chance.ln() / (63.0_f64 / 64.0).ln()) as u32
}

/// Another one for each thread: a thread that lives for one denial only has its chance like others.
#[cold]
fn seed() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    // Relaxed: it numbers the threads. 2^64 by the golden ratio, which spreads them.
    THREADS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_64_is_that_on_every_thread_and_over_threads() {
        let here = (0..64_000).filter(|_| is_one_in_64()).count();
        assert!((800..1_200).contains(&here), "{here} of 64,000");
        let firsts = (0..1_280).map(|_| thread::spawn(is_one_in_64)).filter(|_| true);
        let there = firsts.map(|thread| thread.join()).filter(|first| matches!(first, Ok(true))).count();
        assert!((5..60).contains(&there), "{there} of 1,280 threads' first");
    }

    #[test]
    fn the_thread_is_gone_when_the_last_clone_is_dropped() {
        let clock = CoarseClock::new().start().unwrap();
        let Source::Coarse(Coarse { shared, .. }) = &clock.0 else { unreachable!("it is coarse") };
        let shared = Arc::downgrade(shared);
        let clone = clock.clone();
        drop(clock);
        assert!(!shared.upgrade().unwrap().is_over.load(Ordering::Relaxed), "a clone is left");
        drop(clone);
        assert!(shared.upgrade().is_none(), "the thread holds on to it while it runs");
    }

    /// Another one looks, and leaves the leap out, between this one's first and second load.
    #[test]
    fn a_leap_that_two_find_at_once_is_left_out_once() {
        let second = from_duration(Duration::from_secs(1)) as u64;
        let shared = CoarseClock::new().shared().unwrap();
        shared.published.store(0, Ordering::Relaxed);
        let (leaped, looks) = (3_600 * second, Cell::new(0));
        let now = shared.look_by(0, || {
            looks.set(looks.get() + 1);
            if looks.get() == 1 {
                assert_eq!(shared.look_by(0, || leaped), second);
            }
            leaped
        });
        let lost = shared.lost.load(Ordering::Relaxed);
        assert_eq!((now, shared.published.load(Ordering::Relaxed), lost), (second, second, leaped - second));
        assert_eq!((looks.get(), shared.leaps.load(Ordering::Relaxed)), (2, 1));
    }

    /// Another one publishes a later time while this one is stopped with an older one.
    #[test]
    fn what_is_published_does_not_go_back() {
        let shared = CoarseClock::new().shared().unwrap();
        shared.published.store(0, Ordering::Relaxed);
        let now = shared.look_by(0, || shared.look_by(0, || 2_000).min(1_000));
        assert_eq!((now, shared.published.load(Ordering::Relaxed)), (2_000, 2_000));
    }
}
