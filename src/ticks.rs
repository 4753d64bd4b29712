//! Time as the buckets count it: ticks of 1/8 ns in a `u64`.
//!
//! An eighth of a nanosecond keeps what rounding loses under 1 ppm up to 8,000 decisions a second, and still
//! leaves [`MAX_NOW`] nine years away.

use std::time::Duration;

use crate::error::TimeError;

/// Ticks in a nanosecond.
pub(crate) const PER_NANO: u64 = 8;

/// Ticks in a second.
pub(crate) const SECOND: u64 = 1_000_000_000 * PER_NANO;

/// The latest instant there is: 2^61 ticks, nine years. A bucket is at most [`MAX_FILL`] ahead of it, so its word
/// stays below 2^62.
pub(crate) const MAX_NOW: u64 = 1 << 61;

/// The longest that a bucket may take to fill: four years of 365.25 days, a little under 2^60 ticks.
pub(crate) const MAX_FILL: u64 = 1461 * 86_400 * 1_000_000_000 * PER_NANO;

/// `duration` in ticks, exact.
pub(crate) const fn from_duration(duration: Duration) -> u128 {
    duration.as_nanos() * PER_NANO as u128
}

/// The shortest whole number of nanoseconds that is no less than `ticks`.
pub(crate) const fn to_duration(ticks: u64) -> Duration {
    Duration::from_nanos(ticks.div_ceil(PER_NANO))
}

/// An instant, as the time passed since an origin: what the limiter's clock says, or what the caller says.
///
/// The precise, the system's and the coarse clocks of a process count from one origin, the making of the first of them, so
/// that the [`now`](crate::Limiter::now) of one limiter is good for all. They differ by what the processor's counter drifts
/// from the system's clock, some 7 s a day at 80 ppm, and by what a coarse clock is behind. Each `TestClock` counts from its own
/// making, and tests and replays make instants from an origin of their choice: one limiter should see instants of one origin
/// only.
///
/// Instants that jump or go backwards refill nothing twice: no sequence of instants makes a bucket hold more than its
/// burst. Nor do instants lower anything: a bucket that was used at one far ahead is denied until then.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{DirectLimiter, Now, Quota};
///
/// let limiter = DirectLimiter::new(Quota::per_second(1))?;
/// let start = Now::since_origin(Duration::from_secs(100))?;
/// assert!(limiter.check_at(start).is_allowed());
/// assert!(limiter.check_at(start).is_denied());
/// assert!(limiter.check_at(Now::since_origin(Duration::from_secs(101))?).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Now(u64);

impl Now {
    /// The origin itself.
    pub const ORIGIN: Self = Self(0);

    /// The last instant: 2^61 ticks of 1/8 ns, about nine years (3,336 days) after the origin.
    pub const MAX: Self = Self(MAX_NOW);

    /// The instant `elapsed` after the origin, to the nanosecond.
    ///
    /// # Errors
    ///
    /// [`TimeError`] if that is later than [`Now::MAX`]. A replay of a log with absolute times subtracts the log's
    /// first instant.
    pub const fn since_origin(elapsed: Duration) -> Result<Self, TimeError> {
        let ticks = from_duration(elapsed);
        if ticks > MAX_NOW as u128 {
            return Err(TimeError { elapsed });
        }
        Ok(Self(ticks as u64))
    }

    /// The instant `nanos` after the origin, or [`Now::MAX`] if that is earlier: for clocks, which must not fail.
    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        match nanos.checked_mul(PER_NANO) {
            Some(ticks) if ticks < MAX_NOW => Self(ticks),
            _ => Self::MAX,
        }
    }

    /// The instant `ticks` after the origin; `ticks` is at most [`MAX_NOW`].
    pub(crate) const fn from_ticks(ticks: u64) -> Self {
        Self(ticks)
    }

    /// Ticks since the origin, at most [`MAX_NOW`].
    pub(crate) const fn ticks(self) -> u64 {
        self.0
    }
}

impl TryFrom<Duration> for Now {
    type Error = TimeError;

    fn try_from(elapsed: Duration) -> Result<Self, TimeError> {
        Self::since_origin(elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_beyond_the_last_is_an_error_that_says_what_to_do() {
        let last = Duration::from_nanos(MAX_NOW / PER_NANO);
        assert_eq!(Now::since_origin(last), Ok(Now::MAX));
        let error = Now::since_origin(last + Duration::from_nanos(1)).unwrap_err();
        assert!(error.to_string().contains("subtract"), "{error}");
        assert!(Now::since_origin(Duration::MAX).is_err());
    }

    #[test]
    fn a_clock_that_runs_too_long_stands_still() {
        assert_eq!(Now::from_nanos(1).ticks(), 8);
        assert_eq!(Now::from_nanos(u64::MAX), Now::MAX);
        assert_eq!(Now::from_nanos(MAX_NOW / PER_NANO + 1), Now::MAX);
    }

    #[test]
    fn durations_round_up() {
        assert_eq!(to_duration(0), Duration::ZERO);
        assert_eq!(to_duration(1), Duration::from_nanos(1));
        assert_eq!(to_duration(8), Duration::from_nanos(1));
        assert_eq!(to_duration(9), Duration::from_nanos(2));
    }
}
