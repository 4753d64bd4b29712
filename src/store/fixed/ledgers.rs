//! The table, and beside it a map for keys with ledgers.
//!
//! A ledger is more than words that can be carried over one by one. So keys on plans with global quotas are kept as the default
//! store keeps them, and all others in the table. What a key has used follows its plan: where a policy gives a plan its first
//! global quota, or takes the last, or sends keys from a plan of the one kind to one of the other, the first who looks for the
//! key where it should be brings it there. That is done under the latch of its first set, and nobody finds it in neither place:
//!
//! - Out of the table: its way is frozen, its state made beside it, the way emptied. Who finds nothing beside it waits for the
//!   latch, and looks again.
//! - Into the table: while the shard is locked, a way is opened for it, and then its state removed.
//!
//! If there is no room for it in the table, it stays where it is, and is decided there.
//!
//! Who has a way frozen may wait for a shard, and who has a shard locked for a way, though never for one of another key. That of
//! its own key nobody else has who waits for a shard, since it takes the latch to do that.

use std::fmt;
use std::hash::BuildHasher;

use super::carry::{carried_use, is_in_time};
use super::claim::Claimed;
use super::state::FixedState;
use super::way::tag_of;
use super::{FixedStore, MAX_QUOTAS, MAX_WORDS, PARITY};
use crate::clock::Time;
use crate::decision::Seen;
use crate::error::BuildError;
use crate::key::Key;
use crate::plans::{Move, PlanTicks, Plans, Wish, is_overflow};
use crate::shared::{Who, Write};
use crate::store::sharded::{ShardedStore, default_shards};
use crate::store::{KeyState, Newcomer, State, Store};
use crate::sync::Backoff;
use crate::ticks::Now;

/// What tells the id of a key beside the table from its id in there: what was taken in the one place is not given back in the
/// other, where the words that refunds go by mean something else.
const BESIDE: u64 = 1 << 62;

/// A fixed store of a limiter that may belong to a fleet.
#[expect(unnameable_types, reason = "limiters hold it, and nobody else")]
pub struct WithLedgers<K: Key + ?Sized, S> {
    table: FixedStore<S>,
    beside: Option<ShardedStore<K, S>>,
}

