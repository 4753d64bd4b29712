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
//!   time itself, as after a look, and then on what is published; nor that two threads see two times.
//! - While the thread is on time *s* is at most the resolution.
//! - In a stall the published instant stands still at *P*, and takes are either at *P* or not before *A*. By the same
//!   argument those up to the last at *P* are at most `burst + P − P`, and those after it, which are at *A* or later, at
//!   most `burst + rate × t`: what a stall adds is at most one burst, too. A thread that is stopped between reading the time
//!   and publishing it ends one stall and begins another.
//! - A leap is left out of the time, `lost` in the code, so that it adds nothing to *s*.
//! - Where the other clock steps back it settles that itself, and this one goes on from what is published. If it does not,
//!   since it leapt before and is right now, `lost` is lessened: the published time goes on, and is no later than the truth.
//!
//! A refund is worth what the time since its take leaves of it, see `refunds.rs`, which needs an instant that is no earlier
//! than those of the takes since. So what gives back reads the time itself. All but checks do.

use std::fmt;
use std::io;
use std::mem;
use std::process;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::{Clock, Source, looks};
use crate::decision::Seen;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::ticks::{SECOND, from_duration, to_duration};

const SHORTEST_RESOLUTION: Duration = Duration::from_micros(100);
const LONGEST_RESOLUTION: Duration = Duration::from_millis(100);

/// A step of so many resolutions is a stall: a thread that waits for its turn on a busy machine is late by a few.
const STALL: u32 = 10;

/// The number of coarse clocks that this process has made.
static CLOCKS: AtomicU32 = AtomicU32::new(0);

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
/// # Denials look again
///
/// While the thread is on time no client is refused for stale time: a denial that might not stand two resolutions later is
/// decided again on the clock whose time is published.
///
/// A thread that stalls is noticed by looks. Each thread that checks looks at its first, second, fourth, eighth denial and so on
/// by the same published instant, and from the 64th at every 64th. A look that finds more than a resolution publishes the time
/// for all, and is [counted](Clock::coarse_stats). So in a stall a client that is full again is refused at most 63 times more
/// by one thread, and where that thread's denials come at a regular rate, for two resolutions and the next denial. Other denials
/// cost no more than their load, and one that no time ends, as of a rate of 0, never looks.
///
/// It is what checks and [`enter`](crate::Limiter::enter) go by. What takes nothing, gives back, moves or reloads reads the
/// other clock: it has to be exact, and is not called as often. An instant of [`now`](Clock::now) is what was published, and
/// checks at it never look.
///
/// # Fork
///
/// A child of `fork` has no such thread. Its first look that finds the time ten resolutions behind starts one, which is tried
/// again where it fails; until then denials look as in any stall. Not mended is this: the child's time stands still until
/// its first denial or peek, so that a child that only calls `check_at` with what `now` says does not move at all. A thread is
/// started after `fork` as one that the child starts itself, with the limits that the system sets for that. A lock
/// that another thread of the parent held at that instant stays locked in the child: the lock of a shard, a newcomer's latch,
/// or the calibration of the first precise clock. So fork before requests run. The child's own thread ends within a resolution
/// of the last clone.
///
/// # Leaps
///
/// A published step that is longer than [`max_step`](Self::max_step), as after a suspend, or the move of a virtual machine to a
/// host with another counter, counts as that. The rest of it is left out, for good unless the other clock comes back from
/// there.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{CoarseClock, DirectLimiter, Limiter, Quota};
///
/// // One clock, and one thread, for all limiters.
/// let clock = CoarseClock::new().resolution(Duration::from_micros(500)).start()?;
/// let clients = Limiter::builder().quota(Quota::per_second(10)).clock(clock.clone()).build()?;
/// let upstream = DirectLimiter::with_clock(Quota::per_second(1_000), clock)?;
/// assert!(clients.check("alice").is_allowed() && upstream.check().is_allowed());
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
    /// the clock has leapt. No request was decided in that time, and a client that asks after it waits no longer than if it had
    /// been cut out; [`Clock::std`] leaves out a suspend likewise on Linux. If only this thread starves, doubtful denials publish in
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
    /// returns. In a child of `fork` the drop waits for no thread.
    ///
    /// # Errors
    ///
    /// [`ClockError`] if an option is out of its range, the clock to publish is a coarse one itself, or the system has no
    /// thread left.
    pub fn start(self) -> Result<Clock, ClockError> {
        let shared = self.shared()?;
        let publisher = Publisher::start(&shared).map_err(ClockError::NoThread)?;
        Ok(Clock(Source::Coarse(Coarse { shared, publisher: Some(Arc::new(publisher)) })))
    }

    /// Makes the clock without a thread: for tests, which [publish](Clock::publish) by hand the time of a
    /// [`TestClock`](crate::TestClock).
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), but for the thread.
    #[cfg(feature = "test-util")]
    pub fn by_hand(self) -> Result<Clock, ClockError> {
        Ok(Clock(Source::Coarse(Coarse { shared: self.shared()?, publisher: None })))
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
            // Relaxed: it numbers the clocks.
            number: CLOCKS.fetch_add(1, Ordering::Relaxed) as usize,
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
    /// The time left out because of these that has not come back.
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
    publisher: Option<Arc<Publisher>>,
}

