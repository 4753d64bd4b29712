//! One quota of one key: a single word, changed by compare-and-swap.
//!
//! The word is `tat`, the instant at which the bucket is full again, in ticks since the limiter's origin. 0 is a
//! fresh, full bucket. Quota and time are arguments, never stored, so that a bucket is eight bytes and needs no
//! upkeep. `tat` is below 2^62: an instant is at most 2^61, and no bucket is more than a fill time, under 2^60, ahead
//! of the latest instant it has seen. The two top bits stay 0.

use std::fmt;

use crate::quota::QuotaTicks;
use crate::sync::{AtomicU64, Ordering};

// Relaxed, for every access below: the word is all there is. No other memory is published through it, each decision
// needs nothing but the word's own order of changes, which is total for a single atomic, and a compare-and-swap
// always sees the last of them. A load may lag behind; then the compare-and-swap fails and the decision is taken
// again, or the answer is a denial that was right a moment ago.
const RELAXED: Ordering = Ordering::Relaxed;

/// The state of one quota of one key.
pub struct Bucket(AtomicU64);

impl Bucket {
    /// A full bucket.
    pub fn full() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes `cost` units at the instant `now`: `Ok` with the new `tat`, or `Err` with the one that denied.
    ///
    /// A denial writes nothing; nor does a cost of 0.
    #[inline]
    pub fn take(&self, quota: &QuotaTicks, cost: u64, now: u64) -> Result<u64, u64> {
        let mut tat = self.tat();
        loop {
            let next = after(quota, cost, now, tat)?;
            if next == tat {
                return Ok(tat);
            }
            match self.0.compare_exchange_weak(tat, next, RELAXED, RELAXED) {
                Ok(_) => return Ok(next),
                Err(changed) => tat = changed,
            }
        }
    }

    /// What [`take`](Self::take) would answer, with the `tat` as it is.
    #[inline]
    pub fn peek(&self, quota: &QuotaTicks, cost: u64, now: u64) -> Result<u64, u64> {
        let tat = self.tat();
        after(quota, cost, now, tat).map(|_| tat)
    }

    /// Lowers `tat` by what `worth` says, and returns by how much; it is never lowered below the instant that `worth`
    /// says with it, where the bucket is full. `worth` is asked after `tat` was read, and again if that has changed.
    pub fn lower(&self, worth: impl Fn() -> (u64, u64)) -> u64 {
        let mut tat = self.tat();
        loop {
            let (worth, now) = worth();
            let lowered = worth.min(tat.saturating_sub(now));
            if lowered == 0 {
                return 0;
            }
            match self.0.compare_exchange_weak(tat, tat - lowered, RELAXED, RELAXED) {
                Ok(_) => return lowered,
                Err(changed) => tat = changed,
            }
        }
    }

    /// The instant at which the bucket is full again.
    #[inline]
    pub fn tat(&self) -> u64 {
        self.0.load(RELAXED)
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bucket").field(&self.tat()).finish()
    }
}

/// The decision, pure: where `tat` goes when `cost` units are taken at `now`, or `Err` with `tat` if they can't be.
#[inline]
fn after(quota: &QuotaTicks, cost: u64, now: u64, tat: u64) -> Result<u64, u64> {
    if cost == 0 {
        return Ok(tat);
    }
    if cost > quota.burst() {
        return Err(tat);
    }
    let start = tat.max(now);
    if start - now > quota.room(cost) {
        return Err(tat);
    }
    Ok(start + quota.charge(cost))
}
