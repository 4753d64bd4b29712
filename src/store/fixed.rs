//! The store of fixed size: lock-free for known keys, in safe code, its memory taken once.
//!
//! A key is a 64-bit hash. It has two candidate *sets* of seven *ways* each. A way is a tag, which is 47 bits of the hash and
//! the index of the plan, and a word for each quota that a plan may have. Tags and first words of a set lie in one aligned
//! block of 128 bytes; what only takes and newcomers need, in a *gate* of 64 bytes; further words, for plans of several quotas,
//! in blocks of their own.
//!
//! # Marks
//!
//! A byte of each tag, its *mark*, stands in a word of the set, so that one comparison finds the ways that may have a tag. It is
//! only a hint: the tag decides. The thread that has claimed a way changes its mark just before its tag, and no other does. A
//! caller that sees neither yet, or the mark of another life, does not find the key, and looks again under the latch that
//! newcomers have.
//!
//! # Words
//!
//! A word is `tat` in its low 62 bits and, above it, the *stamp*: the version, modulo three, of the policy that it is counted by.
//! While its way changes hands it is [`TAKEN`]. Flipped by the stamp that a caller goes by, each word that is not for it is
//! [`CLOSED`] or above. No room of a bucket reaches that far, so that a take needs no further branch to know.
//!
//! # Known keys
//!
//! A caller finds a way by its mark in its first set or its second, reads the word, and then the tag: if that is right, the
//! word is of this key. A denial writes nothing. A take swaps the word, and reads the tag once more: if that has changed, it
//! can't tell whose word it has moved on, and decides again, at worst at the cost of a unit of another key; it is never
//! admitted for free. A known key waits for no other thread, but if it is idle: then its check waits for a newcomer that is
//! taking its place.
//!
//! Could a word be read in one life of a way and swapped in a later one in which it has come to the same value, and the tag
//! have come back as well? A new life starts at the time of the claim or later, which is after all of the old one, and `tat`
//! only rises in it but for refunds. So it takes a refund, two changes of hands while one thread stands still twice, at the
//! one instruction and the next but one, and two instants that are alike to the eighth of a nanosecond; the loss is then one
//! take.
//!
//! # Newcomers
//!
//! A newcomer takes the *latch* in the gate of its first set, so that there is one newcomer of a key at a time; others for that
//! set wait. It looks again, then claims an empty way or an idle one, in the first set while at most three of its ways are in
//! use, else in that with fewer: what is idle equals a fresh bucket, and nothing is lost with it. Only a word of the version
//! that the newcomer goes by can be idle: others are carried over first, or are in use. A way is *claimed* by
//! swapping each idle word for `TAKEN`, the first word last: from then on it is no key's. If one of them is not idle any more,
//! the others are put back. Then the tag is written, and the words, the first one last: a caller that sees it sees the others.
//!
//! Each set has a *floor*, the latest instant that a way of it was claimed at, raised before the claim. New buckets are full
//! from the floors of both sets on and not before, so that a clock that goes backwards finds no fresh bucket for a key
//! that was evicted later.
//!
//! If all ways of both sets are in use, the newcomer is charged to the overflow of its plan, under the latch, and its first
//! set remembers until when that may matter. A key that gets a way of its own before then inherits the debt of the overflow.
//!
//! # Refunds
//!
//! What refunds need (see `refunds.rs`) is kept for each way. A refund waits for another of the same way; checks, newcomers and
//! renewals never wait for one. It lowers a word by compare-and-swap, and so finds the word changed if its way was given to
//! another key meanwhile: an idle word is before the floor, and no later one of the way is. A way that is emptied though it
//! is not idle, since its use has moved to another plan, waits for a refund first.
//!
//! # A new policy
//!
//! A quota that stays keeps its place among the words of a way. So each word is carried over by itself, with one swap, by the
//! sweep or by the caller that meets it first, and the outcome is the same. Only the lone quota of a plan that shrinks moves to
//! the first place: its word is carried over where it was, and then copied. The sweep waits for ways that are taken; a claim
//! looks after its first swap whether the version is still the current one, and if not puts the words back. At its end the
//! sweep waits for threads that carry words over to the version before its own. So no word is left of the version before, nor
//! will one be made, and the stamp is free to be used again. A thread that sleeps through two new policies finds the version
//! changed after its take, and decides again.
//!
//! Keys of a plan that is gone stay where they are, carried over to the plan that they went to. When the key comes for that
//! plan and is not known there, it takes its old way over.

