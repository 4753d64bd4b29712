//! How use is carried from one policy to the next, and from one plan to another.

use super::claim::Claimed;
use super::way::{Way, parity_of, plan_of};
use super::{FixedStore, MAX_WORDS, PARITY};
use crate::plans::{Move, PlanTicks, Plans};
use crate::sync::{Ordering, fence};
use crate::ticks::Now;

impl<S> FixedStore<S> {
    /// The word in the n-th place of a way on a plan of the version before, as the version of `plans` counts it.
    pub(super) fn carried(plans: &Plans, by: Option<&Move>, n: usize, word: u64) -> u64 {
        let tat = word & !PARITY;
        let carry = |by: &Move| {
            let to = by.to.places.iter().position(|place| usize::from(*place) == n)?;
            let from = by.matched[to]?;
            Some(by.from.quotas[from].ticks.carry(tat, &by.to.quotas[to].ticks, plans.at))
        };
        let tat = match by {
            Some(by) if !by.as_before => carry(by).unwrap_or(0),
            _ => tat,
        };
        tat ^ parity_of(plans.version)
    }

    /// Has all words of a way counted by the version of `plans`. False if one is taken, or the way is somebody else's.
    pub(super) fn renew(&self, way: Way<'_>, plans: &Plans) -> bool {
        let (by, parity) = (plans.move_of(plan_of(way.tag)), parity_of(plans.version));
        (0..self.quotas).all(|n| {
            while let Some(word) = way.load(n) {
                if word & PARITY == parity {
                    return true;
                }
                if by.is_some_and(|by| !by.as_before) {
                    way.set.refunds.begin_life();
                }
                if way.exchange(n, word, Self::carried(plans, by, n, word)) {
                    return true;
                }
            }
            false
        })
    }

    /// The same for a way that was claimed and whose quotas change their places.
    pub(super) fn renew_claimed(&self, claimed: &mut Claimed<'_>, plans: &Plans, by: &Move, at: Now) {
        let Claimed { way, words } = claimed;
        let mut renewed = [parity_of(plans.version); MAX_WORDS];
        for (n, place) in by.to.places.iter().enumerate() {
            if let Some(tat) = carried_use(words, by, n, at) {
                renewed[usize::from(*place)] ^= tat;
            }
        }
        way.set.refunds.begin_life();
        words[..self.quotas].copy_from_slice(&renewed[..self.quotas]);
    }

    /// Freezes a way, unless it was frozen too late for the version of `plans`.
    pub(super) fn freeze_of<'a>(&self, way: Way<'a>, is_current: impl FnOnce() -> bool) -> Option<Claimed<'a>> {
        let claimed = self.freeze(way)?;
        if is_in_time(is_current) {
            return Some(claimed);
        }
        self.open(&claimed, way.tag);
        None
    }

    /// The way that the key of `hash` had on a plan that is gone, and whose keys went to `plan`.
    pub(super) fn left_behind(&self, hash: u64, plans: &Plans, plan: &PlanTicks) -> Option<Way<'_>> {
        self.of_hash(hash).find(|way| {
            let index = plan_of(way.tag);
            index != plan.index && plans.get(index).index == plan.index
        })
    }

    /// Carries a way on a plan that is gone over to the version of `plans`, and opens it for `tag`.
    pub(super) fn take_over(&self, way: Way<'_>, plans: &Plans, tag: u64, is_current: impl FnOnce() -> bool) {
        let Some(mut claimed) = self.freeze_of(way, is_current) else { return };
        self.renew_frozen(&mut claimed, plans);
        self.open(&claimed, tag);
    }

    /// Carries a way that was frozen over to the version of `plans`, if it is not of that yet.
    pub(super) fn renew_frozen(&self, claimed: &mut Claimed<'_>, plans: &Plans) {
        let renewed = claimed.words[0] & PARITY == parity_of(plans.version);
        if let Some(by) = plans.move_of(plan_of(claimed.way.tag)).filter(|_| !renewed) {
            self.renew_claimed(claimed, plans, by, plans.at);
        }
    }

    /// Adds what `words` on the plan that `by` comes from have used to what was used in `to`. False if that is somebody else's.
    pub(super) fn absorb(&self, to: Way<'_>, words: &[u64; MAX_WORDS], in_flight: u32, by: &Move, at: Now) -> bool {
        to.set.refunds.begin_life();
        let counted = self.in_flight.is_none_or(|place| to.swap(place, |word| Some(word + u64::from(in_flight))));
        counted
            && by.to.quotas.iter().enumerate().all(|(n, quota)| {
                let Some(other) = carried_use(words, by, n, at) else { return true };
                to.swap(usize::from(by.to.places[n]), |word| Some(quota.sum(word & !PARITY, other, at) | word & PARITY))
            })
    }

    /// Has a way counted by the version of `plans`: false if it has to be looked at again.
    pub(super) fn sweep(&self, set: usize, way: usize, plans: &Plans) -> bool {
        let tag = self.sets[set].tags[way].load(Ordering::Acquire);
        let way = self.way(set, way, tag);
        let Some(word) = way.load(0) else { return false };
        let index = plan_of(tag);
        if tag == 0 {
            // Nothing is known of it, whatever it is counted by.
            return true;
        }
        if plans.get(index).index == index {
            return self.renew(way, plans);
        }
        word & PARITY == parity_of(plans.version) || {
            self.take_over(way, plans, tag, || true);
            false
        }
    }
}

/// Where the n-th bucket of the plan that `by` goes to stands at the instant `at`, if it takes over the use of another.
pub(super) fn carried_use(words: &[u64; MAX_WORDS], by: &Move, n: usize, at: Now) -> Option<u64> {
    let from = by.matched[n]?;
    let tat = words[usize::from(by.from.places[from])] & !PARITY;
    Some(by.from.quotas[from].ticks.carry(tat, &by.to.quotas[n].ticks, at))
}

/// Whether the version is current still, now that something has been taken: then the sweep for the next one waits for that.
pub(super) fn is_in_time(is_current: impl FnOnce() -> bool) -> bool {
    // Pairs with the fence of the sweep: it sees what was taken, or this sees the version.
    fence(Ordering::SeqCst);
    is_current()
}
