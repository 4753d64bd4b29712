//! The store that grows: a `dashmap` of many shards, each a hash table behind a reader-writer lock.
//!
//! A known key takes its shard's lock for reading: two locked operations on a line that the threads of that shard
//! share. A new key takes it for writing. A reader can therefore wait for a writer of its shard that was preempted.
//!
//! # Eviction
//!
//! An idle key equals a fresh one, so that dropping it loses nothing. Each newcomer looks at the [`SWEEP`] keys of its
//! shard that were looked at longest ago, while it holds the lock anyway: those that are idle go, the others are looked
//! at again when all have been. So the work is bounded, nobody has to call anything, and idle keys go twice as fast as
//! new ones come. Without newcomers nothing has to go.
//!
//! Each shard remembers its arrivals by [tag](Tag), 4 bytes a key in safe code. The tables could be walked in place instead,
//! but only with `unsafe`.
//!
//! # Code of the user
//!
//! `Hash`, `Eq`, `ToOwned` and `Drop` of a key, and the name that it has in a fleet, are the user's, and can panic. Each state
//! has the tag of its key beside it, so that a table grows and shrinks, and a sweep finds states, without any of them. What
//! is left runs before anything changes, or after all has changed. Only two states of one key that become one in a sweep have
//! to be compared: a panic there costs that key its use on the plan that is gone, and the next reload first ends the sweep.
//!
//! A key that is evicted at one instant and comes back at an earlier one, by a clock that went backwards, would find a
//! full bucket where its own was not. So each shard has a *floor*, the latest instant that it evicted at, and a new
//! bucket is full from then on and not before, as is the overflow bucket for a key of that shard.
//!
//! # The cap
//!
//! When there are as many keys as there may be and none of those looked at is idle, a newcomer is charged to the
//! overflow buckets that all newcomers to its plan share. Whoever gets buckets of its own later inherits their debt: what
//! a key took from them is not forgotten. All of that happens under the lock of the newcomer's shard, so that one key
//! can't be in both places.
//!
//! # Plans
//!
//! A key has a state on each plan that it was seen on, and counts once for each. All of them have the hash of the key and
//! so lie in one shard, where its lock is enough to move use from one to the other.
//!
//! # A new policy
//!
//! A state is counted by the quotas of one version of the policy, see `plans.rs`. A reload first puts the new version in
//! force and then sweeps all shards, a few keys at a time. Whoever has locked a shard and still finds the version current
//! that it decides by also finds each state of this version or the one before, and carries over the latter before it
//! uses it; whoever finds a newer version starts over with that.

use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use super::{KeyState, Newcomer, Store, Stores, Visited, resident};
use crate::clock::Time;
use crate::decision::Seen;
use crate::error::BuildError;
use crate::key::Key;
use crate::plans::{Move, PlanTicks, Plans, Wish, in_overflow};
use crate::shared::{Who, Write};
use crate::sync::{AtomicU64, DashMap, Mutex, MutexGuard, Ordering, SharedValue, Table};
use crate::ticks::Now;

/// How many keys a newcomer looks at. With two, idle keys go while others come, and a sweep ends before the shard has
/// doubled.
const SWEEP: usize = 2;

/// How many keys a reload carries over while it has a shard locked: some 2 µs. Who waits for so long spins, and seldom has
/// to be woken up.
const STEP: usize = 8;

/// The store that grows, the default: exact keys in a map of many shards, which can be [listed](crate::Limiter::entries).
///
/// It is named in types only, as in `Limiter<str, RandomState, Sharded>`; the builder makes it, with
/// [`shards`](crate::Builder::shards) and [`max_keys`](crate::Builder::max_keys).
#[derive(Clone, Copy, Debug)]
pub struct Sharded {
    pub(crate) shards: Option<usize>,
    pub(crate) max_keys: u64,
}

/// What [`max_keys`](crate::Builder::max_keys) is unless told otherwise.
const MAX_KEYS: u64 = 10_000_000;

impl Sharded {
    pub(crate) const DEFAULT: Self = Self { shards: None, max_keys: MAX_KEYS };
}