impl<K: Key + ?Sized, S: BuildHasher + Clone + 'static> WithLedgers<K, S> {
    /// Room beside the table for `keys`, if the limiter belongs to a fleet.
    pub(super) fn new(table: FixedStore<S>, keys: u64, plans: &Plans, write: Write<K>) -> Self {
        let beside = || ShardedStore::new(table.hasher.clone(), default_shards(), keys, write);
        Self { beside: plans.default.shared.is_of_fleet().then(beside), table }
    }

    /// Where the keys of `plan` are, if it is not the table.
    #[inline]
    fn beside(&self, plan: &PlanTicks) -> Option<&ShardedStore<K, S>> {
        if plan.shared.is_empty() { None } else { self.beside.as_ref() }
    }

    /// Brings what the key has used on `plan` to where that has its keys, if it is not there. Callers have the latch. `None` if
    /// the version of `plans` is not the current one any more.
    fn bring(
        &self,
        key: &K,
        hash: u64,
        plans: &Plans,
        plan: &PlanTicks,
        now: Now,
        is_current: &impl Fn() -> bool,
    ) -> Option<()> {
        match self.beside(plan) {
            Some(beside) => self.bring_out(beside, key, hash, plans, plan, now, is_current),
            None => {
                let home = plans.get(plan.index);
                self.bring_in(key, hash, plans, &Move::new(home, home), now, is_current).map(|_| ())
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what they have in common is this call")]
    fn bring_out(
        &self,
        beside: &ShardedStore<K, S>,
        key: &K,
        hash: u64,
        plans: &Plans,
        plan: &PlanTicks,
        now: Now,
        is_current: &impl Fn() -> bool,
    ) -> Option<()> {
        let (table, tag) = (&self.table, tag_of(hash, plan.index));
        while let Some(way) = table.live(hash, tag).or_else(|| table.left_behind(hash, plans, plan)) {
            if !is_current() {
                return None;
            }
            let Some(mut claimed) = table.freeze_of(way, is_current) else { continue };
            table.renew_frozen(&mut claimed, plans);
            // A plan with ledgers may have quotas that the table has no words for: then they are new.
            let tats = |words: &[u64; MAX_WORDS], n: usize| {
                let place = usize::from(plan.places[n]);
                if place < table.quotas { words[place] & !PARITY } else { 0 }
            };
            self.put_beside(beside, key, plans, plan, claimed, tats, now, is_current)?;
        }
        Some(())
    }

    /// Moves what was used in a way that was frozen out of the table, to `plan`, of whose n-th quota it is what `tat` says.
    #[expect(clippy::too_many_arguments, reason = "what they have in common is this call")]
    fn put_beside(
        &self,
        beside: &ShardedStore<K, S>,
        key: &K,
        plans: &Plans,
        plan: &PlanTicks,
        claimed: Claimed<'_>,
        tat: impl Fn(&[u64; MAX_WORDS], usize) -> u64,
        at: Now,
        is_current: impl FnOnce() -> bool,
    ) -> Option<()> {
        let mut tats = [0; MAX_QUOTAS];
        for (n, own) in tats.iter_mut().enumerate().take(plan.quotas.len()) {
            *own = tat(&claimed.words, n);
        }
        let in_flight = self.table.in_flight_of(&claimed);
        if beside.put_in(key, plans, plan, &tats, in_flight, at, is_current).is_none() {
            self.table.open(&claimed, claimed.way.tag);
            return None;
        }
        claimed.way.set.refunds.begin_life();
        self.table.empty(claimed);
        Some(())
    }

    /// Moves what the key has used beside the table on the plan that `by` comes from into the table. False if that is nothing,
    /// or if there is no room.
    fn bring_in(
        &self,
        key: &K,
        hash: u64,
        plans: &Plans,
        by: &Move,
        now: Now,
        is_current: &impl Fn() -> bool,
    ) -> Option<bool> {
        let Some(beside) = &self.beside else { return Some(false) };
        if !beside.has(key, by.from.index) {
            return Some(false);
        }
        let (table, tag) = (&self.table, tag_of(hash, by.to.index));
        beside.hand_over(key, plans, by.from.index, is_current, |state| {
            let mut words = [0; MAX_WORDS];
            for (slot, place) in state.slots().iter().zip(&by.from.places) {
                words[usize::from(*place)] = slot.bucket.tat();
            }
            let in_flight = State::in_flight(state);
            let backoff = Backoff::new();
            while let Some(way) = table.live(hash, tag) {
                if table.renew(way, plans) && table.absorb(way, &words, in_flight, by, now) {
                    return true;
                }
                backoff.snooze();
            }
            let floor = table.floor(hash).max(now.ticks());
            let Some(claimed) = table.claim_for(hash, now.ticks()) else { return false };
            if !is_in_time(is_current) {
                table.give_up(&claimed);
                return false;
            }
            let full_at = |n| carried_use(&words, by, n, now).unwrap_or(0).max(floor);
            table.begin_life(claimed, plans, &by.to, tag, full_at, in_flight);
            true
        })
    }
}

/// What one beside the table shows.
fn apart(state: &KeyState) -> FixedState<'_> {
    FixedState::Apart(state)
}

/// The id of one that is beside the table, or in an overflow.
const fn beside_id(id: u64) -> u64 {
    if is_overflow(id) { id } else { id ^ BESIDE }
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
        match self.beside(plan) {
            None => self.table.visit(key, plan, version, f),
            Some(beside) => beside.visit(key, plan, version, |state, id| f(apart(state), beside_id(id))),
        }
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
        let Some(beside) = &self.beside else {
            return self.table.settle(key, plans, plan, newcomer, is_current, clock, f);
        };
        let has_ledgers = !plan.shared.is_empty();
        if has_ledgers || beside.has(key, plan.index) {
            let hash = Store::<K>::hash(&self.table, key);
            let _latch = self.table.latch(hash);
            self.bring(key, hash, plans, plan, clock(), &is_current)?;
            if has_ledgers || beside.has(key, plan.index) {
                let f = |state: &KeyState, id, now| f(apart(state), beside_id(id), now);
                return beside.settle(key, plans, plan, newcomer, is_current, clock, f);
            }
        }
        self.table.settle(key, plans, plan, newcomer, is_current, clock, f)
    }

    fn carry_all(&self, plans: &Plans) {
        if let Some(beside) = &self.beside {
            beside.carry_all(plans);
        }
        Store::<K>::carry_all(&self.table, plans);
    }

    fn move_use(&self, key: &K, plans: &Plans, by: &Move, at: Now, is_current: impl Fn() -> bool) -> Option<bool> {
        let (table, hash) = (&self.table, Store::<K>::hash(&self.table, key));
        let Some(beside) = &self.beside else { return table.move_use(key, plans, by, at, is_current) };
        let latch = table.latch(hash);
        if !is_current() {
            return None;
        }
        for plan in [&by.from, &by.to] {
            self.bring(key, hash, plans, plan, at, &is_current)?;
        }
        match (by.from.shared.is_empty(), by.to.shared.is_empty()) {
            (true, true) => {
                drop(latch);
                let moved = table.move_use(key, plans, by, at, &is_current)?;
                return if moved { Some(true) } else { beside.move_use(key, plans, by, at, is_current) };
            }
            (true, false) => {
                let backoff = Backoff::new();
                while let Some(way) = table.live(hash, tag_of(hash, by.from.index)) {
                    if !is_current() {
                        return None;
                    }
                    if !table.renew(way, plans) {
                        backoff.snooze();
                        continue;
                    }
                    let Some(claimed) = table.freeze_of(way, &is_current) else { continue };
                    let tat = |words: &[u64; MAX_WORDS], n| carried_use(words, by, n, at).unwrap_or(0);
                    self.put_beside(beside, key, plans, &by.to, claimed, tat, at, &is_current)?;
                    return Some(true);
                }
            }
            (false, true) if self.bring_in(key, hash, plans, by, at, &is_current)? => return Some(true),
            (false, _) => {}
        }
        beside.move_use(key, plans, by, at, is_current)
    }

    fn reset(&self, key: &K, plans: &Plans, is_current: impl FnOnce() -> bool) -> Option<bool> {
        let in_table = self.table.reset(key, plans, || true)?;
        let beside = match &self.beside {
            Some(beside) => beside.reset(key, plans, is_current)?,
            None if is_current() => false,
            None => return None,
        };
        Some(in_table || beside)
    }

    fn leave(&self, key: &K, plans: &Plans, plan: u16) -> bool {
        let hash = Store::<K>::hash(&self.table, key);
        let leave = |is_meant: &dyn Fn(u16) -> bool| {
            self.table.leave_on(hash, is_meant)
                || self.beside.as_ref().is_some_and(|beside| beside.leave_on(key, is_meant))
        };
        leave(&|index| index == plan) || {
            let _latch = self.table.latch(hash);
            plans.leave_in_turn(plan, leave)
        }
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
        Store::<K>::len(&self.table) + self.beside.as_ref().map_or(0, Store::len)
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
