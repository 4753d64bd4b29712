//! The answer to a check.

use std::fmt;
use std::time::Duration;

use crate::plans::MAX_QUOTAS;
use crate::policy::PlanId;
use crate::quota::QuotaTicks;
use crate::refunds::RefundsSeen;
use crate::store::Taken;
use crate::ticks::{MAX_NOW, Now, SECOND, to_duration};

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
    /// for never or unknown. See [`Deny::retry_after`].
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

    /// The plan that decided. [`Limiter::plan_name`](crate::Limiter::plan_name) says what it is called.
    pub const fn plan(&self) -> PlanId {
        PlanId(self.seen().plan)
    }

    /// What the decision rests on: [`Source::Local`] where no global quota had a part in it.
    pub const fn source(&self) -> Source {
        self.seen().source
    }

    pub(crate) const fn others(&self) -> &Others {
        match self {
            Self::Allow(allow) => &allow.others,
            Self::Deny(deny) => &deny.others,
        }
    }

    pub(crate) const fn seen(&self) -> &Seen {
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
/// With several quotas the numbers are those of the one that allows the same request the fewest times more.
///
/// It is no `Clone`: a refund consumes it, so that nothing is given back twice. Dropping it is the normal case and
/// gives nothing back.
#[derive(Debug)]
pub struct Allow {
    pub(crate) seen: Seen,
    pub(crate) others: Others,
    /// What it would have been but for shadow mode, if that is a denial; `seen` is then the denial's.
    pub(crate) instead_of: Option<Cause>,
}

impl Allow {
    /// Of a bucket that stands alone.
    #[inline]
    pub(crate) const fn alone(seen: Seen) -> Self {
        Self { seen, others: Others::None, instead_of: None }
    }

    /// This as it is for a peek, which has taken nothing that could be given back.
    pub(crate) fn take_nothing(&mut self) {
        self.seen.cost = 0;
        match &mut self.others {
            Others::None => {}
            Others::Few { taken, .. } => taken.iter_mut().for_each(|taken| taken.cost = 0),
            Others::All { taken, .. } => taken.iter_mut().for_each(|taken| taken.cost = 0),
        }
    }

    /// The denial that this would have been, but for shadow mode: `None` for an allow on its own merit. Nothing was
    /// taken for it then.
    pub fn would_deny(&self) -> Option<Deny> {
        self.instead_of.map(|cause| Deny { seen: self.seen, others: self.others.clone(), cause })
    }

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
///
/// Where several quotas deny, the numbers are those of the one with the longest wait.
#[derive(Clone, Debug)]
pub struct Deny {
    pub(crate) seen: Seen,
    pub(crate) others: Others,
    pub(crate) cause: Cause,
}

/// What denies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// A quota of a rate and a burst.
    Quota,
    /// The number of requests in flight.
    InFlight,
    /// A global quota, used up for so many ticks, `u64::MAX` for ever.
    #[cfg(feature = "global")]
    Full { wait: u64 },
    /// A global quota of which this node has no lease, for about so many ticks.
    #[cfg(feature = "global")]
    NoLease { wait: u64 },
}

impl Deny {
    /// Of a bucket that stands alone.
    #[inline]
    pub(crate) const fn alone(seen: Seen) -> Self {
        Self { seen, others: Others::None, cause: Cause::Quota }
    }

    /// Why the request is refused.
    pub const fn reason(&self) -> Reason {
        if matches!(self.cause, Cause::InFlight) {
            Reason::InFlight
        } else if self.seen.cost > self.seen.quota.burst() {
            Reason::CostExceedsBurst
        } else if self.lacks_lease() {
            Reason::NoLease
        } else if self.seen.quota.never_refills() {
            Reason::NeverRefills
        } else {
            Reason::TooSoon
        }
    }

    const fn lacks_lease(&self) -> bool {
        #[cfg(feature = "global")]
        return matches!(self.cause, Cause::NoLease { .. });
        #[cfg(not(feature = "global"))]
        false
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
    /// and never zero. At every earlier instant it is denied. Counted from the published time of a
    /// [coarse clock](crate::CoarseClock), it is too long by as much as that is behind, a resolution at most while its thread
    /// is on time. Longer than the burst takes to fill, and a second, it is only where an instant of the caller's was ahead of
    /// this one, or a clock has stepped back that is [not followed](crate::Clock#steps-back).
    ///
    /// `None` means never, the cost exceeding the burst or the rate being 0, or, with too many requests in flight, that
    /// nobody can tell. [`reason`](Self::reason) says which.
    pub const fn retry_after(&self) -> Option<Duration> {
        match (self.reason(), self.cause) {
            (Reason::CostExceedsBurst | Reason::NeverRefills | Reason::InFlight, _) => None,
            #[cfg(feature = "global")]
            (_, Cause::Full { wait: u64::MAX }) => None,
            #[cfg(feature = "global")]
            (_, Cause::Full { wait } | Cause::NoLease { wait }) => Some(to_duration(wait)),
            (Reason::TooSoon | Reason::NoLease, _) => self.seen.wait_for(self.seen.cost),
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
            None if self.reason() == Reason::InFlight => {
                write!(f, "denied: {} requests in flight, as many as may be", self.limit())
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
    /// As many requests are in flight as may be: the next can enter when one of them leaves, and nobody knows when.
    InFlight,
    /// This node has no lease of a global quota yet, and has asked for one: retry after about one round trip to the
    /// authority. Only with the feature `global`.
    NoLease,
}

/// What a decision rests on. All but the first come with global quotas (feature `global`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Debug)]
#[non_exhaustive]
pub enum Source {
    /// No global quota had a part in it.
    #[default]
    Local,
    /// A lease, or news, of the authority.
    Lease,
    /// Units admitted without a lease.
    Overdraft,
    /// This node's own authority, since the other does not answer.
    Away,
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
    /// The low bits of the version of the policy since which the plan has its quotas.
    pub(crate) since: u32,
    /// On which plan.
    pub(crate) plan: u16,
    /// In which of the places that its key may be in.
    pub(crate) home: u8,
    /// What it rests on.
    pub(crate) source: Source,
}

/// What a decision saw of the other quotas of its plan.
#[derive(Clone, Debug)]
pub(crate) enum Others {
    /// There are none.
    None,
    /// All quotas, in the order of the plan, where they are one or two.
    Few { now: Now, taken: [Taken; 2] },
    /// All quotas, in the order of the plan.
    All {
        now: Now,
        /// Requests in flight, this one included.
        in_flight: u32,
        /// One for each quota, and then nothing.
        taken: [Taken; MAX_QUOTAS],
    },
}

impl Others {
    /// The instant, what is in flight, and what was taken of each.
    pub(crate) fn all(&self) -> Option<(Now, u32, &[Taken])> {
        match self {
            Self::None => None,
            Self::Few { now, taken } => Some((*now, 0, taken)),
            Self::All { now, in_flight, taken } => Some((*now, *in_flight, taken)),
        }
    }
}

impl Seen {
    /// What is seen where nothing is limited.
    pub(crate) fn unlimited(plan: u16) -> Self {
        Self {
            quota: QuotaTicks::UNLIMITED,
            tat: 0,
            now: 0,
            cost: 0,
            refunds: RefundsSeen::default(),
            id: 0,
            since: 0,
            plan,
            home: 0,
            source: Source::Local,
        }
    }

    /// Places in flight, as a quota of which nothing comes back by itself.
    pub(crate) fn places(limit: u32, taken: u32, plan: u16) -> Self {
        let (quota, tat) = (QuotaTicks::places(limit), MAX_NOW + u64::from(taken));
        Self { quota, tat, now: MAX_NOW, ..Self::unlimited(plan) }
    }

    /// What was taken, so that it can be given back.
    pub(crate) const fn taken(&self) -> Taken {
        Taken { cost: self.cost, tat: self.tat, refunds: self.refunds }
    }

    /// The decision of a bucket that stands alone.
    #[inline]
    pub(crate) const fn decision(self, allowed: bool) -> Decision {
        if allowed { Decision::Allow(Allow::alone(self)) } else { Decision::Deny(Deny::alone(self)) }
    }

    pub(crate) const fn ahead(&self) -> u64 {
        self.tat.saturating_sub(self.now)
    }

    pub(crate) const fn remaining(&self) -> u64 {
        self.quota.remaining(self.ahead())
    }

    /// The wait until `cost` units, at most the burst, are admitted; `None` for never.
    pub(crate) const fn wait_for(&self, cost: u64) -> Option<Duration> {
        match self.ahead().saturating_sub(self.quota.room(cost)) {
            0 => Some(Duration::ZERO),
            _ if self.quota.never_refills() => None,
            wait => Some(to_duration(wait)),
        }
    }

    /// For how many ticks more a denial by this stands, if nothing is given back; `None` for ever.
    #[inline]
    pub(crate) const fn stands_for(&self) -> Option<u64> {
        if self.cost > self.quota.burst() || self.quota.never_refills() {
            return None;
        }
        Some(self.ahead().saturating_sub(self.quota.room(self.cost)))
    }

    /// The instant that a clock has shown if it made `tat` what it is, should that be more than a second after this decision.
    /// The clock may have stepped back since; or the decision is late, or the word stands ahead on purpose.
    #[inline]
    pub(crate) const fn later_instant(&self) -> Option<u64> {
        if self.tat > self.now + self.quota.reach() { Some(self.tat - self.quota.reach() + SECOND) } else { None }
    }

    pub(crate) const fn reset_after(&self) -> Option<Duration> {
        match self.ahead() {
            0 => Some(Duration::ZERO),
            _ if self.quota.never_refills() => None,
            ahead => Some(to_duration(ahead)),
        }
    }
}
