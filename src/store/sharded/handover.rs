//! What another store takes out of this one, and puts into it, where it has this one beside it.

use std::borrow::Borrow;
use std::hash::BuildHasher;
use std::ptr;

use super::{Kept, ShardedStore, Tag};
use crate::key::Key;
use crate::plans::{PlanTicks, Plans};
use crate::store::{KeyState, Store};
use crate::sync::Ordering;
use crate::ticks::Now;

impl<K: Key + ?Sized, S: BuildHasher + Clone + 'static> ShardedStore<K, S> {
    /// Whether there is a state of `key` on the plan of that index.
    pub(crate) fn has(&self, key: &K, plan: u16) -> bool {
        self.find(self.hash(key), key, plan, |_, _| ()).is_some()
    }

    /// Counts one request of `key` less in flight on a plan whose index `is_meant`, if there is one.
    pub(crate) fn leave_on(&self, key: &K, is_meant: &dyn Fn(u16) -> bool) -> bool {
        self.for_leaving(key, |leave| leave(is_meant))
    }

    /// Shows the state of `key` on the plan of that index, by the version of `plans`, to `take`, and drops it if that says so:
    /// true then. Nobody else sees it meanwhile. `None` if `is_current` finds that this version is not the current one any more.
    pub(crate) fn hand_over(
        &self,
        key: &K,
        plans: &Plans,
        plan: u16,
        is_current: impl FnOnce() -> bool,
        take: impl FnOnce(&KeyState) -> bool,
    ) -> Option<bool> {
        self.with_shard(key, plans, is_current, |shard, hash| {
            let tag = Tag::of(hash);
            let of_key = |known: &K::Owned, kept: &Kept| kept.state.plan() == plan && known.borrow() == key;
            let Some(place) = shard.place(tag, of_key) else { return false };
            // By its place from here on: a comparison could panic while the state is in both stores.
            let is_it = |kept: &Kept| ptr::eq(kept, place);
            if !shard
                .table
                .get(tag.hash(), |(_, kept)| is_it(kept.get()))
                .is_some_and(|(_, kept)| take(&kept.get().state))
            {
                return false;
            }
            let taken = shard.remove(tag, is_it);
            shard.count_out(tag);
            drop(taken);
            true
        })
    }

    /// Puts a state of `key` on `plan` in, with buckets that are full from `tats` on, whether there is room or not: the key was
    /// somewhere else before. It is added to one that there is, at the instant `at`. `None` if `is_current` finds that the
    /// version of `plans` is not the current one any more.
    #[expect(clippy::too_many_arguments, reason = "what they have in common is this call")]
    pub(crate) fn put_in(
        &self,
        key: &K,
        plans: &Plans,
        plan: &PlanTicks,
        tats: &[u64],
        in_flight: u32,
        at: Now,
        is_current: impl FnOnce() -> bool,
    ) -> Option<()> {
        self.with_shard(key, plans, is_current, |shard, hash| {
            let (tag, life) = (Tag::of(hash), shard.side.new_life());
            let state = KeyState::new(plan, plans.version, life, |n| tats[n], self.who(key));
            // Relaxed: nobody else can see the state.
            state.in_flight().store(in_flight, Ordering::Relaxed);
            match shard.get(tag, key, plan.index) {
                Some(own) => own.absorb(&state, plan, at, life),
                None => {
                    let owned = key.to_owned();
                    self.keys.fetch_add(1, Ordering::Relaxed);
                    shard.side.arrivals.push_back(tag);
                    _ = shard.insert(tag, owned, state);
                }
            }
        })
    }
}
