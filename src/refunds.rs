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
//! [`Refunds`] belongs to one key on one plan, and holds three things in one word: *G*, whether a refund is under way, and a
//! *life*. An allow of another life gives back nothing.
//!
//! - *G* is counted in grains of at most 1/256 of the burst, and rounded up: a refund after other refunds may be worth that
//!   much too little for each of them, and never too much. When the count is full, at 64 bursts or more, another life begins.
//!   Of a quota that never refills nothing is counted, as *p* stands still for it.
//! - A life ends when the buckets are made anew: at an eviction, a reset, or a move to another plan. Its number is one that
//!   the key has not had before in the same place, and an allow says in which place its key was. A number has 48 bits. At a
//!   million lives a second in one place the last one begins after nine years. It never ends, and nothing is given back in it.
//! - A change of the quotas needs no other life: an allow says since which policy its plan has had them.
//!
//! # Races
//!
//! Refunds by one word come one after another, waiting if need be. No check waits for them: a check that has to give back
//! what it took, since a later quota of its plan denies, tries for a while and then leaves the units taken. A claim of
//! the place by another key begins a life without waiting, and the refund that was under way finds its word replaced.
//!
//! A take notes the word before it moves `tat`, be it before or after it has read it:
//!
//! - A refund ends later: what it gives back counts in *G*, rightly if it lowers `tat` after the take, and on the safe
//!   side if before.
//! - The take saw the refund ended: `tat` had been lowered before the take moved it.
//!
//! A refund reads `tat`, then the time, and lowers `tat` by compare-and-swap. A take in between makes that fail, since
//! no other thread lowers it, and the refund starts over at a later time. Only the caller's own time can be older than a
//! take that it follows; then it is as if the clock had gone backwards, and by time or by debt a refund may give back
//! what came back in the length of that step.

use std::fmt;

use crate::sync::{AtomicU64, Backoff, Ordering};

/// From the top: the life in 48 bits, grains given back since it began in 15, and whether a refund is under way.
pub struct Refunds(AtomicU64);

/// The word as a take saw it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RefundsSeen(u64);

const UNDER_WAY: u64 = 1;
const LIFE_SHIFT: u32 = 16;
const MAX_GRAINS: u64 = (1 << (LIFE_SHIFT - 1)) - 1;

/// The life that does not end.
const LAST_LIFE: u64 = u64::MAX >> LIFE_SHIFT;

/// The burst is at most two to the power of this many grains.
const BURST_BITS: u32 = 9;

/// How often a check tries to give back before it leaves the units taken.
const TRIES: u32 = 64;

/// What a thread does that finds a refund under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// Waits for its end.
    Waits,
    /// Tries for a while and then gives back nothing, as a check does.
    Tries,
}

/// What refunds of a bucket of that burst are counted in, as a power of two of ticks.
pub(crate) const fn grain(burst: u64) -> u32 {
    (u64::BITS - burst.leading_zeros()).saturating_sub(BURST_BITS)
}

/// Ticks in grains of that size, rounded up.
pub(crate) const fn grains_of(ticks: u64, grain: u32) -> u64 {
    ticks.div_ceil(1 << grain)
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

    const fn new(life: u64, grains: u64) -> Self {
        Self(life << LIFE_SHIFT | grains << 1)
    }

    pub(crate) const fn life(self) -> u64 {
        self.0 >> LIFE_SHIFT
    }

    const fn grains(self) -> u64 {
        self.0 >> 1 & MAX_GRAINS
    }

    /// The word of the next life, with nothing given back.
    const fn next_life(self) -> Self {
        Self::new(if self.life() < LAST_LIFE { self.life() + 1 } else { LAST_LIFE }, 0)
    }

    /// What was given back since the take that saw `seen`, in ticks, if a grain is that many. A word that was replaced since
    /// has more than there is.
    pub(crate) const fn since(self, seen: Self, grain: u32) -> u64 {
        let grains = self.grains().saturating_sub(seen.grains());
        // A grain is at most 2^51 ticks: what does not fit is more than any `tat` is ahead.
        if grains.leading_zeros() < grain { u64::MAX } else { grains << grain }
    }
}

impl Refunds {
    /// No refund yet, in that life.
    pub fn in_life(life: u64) -> Self {
        Self(AtomicU64::new(RefundsSeen::new(if life < LAST_LIFE { life } else { LAST_LIFE }, 0).0))
    }

    /// The word as it is now: to be read before the take.
    #[inline(always)]
    pub(crate) fn seen(&self) -> RefundsSeen {
        // Acquire: pairs with the Release in `alone`. A take that sees a refund ended moves on a `tat` that was lowered, and
        // its compare-and-swap stays behind this.
        RefundsSeen(self.0.load(Ordering::Acquire))
    }

    /// Runs `lower`, alone among the refunds by this word, unless the take that saw `seen` was in another life. `lower` is
    /// told the word, and returns by how many grains it lowered the buckets.
    pub(crate) fn give_back(&self, seen: RefundsSeen, patience: Patience, lower: impl FnOnce(RefundsSeen) -> u64) {
        // A look before the lock: no allow of another life takes it from one of this.
        if self.seen().life() != seen.life() {
            return;
        }
        self.alone(patience, |before| {
            if before.life() != seen.life() || before.life() == LAST_LIFE {
                return before;
            }
            let grains = before.grains().saturating_add(lower(before));
            if grains <= MAX_GRAINS { RefundsSeen::new(before.life(), grains) } else { before.next_life() }
        });
    }

    /// Runs `change`, alone among the refunds by this word, and begins another life.
    pub(crate) fn renew(&self, change: impl FnOnce()) {
        self.alone(Patience::Waits, |before| {
            change();
            before.next_life()
        });
    }

