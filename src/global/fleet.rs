//! The owner of the background thread.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::authority::Authority;
use super::link::Link;
use super::protocol::{Protocol, Settings};
use super::snapshot::FleetStats;
use super::tell::Teller;
use super::worker::{Control, Worker};
use crate::clock::Clock;
use crate::ticks::from_duration;

/// The nodes that share global quotas, as seen from this one: owns the background thread that talks to the authority.
///
/// Limiters [belong](crate::Builder::fleet) to it, any number of them; they share the thread. Keep it for as long as they
/// are used: when it is dropped the thread stops, and global quotas admit what is left of their leases, and nothing more. To
/// end in good order, [`shutdown`](Self::shutdown) first.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Plan, Quota};
/// use tollgate::global::{Fleet, GlobalQuota, MemoryAuthority};
///
/// let fleet = Fleet::builder(MemoryAuthority::new()).start()?;
/// let limit = GlobalQuota::sliding_window(1_000, Duration::from_secs(60));
/// let limiter = Limiter::builder()
///     .fleet(&fleet)
///     .plan("free", Plan::new([Quota::per_second(20)]).global(limit))
///     .build()?;
/// assert!(limiter.check("alice").is_allowed());
/// assert!(fleet.shutdown(Duration::from_secs(5)).is_settled);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "when it is dropped, global quotas soon admit nothing more"]
pub struct Fleet {
    link: Arc<Link>,
    control: Arc<Control>,
    thread: Option<JoinHandle<Shutdown>>,
}

impl Fleet {
    /// Starts the building of a fleet whose truth `authority` holds.
    pub fn builder(authority: impl Authority) -> FleetBuilder {
        FleetBuilder {
            authority: Arc::new(authority),
            interval: INTERVAL,
            clock: None,
            shards: SHARDS,
            secret: [0; 16],
            node: None,
        }
    }

    pub(crate) const fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// What this node has had to do with the authority so far, as of the last look of the fleet's thread. That is one copy
    /// under a lock that nobody holds for longer; requests never take it.
    pub fn stats(&self) -> FleetStats {
        self.control.stats()
    }

    /// Ends in good order: takes back all leases, and tells the authority what was used, so that what was not is free for
    /// other nodes at once. It returns when the authority has answered, or after `within`.
    ///
    /// Nothing is admitted by global quotas once this was called.
    pub fn shutdown(mut self, within: Duration) -> Shutdown {
        let within = u64::try_from(from_duration(within)).unwrap_or(u64::MAX);
        self.end(self.link.clock().now().ticks().saturating_add(within))
    }

    fn end(&mut self, stop_at: u64) -> Shutdown {
        self.control.stop_at(stop_at);
        match self.thread.take() {
            Some(thread) => {
                thread.thread().unpark();
                // It does not panic.
                thread.join().unwrap_or_default()
            }
            None => Shutdown::default(),
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end(0);
        }
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("link", &self.link).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// How a [`Fleet`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Shutdown {
    /// Whether the authority knows of everything.
    pub is_settled: bool,
    /// Keys of which it does not: what they hold is free again when the leases' window has passed.
    pub unreported: usize,
    /// Units that were given back unspent since the fleet was started.
    pub returned: u64,
}

/// The interval unless told otherwise.
const INTERVAL: Duration = Duration::from_millis(100);

/// The shortest interval: ten batches a shard in it are as many as an authority should be asked for.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// The longest interval: leases that are renewed less often follow nobody's demand.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3_600);

/// How many shards keys are divided into unless told otherwise.
const SHARDS: u16 = 16;

/// The options of a [`Fleet`].
#[must_use = "a builder does nothing until `start`"]
pub struct FleetBuilder {
    authority: Arc<dyn Authority>,
    interval: Duration,
    clock: Option<Clock>,
    shards: u16,
    secret: [u8; 16],
    node: Option<u64>,
}

impl FleetBuilder {
    /// How often use is reported, 100 ms by default, from 10 ms to an hour. More often, less of a limit is stuck with nodes
    /// that do not need it, and shorter windows are possible; the authority is asked more.
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// The clock of all limiters of the fleet, [`Clock::precise`] by default.
    ///
    /// Not a [coarse](Clock::coarse) one. A lease may be spent until an instant that the authority counts on: by a clock whose
    /// thread stalls, or that leaves leaps out, it would live on when its units are granted to others already.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// How many shards keys are divided into, 16 by default: each has one batch of up to 128 keys under way at a time. All nodes
    /// of a fleet must have the same number.
    pub fn shards(self, shards: u16) -> Self {
        Self { shards, ..self }
    }

