//! The store that grows: a `dashmap` of many shards, each a hash table behind a reader-writer lock.
//!
//! A known key takes its shard's lock for reading: two locked operations on a line that the threads of that shard
//! share. A new key takes it for writing. A reader can therefore wait for a writer of its shard that was preempted.
//!
//! What refunds need is kept beside the tables, in words that the keys share by their hash: a key that is never refunded
//! pays for it with a load.
//!
//! # Eviction
//!
//! An idle key equals a fresh one, so that dropping it loses nothing. Each newcomer looks at the [`SWEEP`] keys of its
//! shard that were looked at longest ago, while it holds the lock anyway: those that are idle go, the others are looked
//! at again when all have been. So the work is bounded, nobody has to call anything, and idle keys go twice as fast as
//! new ones come. Without newcomers nothing has to go.
//!
//! Each shard remembers its arrivals by hash, 8 bytes a key in safe code. The tables could be walked in place instead,
//! but only with `unsafe`.
//!
//! A key that is evicted at one instant and comes back at an earlier one, by a clock that went backwards, would find a
//! full bucket where its own was not. So each shard has a *floor*, the latest instant that it evicted at, and a new
//! bucket is full from then on and not before, as is the overflow bucket for a key of that shard.
//!
//! # The cap
//!
//! When there are as many keys as there may be and none of those looked at is idle, a newcomer is charged to the
//! overflow bucket that all newcomers share. Whoever gets a bucket of its own later inherits that bucket's debt: what a
//! key took from it is not forgotten. All of that happens under the lock of the newcomer's shard, so that one key can't
//! be in both places.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, Hash};

use super::{KeyState, Visited};
use crate::decision::{Allow, Decision};
use crate::hasher::random;
use crate::quota::QuotaTicks;
use crate::refunds::Refunds;
use crate::stats::Stats;
use crate::sync::{AtomicU64, DashMap, Mutex, Ordering, SharedValue};
use crate::ticks::Now;

/// How many keys a newcomer looks at. With two, idle keys go while others come, and a sweep ends before the shard has
/// doubled.
const SWEEP: usize = 2;

/// How many words the keys share for their refunds: 32 KiB, so that keys that are refunded seldom meet. The model checker
/// has one.
const REFUNDS: usize = if cfg!(loom) { 1 } else { 4_096 };

/// The keys and their states.
pub struct Sharded<K, S> {
    map: DashMap<K, KeyState, S>,
    /// What belongs to a shard beside its table. Changed only under the shard's own lock; nothing is locked under it.
    sides: Box<[Mutex<Side>]>,
    refunds: Box<[Refunds]>,
    overflow: KeyState,
    overflow_refunds: Refunds,
    overflow_id: u64,
    keys: AtomicU64,
    max_keys: u64,
}

#[derive(Default)]
struct Side {
    /// The hash of each key, in the order in which they are to be looked at.
    arrivals: VecDeque<u64>,
    floor: u64,
    evictions: u64,
    overflow: u64,
}

impl<K: Eq + Hash, S: BuildHasher + Clone> Sharded<K, S> {
    /// `shards` is a power of two and at least 2.
    pub fn new(hasher: S, shards: usize, max_keys: u64) -> Self {
        Self {
            map: DashMap::with_capacity_and_hasher_and_shard_amount(0, hasher, shards),
            sides: (0..shards).map(|_| Mutex::new(Side::default())).collect(),
            refunds: (0..REFUNDS).map(|_| Refunds::none()).collect(),
            overflow: KeyState::new(0),
            overflow_refunds: Refunds::none(),
            overflow_id: random(),
            keys: AtomicU64::new(0),
            max_keys,
        }
    }