mod carry;
mod claim;
mod in_flight;
#[cfg(feature = "global")]
mod ledgers;
mod state;
mod way;

use std::fmt;
use std::hash::BuildHasher;

use super::{CLOSED, KeyState, Newcomer, Store, Stores, resident};
use crate::clock::Time;
use crate::decision::{Seen, Source};
use crate::error::BuildError;
use crate::key::Key;
use crate::plans::{MAX_QUOTAS, Move, PlanTicks, Plans, Simple, Wish, in_overflow};
use crate::refunds::RefundsSeen;
use crate::shared::{Who, Write};
use crate::sync::{AtomicU64, Backoff, CachePadded, Ordering, fence};
use crate::ticks::Now;
use carry::{Renewed, is_in_time};
#[cfg(feature = "global")]
use ledgers::WithLedgers;
use state::FixedState;
use way::{Gate, Latch, More, Set, Way, home_of, stamp_of, tag_of, words};

/// Ways of a set. Models have one, or no model would end.
const WAYS: usize = if cfg!(loom) { 1 } else { 7 };

/// Of 10,000 ways so many are in use when there are as many keys as were expected.
const LOAD: u64 = if cfg!(loom) { 10_000 } else { 6_000 };

/// In the place of a word whose way changes hands.
const TAKEN: u64 = u64::MAX;

/// Where in a word it says by the policy of which version it is counted.
const STAMP_SHIFT: u32 = 62;

/// The bits of a word that say so.
const STAMP: u64 = 3 << STAMP_SHIFT;

/// The words that a way can have: one for each quota, and one for requests in flight.
const MAX_WORDS: usize = MAX_QUOTAS + 1;

/// In the word of requests in flight: how many there are. Above it is a number that changes with each life.
const COUNT: u64 = u32::MAX as u64;

/// That number.
const LIVES: u64 = !COUNT & !STAMP;