    /// What the names of keys at the authority are worked out with: 16 bytes that all nodes of a fleet have, and that nobody
    /// else knows. With the default, which is no secret, whoever can read the authority can look for keys by guessing.
    pub fn secret(self, secret: [u8; 16]) -> Self {
        Self { secret, ..self }
    }

    /// What this node is called, a number that no other node has and that changes when it is started again: drawn by chance
    /// unless it is given.
    pub fn node(self, node: u64) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Makes the clock and starts the thread.
    ///
    /// # Errors
    ///
    /// [`StartError`] if the interval is too short or too long, there are no shards, the clock is a coarse one, or the system
    /// has no thread left.
    pub fn start(self) -> Result<Fleet, StartError> {
        let Self { authority, interval, clock, shards, secret, node } = self;
        if interval < SHORTEST_INTERVAL {
            return Err(StartError::IntervalTooShort { interval });
        }
        if interval > LONGEST_INTERVAL {
            return Err(StartError::IntervalTooLong { interval });
        }
        if shards == 0 {
            return Err(StartError::NoShards);
        }
        if clock.as_ref().is_some_and(Clock::is_coarse) {
            return Err(StartError::CoarseClock);
        }
        let link = Arc::new(Link::new(clock.unwrap_or_default(), interval, secret));
        let control = Arc::new(Control::default());
        let settings = Settings {
            node: node.unwrap_or_else(crate::hasher::random),
            interval: u64::try_from(from_duration(interval)).unwrap_or(u64::MAX / 64),
            shards,
            chance: crate::hasher::random(),
        };
        let now = link.clock().now().ticks();
        let protocol = Protocol::new(settings, now);
        let worker = Worker {
            link: Arc::clone(&link),
            authority,
            control: Arc::clone(&control),
            protocol,
            look_at: 0,
            teller: Teller::new(settings.node),
            was_full: 0,
        };
        // Whoever asks before the thread has looked once is told the bounds, too.
        control.set_stats(worker.stats(now));
        let thread = thread::Builder::new().name("tollgate-fleet".to_owned()).spawn(move || worker.run());
        Ok(Fleet { link, control, thread: Some(thread.map_err(StartError::NoThread)?) })
    }
}

impl fmt::Debug for FleetBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetBuilder")
            .field("interval", &self.interval)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

/// Why a fleet was not started.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The interval is under 10 ms.
    IntervalTooShort {
        /// The interval that was refused.
        interval: Duration,
    },
    /// The interval is over an hour.
    IntervalTooLong {
        /// The interval that was refused.
        interval: Duration,
    },
    /// There are no shards.
    NoShards,
    /// The clock is a coarse one, by which a lease could live too long.
    CoarseClock,
    /// The system did not give a thread.
    NoThread(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IntervalTooShort { interval } => {
                write!(f, "an interval of {interval:?} is too short: give at least {SHORTEST_INTERVAL:?}")
            }
            Self::IntervalTooLong { interval } => {
                write!(f, "an interval of {interval:?} is too long: give at most {LONGEST_INTERVAL:?}")
            }
            Self::NoShards => f.write_str("a fleet of 0 shards: give at least 1"),
            Self::CoarseClock => f.write_str(
                "a fleet on a coarse clock, by which leases could outlive their time: give `Clock::precise()` or `Clock::std()`",
            ),
            Self::NoThread(error) => write!(f, "the thread of the fleet could not be started: {error}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoThread(error) => Some(error),
            _ => None,
        }
    }
}
