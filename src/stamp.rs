//! What tells the states of keys apart, and what counts the refunds that come between a take and its own.
//!
//! A refund may give back no more than what has not come back by itself. What has come back shows in the bucket's
//! `tat`: a take that left it at *L* is all there while `tat` has stayed at *L* or above, and worth at most *L − now*.
//! But refunds of other takes lower `tat`. With a unit a second, let four units be taken at 0, *L* = 4 for the last,
//! and the first three be given back: `tat` is 1, and the bucket full at 1. Take three more at 2: `tat` is 5, which is
//! what it would be without any refund and one unit taken at 2. Whether the last of the four is still worth something
//! can't be told from `tat`; that three units were given back since has to be known.
//!
//! So a stamp counts what is given back, and a take notes the stamp that it saw. With *G* given back since, `tat` has
//! stayed at *L − G* or above, and the refund is worth at most *L − G − now*. Or, whatever was given back, at most the
//! take's charge less the time that has passed: nothing comes back faster than that.
//!
//! # Races
//!
//! Stamp and `tat` are two words. A refund first adds what it will give back at most, and marks itself as under way;
//! then it lowers `tat`; then it takes the mark away. For a take and a refund of another one:
//!
//! - The take saw neither: the amount is added after, and counts. Right if `tat` is lowered after the take, and too
//!   much, on the safe side, if before.
//! - The take saw the mark: `tat` may be lowered before or after it. It can't be told which, and the take's own refund
//!   goes by the time that has passed alone.
//! - The take saw the mark gone: `tat` had been lowered before it, and the amount must not count.
//!
//! Of two refunds at once, the one that adds second counts the first.

use std::fmt;

use crate::sync::{AtomicU64, Ordering};

/// Refunds under way are counted in the low bits, as many as threads can be at it at once.
const UNDER_WAY_BITS: u32 = 16;

/// What is above them: where this stamp was born, plus what was given back.
const AMOUNT_BITS: u32 = u64::BITS - UNDER_WAY_BITS;

/// 2^48 divided by the golden ratio, to the next odd number: its multiples lie as far apart as so many can (Knuth, The
/// Art of Computer Programming 3, 6.4).
const SPREAD: u64 = 0x9E37_79B9_7F4B;

/// The stamp of one state of one key.
pub(crate) struct Stamp(AtomicU64);

/// A stamp as a take saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen(u64);

impl Stamp {
    /// The stamp of the `number`th state. States whose numbers are near are born far apart.
    pub(crate) fn new(number: u64) -> Self {
        Self(AtomicU64::new(number.wrapping_mul(SPREAD) << UNDER_WAY_BITS))
    }

    /// The stamp as it is now; to be read before the take.
    #[inline]
    pub(crate) fn seen(&self) -> Seen {
        // Acquire: pairs with `end`. Who sees a mark gone also sees `tat` lowered.
        Seen(self.0.load(Ordering::Acquire))
    }

    /// Begins a refund of at most `amount`. Returns what was given back since a take that saw `seen`, this refund not
    /// counted; a take that saw the stamp of another state finds a number without meaning, and almost surely a large
    /// one.
    pub(crate) fn begin(&self, amount: u64, seen: Seen) -> u64 {
        // AcqRel: the addition comes before this thread lowers `tat`, and what earlier refunds have added is seen.
        let before = self.0.fetch_add((amount << UNDER_WAY_BITS) + 1, Ordering::AcqRel);
        (before >> UNDER_WAY_BITS).wrapping_sub(seen.0 >> UNDER_WAY_BITS) & (u64::MAX >> (u64::BITS - AMOUNT_BITS))
    }

    /// Ends a refund.
    pub(crate) fn end(&self) {
        // Release: pairs with `seen`. The mark goes after `tat` was lowered.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Seen {
    /// Whether a refund was under way.
    pub(crate) const fn refund_under_way(self) -> bool {
        self.0 & (u64::MAX >> AMOUNT_BITS) != 0
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stamp").field(&self.seen().0).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_counted_and_marked() {
        let stamp = Stamp::new(7);
        let first = stamp.seen();
        assert!(!first.refund_under_way());
        assert_eq!(stamp.begin(5, first), 0);
        assert!(stamp.seen().refund_under_way());
        stamp.end();
        let second = stamp.seen();
        assert!(!second.refund_under_way());
        assert_eq!(stamp.begin(1, first), 5);
        assert_eq!(stamp.begin(1, second), 1);
    }

    #[test]
    fn states_are_born_far_apart() {
        for start in [0, 1 << 20, u64::MAX - 50_000] {
            let mut births: Vec<u64> = (0..100_000).map(|n| Stamp::new(u64::wrapping_add(start, n)).seen().0).collect();
            births.sort_unstable();
            let nearest = births.windows(2).map(|two| (two[1] - two[0]) >> UNDER_WAY_BITS).min();
            assert!(nearest > Some(1 << 30), "{nearest:?}");
        }
    }
}