/// The store of fixed size: lock-free for known keys, and the fastest; [`Builder::fixed`](crate::Builder::fixed) makes it,
/// and this names it in types, as in `Limiter<str, RandomState, Fixed>`.
///
/// # Trade-offs
///
/// - **Its memory is taken when it is made**, for the number of keys that are *active* at once, which is those that are not idle:
///   192 bytes for a set of seven keys, 60 % of which are expected to be in use: 45.7 bytes for each key that is expected,
///   whatever a key is. Plans of two or three quotas take 128 bytes more for each set, 76.2 bytes a key, and so on for
///   each further two; a limit of requests in flight counts as a quota.
/// - **With as many keys as expected, practically all have buckets of their own**; with a sixth more, some 20 in a million have
///   none, with a third more a thousandth. They share the overflow buckets of their plan, as in the default store
///   at [`max_keys`](crate::Builder::max_keys), and [`stats`](crate::Limiter::stats) counts their checks. Known keys
///   notice nothing, so that invented keys change neither memory nor what known clients get.
/// - **A key is its hash and its plan**: two keys share a bucket if they have 47 bits of the hash and the plan in common, and one
///   of the two sets that the other bits choose. Of a million keys that happens to any two in one of some ten million stores.
///   No hasher that leaves some of the 64 bits alone will do. What it resists is up to the hasher, see
///   [`RandomState`](crate::RandomState).
/// - **A known key waits for no other thread** that is stopped in a check, a refund, or a reload, but if it is idle: its
///   check may then wait for a newcomer that is just taking its place. A newcomer waits for other newcomers of its set, and
///   refunds, [`reset`](crate::Limiter::reset) and [`move_plan`](crate::Limiter::move_plan) of a key wait for one another. A
///   reload waits for newcomers, moves, and checks that carry a key over. A denial writes nothing, so that a key that is denied is read by all cores at once.
/// - A check of several quotas that is denied by a later one, since another thread was faster, gives back what it took of the
///   others. While a refund of its key stands still it can't, and these units stay taken.
/// - These waits spin and give way to other threads. A thread with real-time priority that spins for one of lower
///   priority on its own core spins for ever: give all threads that use a limiter one priority.
/// - After a `fork`, what another thread of the parent had just locked stays so in the child: newcomers of one set of seven keys,
///   refunds of one key, or a reload may then wait for ever there. Fork before other threads use the limiter.
/// - When a key's plan is removed, what it has used goes with it to the plan that it comes to, unless it was known there already.
///   As a newcomer does, it inherits what is owed in the overflow of that plan, where it may have been itself.
///   A check that runs while its key is [moved](crate::Limiter::move_plan) may be charged on both plans, and one whose thread
///   stands still while the policy is replaced twice is charged and decided again.
/// - A key on a plan with a global quota (feature `global`) has a ledger, which is no word of a table: it is kept in a map
///   beside it as the default store keeps its keys, at the cost that it has there, and there are at most as many as the store
///   was made for. [`stats`](crate::Limiter::stats) tells the number of keys of the one or of the other, whichever has more.
/// - A policy with more local quotas than it was made for is refused, see [`room_for`](crate::Builder::room_for).
///
/// It keeps no keys, so that there is no [`entries`](crate::Limiter::entries):
///
/// ```compile_fail,E0599
/// # use tollgate::{Limiter, Quota};
/// let limiter = Limiter::builder().quota(Quota::per_hour(1)).fixed(1_000).build()?;
/// limiter.entries();
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    pub(crate) keys: u64,
    pub(crate) quotas: usize,
    pub(crate) in_flight: bool,
}

impl<K: Key + ?Sized, S: BuildHasher + Clone + Send + Sync + 'static> Stores<K, S> for Fixed {
    #[cfg(feature = "global")]
    type Of = WithLedgers<K, S>;
    #[cfg(not(feature = "global"))]
    type Of = FixedStore<S>;

    #[expect(private_interfaces, reason = "the trait is for this crate")]
    fn build(self, hasher: S, plans: &Plans, write: Write<K>) -> Result<Self::Of, BuildError> {
        if self.keys == 0 {
            return Err(BuildError::NoRoom);
        }
        let quotas =
            plans.iter().map(|plan| plan.quotas.len()).max().unwrap_or(0).max(self.quotas).clamp(1, MAX_QUOTAS);
        let in_flight = self.in_flight || plans.iter().any(|plan| plan.in_flight.is_some());
        let table = FixedStore::new(hasher, self.keys, quotas, in_flight)?;
        #[cfg(feature = "global")]
        return Ok(WithLedgers::new(table, self.keys, plans, write));
        #[cfg(not(feature = "global"))]
        {
            _ = write;
            Ok(table)
        }
    }
}

/// The keys and their states.
#[allow(unnameable_types, unreachable_pub, reason = "limiters hold it, by themselves or with a map beside it")]
pub struct FixedStore<S> {
    hasher: S,
    /// Tells the keys of this store from those of all others.
    salt: u64,
    sets: Box<[Set]>,
    /// The second and third words of the ways of each set, then the fourth and fifth of each, and so on.
    more: Box<[More]>,
    /// By set.
    gates: Box<[Gate]>,
    /// How many quotas a plan may have.
    quotas: usize,
    /// Which word counts requests in flight, if one does.
    in_flight: Option<usize>,
    /// Apart from what every check reads.
    counts: CachePadded<Counts>,
    /// How many threads are carrying words over to a version, by whether that is odd.
    renewing: [CachePadded<AtomicU64>; 2],
}

struct Counts {
    /// The version of the policy that the debts of the overflow were last carried over to.
    carried: AtomicU64,
    keys: AtomicU64,
    evictions: AtomicU64,
    overflow: AtomicU64,
}

