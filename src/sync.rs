//! The only place that names atomics: the standard library's, or the model checker's. And stand-ins for what the model
//! checker can't see into.

#[cfg(all(loom, feature = "global"))]
pub(crate) use self::stand_in::{ArrayQueue, SegQueue};
#[cfg(loom)]
pub(crate) use self::stand_in::{Backoff, DashMap, Held, SharedValue, Shelf, Table, at_hand};
#[cfg(not(loom))]
pub(crate) use crate::at_hand;
#[cfg(not(loom))]
pub(crate) use crate::shelf::{Held, Shelf};
#[cfg(all(not(loom), feature = "global"))]
pub(crate) use crossbeam_queue::{ArrayQueue, SegQueue};
#[cfg(not(loom))]
pub(crate) use crossbeam_utils::Backoff;
pub(crate) use crossbeam_utils::CachePadded;
#[cfg(not(loom))]
pub(crate) use prefetch_index::prefetch_index as prefetch;
#[cfg(loom)]
pub(crate) const fn prefetch<T>(_: &[T], _: usize) {}
#[cfg(not(loom))]
pub(crate) use dashmap::{DashMap, SharedValue};
#[cfg(not(loom))]
pub(crate) use hashbrown::raw::RawTable as Table;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::fence;
#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

#[cfg(loom)]
mod stand_in {
    use std::sync::Arc;

    use super::{RwLock, RwLockReadGuard, RwLockWriteGuard};

    /// Lets another thread run: a loop that waits for one would else never end.
    pub(crate) struct Backoff;

    impl Backoff {
        pub(crate) fn new() -> Self {
            Self
        }

        pub(crate) fn snooze(&self) {
            loom::thread::yield_now();
        }
    }

    /// The part of `dashmap`'s raw interface that the store uses, over loom's lock and a plain list. What it leaves
    /// unchecked: `dashmap`'s own lock, and the hash tables in it.
    pub(crate) struct DashMap<K, V, S> {
        shards: Vec<Shard<Table<(K, SharedValue<V>)>>>,
        hasher: S,
    }

    impl<K, V, S> DashMap<K, V, S> {
        pub(crate) fn with_capacity_and_hasher_and_shard_amount(_: usize, hasher: S, shards: usize) -> Self {
            Self { shards: (0..shards).map(|_| Shard(RwLock::new(Table(Vec::new())))).collect(), hasher }
        }

        pub(crate) fn hasher(&self) -> &S {
            &self.hasher
        }

        pub(crate) fn shards(&self) -> &[Shard<Table<(K, SharedValue<V>)>>] {
            &self.shards
        }

        pub(crate) fn determine_shard(&self, hash: usize) -> usize {
            hash % self.shards.len()
        }
    }

    pub(crate) struct Shard<T>(RwLock<T>);

    impl<T> Shard<T> {
        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }

    /// Entries stay where they are while others go, as in the table that it stands for.
    pub(crate) struct Table<T>(Vec<(u64, Box<T>)>);

    impl<T> Table<T> {
        pub(crate) fn get(&self, hash: u64, mut eq: impl FnMut(&T) -> bool) -> Option<&T> {
            self.0.iter().find(|(known, entry)| *known == hash && eq(entry)).map(|(_, entry)| &**entry)
        }

        pub(crate) fn get_mut(&mut self, hash: u64, mut eq: impl FnMut(&T) -> bool) -> Option<&mut T> {
            self.0.iter_mut().find(|(known, entry)| *known == hash && eq(entry)).map(|(_, entry)| &mut **entry)
        }

        pub(crate) fn remove_entry(&mut self, hash: u64, mut eq: impl FnMut(&T) -> bool) -> Option<T> {
            let index = self.0.iter().position(|(known, entry)| *known == hash && eq(entry))?;
            Some(*self.0.swap_remove(index).1)
        }

