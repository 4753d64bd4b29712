//! How use is carried from one policy to the next, and from one plan to another.

use super::claim::Claimed;
use super::way::{Way, plan_of, stamp_of};
use super::{CLOSED, FixedStore, MAX_QUOTAS, MAX_WORDS, STAMP};
use crate::plans::{Move, PlanTicks, Plans};
use crate::sync::{Backoff, Ordering, fence};
use crate::ticks::Now;

/// What has become of a way that was to be counted by the version of a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Renewed {
    /// It is.
    Done,
    /// A word is taken, or the way is another key's.
    Busy,
    /// That version is not the current one any more.
    Stale,
}

impl<S> FixedStore<S> {
    /// Has all words of a way counted by the version of `plans`.
    ///
    /// A word says of which version it is in three values only. So a thread that has an old word in its hands is waited for
    /// by the end of the reload after that of its own version: it never meets a word that is of a later one and looks old.
    pub(super) fn renew(&self, way: Way<'_>, plans: &Plans, is_current: impl FnOnce() -> bool) -> Renewed {
        let stamp = stamp_of(plans.version);
        let is_of = |word: u64| word ^ stamp < CLOSED;
        let mut words = (0..self.quotas).map(|n| way.load(n));
        if words.all(|word| word.is_some_and(is_of)) {
            return Renewed::Done;
        }
        let renewing = &self.renewing[(plans.version % 2) as usize];
        // Relaxed: the fence orders it.
        renewing.fetch_add(1, Ordering::Relaxed);
        let renewed = if is_in_time(is_current) { self.renew_words(way, plans) } else { Renewed::Stale };
        // Release: pairs with the Acquire in `wait_for_renewals`.
        renewing.fetch_sub(1, Ordering::Release);
        renewed
    }

    /// The words in descending order, as the first may take over the use of another one: that is in its place by then.
    fn renew_words(&self, way: Way<'_>, plans: &Plans) -> Renewed {
        let (by, stamp) = (plans.move_of(plan_of(way.tag)), stamp_of(plans.version));
        for n in (0..self.quotas).rev() {
            loop {
                let Some(word) = way.load(n) else { return Renewed::Busy };
                if word ^ stamp < CLOSED {
                    break;
                }
                let tat = match by {
                    Some(by) if !by.as_before => match carried(way, plans, by, n, word & !STAMP) {
                        Some(tat) => tat,
                        None => return Renewed::Busy,
                    },
                    _ => word & !STAMP,
                };
                if way.exchange(n, word, tat ^ stamp) {
                    break;
                }
            }
        }
        Renewed::Done
    }

    /// The same for a way that was claimed and whose key comes to another plan.
    fn renew_claimed(&self, claimed: &mut Claimed<'_>, plans: &Plans, by: &Move, at: Now) {
        let Claimed { way, words } = claimed;
        let mut renewed = [stamp_of(plans.version); MAX_WORDS];
        // Once: a key of a plan that went earlier has done so by now.
        let comes = by.from.index != by.to.index;
        let inherited = if comes { plans.inherited_by_mover(&by.to) } else { [0; MAX_QUOTAS] };
        for (n, (place, quota)) in by.to.places.iter().zip(&by.to.quotas).enumerate() {
            let tat = carried_use(words, by, n, at).unwrap_or(0);
            renewed[usize::from(*place)] ^= if comes { quota.sum(tat, inherited[n], at) } else { tat };
        }
        way.refunds().begin_life();
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
        let renewed = claimed.words[0] ^ stamp_of(plans.version) < CLOSED;
        if let Some(by) = plans.move_of(plan_of(way.tag)).filter(|_| !renewed) {
            self.renew_claimed(&mut claimed, plans, by, plans.at);
        }
        self.open(&claimed, tag);
    }

    /// Adds what `words` on the plan that `by` comes from have used to what was used in `to`. False if that is another key's.
    pub(super) fn absorb(&self, to: Way<'_>, words: &[u64; MAX_WORDS], in_flight: u32, by: &Move, at: Now) -> bool {
        let mut absorbed = self.in_flight.is_none_or(|place| to.swap(place, |word| Some(word + u64::from(in_flight))));
        if absorbed {
            to.refunds().renew(|| {
                absorbed = by.to.quotas.iter().enumerate().all(|(n, quota)| {
                    let Some(other) = carried_use(words, by, n, at) else { return true };
                    let sum = |word: u64| Some(quota.sum(word & !STAMP, other, at) | word & STAMP);
                    to.swap(usize::from(by.to.places[n]), sum)
                });
            });
        }
        absorbed
    }

