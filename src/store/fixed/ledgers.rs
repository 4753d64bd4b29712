//! The table, and beside it a map of ledgers.
//!
//! A ledger is more than words that can be carried over one by one. So what a key has of global quotas is kept as the default
//! store keeps it, in a map by key, and its buckets and places in flight in the table, whatever its plan is: a plan may get its
//! first global quota, or lose its last, and nothing moves from one to the other. To the map the plans are those of
//! [`Plans::of_ledgers`], which have global quotas and nothing else.
//!
//! Each of the two finds a newcomer a place, evicts, carries over and moves by itself. A caller that has found both takes from
//! both, all or nothing. Where both are locked, the table is first.

use std::fmt;
use std::hash::BuildHasher;

use super::FixedStore;
use super::state::FixedState;
use crate::clock::Time;
use crate::decision::Seen;
use crate::error::BuildError;
use crate::key::Key;
use crate::plans::{Move, PlanTicks, Plans, Wish};
use crate::shared::{Who, Write};
use crate::store::sharded::{ShardedStore, default_shards};
use crate::store::{KeyState, Newcomer, Store};
use crate::ticks::Now;

/// A fixed store of a limiter that may belong to a fleet.
#[expect(unnameable_types, reason = "limiters hold it, and no other type")]
pub struct WithLedgers<K: Key + ?Sized, S> {
    table: FixedStore<S>,
    beside: Option<ShardedStore<K, S>>,
}

impl<K: Key + ?Sized, S: BuildHasher + Clone + 'static> WithLedgers<K, S> {
    /// Room beside the table for the ledgers of `keys`, if the limiter belongs to a fleet.
    pub(super) fn new(table: FixedStore<S>, keys: u64, plans: &Plans, write: Write<K>) -> Self {
        let beside = || ShardedStore::new(table.hasher.clone(), default_shards(), keys, write);
        Self { beside: plans.default.shared.is_of_fleet().then(beside), table }
    }

    /// What has the ledgers of the keys of `plan`, if it has global quotas.
    #[inline]
    fn beside(&self, plan: &PlanTicks) -> Option<&ShardedStore<K, S>> {
        if plan.shared.is_empty() { None } else { self.beside.as_ref() }
    }

    /// Whether the keys of `plan` have a way in the table: also those that may be in flight on it, be that limited or not.
    #[inline]
    fn is_in_table(&self, plan: &PlanTicks) -> bool {
        !plan.quotas.is_empty() || self.table.in_flight.is_some()
    }

    /// The map with the plans that it goes by, if there is one.
    fn ledgers<'a>(&'a self, plans: &'a Plans) -> Option<(&'a ShardedStore<K, S>, &'a Plans)> {
        self.beside.as_ref().zip(plans.of_ledgers.as_deref())
    }
}

impl<K: Key + ?Sized, S: BuildHasher + Clone + 'static> Store<K> for WithLedgers<K, S> {
    type State<'a> = FixedState<'a>;

    fn accepts(&self, plans: &Plans) -> Result<(), BuildError> {
        Store::<K>::accepts(&self.table, plans)
    }

    #[inline(always)]
    fn hash(&self, key: &K) -> u64 {
        self.table.hash(key)
    }

    fn id(&self, key: &K) -> u64 {
        self.table.id(key)
    }

    #[inline(always)]
    fn prefetch(&self, hash: u64) {
        Store::<K>::prefetch(&self.table, hash);
    }

    #[inline(always)]
    fn prefetch_next(&self, hash: u64) {
        Store::<K>::prefetch_next(&self.table, hash);
    }

    #[inline(always)]
    fn take_one(
        &self,
        hash: u64,
        key: &K,
        wish: Wish<'_>,
        current: impl Fn() -> u64,
        time: &impl Time,
    ) -> Option<(bool, Seen)> {
        // A plan of one quota has no global one.
        self.table.take_one(hash, key, wish, current, time)
    }

    #[inline]
    fn visit<R>(&self, key: &K, plan: &PlanTicks, version: u64, f: impl FnOnce(FixedState<'_>, u64) -> R) -> Option<R> {
        let Some(beside) = self.beside(plan) else { return self.table.visit(key, plan, version, f) };
        let hash = Store::<K>::hash(&self.table, key);
        let id = self.table.id_of(hash);
        if !self.is_in_table(plan) {
            return beside.find(hash, key, plan.index, |state, _| f(FixedState::of_ledgers(state), id));
        }
        let own = self.table.state_of(hash, plan, version)?;
        beside.find(hash, key, plan.index, |state, _| f(own.with_ledgers(state), id))
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
        let Some((beside, of_ledgers)) = self.ledgers(plans).filter(|_| !plan.shared.is_empty()) else {
            return self.table.settle(key, plans, plan, newcomer, is_current, clock, f);
        };
        let in_map = of_ledgers.get(plan.index);
        if !self.is_in_table(plan) {
            let id = self.table.id(key);
            let f = |state: &KeyState, _, now| f(FixedState::of_ledgers(state), id, now);
            return beside.settle(key, of_ledgers, in_map, newcomer, is_current, clock, f);
        }
        self.table.settle(key, plans, plan, newcomer, &is_current, clock, |own, id, now| {
            let f = |state: &KeyState, _, now| f(own.with_ledgers(state), id, now);
            beside.settle(key, of_ledgers, in_map, newcomer, &is_current, || now, f)
        })?
    }

    fn carry_all(&self, plans: &Plans) {
        if let Some((beside, of_ledgers)) = self.ledgers(plans) {
            beside.carry_all(of_ledgers);
        }
        Store::<K>::carry_all(&self.table, plans);
    }

    fn move_use(&self, key: &K, plans: &Plans, by: &Move, at: Now, is_current: impl Fn() -> bool) -> Option<bool> {
        let beside = match self.ledgers(plans) {
            None => false,
            Some((beside, of_ledgers)) => {
                let by = Move::new(of_ledgers.get(by.from.index), of_ledgers.get(by.to.index));
                beside.move_use(key, of_ledgers, &by, at, &is_current)?
            }
        };
        Some(self.table.move_use(key, plans, by, at, is_current)? || beside)
    }

    fn reset(&self, key: &K, plans: &Plans, is_current: impl FnOnce() -> bool) -> Option<bool> {
        // What a fleet has used of global quotas stays used.
        self.table.reset(key, plans, is_current)
    }

    fn leave(&self, key: &K, plans: &Plans, plan: u16) -> bool {
        self.table.leave(key, plans, plan)
    }

    #[cfg(not(loom))]
    fn each(&self, f: impl FnMut(&KeyState)) {
        if let Some(beside) = &self.beside {
            beside.each(f);
        }
    }

    fn who<'a>(&self, key: &'a K) -> Who<'a, K> {
        match &self.beside {
            Some(beside) => beside.who(key),
            None => self.table.who(key),
        }
    }

    fn len(&self) -> u64 {
        // Most keys that are in the map are in the table, too.
        Store::<K>::len(&self.table).max(self.beside.as_ref().map_or(0, Store::len))
    }

    fn counts(&self) -> (u64, u64) {
        let (evictions, overflow) = Store::<K>::counts(&self.table);
        let beside = self.beside.as_ref().map_or((0, 0), Store::counts);
        (evictions + beside.0, overflow + beside.1)
    }
}

impl<K: Key + ?Sized, S> fmt::Debug for WithLedgers<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithLedgers").field("table", &self.table).field("beside", &self.beside).finish()
    }
}
