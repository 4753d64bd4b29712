//! Sets, ways, and their words.

use super::{PARITY, TAKEN, WAYS};
use crate::refunds::Refunds;
use crate::sync::{AtomicU64, Backoff, Ordering};

/// What seven keys have in common, their tags, and the bucket of each, in one block of two cache lines.
#[repr(align(128))]
pub(super) struct Set {
    /// The floor, and in the lowest bit whether a newcomer has the latch.
    pub(super) head: AtomicU64,
    pub(super) refunds: Refunds,
    pub(super) tags: [AtomicU64; WAYS],
    pub(super) tats: [AtomicU64; WAYS],
}

/// Two further words of each way of a set.
#[repr(align(128))]
pub(super) struct More(pub(super) [[AtomicU64; WAYS]; 2]);

pub(super) fn words() -> [AtomicU64; WAYS] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

impl Set {
    pub(super) fn new() -> Self {
        Self { head: AtomicU64::new(0), refunds: Refunds::in_life(0), tags: words(), tats: words() }
    }

    /// Which way has that tag, if one has.
    // A mask, and no early exit: which way it is can't be foretold.
    #[inline(always)]
    pub(super) fn way_of(&self, tag: u64) -> Option<usize> {
        let mut mask = 0_u32;
        for (way, own) in self.tags.iter().enumerate() {
            // Relaxed: it is read again once the word is.
            mask |= u32::from(own.load(Ordering::Relaxed) == tag) << way;
        }
        (mask != 0).then(|| mask.trailing_zeros() as usize)
    }

    /// The latest instant that one of the ways was claimed at.
    pub(super) fn floor(&self) -> u64 {
        // Acquire: pairs with `raise_floor`.
        self.head.load(Ordering::Acquire) >> 1
    }

    pub(super) fn raise_floor(&self, now: u64) {
        // Release: pairs with `floor`. Who sees the way taken, which comes after, sees this.
        let raise = |head: u64| (head >> 1 < now).then_some(now << 1 | head & 1);
        let _ = self.head.fetch_update(Ordering::Release, Ordering::Relaxed, raise);
    }

    pub(super) fn latch(&self) -> Latch<'_> {
        let backoff = Backoff::new();
        // Acquire: pairs with the release of the latch. What the newcomers before have written is seen.
        while self.head.fetch_or(1, Ordering::Acquire) & 1 != 0 {
            backoff.snooze();
        }
        Latch(self)
    }
}

/// Whoever has this is the only newcomer to the keys whose first set it is.
pub(super) struct Latch<'a>(&'a Set);

impl Drop for Latch<'_> {
    fn drop(&mut self) {
        // Release: pairs with `latch`.
        self.0.head.fetch_and(!1, Ordering::Release);
    }
}

/// What tells the key of a hash from others of its sets, on the plan of that index. None is 0.
#[inline(always)]
pub(super) const fn tag_of(hash: u64, plan: u16) -> u64 {
    (hash | 1) << 16 | plan as u64
}

pub(super) const fn plan_of(tag: u64) -> u16 {
    tag as u16
}

/// What a word of that version is flipped by.
#[inline(always)]
pub(super) const fn parity_of(version: u64) -> u64 {
    if version.is_multiple_of(2) { 0 } else { PARITY }
}

/// A way, as whoever looks for `tag` has found it.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(super) set: &'a Set,
    /// Its further words, and those of the other ways of its set.
    pub(super) more: &'a [More],
    pub(super) way: usize,
    pub(super) tag: u64,
}

impl<'a> Way<'a> {
    #[inline]
    pub(super) fn word(self, n: usize) -> &'a AtomicU64 {
        match n {
            0 => &self.set.tats[self.way],
            n => &self.more[(n - 1) / 2].0[(n - 1) % 2][self.way],
        }
    }

    /// Whether it is somebody else's.
    #[inline]
    pub(super) fn has_left(self) -> bool {
        // Acquire: pairs with the store of the tag by a newcomer. Who still sees the old tag has read words of the old life.
        self.set.tags[self.way].load(Ordering::Acquire) != self.tag
    }

    /// The n-th word, unless it is taken or somebody else's.
    pub(super) fn load(self, n: usize) -> Option<u64> {
        // Acquire: pairs with the store by a newcomer, and keeps the look at the tag behind it.
        let word = self.word(n).load(Ordering::Acquire);
        (word != TAKEN && !self.has_left()).then_some(word)
    }

    /// Swaps the n-th word for what `change` says, waiting while it is taken. False if that is `None`, or if the way is somebody
    /// else's.
    pub(super) fn swap(self, n: usize, change: impl Fn(u64) -> Option<u64>) -> bool {
        let backoff = Backoff::new();
        while !self.has_left() {
            let Some(word) = self.load(n) else {
                backoff.snooze();
                continue;
            };
            let Some(next) = change(word) else { return false };
            if self.exchange(n, word, next) {
                return true;
            }
        }
        false
    }

    pub(super) fn exchange(self, n: usize, word: u64, next: u64) -> bool {
        // AcqRel: what was read before is of the life that the word is of, and who sees the new word sees that life.
        self.word(n).compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes the n-th word whatever it is, and returns it. `None` if the way is somebody else's.
    pub(super) fn freeze(self, n: usize) -> Option<u64> {
        let backoff = Backoff::new();
        while !self.has_left() {
            // By `load`: a word that is read before the look at the tag is not that of somebody who has come since.
            if let Some(word) = self.load(n)
                && self.exchange(n, word, TAKEN)
            {
                return Some(word);
            }
            backoff.snooze();
        }
        None
    }
}
