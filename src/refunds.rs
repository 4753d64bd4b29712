//! What a refund is worth, and the word that makes it exact.
//!
//! A refund gives back no more than what has not come back by itself, so that afterwards the bucket is as if the take
//! had cost less. Let a take of charge *C* leave `tat` at *L*, and let all instants since be at most *now*.
//!
//! - **By time**: in the time *p* since the take at most *p* has come back. *C − p* is safe, whatever else happened.
//! - **By debt**: while `tat` was ahead of the instant of every take since by at least *w*, all of those would have
//!   started *w* earlier without the take, and *w* can be given back. Takes move `tat` on only. So that was the case for
//!   *w = L − now*, but for refunds of other takes, which lower it: with *G* ticks given back since, for
//!   *w = L − G − now*.
//!
//! The larger of the two is given, and never more than *C*. *G* has to be known: with a unit a second, let four units
//! be taken at 0 and three be given back. The bucket is full at 1. Three more taken at 2 leave `tat` at 5, just as one
//! more would have without any refund; then the last of the four is worth a unit, and here nothing.
//!
//! # The word
//!
//! [`Refunds`] holds three things in one word: *G*, whether a refund is under way, and an *epoch*: allows of another one
//! give back by time only, and those of another life nothing. *G* is counted in grains, of 1/65,536 of the burst or finer
//! where a bucket has a word of its own, and rounded up, so that a refund after other refunds may be worth that much too
//! little, and never too much. When it has no room for more, a new epoch begins.
//!
//! A bucket that is made anew, after an eviction, a reset or a change of its quota, has a new *life*, and so another epoch
//! than any before: what is known of the refunds of the former does not hold for it. Lives are counted by the store; one
//! in 2^24 looks like another.
//!
//! # Races
//!
//! Refunds by one word come one after another, waiting if need be; checks never wait for them. A take notes the word
//! before it moves `tat`:
//!
//! - A refund ends later: what it gives back counts in *G*, rightly if it lowers `tat` after the take, and on the safe
//!   side if before.
//! - It saw the refund ended: `tat` had been lowered before.
//!
//! A refund reads `tat`, then the time, and lowers `tat` by compare-and-swap. A take in between makes that fail, since
//! nobody else lowers it, and the refund starts over at a later time. Only the caller's own time can be older than a
//! take that it follows; then it is as if the clock had gone backwards, and by time or by debt a refund may give back
//! what came back in the length of that step.

use std::fmt;

use crate::sync::{AtomicU64, Backoff, Ordering};

/// From the top: the epoch in 32 bits, 24 of them for the life, grains given back since it began in 31, and whether a refund is
/// under way.
pub struct Refunds(AtomicU64);

/// The word as a take saw it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RefundsSeen(u64);

const UNDER_WAY: u64 = 1;
const EPOCH_SHIFT: u32 = 32;
const MAX_GRAINS: u64 = (1 << 31) - 1;

/// How many bits of the epoch count within one life.
const LIFE_BITS: u32 = 8;
const LIFE_MASK: u64 = (1 << LIFE_BITS) - 1;

/// The burst is at most two to the power of this many grains.
const BURST_BITS: u32 = 16;

/// What refunds to a bucket of its own are counted in, as a power of two of ticks, if its burst is that many ticks.
pub(crate) const fn grain(burst: u64) -> u32 {
    (u64::BITS - burst.leading_zeros()).saturating_sub(BURST_BITS)
}

impl RefundsSeen {
    /// What a global quota needs in this place: the epoch of the lease.
    #[cfg(feature = "global")]
    pub(crate) const fn of_lease(epoch: u64) -> Self {
        Self(epoch)
    }

    /// The epoch of the lease.
    #[cfg(feature = "global")]
    pub(crate) const fn lease(self) -> u64 {
        self.0
    }

    const fn epoch(self) -> u64 {
        self.0 >> EPOCH_SHIFT
    }

    const fn life(self) -> u64 {
        self.epoch() >> LIFE_BITS
    }

    const fn grains(self) -> u64 {
        self.0 >> 1 & MAX_GRAINS
    }

    /// The word of a new epoch in the same life, with nothing given back.
    const fn next_epoch(self) -> Self {
        let low = self.epoch().wrapping_add(1) & LIFE_MASK;
        Self((self.epoch() & !LIFE_MASK | low) << EPOCH_SHIFT)
    }
}

impl Refunds {
    /// No refund yet, in the first epoch of the life `life`, of which the low 24 bits count.
    pub fn in_life(life: u32) -> Self {
        Self(AtomicU64::new(u64::from(life) << LIFE_BITS << EPOCH_SHIFT & !((1 << EPOCH_SHIFT) - 1)))
    }

    /// The word as it is now: to be read before the take.
    #[inline]
    pub(crate) fn seen(&self) -> RefundsSeen {
        // Acquire: pairs with the store in `alone`. Who sees a refund ended also sees `tat` lowered.
        RefundsSeen(self.0.load(Ordering::Acquire))
    }