        pub(crate) fn insert_entry(&mut self, hash: u64, entry: T, _: impl Fn(&T) -> u64) -> &mut T {
            let index = self.0.len();
            self.0.push((hash, Box::new(entry)));
            &mut self.0[index].1
        }

        pub(crate) fn len(&self) -> usize {
            self.0.len()
        }

        pub(crate) fn buckets(&self) -> usize {
            self.0.capacity()
        }

        pub(crate) fn shrink_to(&mut self, _: usize, _: impl Fn(&T) -> u64) {}
    }

    /// A bounded queue behind a lock. What it leaves unchecked: crossbeam's own.
    #[cfg(feature = "global")]
    pub(crate) struct ArrayQueue<T> {
        items: super::Mutex<std::collections::VecDeque<T>>,
        capacity: usize,
    }

    #[cfg(feature = "global")]
    impl<T> ArrayQueue<T> {
        pub(crate) fn new(capacity: usize) -> Self {
            Self { items: super::Mutex::new(std::collections::VecDeque::new()), capacity }
        }

        fn items(&self) -> super::MutexGuard<'_, std::collections::VecDeque<T>> {
            self.items.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        pub(crate) fn push(&self, item: T) -> Result<(), T> {
            let mut items = self.items();
            if items.len() == self.capacity {
                return Err(item);
            }
            items.push_back(item);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.items().pop_front()
        }

        pub(crate) fn len(&self) -> usize {
            self.items().len()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.len() == 0
        }
    }

    /// A queue without bounds behind a lock. What it leaves unchecked: crossbeam's own.
    #[cfg(feature = "global")]
    pub(crate) struct SegQueue<T>(ArrayQueue<T>);

    #[cfg(feature = "global")]
    impl<T> SegQueue<T> {
        pub(crate) fn new() -> Self {
            Self(ArrayQueue::new(usize::MAX))
        }

        pub(crate) fn push(&self, item: T) {
            let _ = self.0.push(item);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.0.pop()
        }
    }

    /// The newest values behind locks, since the model checker does not know `arc-swap`.
    pub(crate) struct Shelf<T>([RwLock<Arc<(u64, T)>>; 2]);

    impl<T> Shelf<T> {
        pub(crate) fn new(first: &Arc<(u64, T)>) -> Self {
            Self([(); 2].map(|()| RwLock::new(Arc::clone(first))))
        }

        pub(crate) fn get(&self, version: u64) -> Held<T> {
            let slot = &self.0[(version % 2) as usize];
            Held(Arc::clone(&slot.read().unwrap_or_else(std::sync::PoisonError::into_inner)))
        }

        pub(crate) fn put(&self, version: u64, value: Arc<(u64, T)>) {
            let slot = &self.0[(version % 2) as usize];
            *slot.write().unwrap_or_else(std::sync::PoisonError::into_inner) = value;
        }
    }

    pub(crate) struct Held<T>(Arc<(u64, T)>);

    impl<T> Held<T> {
        pub(crate) fn version(&self) -> u64 {
            self.0.0
        }

        pub(crate) fn get(&self) -> &T {
            &self.0.1
        }
    }

    /// Nothing is ever at hand: a thread of a model has no thread-locals of its own.
    pub(crate) mod at_hand {
        use crate::plans::Simple;
        use crate::policy::PlanId;

        pub(crate) const fn get(_: u64, _: u64, _: Option<PlanId>) -> Option<Simple> {
            None
        }

        pub(crate) const fn put(_: u64, _: u64, _: Option<PlanId>, _: Simple) {}
    }

    pub(crate) struct SharedValue<V>(V);

    impl<V> SharedValue<V> {
        pub(crate) fn new(value: V) -> Self {
            Self(value)
        }

        pub(crate) fn get(&self) -> &V {
            &self.0
        }

        pub(crate) fn into_inner(self) -> V {
            self.0
        }

        pub(crate) fn get_mut(&mut self) -> &mut V {
            &mut self.0
        }
    }
}