    /// Moves what was used in the way `from` by `by`: into `to`, or along with the way for `to_tag`. The refunds of `from` are the
    /// caller's own. False if that has to be tried again.
    #[expect(clippy::too_many_arguments, reason = "what they have in common is this call")]
    pub(super) fn move_way(
        &self,
        from: Way<'_>,
        to: Option<Way<'_>>,
        plans: &Plans,
        to_tag: u64,
        by: &Move,
        at: Now,
        is_current: impl FnOnce() -> bool,
    ) -> bool {
        let Some(mut claimed) = self.freeze_of(from, is_current) else { return false };
        if to.is_some_and(|to| self.absorb(to, &claimed.words, self.in_flight_of(&claimed), by, at)) {
            self.empty(claimed);
        } else {
            self.renew_claimed(&mut claimed, plans, by, at);
            self.open(&claimed, to_tag);
        }
        true
    }

    /// Has a way counted by the version of `plans`: false if it has to be looked at again.
    pub(super) fn sweep(&self, set: usize, way: usize, plans: &Plans, is_current: impl FnOnce() -> bool) -> bool {
        let tag = self.sets[set].tags[way].load(Ordering::Acquire);
        let way = self.way(set, way, tag);
        let Some(word) = way.load(0) else { return false };
        let index = plan_of(tag);
        if tag == 0 {
            // Nothing is known of it, whatever it is counted by.
            return true;
        }
        if plans.get(index).index == index {
            return self.renew(way, plans, is_current) == Renewed::Done;
        }
        word ^ stamp_of(plans.version) < CLOSED || {
            self.take_over(way, plans, tag, is_current);
            false
        }
    }

    /// Waits for the threads that renew words to the version before that of `plans`.
    pub(super) fn wait_for_renewals(&self, plans: &Plans) {
        let backoff = Backoff::new();
        // Acquire: pairs with the Release in `renew`. What those threads have written is seen by the next sweep.
        while self.renewing[(plans.version.wrapping_sub(1) % 2) as usize].load(Ordering::Acquire) != 0 {
            backoff.snooze();
        }
    }
}

/// What the n-th word of a way becomes by a move within its plan, if it is that `tat` now. `None` if another word that it
/// depends on is not renewed.
fn carried(way: Way<'_>, plans: &Plans, by: &Move, n: usize, tat: u64) -> Option<u64> {
    let place = |place: &u8| usize::from(*place);
    // A quota that takes another's place is carried over where it was, and then copied.
    if let Some(to) = by.to.places.iter().position(|own| place(own) == n)
        && let Some(from) = by.matched[to]
        && place(&by.from.places[from]) != n
    {
        let copied = way.load(place(&by.from.places[from]))? ^ stamp_of(plans.version);
        return (copied < CLOSED).then_some(copied);
    }
    let to = by.matched.iter().position(|from| from.is_some_and(|from| place(&by.from.places[from]) == n));
    let carry = |to: usize| {
        let from = by.matched[to]?;
        Some(by.from.quotas[from].ticks.carry(tat, &by.to.quotas[to].ticks, plans.at))
    };
    Some(to.and_then(carry).unwrap_or(0))
}

/// Where the n-th bucket of the plan that `by` goes to stands at the instant `at`, if it takes over the use of another.
fn carried_use(words: &[u64; MAX_WORDS], by: &Move, n: usize, at: Now) -> Option<u64> {
    let from = by.matched[n]?;
    let tat = words[usize::from(by.from.places[from])] & !STAMP;
    Some(by.from.quotas[from].ticks.carry(tat, &by.to.quotas[n].ticks, at))
}

/// Whether the version is current still, now that something has been taken: then the sweep for the next one waits for that.
pub(super) fn is_in_time(is_current: impl FnOnce() -> bool) -> bool {
    // SeqCst: pairs with the fence of the sweep: it sees what was taken, or this sees the version.
    fence(Ordering::SeqCst);
    is_current()
}