impl<K: Key + ?Sized, S: BuildHasher + Clone + Send + Sync + 'static> Stores<K, S> for Sharded {
    type Of = ShardedStore<K, S>;

    #[expect(private_interfaces, reason = "the trait is for this crate")]
    fn build(self, hasher: S, _: &Plans, write: Write<K>) -> Result<Self::Of, BuildError> {
        if self.max_keys == 0 {
            return Err(BuildError::NoRoom);
        }
        let shards = match self.shards {
            None => default_shards(),
            Some(shards) if shards.is_power_of_two() && (2..=65_536).contains(&shards) => shards,
            Some(shards) => return Err(BuildError::BadShards { shards }),
        };
        Ok(ShardedStore::new(hasher, shards, self.max_keys, write))
    }
}

pub(super) fn default_shards() -> usize {
    let threads = std::thread::available_parallelism().map_or(4, usize::from);
    (threads * 16).next_power_of_two().clamp(64, 65_536)
}

/// The keys and their states.
#[expect(unnameable_types, reason = "limiters hold it, and nobody else")]
pub struct ShardedStore<K: Key + ?Sized, S> {
    map: DashMap<K::Owned, Kept, S>,
    /// Tells the keys of this store from those of all others.
    salt: u64,
    /// What belongs to a shard beside its table. Changed only under the shard's own lock; nothing is locked under it but
    /// an overflow.
    sides: Box<[Mutex<Side>]>,
    keys: AtomicU64,
    max_keys: u64,
    /// How keys are named where a fleet shares quotas.
    write: Write<K>,
}

/// The part of a key's hash that a table goes by: enough to find a state again without its key, in half the memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Tag(u32);

impl Tag {
    /// The low bits. A shard is chosen by others.
    #[inline(always)]
    const fn of(hash: u64) -> Self {
        Self(hash as u32)
    }

    /// The hash that a table goes by: its low bits say where to look, and its top seven are compared before any key is.
    #[inline(always)]
    const fn hash(self) -> u64 {
        (self.0 as u64) << 32 | self.0 as u64
    }
}

/// A state and the tag of its key.
pub(super) struct Kept {
    tag: Tag,
    state: KeyState,
}

/// The place of a state in its table, for as long as that neither grows nor shrinks.
type Place = *const Kept;

#[derive(Default)]
struct Side {
    /// The tag of each state, in the order in which they are to be looked at.
    arrivals: VecDeque<Tag>,
    /// Of these, tags that are in there more often than there are states, since two states became one, and how much more.
    surplus: BTreeMap<Tag, u32>,
    /// How many have been taken from the front, ever.
    looked_at: u64,
    /// The latest instant that a state was evicted at.
    floor: u64,
    evictions: u64,
    overflow: u64,
    /// The latest life of a bucket of this shard, as far as it is known here: what was taken in an earlier one can't be given
    /// back.
    life: u64,
}

impl Side {
    const fn new_life(&mut self) -> u64 {
        self.life = self.life.saturating_add(1);
        self.life
    }

    /// Has all lives that come be later than those of a state that goes.
    fn outlive(&mut self, state: &KeyState) {
        self.life = self.life.max(state.last_life());
    }

    /// Notes that there is one state of this tag less.
    fn add_surplus(&mut self, tag: Tag) {
        *self.surplus.entry(tag).or_default() += 1;
    }

    /// Whether there is no state for a tag like this. If so, it is noted that there is one such tag less.
    fn take_surplus(&mut self, tag: Tag) -> bool {
        let Some(count) = self.surplus.get_mut(&tag) else { return false };
        *count -= 1;
        if *count == 0 {
            self.surplus.remove(&tag);
        }
        true
    }
}

/// One shard under its lock.
struct Shard<'a, K: Key + ?Sized, S> {
    table: &'a mut Table<(K::Owned, SharedValue<Kept>)>,
    side: MutexGuard<'a, Side>,
    store: &'a ShardedStore<K, S>,
    plans: &'a Plans,
}