    /// Begins another life without waiting, for a caller that has the place for itself. A refund that is under way lowers
    /// nothing that comes after, as its `tat` is gone.
    pub(crate) fn begin_life(&self) {
        // Relaxed: the place is opened by a Release after this, and taken with an Acquire before.
        let next = |word| Some(RefundsSeen(word).next_life().0);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Has `change` put a new word in the place of the old one, and no other refund run meanwhile. False if a refund was
    /// under way for longer than that patience.
    fn alone(&self, patience: Patience, change: impl FnOnce(RefundsSeen) -> RefundsSeen) -> bool {
        let backoff = Backoff::new();
        // Relaxed: the compare-and-swap decides.
        let mut word = self.0.load(Ordering::Relaxed);
        let mut tries = 0;
        // Acquire: pairs with the Release below. A refund that begins sees what those before have lowered.
        // Relaxed, on failure: nothing is done with the word but to try again.
        while let Err(changed) =
            self.0.compare_exchange_weak(word & !UNDER_WAY, word | UNDER_WAY, Ordering::Acquire, Ordering::Relaxed)
        {
            if patience == Patience::Tries {
                tries += 1;
                if tries >= TRIES {
                    return false;
                }
                std::hint::spin_loop();
            } else {
                backoff.snooze();
            }
            word = changed;
        }
        let changed = change(RefundsSeen(word & !UNDER_WAY));
        // Release: pairs with `seen`, and with the next to begin. The count grows after `tat` was lowered.
        // It fails where the place was claimed meanwhile: the word is that of another life then.
        let _ = self.0.compare_exchange(word | UNDER_WAY, changed.0, Ordering::Release, Ordering::Relaxed);
        true
    }
}

impl fmt::Debug for Refunds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.seen();
        f.debug_struct("Refunds").field("life", &seen.life()).field("grains", &seen.grains()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// So large that a grain is 16 ticks.
    const BURST: u64 = (1 << 13) - 1;

    /// What a refund is told, when it lowers by `lowered` ticks; `None` if it is not asked.
    fn told(refunds: &Refunds, seen: RefundsSeen, lowered: u64) -> Option<u64> {
        let mut told = None;
        refunds.give_back(seen, Patience::Waits, |before| {
            told = Some(before.since(seen, grain(BURST)));
            grains_of(lowered, grain(BURST))
        });
        told
    }

    #[test]
    fn what_was_given_back_since_is_told_in_grains() {
        let refunds = Refunds::in_life(0);
        let first = refunds.seen();
        let mut during = first;
        refunds.give_back(first, Patience::Waits, |before| {
            assert_eq!(before.since(first, grain(BURST)), 0);
            during = refunds.seen();
            2
        });
        let second = refunds.seen();
        assert_eq!(told(&refunds, first, 33), Some(32));
        for (seen, expected) in [(first, 80), (during, 80), (second, 48), (refunds.seen(), 0)] {
            assert_eq!(told(&refunds, seen, 0), Some(expected));
        }
    }

    #[test]
    fn what_does_not_fit_is_more_than_there_is() {
        let (none, full) = (RefundsSeen::new(0, 0), RefundsSeen::new(0, MAX_GRAINS));
        assert_eq!(full.since(none, 49), MAX_GRAINS << 49);
        assert_eq!(full.since(none, 50), u64::MAX);
        assert_eq!(none.since(full, 51), 0);
    }

    #[test]
    fn a_full_count_begins_another_life() {
        let refunds = Refunds::in_life(7);
        let first = refunds.seen();
        refunds.give_back(first, Patience::Waits, |_| MAX_GRAINS);
        let full = refunds.seen();
        assert_eq!((full.life(), told(&refunds, first, 1)), (7, Some(MAX_GRAINS << 4)));
        assert_eq!((told(&refunds, first, 1), told(&refunds, full, 1)), (None, None));
        assert_eq!((refunds.seen().life(), told(&refunds, refunds.seen(), 0)), (8, Some(0)));
    }

    #[test]
    fn what_was_taken_in_another_life_is_not_asked_for() {
        let refunds = Refunds::in_life(3);
        let seen = refunds.seen();
        refunds.renew(|| assert_eq!(refunds.seen().life(), 3));
        assert_eq!(told(&refunds, seen, 1), None);
        refunds.begin_life();
        assert_eq!(refunds.seen().life(), 5);
    }

    #[test]
    fn the_last_life_stays_and_gives_back_nothing() {
        let refunds = Refunds::in_life(u64::MAX);
        let seen = refunds.seen();
        assert_eq!(told(&refunds, seen, 1), None);
        refunds.begin_life();
        assert_eq!((refunds.seen().life(), told(&refunds, seen, 1)), (LAST_LIFE, None));
    }

    #[test]
    fn a_claim_does_not_wait_for_a_refund_nor_does_the_refund_change_what_follows() {
        let refunds = Refunds::in_life(0);
        let seen = refunds.seen();
        refunds.give_back(seen, Patience::Waits, |_| {
            refunds.begin_life();
            5
        });
        let next = refunds.seen();
        assert_eq!((next.life(), next.grains()), (1, 0));
    }

    #[test]
    fn a_check_gives_up_where_a_refund_is_under_way() {
        let refunds = Refunds::in_life(0);
        let seen = refunds.seen();
        refunds.give_back(seen, Patience::Waits, |_| {
            refunds.give_back(seen, Patience::Tries, |_| unreachable!("one is under way"));
            1
        });
        assert_eq!(refunds.seen().grains(), 1);
    }

    #[test]
    fn a_grain_is_small_against_the_burst() {
        for (burst, expected) in [(1, 0), (511, 0), (512, 1), (1 << 20, 12), (u64::MAX >> 4, 51)] {
            assert_eq!(grain(burst), expected, "{burst}");
        }
    }
}
