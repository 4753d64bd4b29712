//! Where buckets live, keyed.
//!
//! A store finds the state of a key, makes it if it is new, and hands it to a closure. No guard ever leaves a store,
//! and no closure that is handed a state touches the store again: that, and locking one shard at a time, rules out
//! the deadlocks that a sharded map invites.

mod sharded;

use crate::bucket::Bucket;
use crate::decision::{Allow, Decision, Deny, Seen};
use crate::quota::QuotaTicks;
use crate::stamp::{self, Stamp};
use crate::ticks::Now;

pub(crate) use sharded::Sharded;

/// All that is kept of a key.
#[derive(Debug)]
pub struct KeyState {
    bucket: Bucket,
    stamp: Stamp,
}

impl KeyState {
    /// A key that has taken nothing yet. No two states of a store should have the same number, so that what was taken
    /// from one is not given back to another, nor to a later state of the same key.
    pub fn new(number: u64) -> Self {
        Self { bucket: Bucket::full(), stamp: Stamp::new(number) }
    }

    /// Takes `cost` units, all or nothing.
    #[inline]
    pub fn take(&self, quota: &QuotaTicks, cost: u64, now: Now) -> Decision {
        let now = quota.at(now);
        let stamp = self.stamp.seen();
        Self::decision(self.bucket.take(quota, cost, now), quota, cost, cost, now, stamp)
    }

    /// What [`take`](Self::take) would answer.
    #[inline]
    pub fn peek(&self, quota: &QuotaTicks, cost: u64, now: Now) -> Decision {
        let now = quota.at(now);
        Self::decision(self.bucket.peek(quota, cost, now), quota, cost, 0, now, self.stamp.seen())
    }

    /// Gives back of what `allow` took what was taken from this state and has not come back by itself.
    ///
    /// `stamp.rs` says why this is right: after it, the bucket is as if the take had cost less, and had cost nothing
    /// if all of it is given back.
    pub fn refund(&self, quota: &QuotaTicks, allow: &Allow, now: Now) {
        if allow.taken == 0 {
            return;
        }
        let now = quota.at(now);
        // Bursts of over 2^32 units are counted in larger grains, rounded up, so that the count has room.
        let grain = (u64::BITS - quota.burst().leading_zeros()).saturating_sub(32);
        let grains = self.stamp.begin(((allow.taken - 1) >> grain) + 1, allow.stamp);
        // More than a burst since the take, or the stamp of another state: nothing is left of it.
        if grains <= quota.burst() >> grain {
            let charge = quota.charge(allow.taken);
            let passed = now.saturating_sub(allow.seen.now);
            let mut worth = charge.saturating_sub(passed);
            if !allow.stamp.refund_under_way() {
                let stayed_at = allow.seen.tat.saturating_sub(quota.charge(grains << grain));
                worth = worth.max(charge.min(stayed_at.saturating_sub(now)));
            }
            self.bucket.refund(worth, now);
        }
        self.stamp.end();
    }

    #[inline]
    fn decision(
        answer: Result<u64, u64>,
        quota: &QuotaTicks,
        cost: u64,
        taken: u64,
        now: u64,
        stamp: stamp::Seen,
    ) -> Decision {
        match answer {
            Ok(tat) => Decision::Allow(Allow { seen: Seen { quota: *quota, tat, now }, taken, stamp }),
            Err(tat) => Decision::Deny(Deny { seen: Seen { quota: *quota, tat, now }, cost }),
        }
    }
}
