//! A limiter of one bucket.

use std::sync::Arc;

use crate::bucket::Demand;
use crate::clock::{Clock, Time};
use crate::decision::{Allow, Decision};
use crate::error::BuildError;
use crate::hasher::random;
use crate::quota::{Quota, QuotaTicks};
use crate::store::{Slot, Visited};
use crate::ticks::Now;

/// A limiter of one bucket, for what is limited as a whole: an upstream, a queue, a log.
///
/// Clones share the bucket. A check costs a clock read and one compare-and-swap, and a denial writes nothing. In any
/// window of length *t* at most `burst + rate × t` units are admitted; see [`Quota`] for what rounding costs.
///
/// ```
/// use tollgate::{DirectLimiter, Quota};
///
/// let upstream = DirectLimiter::new(Quota::per_second(50).burst(10))?;
/// if upstream.check().is_allowed() {
///     // call it
/// }
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DirectLimiter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    slot: Slot,
    id: u64,
    quota: QuotaTicks,
    clock: Clock,
}

impl Inner {
    #[inline]
    fn visited(&self) -> Visited<'_> {
        Visited::new(&self.slot, self.id)
    }
}

impl DirectLimiter {
    /// A full bucket on the precise clock.
    ///
    /// # Errors
    ///
    /// [`BuildError`] for a quota that makes no sense, see [`Quota`].
    pub fn new(quota: Quota) -> Result<Self, BuildError> {
        // A clock can take 200 ms to calibrate, which a quota that is refused need not wait for.
        QuotaTicks::new(quota)?;
        Self::with_clock(quota, Clock::precise())
    }

    /// A full bucket on the given clock.
    ///
    /// # Errors
    ///
    /// [`BuildError`] for a quota that makes no sense, see [`Quota`].
    pub fn with_clock(quota: Quota, clock: Clock) -> Result<Self, BuildError> {
        let quota = QuotaTicks::new(quota)?;
        Ok(Self { inner: Arc::new(Inner { slot: Slot::new(0, 0), id: random(), quota, clock }) })
    }

    /// Takes one unit now.
    #[inline]
    pub fn check(&self) -> Decision {
        self.take(1, &self.inner.clock)
    }

    /// Takes `cost` units now, all or nothing. A cost of 0 takes nothing; one above the burst is denied for good.
    #[inline]
    pub fn check_cost(&self, cost: u64) -> Decision {
        self.take(cost, &self.inner.clock)
    }

    /// Takes one unit at the instant `now`. [`Limiter::check_at`](crate::Limiter::check_at) says what instants of two callers
    /// that differ cost.
    #[inline]
    pub fn check_at(&self, now: Now) -> Decision {
        self.check_cost_at(1, now)
    }

    /// Takes `cost` units at the instant `now`, all or nothing.
    #[inline]
    pub fn check_cost_at(&self, cost: u64, now: Now) -> Decision {
        self.take(cost, now)
    }

    // Always: who asks no more than whether it is allowed has then nothing written to memory.
    #[inline(always)]
    fn take(&self, cost: u64, time: impl Time) -> Decision {
        let quota = &self.inner.quota;
        let (allowed, seen) = self.inner.visited().take_seen(quota, cost, Demand::new(quota, cost).as_ref(), &time);
        if !allowed && time.doubts(&seen) {
            return self.take_again(cost, time.latest());
        }
        seen.decision(allowed)
    }

    #[inline(never)]
    fn take_again(&self, cost: u64, now: Now) -> Decision {
        self.inner.visited().take(&self.inner.quota, cost, now)
    }

    /// What [`check`](Self::check) would answer now. Nothing is taken, and the `remaining` of an allow is what is
    /// left without it.
    #[inline]
    pub fn peek(&self) -> Decision {
        self.peek_cost(1)
    }

    /// What [`check_cost`](Self::check_cost) would answer now. Nothing is taken.
    #[inline]
    pub fn peek_cost(&self, cost: u64) -> Decision {
        let clock = &self.inner.clock;
        let decision = self.peek_cost_at(cost, clock.latest());
        if clock.settles(decision.seen()) { self.peek_cost_at(cost, clock.latest()) } else { decision }
    }

    /// What [`check_at`](Self::check_at) would answer. Nothing is taken.
    #[inline]
    pub fn peek_at(&self, now: Now) -> Decision {
        self.peek_cost_at(1, now)
    }

    /// What [`check_cost_at`](Self::check_cost_at) would answer. Nothing is taken.
    #[inline]
    pub fn peek_cost_at(&self, cost: u64, now: Now) -> Decision {
        self.inner.visited().peek(&self.inner.quota, cost, now)
    }

    /// Gives back what `allow` took, now. See [`Limiter::refund`](crate::Limiter::refund).
    pub fn refund(&self, allow: Allow) {
        self.inner.visited().refund(&self.inner.quota, &allow, || self.inner.clock.latest());
    }

    /// Gives back what `allow` took, at the instant `now`. See [`Limiter::refund`](crate::Limiter::refund).
    pub fn refund_at(&self, allow: Allow, now: Now) {
        self.inner.visited().refund(&self.inner.quota, &allow, || now);
    }

    /// Says that the instants that the caller brings go on from `now`, though later ones were brought before. See
    /// [`Limiter::time_went_back`](crate::Limiter::time_went_back).
    pub fn time_went_back(&self, now: Now) {
        let Inner { slot, quota, .. } = &*self.inner;
        slot.refunds.renew(|| slot.bucket.change(|tat| quota.carry(tat, quota, now)));
    }

    /// The time by this limiter's clock, for many checks at one instant. Of a [coarse clock](Clock::coarse) it is what was
    /// published last, and checks that are given it are taken at their word: a denial is not looked at twice.
    #[inline]
    pub fn now(&self) -> Now {
        self.inner.clock.now()
    }
}
