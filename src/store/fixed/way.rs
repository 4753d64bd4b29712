//! Sets, ways, and their words.

use super::{STAMP_SHIFT, TAKEN, WAYS};
use crate::refunds::Refunds;
use crate::sync::{AtomicU64, Backoff, Ordering, prefetch};

/// What checks need of seven keys: the tag and the bucket of each, in one block of two cache lines.
#[repr(align(128))]
pub(super) struct Set {
    /// A byte of each way's tag, by which to find it.
    marks: AtomicU64,
    /// Until when newcomers inherit the debt of the overflow.
    pub(super) over: AtomicU64,
    pub(super) tags: [AtomicU64; WAYS],
    pub(super) tats: [AtomicU64; WAYS],
}

/// What takes and newcomers need beside that, in a cache line that a denial does not touch.
#[repr(align(64))]
pub(super) struct Gate {
    /// The floor, and in the lowest bit whether a newcomer has the latch.
    head: AtomicU64,
    /// What the refunds of each way need.
    pub(super) refunds: [Refunds; WAYS],
}

/// Two further words of each way of a set.
#[repr(align(128))]
pub(super) struct More(pub(super) [[AtomicU64; WAYS]; 2]);

pub(super) fn words() -> [AtomicU64; WAYS] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

impl Set {
    pub(super) fn new() -> Self {
        Self { marks: AtomicU64::new(0), over: AtomicU64::new(0), tags: words(), tats: words() }
    }

    /// Asks for its memory.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch(&self.tags, 0);
        prefetch(&self.tats, WAYS / 2);
    }

    /// Whether the key of a hash may be here, on any plan.
    #[inline(always)]
    pub(super) fn may_have(&self, hash: u64) -> bool {
        self.alike(tag_of(hash, 0)) & ALL_WAYS != 0
    }

    /// The highest bit of the byte of each way whose mark is that of a tag, and perhaps of some above.
    #[inline(always)]
    fn alike(&self, tag: u64) -> u64 {
        // Relaxed: who does not see a newcomer's mark yet does not know it, and looks again with the latch.
        let differing = self.marks.load(Ordering::Relaxed) ^ (mark_of(tag) * EACH_BYTE);
        differing.wrapping_sub(EACH_BYTE) & !differing & (EACH_BYTE << 7)
    }

    /// The way that has that tag, with its first word, if there is one.
    // Which way it is can't be foretold: so there is no branch for each, and one look at all marks in place of seven at tags.
    #[inline(always)]
    pub(super) fn find(&self, tag: u64) -> Option<(usize, u64)> {
        let mut alike = self.alike(tag);
        while alike != 0 {
            let way = alike.trailing_zeros() as usize / 8;
            // Acquire: pairs with the store by a newcomer, and keeps the look at the tag behind it.
            let word = self.tats.get(way)?.load(Ordering::Acquire);
            // Acquire: as in `Way::has_left`.
            if self.tags[way].load(Ordering::Acquire) == tag {
                return Some((way, word));
            }
            alike &= alike - 1;
        }
        None
    }

    /// Makes `tag` that of a way, which the caller has taken.
    pub(super) fn put_tag(&self, way: usize, tag: u64) {
        // Relaxed: no other thread changes the tag or the mark of this way.
        let change = mark_of(self.tags[way].load(Ordering::Relaxed)) ^ mark_of(tag);
        if change != 0 {
            self.marks.fetch_xor(change << (8 * way), Ordering::Relaxed);
        }
        // Release: pairs with the loads in `Way`.
        self.tags[way].store(tag, Ordering::Release);
    }
}

impl Gate {
    pub(super) fn new() -> Self {
        Self { head: AtomicU64::new(0), refunds: std::array::from_fn(|_| Refunds::in_life(0)) }
    }

    /// Asks for its memory.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch(&self.refunds, 0);
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

    /// Lowers the floor, as time goes on from the instant `at`.
    pub(super) fn lower_floor(&self, at: u64) {
        // Release: as in `raise_floor`.
        let lower = |head: u64| (head >> 1 > at).then_some(at << 1 | head & 1);
        let _ = self.head.fetch_update(Ordering::Release, Ordering::Relaxed, lower);
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
pub(super) struct Latch<'a>(&'a Gate);

impl Drop for Latch<'_> {
    fn drop(&mut self) {
        // Release: pairs with `latch`.
        self.0.head.fetch_and(!1, Ordering::Release);
    }
}

/// Tells a way of the first set of a key, or of its second, from all others that the key may have.
#[inline(always)]
pub(super) const fn home_of(way: usize, is_second: bool) -> u8 {
    way as u8 | (is_second as u8) << 3
}

/// The bytes of the marks that belong to a way.
const ALL_WAYS: u64 = u64::MAX >> (64 - 8 * WAYS);

/// 1 in each byte.
const EACH_BYTE: u64 = u64::MAX / 0xFF;

/// Of a tag, the byte that is its mark: of the hash what neither chooses the set nor is far from random.
const fn mark_of(tag: u64) -> u64 {
    tag >> 32 & 0xFF
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
pub(super) const fn stamp_of(version: u64) -> u64 {
    (version % 3) << STAMP_SHIFT
}

/// A way, as a caller that looks for `tag` has found it.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(super) set: &'a Set,
    pub(super) gate: &'a Gate,
    /// Its further words, and those of the other ways of its set.
    pub(super) more: &'a [More],
    pub(super) way: usize,
    pub(super) tag: u64,
    /// Tells it from the other ways that its key may have.
    pub(super) home: u8,
}

impl<'a> Way<'a> {
    #[inline(always)]
    pub(super) fn word(self, n: usize) -> &'a AtomicU64 {
        match n {
            0 => &self.set.tats[self.way],
            n => &self.more[(n - 1) / 2].0[(n - 1) % 2][self.way],
        }
    }

    #[inline(always)]
    pub(super) fn refunds(self) -> &'a Refunds {
        &self.gate.refunds[self.way]
    }

    /// Whether it is another key's.
    #[inline(always)]
    pub(super) fn has_left(self) -> bool {
        // Acquire: pairs with the store of the tag by a newcomer. Who still sees the old tag has read words of the old life.
        self.set.tags[self.way].load(Ordering::Acquire) != self.tag
    }

    /// The n-th word, unless it is taken or another key's.
    #[inline(always)]
    pub(super) fn load(self, n: usize) -> Option<u64> {
        // Acquire: pairs with the store by a newcomer, and keeps the look at the tag behind it.
        let word = self.word(n).load(Ordering::Acquire);
        (word != TAKEN && !self.has_left()).then_some(word)
    }

    /// Swaps the n-th word for what `change` says, waiting while it is taken. False if that is `None`, or if the way is another
    /// key's.
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

    #[inline(always)]
    pub(super) fn exchange(self, n: usize, word: u64, next: u64) -> bool {
        // AcqRel: what was read before is of the life that the word is of, and who sees the new word sees that life.
        self.word(n).compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes the n-th word whatever it is, and returns it. `None` if the way is another key's.
    pub(super) fn freeze(self, n: usize) -> Option<u64> {
        let backoff = Backoff::new();
        while !self.has_left() {
            // By `load`: a word that is read before the look at the tag is not that of a key that has come since.
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
