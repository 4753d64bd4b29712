//! How ways change hands.

use super::way::{Way, parity_of};
use super::{COUNT, FixedStore, LIVES, MAX_WORDS, PARITY, TAKEN, WAYS};
use crate::plans::{PlanTicks, Plans};
use crate::stats::count;
use crate::sync::Ordering;

/// A way that was claimed, with the words that were there.
pub(super) struct Claimed<'a> {
    pub(super) way: Way<'a>,
    pub(super) words: [u64; MAX_WORDS],
}

impl<S> FixedStore<S> {
    /// Whether the n-th word is as a fresh one at the instant `now`. One that is full since this very instant is not yet: the
    /// next life starts now, and has to start later than the words of this one.
    pub(super) fn is_idle(&self, n: usize, word: u64, now: u64) -> bool {
        let tat = word & !PARITY;
        word != TAKEN && if Some(n) == self.in_flight { word & COUNT == 0 } else { tat == 0 || tat < now }
    }

    /// By what to choose a way among several that are not in use at the instant `now`, if it is none that is.
    pub(super) fn look_at(&self, set: usize, way: usize, now: u64) -> Option<(bool, u64)> {
        let tag = self.sets[set].tags[way].load(Ordering::Relaxed);
        let way = self.way(set, way, tag);
        // Relaxed: a claim looks again.
        let word = |n| way.word(n).load(Ordering::Relaxed);
        let idle = (0..self.words()).all(|n| self.is_idle(n, word(n), now));
        idle.then(|| (tag != 0, word(0) & !PARITY))
    }

    /// A way for the key of a hash, if there is one that is not in use: in the first set while half of that is not, else in the
    /// one of which less is.
    pub(super) fn claim_for(&self, hash: u64, now: u64) -> Option<Claimed<'_>> {
        let in_use = |set| (0..WAYS).filter(|way| self.look_at(set, *way, now).is_none()).count();
        let (first, second) = self.sets_of(hash);
        let second = second();
        let used = in_use(first);
        let order = if used <= WAYS / 2 || used <= in_use(second) { [first, second] } else { [second, first] };
        order.into_iter().find_map(|set| self.claim_in(set, now))
    }

    /// Claims an empty way of the set, or else the one that has been idle for longest.
    pub(super) fn claim_in(&self, set: usize, now: u64) -> Option<Claimed<'_>> {
        let mut tried = [false; WAYS];
        loop {
            let idle = (0..WAYS).filter(|way| !tried[*way]).filter_map(|way| Some((self.look_at(set, way, now)?, way)));
            let ((is_used, _), way) = idle.min()?;
            tried[way] = true;
            if is_used {
                self.gates[set].raise_floor(now);
            }
            let tag = self.sets[set].tags[way].load(Ordering::Relaxed);
            if let Some(claimed) = self.claim(set, self.way(set, way, tag), now) {
                return Some(claimed);
            }
        }
    }

    /// Takes all words of a way, if all of them are idle at the instant `now`.
    pub(super) fn claim<'a>(&self, set: usize, way: Way<'a>, now: u64) -> Option<Claimed<'a>> {
        let mut words = [0; MAX_WORDS];
        // The first word last: until it is taken, the way is whose it was.
        for n in (1..self.words()).chain([0]) {
            // What has become somebody else's is as good as in use.
            words[n] = way.load(n).unwrap_or(TAKEN);
            if !self.is_idle(n, words[n], now) || !way.exchange(n, words[n], TAKEN) {
                let taken = if n == 0 { 1..self.words() } else { 1..n };
                // Release: as for a newcomer's words.
                taken.for_each(|n| way.word(n).store(words[n], Ordering::Release));
                return None;
            }
        }
        // If it has changed hands and looked the same, nothing was taken from it since, but it was somebody's.
        let tag = way.set.tags[way.way].load(Ordering::Relaxed);
        if tag != way.tag {
            self.gates[set].raise_floor(now);
        }
        Some(Claimed { way: Way { tag, ..way }, words })
    }

    /// Takes all words of a way, whatever they are. `None` if it is somebody else's.
    pub(super) fn freeze<'a>(&self, way: Way<'a>) -> Option<Claimed<'a>> {
        let mut words = [0; MAX_WORDS];
        for (n, word) in words.iter_mut().enumerate().take(self.words()) {
            // Once the first is taken, so is the way.
            *word = way.freeze(n)?;
        }
        Some(Claimed { way, words })
    }

    /// Opens a way that was claimed, for whoever looks for `tag`.
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
        in_flight: u32,
    ) -> Way<'a> {
        count(if claimed.way.tag == 0 { &self.counts.keys } else { &self.counts.evictions });
        let parity = parity_of(plans.version);
        claimed.words[..self.quotas].fill(parity);
        for (n, place) in plan.places.iter().enumerate() {
            claimed.words[usize::from(*place)] = full_at(n) ^ parity;
        }
        if let Some(place) = self.in_flight {
            claimed.words[place] = next_life(claimed.words[place]) | u64::from(in_flight);
        }
        self.open(&claimed, tag);
        Way { tag, ..claimed.way }
    }

    /// Opens a way that was claimed in vain, as an empty one: whose it was may have found it taken, and have another by now.
    pub(super) fn give_up(&self, claimed: &Claimed<'_>) {
        self.open(claimed, 0);
        if claimed.way.tag != 0 {
            self.counts.keys.fetch_sub(1, Ordering::Relaxed);
            count(&self.counts.evictions);
        }
    }

    /// Opens a way that was frozen and whose use is elsewhere by now, as an empty one.
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
    pub(super) fn has_room(&self, hash: u64, now: u64) -> bool {
        self.both(hash).any(|set| (0..WAYS).any(|way| self.look_at(set, way, now).is_some()))
    }

    /// The instant until when newcomers to that set inherit the debt of the overflow. While a new policy is being put in force,
    /// a debt that there was when it came may last for longer than was known.
    pub(super) fn may_owe(&self, set: usize, plans: &Plans) -> u64 {
        // Acquire: pairs with the store in `carry_all`, after which the instants are those of this version.
        let is_carried = self.counts.carried.load(Ordering::Acquire) >= plans.version;
        let over = self.gates[set].over.load(Ordering::Acquire);
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
