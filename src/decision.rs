//! The answer to a check.

use std::fmt;
use std::time::Duration;

use crate::quota::QuotaTicks;
use crate::refunds::RefundsSeen;
use crate::ticks::to_duration;

/// The answer to a check: the request may go on, or not now, or not ever.
///
/// The numbers are worked out when they are asked for, from the state that this one decision saw. They are true of
/// that instant: another request of the same key may come between the decision and the reading of it.
///
/// This type is complete: no third answer will be added.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Decision, DirectLimiter, Quota};
///
/// let limiter = DirectLimiter::new(Quota::per_minute(60).burst(2))?;
/// match limiter.check() {
///     Decision::Allow(allow) => assert_eq!((allow.remaining(), allow.limit()), (1, 2)),
///     Decision::Deny(deny) => panic!("{deny}"),
/// }
/// assert!(limiter.check().is_allowed());
/// let denied = limiter.check();
/// assert!(denied.is_denied());
/// assert!(denied.retry_after().is_some_and(|wait| wait <= Duration::from_secs(1)));
/// assert_eq!(limiter.check_cost(3).retry_after(), None); // three units never fit a burst of two
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[must_use = "a decision that nobody looks at limits nothing"]
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "an answer is yes or no, and callers match on both")]
pub enum Decision {
    /// The cost was taken: go on.
    Allow(Allow),
    /// Nothing was taken: refuse.
    Deny(Deny),
}

impl Decision {
    /// Whether the request may go on.
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// Whether the request is refused.
    #[inline]
    pub const fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// The burst in units: the most that this key is ever admitted at one instant.
    pub const fn limit(&self) -> u64 {
        self.seen().quota.burst()
    }

    /// Units that the key could still take at this instant, after this decision.
    pub const fn remaining(&self) -> u64 {
        self.seen().remaining()
    }

    /// The wait until this same request is admitted if nobody else takes from the key: zero for an [`Allow`], `None`
    /// for never. See [`Deny::retry_after`].
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Allow(_) => Some(Duration::ZERO),
            Self::Deny(deny) => deny.retry_after(),
        }
    }

    /// The wait until the key has its whole burst again if nobody takes from it, rounded up to the nanosecond: zero
    /// if it has it now, `None` for never (a rate of 0).
    pub const fn reset_after(&self) -> Option<Duration> {
        self.seen().reset_after()
    }

    /// The wait until the key can take one unit more.
    #[cfg(feature = "http")]
    pub(crate) const fn next_after(&self) -> Option<Duration> {
        self.seen().wait_for(1)
    }

    const fn seen(&self) -> &Seen {
        match self {
            Self::Allow(allow) => &allow.seen,
            Self::Deny(deny) => &deny.seen,
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow(allow) => allow.fmt(f),
            Self::Deny(deny) => deny.fmt(f),
        }
    }
}

/// The request may go on; what it took can be given back once, with a limiter's `refund`.
///
/// It is no `Clone`: a refund consumes it, so that nothing is given back twice. Dropping it is the normal case and
/// gives nothing back.
#[derive(Debug)]
pub struct Allow {
    pub(crate) seen: Seen,
}

impl Allow {
    /// The burst in units: the most that this key is ever admitted at one instant.
    pub const fn limit(&self) -> u64 {
        self.seen.quota.burst()
    }

    /// Units that the key could still take at this instant, after this decision.
    pub const fn remaining(&self) -> u64 {
        self.seen.remaining()
    }

    /// The wait until the key has its whole burst again if nobody takes from it, rounded up to the nanosecond: zero
    /// if it has it now, `None` for never (a rate of 0).
    pub const fn reset_after(&self) -> Option<Duration> {
        self.seen.reset_after()
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allowed: {} of {} left", self.remaining(), self.limit())?;
        match self.reset_after() {
            Some(Duration::ZERO) => Ok(()),
            Some(wait) => write!(f, ", all of them again in {wait:?}"),
            None => f.write_str(", and none comes back"),
        }
    }
}

/// The request is refused, and nothing was taken for it.
#[derive(Clone, Debug)]
pub struct Deny {
    pub(crate) seen: Seen,
}

impl Deny {
    /// Why the request is refused.
    pub const fn reason(&self) -> Reason {
        if self.seen.cost > self.seen.quota.burst() {
            Reason::CostExceedsBurst
        } else if self.seen.quota.never_refills() {
            Reason::NeverRefills
        } else {
            Reason::TooSoon
        }
    }

    /// The burst in units: the most that this key is ever admitted at one instant.
    pub const fn limit(&self) -> u64 {
        self.seen.quota.burst()
    }

    /// Units that the key could take at this instant: fewer than this request asked for.
    pub const fn remaining(&self) -> u64 {
        self.seen.remaining()
    }

    /// The wait until this same request is admitted if nobody else takes from the key, rounded up to the nanosecond
    /// and never zero. At every earlier instant it is denied.
    ///
    /// `None` means never: the cost exceeds the burst, or the rate is 0. [`reason`](Self::reason) tells which.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.reason() {
            Reason::CostExceedsBurst | Reason::NeverRefills => None,
            Reason::TooSoon => self.seen.wait_for(self.seen.cost),
        }
    }

    /// The wait until the key has its whole burst again if nobody takes from it, rounded up to the nanosecond; `None`
    /// for never (a rate of 0).
    pub const fn reset_after(&self) -> Option<Duration> {
        self.seen.reset_after()
    }
}

impl fmt::Display for Deny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_after() {
            Some(wait) => {
                write!(f, "denied: {} of {} left, retry in {wait:?}", self.remaining(), self.limit())
            }
            None if self.seen.cost > self.limit() => {
                write!(f, "denied for good: the cost of {} exceeds the burst of {}", self.seen.cost, self.limit())
            }
            None => {
                write!(f, "denied for good: {} of {} left, and none comes back", self.remaining(), self.limit())
            }
        }
    }
}

/// Why a request was refused.
///
/// More reasons will come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The units are used up and come back: retry later.
    TooSoon,
    /// The cost is more than the burst: this request can never be admitted.
    CostExceedsBurst,
    /// The units are used up and the rate is 0: nothing comes back.
    NeverRefills,
}

/// A decision with all that it saw, the same for both answers: a caller who only asks whether it is allowed then has
/// none of it written to memory, which is 2 of 22 ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) quota: QuotaTicks,
    /// Where the decision left `tat`.
    pub(crate) tat: u64,
    /// The instant of the decision, as the quota sees it.
    pub(crate) now: u64,
    /// The units that were asked for: 0 for an allow that took nothing.
    pub(crate) cost: u64,
    /// The refunds of the key as they were before.
    pub(crate) refunds: RefundsSeen,
    /// Which key of which limiter was asked.
    pub(crate) id: u64,
}

impl Seen {
    const fn ahead(&self) -> u64 {
        self.tat.saturating_sub(self.now)
    }

    const fn remaining(&self) -> u64 {
        self.quota.remaining(self.ahead())
    }

    /// The wait until `cost` units, at most the burst, are admitted; `None` for never.
    const fn wait_for(&self, cost: u64) -> Option<Duration> {
        match self.ahead().saturating_sub(self.quota.room(cost)) {
            0 => Some(Duration::ZERO),
            _ if self.quota.never_refills() => None,
            wait => Some(to_duration(wait)),
        }
    }

    const fn reset_after(&self) -> Option<Duration> {
        match self.ahead() {
            0 => Some(Duration::ZERO),
            _ if self.quota.never_refills() => None,
            ahead => Some(to_duration(ahead)),
        }
    }
}