impl<S> fmt::Debug for FixedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedStore").field("sets", &self.sets.len()).finish_non_exhaustive()
    }
}

impl<S> FixedStore<S> {
    fn new(hasher: S, keys: u64, quotas: usize, in_flight: bool) -> Result<Self, BuildError> {
        let count = (u128::from(keys) * 10_000).div_ceil(u128::from(LOAD) * WAYS as u128);
        let blocks = (quotas + usize::from(in_flight)) / 2;
        let bytes = count * (128 * (1 + blocks as u128) + 64);
        let none = || BuildError::NoMemory { bytes: u64::try_from(bytes).unwrap_or(u64::MAX) };
        let count = usize::try_from(count).map_err(|_| none())?;
        let more = count.checked_mul(blocks).ok_or_else(none)?;
        Ok(Self {
            hasher,
            salt: crate::hasher::random(),
            sets: filled(count, Set::new).ok_or_else(none)?,
            more: filled(more, || More([words(), words()])).ok_or_else(none)?,
            gates: filled(count, Gate::new).ok_or_else(none)?,
            quotas,
            in_flight: in_flight.then_some(quotas),
            counts: CachePadded::new(Counts {
                carried: AtomicU64::new(0),
                keys: AtomicU64::new(0),
                evictions: AtomicU64::new(0),
                overflow: AtomicU64::new(0),
            }),
            renewing: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
        })
    }

    /// The first set of a hash, and the second, which may be the same.
    #[inline(always)]
    fn sets_of(&self, hash: u64) -> (usize, impl FnOnce() -> usize) {
        let index = |hash: u64| ((u128::from(hash) * self.sets.len() as u128) >> 64) as usize;
        // The top of the product depends on all of the hash.
        (index(hash), move || index(hash.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    /// Both sets of a hash, once each.
    fn both(&self, hash: u64) -> impl Iterator<Item = usize> + use<S> {
        let (first, second) = self.sets_of(hash);
        let second = second();
        [first].into_iter().chain((second != first).then_some(second))
    }

    /// Whoever has this is the only one to bring, move, or take over the key of a hash.
    fn latch(&self, hash: u64) -> Latch<'_> {
        self.gates[self.sets_of(hash).0].latch()
    }

    fn way(&self, set: usize, way: usize, tag: u64) -> Way<'_> {
        let blocks = self.words() / 2;
        let (sets, gates, more) = (&self.sets[set], &self.gates[set], &self.more[set * blocks..][..blocks]);
        Way { set: sets, gate: gates, more, way, tag, home: home_of(way, false) }
    }

    /// The same of a key whose first set or second that is.
    fn way_of(&self, set: usize, way: usize, tag: u64, is_second: bool) -> Way<'_> {
        Way { home: home_of(way, is_second), ..self.way(set, way, tag) }
    }

    /// How many words a way has.
    const fn words(&self) -> usize {
        self.quotas + self.in_flight.is_some() as usize
    }

    /// The way of that tag, unless it is taken.
    fn live(&self, hash: u64, tag: u64) -> Option<Way<'_>> {
        self.both(hash).enumerate().find_map(|(n, set)| {
            let (way, word) = self.sets[set].find(tag)?;
            (word != TAKEN).then(|| self.way_of(set, way, tag, n == 1))
        })
    }

    /// Whether a way has that tag, be it taken or not.
    fn is_there(&self, hash: u64, tag: u64) -> bool {
        self.both(hash).any(|set| self.sets[set].find(tag).is_some())
    }

    /// The ways of a hash on any plan.
    fn of_hash(&self, hash: u64) -> impl Iterator<Item = Way<'_>> {
        let ways = self.both(hash).flat_map(|set| (0..WAYS).map(move |way| (set, way)));
        ways.filter_map(move |(set, way)| {
            let tag = self.sets[set].tags[way].load(Ordering::Acquire);
            (tag >> 16 == tag_of(hash, 0) >> 16).then(|| self.way(set, way, tag))
        })
    }

    fn id_of(&self, hash: u64) -> u64 {
        resident(hash, self.salt)
    }

    /// The state of the key of a hash on `plan`, if it has a way.
    #[inline]
    fn state_of<'a>(&'a self, hash: u64, plan: &'a PlanTicks, version: u64) -> Option<FixedState<'a>> {
        Some(self.state(self.live(hash, tag_of(hash, plan.index))?, plan, version))
    }

    fn state<'a>(&'a self, way: Way<'a>, plan: &'a PlanTicks, version: u64) -> FixedState<'a> {
        FixedState::own(way, &plan.places, version, self.in_flight)
    }
}