impl<K: Key + ?Sized, S: BuildHasher + Clone + 'static> ShardedStore<K, S> {
    /// `shards` is a power of two and at least 2.
    pub(crate) fn new(hasher: S, shards: usize, max_keys: u64, write: Write<K>) -> Self {
        Self {
            map: DashMap::with_capacity_and_hasher_and_shard_amount(0, hasher, shards),
            salt: crate::hasher::random(),
            sides: (0..shards).map(|_| Mutex::new(Side::default())).collect(),
            keys: AtomicU64::new(0),
            max_keys,
            write,
        }
    }

    /// Hands the state of `key`, whose hash that is, on the plan of index `plan` to `f`, with an id of the key, if there is one.
    // Always: called, it would pass its answer through memory, 6 of 37 ns.
    #[inline(always)]
    pub(super) fn find<R>(&self, hash: u64, key: &K, plan: u16, f: impl FnOnce(&KeyState, u64) -> R) -> Option<R> {
        let shard = self.map.shards()[self.map.determine_shard(hash as usize)].read();
        shard
            .get(Tag::of(hash).hash(), |(known, kept)| kept.get().state.plan() == plan && known.borrow() == key)
            .map(|(_, kept)| f(&kept.get().state, resident(hash, self.salt)))
    }

    /// Locks the shard of `key` for writing, carries its states over to the version of `plans`, and hands the shard with the
    /// hash of the key to `f`. `None` if `is_current` finds that this version is not the current one any more.
    fn with_shard<R>(
        &self,
        key: &K,
        plans: &Plans,
        is_current: impl FnOnce() -> bool,
        f: impl FnOnce(&mut Shard<'_, K, S>, u64) -> R,
    ) -> Option<R> {
        let hash = self.map.hasher().hash_one(key);
        let index = self.map.determine_shard(hash as usize);
        let mut table = self.map.shards()[index].write();
        if !is_current() {
            return None;
        }
        let mut shard = Shard { table: &mut table, side: lock(&self.sides[index]), store: self, plans };
        shard.carry(Tag::of(hash), key);
        Some(f(&mut shard, hash))
    }

    /// Whether one more state may be made.
    fn has_room(&self) -> bool {
        // Relaxed, as for every access to `keys`: they are counted, and nothing is ordered by that.
        self.keys.load(Ordering::Relaxed) < self.max_keys
    }

    /// Counts one more state, if there is room for it.
    fn take_room(&self) -> bool {
        // While there is none, nobody writes to what all shards share.
        self.has_room()
            && (self.keys.fetch_add(1, Ordering::Relaxed) < self.max_keys || {
                self.keys.fetch_sub(1, Ordering::Relaxed);
                false
            })
    }
}

