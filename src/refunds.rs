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
//! # Races
//!
//! [`Refunds`] holds *G* since the key is known, and whether a refund is under way. Refunds of one key come one after
//! another, waiting if need be; checks never wait for them. A take notes the word before it moves `tat`:
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

/// Ticks given back since the key is known, and in the lowest bit whether a refund is under way.
pub(crate) struct Refunds(AtomicU64);

/// The word as a take saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefundsSeen(u64);

const UNDER_WAY: u64 = 1;

/// A count from which on *G* is no longer told: 2^62 ticks, 18 years' worth of one key's refunds.
const WORN: u64 = 1 << 62;

impl Refunds {
    pub(crate) fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The word as it is now: to be read before the take.
    #[inline]
    pub(crate) fn seen(&self) -> RefundsSeen {
        // Acquire: pairs with `give_back`. Who sees a refund ended also sees `tat` lowered.
        RefundsSeen(self.0.load(Ordering::Acquire))
    }

    /// Runs `lower`, alone among the refunds of this key. It is told *G* for a take that saw `seen`, if it can be told,
    /// and returns by how much it lowered `tat`.
    pub(crate) fn give_back(&self, seen: RefundsSeen, lower: impl FnOnce(Option<u64>) -> u64) {
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

        let total = word >> 1;
        let lowered = lower((total < WORN).then(|| total.saturating_sub(seen.0 >> 1)));
        let total = total.saturating_add(lowered).min(WORN);
        // Release: pairs with `seen`, and with the next to begin. The count grows after `tat` was lowered.
        self.0.store(total << 1, Ordering::Release);
    }
}

impl fmt::Debug for Refunds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Refunds").field(&(self.seen().0 >> 1)).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_since_is_told() {
        let refunds = Refunds::none();
        let first = refunds.seen();
        let mut during = first;
        refunds.give_back(first, |since| {
            assert_eq!(since, Some(0));
            during = refunds.seen();
            5
        });
        let second = refunds.seen();
        refunds.give_back(first, |since| since.unwrap() + 2);
        for (seen, expected) in [(first, 12), (during, 12), (second, 7), (refunds.seen(), 0)] {
            refunds.give_back(seen, |since| {
                assert_eq!(since, Some(expected));
                0
            });
        }
    }

    #[test]
    fn a_count_that_is_full_is_no_longer_told() {
        let refunds = Refunds::none();
        let seen = refunds.seen();
        refunds.give_back(seen, |_| WORN - 1);
        refunds.give_back(seen, |since| {
            assert_eq!(since, Some(WORN - 1));
            u64::MAX
        });
        refunds.give_back(refunds.seen(), |since| {
            assert_eq!(since, None);
            1
        });
    }
}
