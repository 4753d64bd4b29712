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
    /// A bucket that is full from `tat` on.
    pub fn full_at(tat: u64) -> Self {
        Self(AtomicU64::new(tat))
    }

    /// Takes `cost` units: `Ok` with the new `tat`, or `Err` with the one that denied; and the instant of the decision,
    /// which `now` is asked for last. What can be had before a clock is read need not wait for it: 9 of 45 ns.
    ///
    /// A denial writes nothing; nor does a cost of 0.
    // Always: called, it would pass its answer through memory, 6 of 33 ns.
    #[inline(always)]
    pub fn take(&self, quota: &QuotaTicks, cost: u64, now: impl FnOnce() -> u64) -> (Result<u64, u64>, u64) {
        let (tat, demand) = (self.tat(), Demand::new(quota, cost));
        let now = now();
        (self.draw_any(demand.as_ref(), quota, cost, tat, now), now)
    }

    /// Takes `cost` units at `now`, of which `demand` is what they ask for and `tat` what was seen, whatever they are.
    #[inline(always)]
    pub(crate) fn draw_any(
        &self,
        demand: Option<&Demand>,
        quota: &QuotaTicks,
        cost: u64,
        tat: u64,
        now: u64,
    ) -> Result<u64, u64> {
        match demand {
            Some(demand) => self.draw(demand, tat, now),
            None => without_take(quota, cost, tat),
        }
    }

    /// Takes what `demand` says at `now`, `tat` having been seen already: `Ok` with the new one, or `Err` with the one that
    /// denied.
    #[inline(always)]
    pub(crate) fn draw(&self, demand: &Demand, mut tat: u64, now: u64) -> Result<u64, u64> {
        loop {
            let Some(next) = demand.after(tat, now) else { return Err(tat) };
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
        match Demand::new(quota, cost) {
            Some(demand) => demand.after(tat, now).map(|_| tat).ok_or(tat),
            None => without_take(quota, cost, tat),
        }
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

    /// Puts what `change` says in the place of `tat`.
    pub(crate) fn change(&self, change: impl Fn(u64) -> u64) {
        let _ = self.0.fetch_update(RELAXED, RELAXED, |tat| Some(change(tat)));
    }

    /// Moves `tat` on to `instant`, if it is not there yet.
    pub fn raise(&self, instant: u64) {
        if self.tat() < instant {
            self.0.fetch_max(instant, RELAXED);
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

/// What a cost that may be admitted asks of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// How far ahead of the instant `tat` may be.
    pub(crate) room: u64,
    /// By how much `tat` is moved on.
    pub(crate) charge: u64,
}

impl Demand {
    /// `None` for a cost of 0 and one above the burst, whose answers `tat` has no part in.
    // Always, as the clock's reading: they are part of the hot path of every front door.
    #[inline(always)]
    pub(crate) fn new(quota: &QuotaTicks, cost: u64) -> Option<Self> {
        if cost == 0 || cost > quota.burst() {
            return None;
        }
        Some(Self { room: quota.room(cost), charge: quota.charge(cost) })
    }

    /// The decision, pure: where `tat` goes when this is taken at `now`, or `None` if it can't be.
    // Not worked out where it is not taken: of a word that nobody may use, the sum is too much.
    #[inline]
    pub(crate) fn after(&self, tat: u64, now: u64) -> Option<u64> {
        let start = tat.max(now);
        if start - now <= self.room { Some(start + self.charge) } else { None }
    }
}

/// A cost of 0 asks for nothing and is allowed; one above the burst never is.
#[cold]
fn without_take(quota: &QuotaTicks, cost: u64, tat: u64) -> Result<u64, u64> {
    if cost <= quota.burst() { Ok(tat) } else { Err(tat) }
}
