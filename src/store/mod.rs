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

pub(crate) use sharded::Sharded;

/// All that is kept of a key.
#[derive(Debug)]
pub struct KeyState {
    bucket: Bucket,
    refunds: Refunds,
    /// Which life of which key this is. No two states of a store share the number, so that what was taken from one is
    /// never given back to another, nor to a later state of the same key.
    life: u64,
}

impl KeyState {
    /// A key that has taken nothing yet.
    pub fn new(life: u64) -> Self {
        Self { bucket: Bucket::full(), refunds: Refunds::none(), life }
    }

    /// Takes `cost` units, all or nothing.
    #[inline]
    pub fn take(&self, quota: &QuotaTicks, cost: u64, now: Now) -> Decision {
        let now = quota.at(now);
        let refunds = self.refunds.seen();
        match self.bucket.take(quota, cost, now) {
            Ok(tat) => self.allow(quota, tat, now, cost, refunds),
            Err(tat) => Self::deny(quota, tat, now, cost),
        }
    }

    /// What [`take`](Self::take) would answer.
    #[inline]
    pub fn peek(&self, quota: &QuotaTicks, cost: u64, now: Now) -> Decision {
        let now = quota.at(now);
        match self.bucket.peek(quota, cost, now) {
            Ok(tat) => self.allow(quota, tat, now, 0, self.refunds.seen()),
            Err(tat) => Self::deny(quota, tat, now, cost),
        }
    }

    /// Gives back of what `allow` took what was taken from this state and has not come back by itself by the time that
    /// `clock` tells. `refunds.rs` says how much that is, and why.
    pub fn refund(&self, quota: &QuotaTicks, allow: &Allow, clock: impl Fn() -> Now) {
        if allow.taken == 0 || allow.life != self.life || allow.seen.quota != *quota {
            return;
        }
        let charge = quota.charge(allow.taken);
        self.refunds.give_back(allow.refunds, |given_back| {
            let stayed_at = given_back.map_or(0, |since| allow.seen.tat.saturating_sub(since));
            self.bucket.lower(|| {
                let now = quota.at(clock());
                let by_time = charge.saturating_sub(now.saturating_sub(allow.seen.now));
                let by_debt = charge.min(stayed_at.saturating_sub(now));
                (by_time.max(by_debt), now)
            })
        });
    }

    #[inline]
    fn allow(&self, quota: &QuotaTicks, tat: u64, now: u64, taken: u64, refunds: RefundsSeen) -> Decision {
        Decision::Allow(Allow { seen: Seen { quota: *quota, tat, now }, taken, refunds, life: self.life })
    }

    #[inline]
    fn deny(quota: &QuotaTicks, tat: u64, now: u64, cost: u64) -> Decision {
        Decision::Deny(Deny { seen: Seen { quota: *quota, tat, now }, cost })
    }
}
