//! Where buckets live, keyed.
//!
//! A store finds the state of a key, makes it if it is new, and hands it to a closure. No guard ever leaves a store,
//! and no closure that is handed a state touches the store again: that, and locking one shard at a time, rules out
//! the deadlocks that a sharded map invites.

mod sharded;

use crate::bucket::Bucket;
use crate::decision::{Allow, Decision, Deny, Seen};
use crate::hasher::random;
use crate::quota::QuotaTicks;
use crate::ticks::Now;

pub(crate) use sharded::Sharded;

/// All that is kept of a key.
#[derive(Debug)]
pub(crate) struct KeyState {
    bucket: Bucket,
    /// Which life of which key this is. No two states share the number, so that what was taken from one is never
    /// given back to another, nor to a later state of the same key.
    life: u64,
}

impl KeyState {
    /// A key that has taken nothing yet.
    pub(crate) fn fresh(life: u64) -> Self {
        Self { bucket: Bucket::full(), life }
    }

    /// The same, with a number that is random, not counted.
    pub(crate) fn alone() -> Self {
        Self::fresh(random())
    }

    /// Takes `cost` units, all or nothing.
    #[inline]
    pub(crate) fn take(&self, quota: &QuotaTicks, cost: u64, now: Now) -> Decision {
        let now = quota.at(now);
        self.decision(self.bucket.take(quota, cost, now), quota, cost, cost, now)
    }

    /// What [`take`](Self::take) would answer.
    #[inline]
    pub(crate) fn peek(&self, quota: &QuotaTicks, cost: u64, now: Now) -> Decision {
        let now = quota.at(now);
        self.decision(self.bucket.peek(quota, cost, now), quota, cost, 0, now)
    }

    /// Gives back what `allow` took, if it was taken from this state and has not come back by itself.
    pub(crate) fn refund(&self, quota: &QuotaTicks, allow: &Allow, now: Now) {
        if allow.life == self.life {
            self.bucket.refund(quota.charge(allow.taken), allow.seen.tat, quota.at(now));
        }
    }

    #[inline]
    fn decision(&self, answer: Result<u64, u64>, quota: &QuotaTicks, cost: u64, taken: u64, now: u64) -> Decision {
        match answer {
            Ok(tat) => Decision::Allow(Allow { seen: Seen { quota: *quota, tat, now }, taken, life: self.life }),
            Err(tat) => Decision::Deny(Deny { seen: Seen { quota: *quota, tat, now }, cost }),
        }
    }
}