fn filled<T>(count: usize, fill: impl FnMut() -> T) -> Option<Box<[T]>> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).ok()?;
    all.resize_with(count, fill);
    Some(all.into_boxed_slice())
}

impl<K: Key + ?Sized, S: BuildHasher + 'static> Store<K> for FixedStore<S> {
    type State<'a> = FixedState<'a>;

    fn accepts(&self, plans: &Plans) -> Result<(), BuildError> {
        for plan in plans.iter() {
            let name = || plan.name.to_string();
            if plan.places.iter().any(|place| usize::from(*place) >= self.quotas) {
                return Err(BuildError::TooManyForStore { plan: name(), most: self.quotas });
            }
            if plan.in_flight.is_some() && self.in_flight.is_none() {
                return Err(BuildError::NoPlacesInStore { plan: name() });
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn hash(&self, key: &K) -> u64 {
        self.hasher.hash_one(key)
    }

    fn id(&self, key: &K) -> u64 {
        self.id_of(self.hasher.hash_one(key))
    }

    #[inline(always)]
    fn prefetch(&self, hash: u64) {
        let (first, _) = self.sets_of(hash);
        self.sets[first].prefetch();
        self.gates[first].prefetch();
    }

    #[inline(always)]
    fn prefetch_next(&self, hash: u64) {
        let (first, second) = self.sets_of(hash);
        if !self.sets[first].may_have(hash) {
            self.sets[second()].prefetch();
        }
    }

    #[inline(always)]
    fn take_one(
        &self,
        hash: u64,
        _: &K,
        wish: Wish<'_>,
        current: impl Fn() -> u64,
        time: &impl Time,
    ) -> Option<(bool, Seen)> {
        // The quota by reference: where it is not told, it is not copied past the accesses below.
        let Wish { by: &Simple { plan, since, ref quota, .. }, cost, demand, version } = wish;
        let (stamp, tag) = (stamp_of(version), tag_of(hash, plan));
        let (first, second) = self.sets_of(hash);
        let (mut index, mut is_second) = (first, false);
        let (way, mut found) = match self.sets[first].find(tag) {
            Some(found) => found,
            None => {
                (index, is_second) = (second(), true);
                self.sets[index].find(tag)?
            }
        };
        let set = &self.sets[index];
        let (word, own) = (&set.tats[way], &set.tags[way]);
        // One new policy may have come, which has not changed the word then, or will; not two.
        // Acquire: as in `Way::has_left`.
        let is_ours = || own.load(Ordering::Acquire) == tag && current().wrapping_sub(version) <= 1;
        loop {
            let now = quota.at(time.now());
            let tat = found ^ stamp;
            let seen = |tat, refunds| {
                let (id, home) = (resident(hash, self.salt), home_of(way, is_second));
                Seen { quota: *quota, tat, now, cost, refunds, id, since, plan, home, source: Source::Local }
            };
            let Some(next) = demand.after(tat, now) else {
                return (tat < CLOSED && is_ours()).then(|| (false, seen(tat, RefundsSeen::default())));
            };
            // After `tat` was read, so that a denial need not: a refund in between makes the compare-and-swap fail.
            let refunds = self.gates[index].refunds[way].seen();
            // AcqRel: as in `Way::exchange`.
            if word.compare_exchange_weak(found, next ^ stamp, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return is_ours().then(|| (true, seen(next, refunds)));
            }
            // Acquire: as in `find`.
            found = word.load(Ordering::Acquire);
            // Acquire: as in `Way::has_left`.
            if own.load(Ordering::Acquire) != tag {
                return None;
            }
        }
    }

    fn visit<R>(&self, key: &K, plan: &PlanTicks, version: u64, f: impl FnOnce(FixedState<'_>, u64) -> R) -> Option<R> {
        let hash = self.hasher.hash_one(key);
        Some(f(self.state_of(hash, plan, version)?, self.id_of(hash)))
    }

    #[cold]
    fn settle<R>(
        &self,
        key: &K,
        plans: &Plans,
        plan: &PlanTicks,
        newcomer: Newcomer,
        is_current: impl Fn() -> bool,
        clock: impl Fn() -> Now,
        f: impl FnOnce(FixedState<'_>, u64, Now) -> R,
    ) -> Option<R> {
        let hash = self.hasher.hash_one(key);
        let (tag, id, stamp) = (tag_of(hash, plan.index), self.id_of(hash), stamp_of(plans.version));
        let (first, _) = self.sets_of(hash);
        let backoff = Backoff::new();
        loop {
            if !is_current() {
                return None;
            }
            if let Some(way) = self.live(hash, tag) {
                match self.renew(way, plans, &is_current) {
                    Renewed::Done => return Some(f(self.state(way, plan, plans.version), id, clock())),
                    Renewed::Busy => backoff.snooze(),
                    Renewed::Stale => return None,
                }
                continue;
            }
            if self.is_there(hash, tag) {
                // A newcomer is taking its place, or puts it back where the policy has changed.
                backoff.snooze();
                continue;
            }
            let left_behind = self.left_behind(hash, plans, plan);
            self.renew_sets(hash, plans, &is_current);
            if newcomer == Newcomer::Show && left_behind.is_none() {
                let floor = self.floor(hash);
                let owes = self.may_owe(first, plans);
                let now = clock();
                let owes = owes > now.ticks() || !self.has_room(hash, stamp, now.ticks());
                let inherited = if owes { plans.inherited(plan, &is_current)? } else { [0; MAX_QUOTAS] };
                let state = KeyState::new(plan, plans.version, 0, |n| inherited[n].max(floor), Who::<()>::Overflow);
                return Some(f(FixedState::apart(&state), id, now));
            }

            let latch = self.latch(hash);
            // Another thread may have brought it meanwhile.
            if self.is_there(hash, tag) {
                continue;
            }
            if let Some(way) = self.left_behind(hash, plans, plan) {
                self.take_over(way, plans, tag, &is_current);
                continue;
            }
            // The floors before the time: they are no later then.
            let (floor, owes) = (self.floor(hash), self.may_owe(first, plans));
            let now = clock();
            let inherited = if owes > now.ticks() { plans.inherited(plan, &is_current)? } else { [0; MAX_QUOTAS] };
            let Some(claimed) = self.claim_for(hash, stamp, now.ticks()) else {
                let answer = plans.with_overflow(plan, &is_current, |state| {
                    state.full_no_earlier(floor);
                    let answer = f(FixedState::apart(state), in_overflow(id), now);
                    // While the overflow is locked: a reload that carries it over finds it in here.
                    // Release: pairs with the Acquire in `may_owe`. Relaxed: where nothing changes, nothing is written.
                    let (over, full_at) = (&self.sets[first].over, state.full_at());
                    if over.load(Ordering::Relaxed) < full_at {
                        over.fetch_max(full_at, Ordering::Release);
                    }
                    answer
                })?;
                crate::stats::count(&self.counts.overflow);
                crate::stats::count(&plan.home.counts.overflow);
                return Some(answer);
            };
            if !is_in_time(&is_current) {
                // By the policy that is in force by now it may not be idle: so it is put back, and found where it was.
                self.open(&claimed, claimed.way.tag);
                return None;
            }
            let way = self.begin_life(claimed, plans, plan, tag, |n| inherited[n].max(floor).max(now.ticks()));
            drop(latch);
            return Some(f(self.state(way, plan, plans.version), id, now));
        }
    }

    fn carry_all(&self, plans: &Plans) {
        plans.carry_overflow();
        let full_at = plans.overflow_full_at();
        let overs = self.sets.iter().map(|set| &set.over);
        // Acquire, Release: as in `settle` and `may_owe`.
        for over in overs.filter(|over| over.load(Ordering::Acquire) > plans.at.ticks()) {
            if plans.rewinds {
                over.store(full_at, Ordering::Release);
            } else {
                over.fetch_max(full_at, Ordering::Release);
            }
        }
        if plans.rewinds {
            self.gates.iter().for_each(|gate| gate.lower_floor(plans.at.ticks()));
        }
        // Release: pairs with `may_owe`.
        self.counts.carried.store(plans.version, Ordering::Release);
        // SeqCst: pairs with the fence in `is_in_time`. A claim or a renewal that this does not see has seen the new version.
        fence(Ordering::SeqCst);
        for set in 0..self.sets.len() {
            for way in 0..WAYS {
                let backoff = Backoff::new();
                while !self.sweep(set, way, plans, || true) {
                    backoff.snooze();
                }
            }
        }
        self.wait_for_renewals(plans);
    }

    fn move_use(&self, key: &K, plans: &Plans, by: &Move, at: Now, is_current: impl Fn() -> bool) -> Option<bool> {
        let hash = self.hasher.hash_one(key);
        let (from_tag, to_tag) = (tag_of(hash, by.from.index), tag_of(hash, by.to.index));
        let _latch = self.latch(hash);
        let backoff = Backoff::new();
        loop {
            if !is_current() {
                return None;
            }
            for (plan, tag) in [(&by.from, from_tag), (&by.to, to_tag)] {
                if let Some(way) = self.left_behind(hash, plans, plan).filter(|_| self.live(hash, tag).is_none()) {
                    self.take_over(way, plans, tag, &is_current);
                }
            }
            let Some(from) = self.live(hash, from_tag) else { return Some(false) };
            if from_tag == to_tag {
                return Some(true);
            }
            let to = self.live(hash, to_tag);
            let ways = [Some(from), to].into_iter().flatten();
            match ways.map(|way| self.renew(way, plans, &is_current)).find(|renewed| *renewed != Renewed::Done) {
                None => {}
                Some(Renewed::Stale) => return None,
                Some(_) => {
                    backoff.snooze();
                    continue;
                }
            }
            let mut is_moved = false;
            // No refund of it is under way meanwhile, and none of what was taken from it comes after. A check of the key
            // waits for what is frozen: so a refund is waited for before.
            from.refunds().renew(|| is_moved = self.move_way(from, to, plans, to_tag, by, at, &is_current));
            if is_moved {
                return Some(true);
            }
        }
    }

    fn reset(&self, key: &K, _: &Plans, is_current: impl FnOnce() -> bool) -> Option<bool> {
        if !is_current() {
            return None;
        }
        let mut known = false;
        for way in self.of_hash(self.hasher.hash_one(key)) {
            // In one with the end of the life: what is taken in between is either not wiped, or not given back.
            way.refunds().renew(|| {
                for n in 0..self.quotas {
                    known |= way.swap(n, |word| Some(word & STAMP));
                }
            });
        }
        Some(known)
    }

    fn leave(&self, key: &K, plans: &Plans, plan: u16) -> bool {
        let hash = self.hasher.hash_one(key);
        self.leave_on(hash, |index| index == plan) || {
            let _latch = self.latch(hash);
            plans.leave_in_turn(plan, |is_meant| self.leave_on(hash, is_meant))
        }
    }

    #[cfg(all(feature = "global", not(loom)))]
    fn each(&self, _: impl FnMut(&KeyState)) {}

    fn who<'a>(&self, key: &'a K) -> Who<'a, K> {
        Who::Key(key, Write::default())
    }

    fn len(&self) -> u64 {
        self.counts.keys.load(Ordering::Relaxed)
    }

    fn counts(&self) -> (u64, u64) {
        (self.counts.evictions.load(Ordering::Relaxed), self.counts.overflow.load(Ordering::Relaxed))
    }
}