impl<K: Key + ?Sized, S: BuildHasher + Clone + 'static> Store<K> for ShardedStore<K, S> {
    type State<'a> = &'a KeyState;

    fn accepts(&self, _: &Plans) -> Result<(), BuildError> {
        Ok(())
    }

    #[inline(always)]
    fn hash(&self, key: &K) -> u64 {
        self.map.hasher().hash_one(key)
    }

    fn id(&self, key: &K) -> u64 {
        resident(self.map.hasher().hash_one(key), self.salt)
    }

    /// Where in its table it is, is for the table to know.
    #[inline(always)]
    fn prefetch(&self, _: u64) {}

    #[inline(always)]
    fn prefetch_next(&self, _: u64) {}

    #[inline(always)]
    fn take_one(
        &self,
        hash: u64,
        key: &K,
        wish: Wish<'_>,
        current: impl Fn() -> u64,
        time: &impl Time,
    ) -> Option<(bool, Seen)> {
        let Wish { by, cost, ref demand, version } = wish;
        let (plan, quota) = (&by.plan, &by.quota);
        // As `find`, but nothing is a closure that could be left out of line: its answer would pass through memory, 8 of 40 ns.
        let shard = self.map.shards()[self.map.determine_shard(hash as usize)].read();
        let is_it =
            |(known, kept): &(K::Owned, SharedValue<Kept>)| kept.get().state.plan() == *plan && known.borrow() == key;
        let (_, kept) = shard.get(Tag::of(hash).hash(), is_it)?;
        let state = &kept.get().state;
        match state {
            // Under the lock the state is of the current version or the one before; it knows the low bits of its own only.
            KeyState::One { slot, .. } if state.is_of(version) && current() == version => {
                Some(Visited::on_plan(slot, by, resident(hash, self.salt)).take_seen(quota, cost, Some(demand), time))
            }
            _ => None,
        }
    }

    // Always: called, it would pass its answer through memory, 6 of 37 ns.
    #[inline(always)]
    fn visit<R>(&self, key: &K, plan: &PlanTicks, _: u64, f: impl FnOnce(&KeyState, u64) -> R) -> Option<R> {
        self.find(self.map.hasher().hash_one(key), key, plan.index, f)
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
        f: impl FnOnce(&KeyState, u64, Now) -> R,
    ) -> Option<R> {
        // Allocated before the lock is taken, as what goes is freed after it. Not in vain, while newcomers are many.
        let owned = (newcomer == Newcomer::Keep && self.has_room()).then(|| key.to_owned());
        let mut gone = [const { None }; SWEEP];

        self.with_shard(key, plans, &is_current, |shard, hash| {
            let (now, tag, id) = (clock(), Tag::of(hash), resident(hash, self.salt));
            if let Some(state) = shard.get(tag, key, plan.index) {
                return Some(f(state, id, now));
            }
            let inherited = plans.inherited(plan, &is_current)?;
            if newcomer == Newcomer::Show {
                let floor = shard.side.floor;
                let state = KeyState::new(plan, plans.version, 0, |n| inherited[n].max(floor), self.who(key));
                return Some(f(&state, id, now));
            }

            for slot in &mut gone {
                *slot = shard.look_at_next(now);
            }
            shard.shrink();
            let (floor, life) = (shard.side.floor, shard.side.new_life());
            // Both run code of the user, and so come before the newcomer is counted.
            let made = self.has_room().then(|| {
                let fresh = KeyState::new(plan, plans.version, life, |n| inherited[n].max(floor), self.who(key));
                (owned.unwrap_or_else(|| key.to_owned()), fresh)
            });
            let Some((owned, fresh)) = made.filter(|_| self.take_room()) else {
                let side = &mut *shard.side;
                let answer = plans.with_overflow(plan, &is_current, |state| {
                    state.full_no_earlier(side.floor);
                    f(state, in_overflow(id), now)
                })?;
                side.overflow += 1;
                crate::stats::count(&plan.home.counts.overflow);
                return Some(answer);
            };
            shard.side.arrivals.push_back(tag);
            Some(f(shard.insert(tag, owned, fresh), id, now))
        })?
    }

    fn carry_all(&self, plans: &Plans) {
        plans.carry_overflow();
        // Each shard that has something left, with the number of looks up to which it has.
        let mut left: Vec<(usize, Option<u64>)> = (0..self.sides.len()).map(|index| (index, None)).collect();
        for round in 1_u32.. {
            left.retain_mut(|(index, until)| {
                let mut table = self.map.shards()[*index].write();
                let mut shard = Shard { table: &mut table, side: lock(&self.sides[*index]), store: self, plans };
                if plans.rewinds {
                    shard.side.floor = shard.side.floor.min(plans.at.ticks());
                }
                // Newcomers, who are of this version, come to the back.
                let until = *until.get_or_insert(shard.side.looked_at + shard.side.arrivals.len() as u64);
                for _ in 0..STEP {
                    if shard.side.looked_at < until {
                        drop(shard.look_at_next(plans.at));
                    }
                }
                shard.side.looked_at < until
            });
            if left.is_empty() {
                return;
            }
            // Who had to be woken up for a shard all the same has it before this goes on. On a busy machine that takes
            // some milliseconds.
            if round.is_multiple_of(4) {
                crate::sync::yield_now();
            }
        }
    }

    fn move_use(&self, key: &K, plans: &Plans, by: &Move, at: Now, is_current: impl Fn() -> bool) -> Option<bool> {
        self.with_shard(key, plans, is_current, |shard, hash| {
            let tag = Tag::of(hash);
            if by.from.index == by.to.index {
                return shard.get(tag, key, by.from.index).is_some();
            }
            let place = shard.place(tag, |known, kept| kept.state.plan() == by.from.index && known.borrow() == key);
            if let Some(place) = place {
                shard.carry_by(tag, place, by, at);
            }
            place.is_some()
        })
    }

    fn reset(&self, key: &K, plans: &Plans, is_current: impl FnOnce() -> bool) -> Option<bool> {
        self.with_shard(key, plans, is_current, |shard, hash| {
            let mut known = false;
            for plan in plans.iter() {
                let life = shard.side.new_life();
                if let Some(state) = shard.get(Tag::of(hash), key, plan.index) {
                    state.reset(life);
                    known = true;
                }
            }
            known
        })
    }

    fn leave(&self, key: &K, plans: &Plans, plan: u16) -> bool {
        let hash = self.map.hasher().hash_one(key);
        // One lock for all looks: the key is moved under that for writing.
        let shard = self.map.shards()[self.map.determine_shard(hash as usize)].read();
        plans.leave_in_turn(plan, |is_meant| {
            let left = |state: &KeyState| is_meant(state.plan()) && state.leave();
            shard.get(Tag::of(hash).hash(), |(known, kept)| known.borrow() == key && left(&kept.get().state)).is_some()
        })
    }

    #[cfg(all(feature = "global", not(loom)))]
    fn each(&self, mut f: impl FnMut(&KeyState)) {
        self.map.iter().for_each(|entry| f(&entry.value().state));
    }

    fn who<'a>(&self, key: &'a K) -> Who<'a, K> {
        Who::Key(key, self.write)
    }

    fn len(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    fn counts(&self) -> (u64, u64) {
        self.sides
            .iter()
            .map(lock)
            .fold((0, 0), |(evictions, overflow), side| (evictions + side.evictions, overflow + side.overflow))
    }
}