    /// Hands the state of `key` to `f`, if there is one.
    #[inline]
    pub fn visit<Q, R>(&self, key: &Q, f: impl FnOnce(Visited<'_>) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.map.hasher().hash_one(key);
        let shard = self.map.shards()[self.map.determine_shard(hash as usize)].read();
        shard.get(hash, |(known, _)| known.borrow() == key).map(|(_, state)| f(self.visited(state.get(), hash)))
    }

    /// Hands the state of `key` to `f`, and makes it if there is none; at the cap, the overflow bucket. `f` is told
    /// the time of `clock`.
    #[cold]
    pub fn insert<Q, R>(
        &self,
        key: &Q,
        quota: &QuotaTicks,
        clock: impl Fn() -> Now,
        f: impl FnOnce(Visited<'_>, Now) -> R,
    ) -> R
    where
        K: Borrow<Q>,
        Q: ToOwned<Owned = K> + Hash + Eq + ?Sized,
    {
        // Allocated before the lock is taken, as what goes is freed after it. If another thread brings the key
        // meanwhile, this one is dropped.
        let owned = key.to_owned();
        let mut gone = [const { None }; SWEEP];

        let hasher = self.map.hasher();
        let hash = hasher.hash_one(key);
        let index = self.map.determine_shard(hash as usize);
        let mut shard = self.map.shards()[index].write();
        let now = clock();
        if let Some((_, state)) = shard.get(hash, |(known, _)| known.borrow() == key) {
            return f(self.visited(state.get(), hash), now);
        }
        let mut side = lock(&self.sides[index]);

        for slot in &mut gone {
            let Some(oldest) = side.arrivals.pop_front() else { break };
            let instant = quota.at(now);
            *slot = shard.remove_entry(oldest, |(known, state)| {
                state.get().is_idle(instant) && hasher.hash_one(known) == oldest
            });
            if slot.is_some() {
                // Relaxed, as for every access to `keys`: they are counted, and nothing is ordered by that.
                self.keys.fetch_sub(1, Ordering::Relaxed);
                side.evictions += 1;
                side.floor = side.floor.max(instant);
            } else {
                side.arrivals.push_back(oldest);
            }
        }
        // After an attack, or a busy hour: what a shard has room for follows what it holds.
        if shard.buckets() > 64 && shard.len() < shard.buckets() / 8 {
            let room = shard.len() * 2;
            shard.shrink_to(room, |(known, _)| hasher.hash_one(known));
            side.arrivals.shrink_to(room);
        }

        if self.keys.fetch_add(1, Ordering::Relaxed) >= self.max_keys {
            self.keys.fetch_sub(1, Ordering::Relaxed);
            side.overflow += 1;
            self.overflow.full_no_earlier(side.floor);
            return f(self.visited_overflow(), now);
        }
        side.arrivals.push_back(hash);
        let fresh = SharedValue::new(KeyState::new(self.fresh_tat(&side)));
        let (_, state) = shard.insert_entry(hash, (owned, fresh), |(known, _)| hasher.hash_one(known));
        f(self.visited(state.get(), hash), now)
    }

    /// What a check of a key that is not known would answer, be there room for it or not.
    #[cold]
    pub(crate) fn peek_new<Q>(&self, key: &Q, quota: &QuotaTicks, cost: u64, now: Now) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.map.hasher().hash_one(key);
        let side = lock(&self.sides[self.map.determine_shard(hash as usize)]);
        self.visited(&KeyState::new(self.fresh_tat(&side)), hash).peek(quota, cost, now)
    }

    /// Gives back what `allow` took, be it of `key` or, before that had a bucket of its own, of the overflow.
    pub fn refund<Q>(&self, key: &Q, quota: &QuotaTicks, allow: &Allow, clock: impl Fn() -> Now)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.visited_overflow().refund(quota, allow, &clock);
        self.visit(key, |visited| visited.refund(quota, allow, &clock));
    }

    /// Makes the state of `key` a fresh one: true if there was one.
    pub(crate) fn reset<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.map.hasher().hash_one(key);
        let mut shard = self.map.shards()[self.map.determine_shard(hash as usize)].write();
        match shard.get_mut(hash, |(known, _)| known.borrow() == key) {
            Some((_, state)) => {
                // First, so that no refund of an earlier take finds the fresh state.
                self.refunds_of(hash).renew();
                *state.get_mut() = KeyState::new(0);
                true
            }
            None => false,
        }
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// What has happened so far.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats { keys: self.len(), evictions: 0, overflow: 0 };
        for side in &self.sides {
            let side = lock(side);
            stats.evictions += side.evictions;
            stats.overflow += side.overflow;
        }
        stats
    }

    #[inline]
    fn visited<'a>(&'a self, state: &'a KeyState, hash: u64) -> Visited<'a> {
        Visited::new(state, self.refunds_of(hash), hash)
    }

    fn visited_overflow(&self) -> Visited<'_> {
        Visited::new(&self.overflow, &self.overflow_refunds, self.overflow_id)
    }

    #[inline]
    fn refunds_of(&self, hash: u64) -> &Refunds {
        &self.refunds[hash as usize % REFUNDS]
    }

    /// Where the bucket of a newcomer starts, its own or the overflow.
    fn fresh_tat(&self, side: &Side) -> u64 {
        side.floor.max(self.overflow.tat())
    }
}

#[cfg(not(loom))]
impl<K: Eq + Hash, S: BuildHasher + Clone> Sharded<K, S> {
    /// A copy of every key with its state as `f` sees it, locking one shard at a time.
    pub(crate) fn snapshot<R>(&self, f: impl Fn(Visited<'_>) -> R) -> Vec<(K, R)>
    where
        K: Clone,
    {
        let mut copies = Vec::new();
        for entry in self.map.iter() {
            let hash = self.map.hasher().hash_one(entry.key());
            copies.push((entry.key().clone(), f(self.visited(entry.value(), hash))));
        }
        copies
    }
}

/// Nothing that runs under the lock can panic but a key's own `Hash`; then, at worst, one key is not looked at again.
fn lock(side: &Mutex<Side>) -> crate::sync::MutexGuard<'_, Side> {
    side.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<K, S> fmt::Debug for Sharded<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded").finish_non_exhaustive()
    }
}
