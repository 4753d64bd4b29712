//! What can go wrong, and only before or beside a decision: a decision itself cannot fail.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::quota::Quota;
use crate::ticks::{MAX_FILL, MAX_NOW, to_duration};

/// Why a limiter was not built.
///
/// New reasons may be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The builder was given no quota.
    NoQuota,
    /// The burst is 0, so that nothing could ever be admitted.
    ZeroBurst {
        /// The quota that was refused.
        quota: Quota,
    },
    /// The period is 0, so that the rate has no meaning.
    ZeroPeriod {
        /// The quota that was refused.
        quota: Quota,
    },
    /// The period is longer than 73 years (2^64 ticks of 1/8 ns).
    PeriodTooLong {
        /// The quota that was refused.
        quota: Quota,
    },
    /// An empty bucket would take more than four years to fill.
    FillTooLong {
        /// The quota that was refused.
        quota: Quota,
    },
    /// The rate is 0 and the burst is over 2^60 units, more than one bucket can count.
    BurstTooLarge {
        /// The quota that was refused.
        quota: Quota,
    },
    /// There is room for no key at all, so that all would share one bucket.
    NoRoom,
    /// The number of shards is not a power of two from 2 to 65,536.
    BadShards {
        /// The number that was refused.
        shards: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQuota => {
                write!(f, "the limiter has no quota: give one with `.quota(Quota::per_second(..))`")
            }
            Self::ZeroBurst { quota } => {
                write!(f, "quota `{quota}`: a burst of 0 admits nothing, ever: give at least 1 with `.burst(n)`")
            }
            Self::ZeroPeriod { quota } => {
                write!(f, "quota `{quota}`: the period is 0: give at least 1 ns")
            }
            Self::PeriodTooLong { quota } => write!(
                f,
                "quota `{quota}`: the period is longer than {} s: give a lower rate over a shorter period",
                to_duration(u64::MAX).as_secs()
            ),
            Self::FillTooLong { quota } => write!(
                f,
                "quota `{quota}`: the burst takes more than four years ({} s) to fill: lower the burst, raise the \
                 rate, or give a rate of 0 for a burst that never refills",
                to_duration(MAX_FILL).as_secs()
            ),
            Self::BurstTooLarge { quota } => {
                write!(f, "quota `{quota}`: a burst that never refills is at most 2^60 units")
            }
            Self::NoRoom => write!(
                f,
                "room for 0 keys: give at least 1 with `.max_keys(n)`, or use a `DirectLimiter` for one bucket that \
                 all share"
            ),
            Self::BadShards { shards } => {
                write!(f, "{shards} shards: give a power of two from 2 to 65,536")
            }
        }
    }
}

impl Error for BuildError {}

/// An instant too far from its origin to be counted: more than 2^61 ticks of 1/8 ns, about nine years.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeError {
    pub(crate) elapsed: Duration,
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an instant {} s after its origin is later than the last one, {} s: subtract the first instant of the \
             series",
            self.elapsed.as_secs(),
            to_duration(MAX_NOW).as_secs()
        )
    }
}

impl Error for TimeError {}
