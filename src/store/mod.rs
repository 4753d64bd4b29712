//! Where buckets live, keyed.
//!
//! A store finds the state of a key, makes it if it is new, and hands it to a closure. No guard ever leaves a store,
//! and no closure that is handed a state touches the store again: that, and locking one shard at a time, rules out
//! the deadlocks that a sharded map invites.

mod sharded;

use crate::bucket::Bucket;
use crate::decision::{Allow, Decision, Deny, Seen};
use crate::quota::QuotaTicks;
use crate::refunds::{Refunds, RefundsSeen};
use crate::ticks::Now;

pub use sharded::Sharded;

/// All that is kept of a key in its own place: eight bytes, so that a table is small and a look-up reads little of it.
#[derive(Debug)]
pub struct KeyState {
    bucket: Bucket,
}

impl KeyState {
    /// A key that has taken nothing yet, and whose bucket is full from `tat` on.
    pub fn new(tat: u64) -> Self {
        Self { bucket: Bucket::full_at(tat) }
    }

    /// Whether this equals a fresh state, in the eyes of whoever comes at `now` or later.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        self.tat() <= now
    }

    /// Takes what the bucket has before `instant`.
    pub(crate) fn full_no_earlier(&self, instant: u64) {
        self.bucket.raise(instant);
    }

    pub(crate) fn tat(&self) -> u64 {
        self.bucket.tat()
    }
}

/// The state of a key as a visitor finds it.
#[derive(Clone, Copy, Debug)]
pub struct Visited<'a> {
    state: &'a KeyState,
    refunds: &'a Refunds,
    /// Which key of which limiter this is, for refunds: what was taken from one is not given back to another.
    id: u64,
}

impl<'a> Visited<'a> {
    /// `state` and what goes with it.
    pub const fn new(state: &'a KeyState, refunds: &'a Refunds, id: u64) -> Self {
        Self { state, refunds, id }
    }

    /// Takes `cost` units, all or nothing, at the time that `clock` tells. It is read last, see [`Bucket::take`].
    // Always: the copy for a new key, out of line, must not keep the one for a known key from being inlined.
    #[inline(always)]
    pub fn take(self, quota: &QuotaTicks, cost: u64, clock: impl FnOnce() -> Now) -> Decision {
        let refunds = self.refunds.seen();
        let (answer, now) = self.state.bucket.take(quota, cost, || quota.at(clock()));
        self.decision(answer, quota, now, cost, refunds)
    }

    /// What [`take`](Self::take) would answer. An allow of it has taken nothing that could be given back.
    #[inline]
    pub fn peek(self, quota: &QuotaTicks, cost: u64, now: Now) -> Decision {
        let now = quota.at(now);
        match self.decision(self.state.bucket.peek(quota, cost, now), quota, now, cost, self.refunds.seen()) {
            Decision::Allow(Allow { seen }) => Decision::Allow(Allow { seen: Seen { cost: 0, ..seen } }),
            deny => deny,
        }
    }

    /// Gives back of what `allow` took what was taken from here and has not come back by itself by the time that `clock`
    /// tells. `refunds.rs` says how much that is, and why.
    pub fn refund(self, quota: &QuotaTicks, allow: &Allow, clock: impl Fn() -> Now) {
        let seen = &allow.seen;
        if seen.cost == 0 || seen.id != self.id || seen.quota != *quota {
            return;
        }
        let charge = quota.charge(seen.cost);
        self.refunds.give_back(seen.refunds, quota.charge(quota.burst()), |given_back| {
            let stayed_at = seen.tat.saturating_sub(given_back);
            self.state.bucket.lower(|| {
                let now = quota.at(clock());
                let by_time = charge.saturating_sub(now.saturating_sub(seen.now));
                let by_debt = charge.min(stayed_at.saturating_sub(now));
                (by_time.max(by_debt), now)
            })
        });
    }

    #[inline]
    fn decision(
        self,
        answer: Result<u64, u64>,
        quota: &QuotaTicks,
        now: u64,
        cost: u64,
        refunds: RefundsSeen,
    ) -> Decision {
        let seen = |tat| Seen { quota: *quota, tat, now, cost, refunds, id: self.id };
        match answer {
            Ok(tat) => Decision::Allow(Allow { seen: seen(tat) }),
            Err(tat) => Decision::Deny(Deny { seen: seen(tat) }),
        }
    }
}
