//! The store that grows: a `dashmap` of many shards, each a hash table behind a reader-writer lock.
//!
//! A known key takes its shard's lock for reading: two locked operations on a line that the threads of that shard
//! share. A new key takes it for writing. A reader can therefore wait for a writer of its shard that was preempted.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};

use dashmap::{DashMap, SharedValue};

use super::KeyState;
use crate::hasher::random;
use crate::sync::{AtomicU64, Ordering};

pub(crate) struct Sharded<K, S> {
    map: DashMap<K, KeyState, S>,
    next_life: AtomicU64,
}

impl<K: Eq + Hash, S: BuildHasher + Clone> Sharded<K, S> {
    /// `shards` is a power of two and at least 2.
    pub(crate) fn new(hasher: S, shards: usize) -> Self {
        Self {
            map: DashMap::with_capacity_and_hasher_and_shard_amount(0, hasher, shards),
            // From a random start, so that lives of different limiters differ too.
            next_life: AtomicU64::new(random()),
        }
    }

    /// Hands the state of `key` to `f`, if there is one.
    #[inline]
    pub(crate) fn visit<Q, R>(&self, key: &Q, f: impl FnOnce(&KeyState) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.map.hasher().hash_one(key);
        let shard = self.map.shards()[self.map.determine_shard(hash as usize)].read();
        shard.get(hash, |(known, _)| known.borrow() == key).map(|(_, state)| f(state.get()))
    }

    /// Hands the state of `key` to `f`, and makes it if there is none.
    #[cold]
    pub(crate) fn insert<Q, R>(&self, key: &Q, f: impl FnOnce(&KeyState) -> R) -> R
    where
        K: Borrow<Q>,
        Q: ToOwned<Owned = K> + Hash + Eq + ?Sized,
    {
        // Allocated before the lock is taken. If another thread brings the key meanwhile, this one is dropped.
        let owned = key.to_owned();
        let hasher = self.map.hasher();
        let hash = hasher.hash_one(key);
        let mut shard = self.map.shards()[self.map.determine_shard(hash as usize)].write();
        if let Some((_, state)) = shard.get(hash, |(known, _)| known.borrow() == key) {
            return f(state.get());
        }
        // Relaxed: all that matters is that no number is given twice.
        let life = self.next_life.fetch_add(1, Ordering::Relaxed);
        let fresh = SharedValue::new(KeyState::new(life));
        let (_, state) = shard.insert_entry(hash, (owned, fresh), |(known, _)| hasher.hash_one(known));
        f(state.get())
    }

    /// Drops the state of `key`: true if there was one.
    pub(crate) fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.map.hasher().hash_one(key);
        let removed = self.map.shards()[self.map.determine_shard(hash as usize)]
            .write()
            .remove_entry(hash, |(known, _)| known.borrow() == key);
        // Dropped here, after the lock.
        removed.is_some()
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// A copy of every key with its state as `f` sees it, locking one shard at a time.
    pub(crate) fn snapshot<R>(&self, f: impl Fn(&KeyState) -> R) -> Vec<(K, R)>
    where
        K: Clone,
    {
        self.map.iter().map(|entry| (entry.key().clone(), f(entry.value()))).collect()
    }
}

impl<K, S> fmt::Debug for Sharded<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded").finish_non_exhaustive()
    }
}
