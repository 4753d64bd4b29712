//! How ways change hands.

use super::way::{Way, home_of, stamp_of};
use super::{CLOSED, COUNT, FixedStore, LIVES, MAX_WORDS, STAMP, TAKEN, WAYS};
use crate::plans::{PlanTicks, Plans};
use crate::stats::count;
use crate::sync::Ordering;

/// A way that was claimed, with the words that were there.
pub(super) struct Claimed<'a> {
    pub(super) way: Way<'a>,
    pub(super) words: [u64; MAX_WORDS],
}

impl<S> FixedStore<S> {
    /// Whether the n-th word of a way of that `tag` is as a fresh one at the instant `now`. One that is full since this very
    /// instant is not yet: the next life starts now, and has to start later than the words of this one. Nor is one that is not
    /// counted by the version of that `stamp`: it is not known what it says. Of an empty way, nothing is.
    fn is_idle(&self, n: usize, tag: u64, word: u64, stamp: u64, now: u64) -> bool {
        if Some(n) == self.in_flight {
            return word != TAKEN && word & COUNT == 0;
        }
        let tat = if tag == 0 && word != TAKEN { word & !STAMP } else { word ^ stamp };
        tat == 0 || tat < now
    }

    /// By what to choose a way among several that are idle at the instant `now`; `None` if it is in use.
    pub(super) fn look_at(&self, set: usize, way: usize, stamp: u64, now: u64) -> Option<(bool, u64)> {
        let tag = self.sets[set].tags[way].load(Ordering::Relaxed);
        let way = self.way(set, way, tag);
        // Relaxed: a claim looks again.
        let word = |n| way.word(n).load(Ordering::Relaxed);
        let idle = (0..self.words()).all(|n| self.is_idle(n, tag, word(n), stamp, now));
        idle.then(|| (tag != 0, word(0) & !STAMP))
    }