impl Coarse {
    /// What is published.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        // Relaxed: an instant is all there is to it, and any is right that was published.
        self.shared.published.load(Ordering::Relaxed)
    }

    /// The time itself. It is published if what is published is more than a resolution behind. Where that is a stall, the thread
    /// may be that of another process.
    #[cold]
    pub(super) fn latest(&self) -> u64 {
        let Look { now, step } = self.shared.look(self.shared.slack);
        if step > self.shared.stall
            && let Some(publisher) = &self.publisher
        {
            publisher.restart();
        }
        now
    }

    /// Whether to decide a denial by what was `seen` at what is published once more, at the time itself. One that no time ends
    /// stands.
    #[inline]
    pub(super) fn doubts(&self, seen: &Seen) -> bool {
        match seen.stands_for() {
            None => false,
            Some(wait) => wait <= self.shared.doubtful || looks::is_due(self.shared.number, seen.now),
        }
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
    /// Which of the coarse clocks of this process it is.
    number: usize,
    resolution: Duration,
    /// The resolution: how far behind a look lets the published time be.
    slack: u64,
    /// Two resolutions.
    doubtful: u64,
    stall: u64,
    max_step: u64,
    /// By how much this clock is behind the other, because of leaps.
    lost: AtomicU64,
    stalls: AtomicU64,
    leaps: AtomicU64,
    longest: AtomicU64,
    is_over: AtomicBool,
}

/// The time, and by how much what was published is behind it.
struct Look {
    now: u64,
    step: u64,
}

impl Shared {
    /// The time, no earlier than what is published. It is published if that is more than `slack` ticks behind.
    ///
    /// `lost` is read before the time and the published instant, and must still be the same after both: else the step between
    /// the two is measured by a time that has a leap in it which another thread has left out already. So of those that find a
    /// leap one leaves it out, and the others look again.
    fn look(&self, slack: u64) -> Look {
        self.look_by(slack, || self.of.now().ticks())
    }