impl<'a, K: Key + ?Sized, S: BuildHasher + Clone + 'static> Shard<'a, K, S> {
    fn get(&mut self, tag: Tag, key: &K, plan: u16) -> Option<&mut KeyState> {
        let of_key =
            |(known, kept): &(K::Owned, SharedValue<Kept>)| kept.get().state.plan() == plan && known.borrow() == key;
        self.table.get_mut(tag.hash(), of_key).map(|(_, kept)| &mut kept.get_mut().state)
    }

    /// Finds the place of the state of this tag that `is_meant`, if there is one.
    fn place(&self, tag: Tag, is_meant: impl Fn(&K::Owned, &Kept) -> bool) -> Option<Place> {
        let found = self.table.get(tag.hash(), |(known, kept)| is_meant(known, kept.get()));
        found.map(|(_, kept)| ptr::from_ref(kept.get()))
    }

    fn insert(&mut self, tag: Tag, key: K::Owned, state: KeyState) -> &KeyState {
        let entry = (key, SharedValue::new(Kept { tag, state }));
        let (_, kept) = self.table.insert_entry(tag.hash(), entry, |(_, kept)| kept.get().tag.hash());
        &kept.get().state
    }

    fn remove(&mut self, tag: Tag, is_meant: impl Fn(&Kept) -> bool) -> Option<(K::Owned, Kept)> {
        let (known, kept) = self.table.remove_entry(tag.hash(), |(_, kept)| is_meant(kept.get()))?;
        let kept = kept.into_inner();
        self.side.outlive(&kept.state);
        Some((known, kept))
    }

    /// Finds a state of this tag that is still of the version before and `is_meant`, and the move of its plan: one that stays on
    /// its plan before one that comes to it, so that the latter finds the former carried over.
    fn next_to_carry(&self, tag: Tag, is_meant: impl Fn(&K::Owned, &Kept) -> bool) -> Option<(Place, &'a Move)> {
        let (plans, version) = (self.plans, self.plans.version);
        let move_of = |kept: &Kept| plans.move_of(kept.state.plan()).filter(|_| !kept.state.is_of(version));
        let next = |stays: bool| {
            let is_next = |by: &Move| (by.from.index == by.to.index) == stays;
            let is_next = |kept: &Kept| move_of(kept).is_some_and(is_next);
            let (_, kept) =
                self.table.get(tag.hash(), |(known, kept)| is_next(kept.get()) && is_meant(known, kept.get()))?;
            Some((ptr::from_ref(kept.get()), move_of(kept.get())?))
        };
        next(true).or_else(|| next(false))
    }

    /// Carries the states of `key`, whose tag that is, over to the current version.
    fn carry(&mut self, tag: Tag, key: &K) {
        while let Some((place, by)) = self.next_to_carry(tag, |known, _| known.borrow() == key) {
            self.carry_by(tag, place, by, self.plans.at);
        }
    }

    /// Carries the state at that place over to where `by` says, and into the one of its key that is there, if there is one.
    /// Where code of the user panics, nothing has changed.
    fn carry_by(&mut self, tag: Tag, place: Place, by: &Move, at: Now) {
        let (version, life) = (self.plans.version, self.side.new_life());
        let there = if by.from.index == by.to.index {
            None
        } else {
            let Some((key, _)) = self.table.get(tag.hash(), |(_, kept)| ptr::eq(kept.get(), place)) else { return };
            let is_on = |state: &KeyState| state.plan() == by.to.index && state.is_of(version);
            self.place(tag, |known, kept| !ptr::eq(kept, place) && is_on(&kept.state) && known == key)
        };
        let Some((key, kept)) = self.table.get_mut(tag.hash(), |(_, kept)| ptr::eq(kept.get(), place)) else { return };
        kept.get_mut().state.carry(version, by, at, life, self.store.who((*key).borrow()));
        let Some(there) = there else {
            if by.from.index != by.to.index {
                kept.get_mut().state.inherit(&by.to, &self.plans.inherited_by_mover(&by.to), at);
            }
            return;
        };

        let Some((key, Kept { state, .. })) = self.remove(tag, |kept| ptr::eq(kept, place)) else { return };
        if let Some((_, own)) = self.table.get_mut(tag.hash(), |(_, kept)| ptr::eq(kept.get(), there)) {
            own.get_mut().state.absorb(&state, &by.to, at, life);
        }
        self.count_out(tag);
        drop(key);
    }

    /// Counts one state less, of this tag, which the queue does not know yet.
    fn count_out(&mut self, tag: Tag) {
        self.side.add_surplus(tag);
        self.store.keys.fetch_sub(1, Ordering::Relaxed);
    }

    /// Carries all states of this tag over to the current version. Where code of the user panics, the state is dropped that it
    /// was about: else a sweep would never get past it.
    fn carry_all(&mut self, tag: Tag) {
        while let Some((place, by)) = self.next_to_carry(tag, |_, kept| kept.tag == tag) {
            let at = self.plans.at;
            // Unwind-safe: whenever code of the user runs in there, all is right.
            let carried = catch_unwind(AssertUnwindSafe(|| self.carry_by(tag, place, by, at)));
            if let Err(panic) = carried {
                // There is none at that place where it is the key's `Drop` that panics.
                if let Some(lost) = self.remove(tag, |kept| ptr::eq(kept, place)) {
                    self.count_out(tag);
                    drop(lost);
                }
                resume_unwind(panic);
            }
        }
    }

    /// Looks at the state that was looked at longest ago: evicts it if it is idle at `now`, and returns it to be dropped.
    fn look_at_next(&mut self, now: Now) -> Option<(K::Owned, Kept)> {
        let tag = *self.side.arrivals.front()?;
        if !self.side.surplus.contains_key(&tag) {
            // It stays in front of the queue if code of the user panics.
            self.carry_all(tag);
        }
        self.side.arrivals.pop_front();
        self.side.looked_at += 1;
        if self.side.take_surplus(tag) {
            return None;
        }
        let plans = self.plans;
        let idle = self.remove(tag, |kept| kept.tag == tag && kept.state.is_idle(plans.get(kept.state.plan()), now));
        if idle.is_some() {
            self.store.keys.fetch_sub(1, Ordering::Relaxed);
            self.side.evictions += 1;
            self.side.floor = self.side.floor.max(now.ticks());
        } else {
            self.side.arrivals.push_back(tag);
        }
        idle
    }

    /// After an attack, or a busy hour: what a shard has room for follows what it holds.
    fn shrink(&mut self) {
        let (buckets, len) = (self.table.buckets(), self.table.len());
        if buckets > 64 && len < buckets / 8 {
            self.table.shrink_to(len * 2, |(_, kept)| kept.get().tag.hash());
            self.side.arrivals.shrink_to(len * 2);
        }
    }
}

#[cfg(not(loom))]
impl<K: Key + ?Sized, S: BuildHasher + Clone + 'static> ShardedStore<K, S> {
    /// A copy of every key with its state as `f` sees it, if it sees any, locking one shard at a time.
    pub(crate) fn snapshot<R>(&self, f: impl Fn(&KeyState) -> Option<R>) -> Vec<(K::Owned, R)>
    where
        K::Owned: Clone,
    {
        let mut copies = Vec::new();
        for entry in self.map.iter() {
            copies.extend(f(&entry.value().state).map(|seen| (entry.key().clone(), seen)));
        }
        copies
    }
}

/// What a shard has is right whenever code of the user runs under its lock, so that a panic there leaves it so.
fn lock(side: &Mutex<Side>) -> MutexGuard<'_, Side> {
    side.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<K: Key + ?Sized, S> fmt::Debug for ShardedStore<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded").finish_non_exhaustive()
    }
}