    /// A way for the key of a hash, if there is one that is idle: in the first set while half of that is, else in the one of
    /// which more is.
    pub(super) fn claim_for(&self, hash: u64, stamp: u64, now: u64) -> Option<Claimed<'_>> {
        let in_use = |set| (0..WAYS).filter(|way| self.look_at(set, *way, stamp, now).is_none()).count();
        let (first, second) = self.sets_of(hash);
        let second = second();
        let used = in_use(first);
        let order = if used <= WAYS / 2 || used <= in_use(second) { [first, second] } else { [second, first] };
        order.into_iter().find_map(|set| {
            let mut claimed = self.claim_in(set, stamp, now)?;
            claimed.way.home = home_of(claimed.way.way, set != first);
            Some(claimed)
        })
    }

    /// Claims an empty way of the set, or else the one that has been idle for longest.
    fn claim_in(&self, set: usize, stamp: u64, now: u64) -> Option<Claimed<'_>> {
        let mut tried = [false; WAYS];
        loop {
            let idle = |way| Some((self.look_at(set, way, stamp, now)?, way));
            let ((is_used, _), way) = (0..WAYS).filter(|way| !tried[*way]).filter_map(idle).min()?;
            tried[way] = true;
            if is_used {
                self.gates[set].raise_floor(now);
            }
            let tag = self.sets[set].tags[way].load(Ordering::Relaxed);
            if let Some(claimed) = self.claim(set, self.way(set, way, tag), stamp, now) {
                return Some(claimed);
            }
        }
    }

    /// Takes all words of a way, if all of them are idle at the instant `now`.
    fn claim<'a>(&self, set: usize, way: Way<'a>, stamp: u64, now: u64) -> Option<Claimed<'a>> {
        let mut words = [0; MAX_WORDS];
        // The first word last: until it is taken, the way is its key's.
        for n in (1..self.words()).chain([0]) {
            // What has become another key's is as good as in use.
            words[n] = way.load(n).unwrap_or(TAKEN);
            if !self.is_idle(n, way.tag, words[n], stamp, now) || !way.exchange(n, words[n], TAKEN) {
                let taken = if n == 0 { 1..self.words() } else { 1..n };
                // Release: as for a newcomer's words.
                taken.for_each(|n| way.word(n).store(words[n], Ordering::Release));
                return None;
            }
        }
        // If it has changed hands and looked the same, nothing was taken from it since, but it had another key.
        let tag = way.set.tags[way.way].load(Ordering::Relaxed);
        if tag != way.tag {
            self.gates[set].raise_floor(now);
        }
        Some(Claimed { way: Way { tag, ..way }, words })
    }

    /// Takes all words of a way, whatever they are. `None` if it is another key's.
    pub(super) fn freeze<'a>(&self, way: Way<'a>) -> Option<Claimed<'a>> {
        let mut words = [0; MAX_WORDS];
        for (n, word) in words.iter_mut().enumerate().take(self.words()) {
            // Once the first is taken, so is the way.
            *word = way.freeze(n)?;
        }
        Some(Claimed { way, words })
    }

    /// Opens a way that was claimed, for callers that look for `tag`.
    pub(super) fn open(&self, claimed: &Claimed<'_>, tag: u64) {
        let Claimed { way, words } = claimed;
        // The tag before the words, and the first word last.
        way.set.put_tag(way.way, tag);
        for n in (0..self.words()).rev() {
            // Release: pairs with the loads in `Way`.
            way.word(n).store(words[n], Ordering::Release);
        }
    }

    /// Opens a way that was claimed for the key of `tag` on `plan`, whose buckets are full from `full_at` on.
    pub(super) fn begin_life<'a>(
        &self,
        mut claimed: Claimed<'a>,
        plans: &Plans,
        plan: &PlanTicks,
        tag: u64,
        full_at: impl Fn(usize) -> u64,
    ) -> Way<'a> {
        count(if claimed.way.tag == 0 { &self.counts.keys } else { &self.counts.evictions });
        let stamp = stamp_of(plans.version);
        claimed.way.refunds().begin_life();
        claimed.words[..self.quotas].fill(stamp);
        for (n, place) in plan.places.iter().enumerate() {
            claimed.words[usize::from(*place)] = full_at(n) ^ stamp;
        }
        if let Some(place) = self.in_flight {
            claimed.words[place] = next_life(claimed.words[place]);
        }
        self.open(&claimed, tag);
        Way { tag, ..claimed.way }
    }

    /// Opens a way that was frozen and whose use is elsewhere by now, as an empty one. Its refunds are the caller's own: one
    /// that was under way could lower what comes after.
    pub(super) fn empty(&self, mut claimed: Claimed<'_>) {
        claimed.words[..self.quotas].fill(0);
        if let Some(place) = self.in_flight {
            claimed.words[place] = next_life(claimed.words[place]);
        }
        self.open(&claimed, 0);
        self.counts.keys.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many requests are in flight in a way that was claimed.
    pub(super) fn in_flight_of(&self, claimed: &Claimed<'_>) -> u32 {
        self.in_flight.map_or(0, |place| (claimed.words[place] & COUNT) as u32)
    }

    /// Whether a newcomer to these sets would get a way of its own.
    pub(super) fn has_room(&self, hash: u64, stamp: u64, now: u64) -> bool {
        self.both(hash).any(|set| (0..WAYS).any(|way| self.look_at(set, way, stamp, now).is_some()))
    }

    /// Has the ways of both sets of a hash counted by the version of `plans`, as far as that can be done without waiting, so
    /// that it is known which of them are idle.
    pub(super) fn renew_sets(&self, hash: u64, plans: &Plans, is_current: impl Fn() -> bool) {
        let stamp = stamp_of(plans.version);
        for set in self.both(hash) {
            for way in 0..WAYS {
                // Relaxed: the renewal looks again.
                let tag = self.sets[set].tags[way].load(Ordering::Relaxed);
                let word = self.sets[set].tats[way].load(Ordering::Relaxed);
                if tag != 0 && word != TAKEN && word ^ stamp >= CLOSED {
                    self.sweep(set, way, plans, &is_current);
                }
            }
        }
    }

    /// The instant until when newcomers to that set inherit the debt of the overflow. While a new policy is being put in force,
    /// a debt that there was when it came may last for longer than was known.
    pub(super) fn may_owe(&self, set: usize, plans: &Plans) -> u64 {
        // Acquire: pairs with the store in `carry_all`, after which the instants are those of this version.
        let is_carried = self.counts.carried.load(Ordering::Acquire) >= plans.version;
        let over = self.sets[set].over.load(Ordering::Acquire);
        if is_carried || over <= plans.at.ticks() { over } else { u64::MAX }
    }

    /// When a bucket of a newcomer to these sets is full, at the earliest.
    pub(super) fn floor(&self, hash: u64) -> u64 {
        self.both(hash).map(|set| self.gates[set].floor()).max().unwrap_or(0)
    }
}

/// The word of requests in flight in the next life of its way: none.
const fn next_life(word: u64) -> u64 {
    ((word >> 32) + 1) << 32 & LIVES
}