    /// Runs `lower`, alone among the refunds by this word, unless the take that saw `seen` was in another life. `lower`
    /// is told *G* in ticks, all that there is if that was in another epoch, and returns by how many it lowered `tat`. A
    /// refund is counted in units of `grain`, a power of two of ticks.
    pub(crate) fn give_back(&self, seen: RefundsSeen, grain: u32, lower: impl FnOnce(u64) -> u64) {
        self.alone(|before| {
            if before.life() != seen.life() {
                return before;
            }
            // The count is below 2^31, and a grain is at most 2^44 ticks: no `tat` is further ahead.
            let since = u128::from(before.grains().saturating_sub(seen.grains())) << grain;
            let since = if before.epoch() == seen.epoch() { u64::try_from(since).ok() } else { None };
            let lowered = lower(since.unwrap_or(u64::MAX));
            let grains = before.grains() + lowered.div_ceil(1 << grain);
            if grains <= MAX_GRAINS {
                RefundsSeen(before.epoch() << EPOCH_SHIFT | grains << 1)
            } else {
                before.next_epoch()
            }
        });
    }

    /// Begins another life: what was taken before can't be given back.
    pub(crate) fn begin_life(&self) {
        self.alone(|before| RefundsSeen((before.life() + 1) << LIFE_BITS << EPOCH_SHIFT));
    }

    /// Has `change` put a new word in the place of the old one, and nobody else meanwhile.
    fn alone(&self, change: impl FnOnce(RefundsSeen) -> RefundsSeen) {
        let backoff = Backoff::new();
        let mut word = self.0.load(Ordering::Relaxed);
        // Acquire: pairs with the store below. Who begins sees what those before have lowered.
        // Relaxed, on failure: nothing is done with the word but to try again.
        while let Err(changed) =
            self.0.compare_exchange_weak(word & !UNDER_WAY, word | UNDER_WAY, Ordering::Acquire, Ordering::Relaxed)
        {
            word = changed;
            backoff.snooze();
        }
        let changed = change(RefundsSeen(word & !UNDER_WAY));
        // Release: pairs with `seen`, and with the next to begin. The count grows after `tat` was lowered.
        self.0.store(changed.0, Ordering::Release);
    }
}

impl fmt::Debug for Refunds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.seen();
        f.debug_struct("Refunds").field("epoch", &seen.epoch()).field("grains", &seen.grains()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// So large that a grain is 16 ticks.
    const BURST: u64 = (1 << 20) - 1;

    /// What a refund is told, when it lowers by `lowered`; `None` if it is not asked.
    fn told(refunds: &Refunds, seen: RefundsSeen, lowered: u64) -> Option<u64> {
        let mut told = None;
        refunds.give_back(seen, grain(BURST), |since| {
            told = Some(since);
            lowered
        });
        told
    }

    #[test]
    fn what_was_given_back_since_is_told_in_grains() {
        let refunds = Refunds::in_life(0);
        let first = refunds.seen();
        let mut during = first;
        refunds.give_back(first, grain(BURST), |since| {
            assert_eq!(since, 0);
            during = refunds.seen();
            32
        });
        let second = refunds.seen();
        assert_eq!(told(&refunds, first, 33), Some(32));
        for (seen, expected) in [(first, 80), (during, 80), (second, 48), (refunds.seen(), 0)] {
            assert_eq!(told(&refunds, seen, 0), Some(expected));
        }
    }

    #[test]
    fn a_new_epoch_begins_when_the_count_is_full() {
        let refunds = Refunds::in_life(0);
        let old = refunds.seen();
        assert_eq!(told(&refunds, old, MAX_GRAINS << 4), Some(0));
        assert_eq!(told(&refunds, old, 1), Some(MAX_GRAINS << 4));
        // By time only.
        assert_eq!(told(&refunds, old, 0), Some(u64::MAX));
        assert_eq!((refunds.seen().epoch(), refunds.seen().grains()), (1, 0));
        assert_eq!(told(&refunds, refunds.seen(), 1), Some(0));
    }

    #[test]
    fn each_life_has_epochs_of_its_own() {
        let last_of_first = RefundsSeen(LIFE_MASK << EPOCH_SHIFT);
        assert_eq!(last_of_first.next_epoch().epoch(), 0);
        let second = Refunds::in_life(1);
        assert_eq!(second.seen().epoch(), LIFE_MASK + 1);
        assert_eq!(told(&second, last_of_first, 1), None);
        assert_eq!(told(&second, last_of_first.next_epoch(), 1), None);
        let before = second.seen();
        second.begin_life();
        assert_eq!(told(&second, before, 1), None);
        assert_eq!(told(&second, second.seen(), 1), Some(0));
    }
}