    #[inline]
    fn look_by(&self, slack: u64, clock: impl Fn() -> u64) -> Look {
        let mut has_settled = false;
        loop {
            // Acquire: pairs with the Release in the exchange of `lost` below and in `go_on`.
            let lost = self.lost.load(Ordering::Acquire);
            let own = clock();
            let now = own.saturating_sub(lost);
            // Acquire: pairs with the Release below. A thread that sees the instant sees what was lost before it, at the latest in
            // the compare-and-swap.
            let published = self.published.load(Ordering::Acquire);
            if own.saturating_add(SECOND) < published.saturating_add(lost) && !has_settled {
                has_settled = true;
                if self.go_on(published, lost, &clock) {
                    continue;
                }
            }
            let step = now.saturating_sub(published);
            if step <= slack {
                return Look { now: now.max(published), step };
            }
            let leap = step.saturating_sub(self.max_step);
            // AcqRel: pairs with itself and the load above.
            if self.lost.compare_exchange(lost, lost + leap, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            // Release: pairs with the Acquire above. The maximum, since a thread that was stopped right here brings an old time.
            let before = self.published.fetch_max(now - leap, Ordering::Release);
            self.note(step.saturating_sub(before.saturating_sub(published)), leap);
            return Look { now: before.max(now - leap), step };
        }
    }

    /// Whether the time goes on from what is `published`, which it is more than a second behind, and so is to be read again.
    ///
    /// The clock whose time is published settles a step of its own. If it will not, what it comes back from may be a leap that was
    /// left out here: then as much less of it is. That is no more time than the other clock tells itself.
    #[cold]
    fn go_on(&self, published: u64, lost: u64, clock: impl Fn() -> u64) -> bool {
        if self.of.settle(published.saturating_add(lost)) {
            return true;
        }
        let less = clock().saturating_sub(published);
        // AcqRel: as in `look_by`. Where it fails, another thread has found a leap, or has done this.
        less < lost && self.lost.compare_exchange(lost, less, Ordering::AcqRel, Ordering::Relaxed).is_ok()
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
    /// The process that `thread` is in.
    made_in: u32,
    /// The process that has a thread, or is just starting one. After `fork` that is not the child.
    runs_in: AtomicU32,
}

impl Publisher {
    fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let (shared, thread, made_in) = (Arc::clone(shared), spawn(shared)?, process::id());
        Ok(Self { shared, thread: Some(thread), made_in, runs_in: AtomicU32::new(made_in) })
    }

    /// Starts a thread if this process has none, as after `fork`. No lock: a thread that was left behind could have it.
    #[cold]
    fn restart(&self) {
        let this = process::id();
        // Relaxed, here and below: the number is all there is. One thread of this process exchanges it.
        let runs_in = self.runs_in.load(Ordering::Relaxed);
        if runs_in == this
            || self.runs_in.compare_exchange(runs_in, this, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        // It is not waited for when it ends, within a resolution of the last clone.
        if spawn(&self.shared).is_err() {
            // A later look tries again.
            self.runs_in.store(runs_in, Ordering::Relaxed);
        }
    }
}

/// Starts a thread that publishes the time.
fn spawn(shared: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let run = move || {
        // Relaxed: it says no more than that it is over, and the thread that sets it wakes this one up.
        while !shared.is_over.load(Ordering::Relaxed) {
            shared.look(0);
            thread::park_timeout(shared.resolution);
        }
    };
    thread::Builder::new().name("tollgate-clock".to_owned()).spawn(run)
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        if self.made_in == process::id() {
            thread.thread().unpark();
            // It does not panic.
            _ = thread.join();
        } else {
            // There is no such thread here: to join it would panic, and to detach it is undefined.
            mem::forget(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

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
        let Look { now, .. } = shared.look_by(0, || {
            looks.set(looks.get() + 1);
            if looks.get() == 1 {
                assert_eq!(shared.look_by(0, || leaped).now, second);
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
        let Look { now, .. } = shared.look_by(0, || shared.look_by(0, || 2_000).now.min(1_000));
        assert_eq!((now, shared.published.load(Ordering::Relaxed)), (2_000, 2_000));
    }

    /// The other process, as after `fork`: no process has the number 0.
    const ELSEWHERE: u32 = 0;

    /// A clock whose thread, if it has one, is in another process, and its time is as old as the process.
    fn forked(thread: Option<JoinHandle<()>>) -> Coarse {
        thread::sleep(SHORTEST_RESOLUTION * STALL * 2);
        let shared = CoarseClock::new().of(Clock::std()).resolution(SHORTEST_RESOLUTION).shared().unwrap();
        shared.published.store(0, Ordering::Relaxed);
        let (made_in, runs_in) = (ELSEWHERE, AtomicU32::new(ELSEWHERE));
        let publisher = Publisher { shared: Arc::clone(&shared), thread, made_in, runs_in };
        Coarse { shared, publisher: Some(Arc::new(publisher)) }
    }

    #[test]
    fn a_child_starts_a_thread_of_its_own_at_the_first_look_that_finds_a_stall() {
        _ = Clock::std();
        let clock = forked(None);
        assert_eq!(clock.now(), 0);
        let looked = clock.latest();
        assert!(looked > 0 && clock.now() >= looked);
        while clock.now() == looked {
            thread::sleep(SHORTEST_RESOLUTION);
        }
        let runs_in = &clock.publisher.as_ref().unwrap().runs_in;
        assert_eq!(runs_in.load(Ordering::Relaxed), process::id());
        // Itself, the publisher and one thread.
        clock.publisher.as_ref().unwrap().restart();
        assert_eq!(Arc::strong_count(&clock.shared), 3);
        let shared = Arc::downgrade(&clock.shared);
        drop(clock);
        while shared.upgrade().is_some() {
            thread::sleep(SHORTEST_RESOLUTION);
        }
    }

    #[test]
    fn a_look_that_finds_no_stall_starts_nothing() {
        let clock = forked(None);
        clock.shared.published.store(clock.shared.of.now().ticks(), Ordering::Relaxed);
        let shared = Shared { stall: u64::MAX, ..Arc::into_inner(CoarseClock::new().shared().unwrap()).unwrap() };
        let clock = Coarse { shared: Arc::new(shared), publisher: clock.publisher };
        clock.latest();
        assert_eq!(clock.publisher.unwrap().runs_in.load(Ordering::Relaxed), ELSEWHERE);
    }

    /// It waits for this very thread, which would never end if the drop waited for it.
    #[test]
    fn the_thread_of_another_process_is_not_waited_for() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let clock = forked(Some(thread::spawn(move || _ = wait.recv())));
        drop(clock);
        drop(done);
    }

    /// What comes back is a leap that was left out, and the clock that leapt is right now.
    #[test]
    fn a_leap_that_was_left_out_and_comes_back_does_not_stop_the_clock() {
        let shared = CoarseClock::new().shared().unwrap();
        shared.published.store(0, Ordering::Relaxed);
        shared.lost.store(0, Ordering::Relaxed);
        let base = shared.of.now().ticks();
        assert_eq!(shared.look_by(0, || base + 3_600 * SECOND).now, SECOND);
        // The clock itself is at `base`, so that nothing of it is behind.
        let later = base.max(SECOND) + SECOND;
        assert_eq!(shared.look_by(0, || later).now, SECOND);
        assert_eq!(shared.look_by(0, || later + 5).now, SECOND + 5);
        assert_eq!(shared.lost.load(Ordering::Relaxed), later - SECOND);
    }
}
