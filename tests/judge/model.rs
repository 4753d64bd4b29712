//! The books of one limiter: a ledger for each quota of each key, and the requests in flight.
//!
//! Each rule is one that any correct limiter keeps. Where the documentation leaves something open,
//! the books go by what is the least strict:
//!
//! - **Reload.** A plan whose quotas stay goes on with its ledgers. Where one of them changes, all
//!   are opened anew, with the use of the quota of the same name, or of the lone one; allows from
//!   before are of none of the new entries.
//! - **A plan that goes.** Its keys go to the default plan with their use. The default store adds
//!   it up at once. The fixed one says that it is lost where the key was known on the default plan
//!   already, and a key that does not come for the default plan before its own returns may find its
//!   use there. So in a fixed store the use is waiting, counted by the quotas of the default plan,
//!   until the first take of a key that was never seen on that.
//! - **Overflow.** A key in overflow is bound as any other: the takes of all that share a bucket
//!   are bound together, so those of one key are. From the first check in overflow on, it is open
//!   which part of a key's use a move, or a plan that goes, takes along, and the books take nothing
//!   along.
//! - **Reset.** It gives one new burst on every plan if it says that the key was known, and else
//!   nothing.
//! - **Move.** It moves the use, up to the burst, in addition to what was used there, if it says
//!   that there was any.
//! - **In flight.** All guards of a key on a plan that are alive, those that were handed out in
//!   overflow too. A move and a plan that goes take them along. Where the key has some on both
//!   plans, `InFlight` says that a place may be given back on either; such a key is left out until
//!   all its guards are gone.
//! - **Denials** have to be due while there is room for all keys, the clock runs forwards and is no
//!   coarse one, and neither a policy nor a plan has changed.

use std::collections::{BTreeMap, BTreeSet};

use tollgate::Quota;

use super::ledger::{Ceiling, Ledger, Moment};
use super::script::{Costs, PlanSpec, PolicySpec};

/// Stands for the overflow of a plan, as if that were a key.
pub(crate) const OVERFLOW: u64 = u64::MAX;

/// The ledgers of a key on a plan.
#[derive(Clone, Debug)]
struct Account {
    ledgers: Vec<Ledger>,
    ceilings: Vec<Ceiling>,
    /// Whether the key was ever admitted on this plan.
    is_seen: bool,
}

impl Account {
    fn new(plan: &PlanSpec) -> Self {
        let ledgers = plan.quotas.iter().copied().map(Ledger::new).collect();
        Self { ledgers, ceilings: plan.quotas.iter().copied().map(Ceiling::new).collect(), is_seen: false }
    }

    /// The account on `plan` that takes over the use of this one.
    fn carried(&self, plan: &PlanSpec, hi: u64) -> Self {
        let old: Vec<_> = self.ledgers.iter().map(|ledger| *ledger.quota()).collect();
        let ledger_of = |(quota, from): (&Quota, Option<usize>)| match from {
            Some(from) => self.ledgers[from].carried(*quota, hi),
            None => Ledger::new(*quota),
        };
        let ledgers = plan.quotas.iter().zip(matches(&plan.quotas, &old)).map(ledger_of).collect();
        Self { ledgers, is_seen: self.is_seen, ..Self::new(plan) }
    }

    /// Adds the use of `other`.
    fn absorb(&mut self, other: &Self, hi: u64) {
        let [own, old] = [&*self, other].map(|of| of.ledgers.iter().map(|ledger| *ledger.quota()).collect::<Vec<_>>());
        for (ledger, from) in self.ledgers.iter_mut().zip(matches(&own, &old)) {
            if let Some(from) = from {
                ledger.absorb(&other.ledgers[from], hi);
            }
        }
    }

    fn is_used(&self, hi: u64) -> bool {
        self.ledgers.iter().any(|ledger| ledger.is_used(hi))
    }
}

/// For each quota of `new` that of `old` whose use it takes over: by name, and a lone one that of a
/// lone one.
fn matches(new: &[Quota], old: &[Quota]) -> Vec<Option<usize>> {
    if new.len() == 1 && old.len() == 1 {
        return vec![Some(0)];
    }
    new.iter().map(|quota| old.iter().position(|old| old.name() == quota.name())).collect()
}

/// Returns the cost of a request in the unit of a quota.
pub(crate) fn cost_of(quota: &Quota, costs: Costs) -> u64 {
    if quota.counted() == tollgate::Unit::TOKENS { costs.1 } else { costs.0 }
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Place {
    id: u64,
    key: u64,
    plan: usize,
}

/// The books of one limiter.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    policy: PolicySpec,
    is_fixed: bool,
    accounts: BTreeMap<(u64, usize), Account>,
    /// The use of plans that are gone, counted by the quotas of the default plan, by key and plan.
    waiting: BTreeMap<(u64, usize), Account>,
    places: Vec<Place>,
    /// Keys of which it is open on which plan their places are.
    blurred: BTreeSet<u64>,
    /// Keys whose places have moved to another plan while they were taken, until all are given back.
    moved: BTreeSet<u64>,
    /// Whether any check was ever decided in overflow.
    has_overflowed: bool,
    /// Whether denials have to be due.
    judges_denials: bool,
}

impl Books {
    pub(crate) fn new(policy: &PolicySpec, is_fixed: bool, judges_denials: bool) -> Self {
        Self {
            policy: policy.clone(),
            is_fixed,
            accounts: BTreeMap::new(),
            waiting: BTreeMap::new(),
            places: Vec::new(),
            moved: Default::default(),
            blurred: BTreeSet::new(),
            has_overflowed: false,
            judges_denials,
        }
    }

    pub(crate) const fn policy(&self) -> &PolicySpec {
        &self.policy
    }

    /// Notes that a check was decided in overflow.
    pub(crate) const fn overflow(&mut self) {
        self.has_overflowed = true;
    }

    fn account(&mut self, key: u64, plan: usize) -> Option<&mut Account> {
        let spec = self.policy.plan(plan)?;
        Some(self.accounts.entry((key, plan)).or_insert_with(|| Account::new(spec)))
    }

    /// Notes that `key` was admitted on `plan`, in overflow or not.
    pub(crate) fn admit(
        &mut self,
        (key, plan): (u64, usize),
        costs: Costs,
        tag: u64,
        at: Moment,
        in_overflow: bool,
    ) -> Result<(), String> {
        if plan == 0 && !self.account(key, 0).is_some_and(|account| account.is_seen) {
            for from in 1..self.policy.plans.len() {
                let Some(waiting) = self.waiting.remove(&(key, from)) else { continue };
                if let Some(account) = self.account(key, 0) {
                    account.absorb(&waiting, at.hi);
                }
            }
        }
        let sharers = if in_overflow { &[key, OVERFLOW][..] } else { &[key] };
        for sharer in sharers {
            let Some(account) = self.account(*sharer, plan) else { continue };
            account.is_seen = true;
            for (ledger, ceiling) in account.ledgers.iter_mut().zip(&mut account.ceilings) {
                let cost = cost_of(ledger.quota(), costs);
                let who = if *sharer == OVERFLOW { String::from("overflow") } else { format!("key {key}") };
                ledger.admit(tag, cost, at).map_err(|excess| format!("{who} on plan {plan}: {excess}"))?;
                if cost > 0 {
                    ceiling.admit(cost, at.hi);
                }
            }
        }
        Ok(())
    }

    /// Judges a denial.
    pub(crate) fn deny(
        &mut self,
        (key, plan): (u64, usize),
        costs: Costs,
        enters: bool,
        at: u64,
    ) -> Result<(), String> {
        let full = enters && self.is_full(key, plan);
        if !self.judges_denials || full {
            return Ok(());
        }
        let Some(account) = self.account(key, plan) else { return Ok(()) };
        let is_due = |ceiling: &Ceiling, ledger: &Ledger| ceiling.may_deny(cost_of(ledger.quota(), costs), at);
        if account.ceilings.iter().zip(&account.ledgers).any(|(ceiling, ledger)| is_due(ceiling, ledger)) {
            return Ok(());
        }
        Err(format!("key {key} on plan {plan}: {costs:?} denied at {at} ns without need"))
    }

    fn alive(&self, key: u64, plan: usize) -> usize {
        self.places.iter().filter(|place| place.key == key && place.plan == plan).count()
    }

    fn limit(&self, plan: usize) -> Option<usize> {
        self.policy.plan(plan).and_then(|spec| spec.in_flight).map(|limit| limit as usize)
    }

    fn is_full(&self, key: u64, plan: usize) -> bool {
        self.limit(plan).is_some_and(|limit| self.alive(key, plan) >= limit || self.blurred.contains(&key))
    }

    /// Notes that a request of `key` is in flight.
    pub(crate) fn enter(&mut self, id: u64, (key, plan): (u64, usize)) -> Result<(), String> {
        if self.moved.contains(&key) && self.places.iter().any(|place| place.key == key && place.plan != plan) {
            self.blurred.insert(key);
        }
        self.places.push(Place { id, key, plan });
        let alive = self.alive(key, plan);
        match self.limit(plan) {
            Some(limit) if alive > limit && !self.blurred.contains(&key) => {
                Err(format!("key {key} on plan {plan}: {alive} requests in flight, at most {limit}"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn leave(&mut self, id: u64) {
        let Some(index) = self.places.iter().position(|place| place.id == id) else { return };
        let key = self.places.swap_remove(index).key;
        if self.places.iter().all(|place| place.key != key) {
            self.blurred.remove(&key);
            self.moved.remove(&key);
        }
    }

    /// Notes that a take was given back, wherever it is: of a ledger that has begun anew it is
    /// none.
    pub(crate) fn give_back(&mut self, keys: &[u64], tag: u64) {
        for key in keys {
            for (_, account) in self.accounts.range_mut((*key, 0)..=(*key, usize::MAX)) {
                account.ledgers.iter_mut().for_each(|ledger| ledger.give_back(tag));
            }
        }
    }

    pub(crate) fn reset(&mut self, key: u64, was_known: bool) {
        for (_, account) in self.accounts.range_mut((key, 0)..=(key, usize::MAX)) {
            let quotas: Vec<_> = account.ledgers.iter().map(|ledger| *ledger.quota()).collect();
            account.ceilings = quotas.iter().copied().map(Ceiling::new).collect();
            if was_known {
                account.ledgers = quotas.into_iter().map(Ledger::new).collect();
            }
        }
        if was_known {
            self.waiting.retain(|(of, _), _| *of != key);
        }
    }

    /// Notes a move that said whether there was anything to move.
    pub(crate) fn move_use(
        &mut self,
        key: u64,
        (from, to): (usize, usize),
        hi: u64,
        moved: bool,
    ) -> Result<(), String> {
        self.judges_denials = false;
        if self.account(key, from).is_none() || self.account(key, to).is_none() {
            return Ok(());
        }
        let is_used = self.accounts[&(key, from)].is_used(hi);
        if !moved {
            return match is_used && !self.has_overflowed {
                true => Err(format!("key {key}: use of plan {from} was not moved to {to} at {hi} ns")),
                false => Ok(()),
            };
        }
        let old = self.accounts.remove(&(key, from));
        let takes_along = !self.has_overflowed;
        if let (Some(old), Some(account)) = (old, self.account(key, to)) {
            if takes_along {
                account.absorb(&old, hi);
            }
            account.is_seen = true;
        }
        if let Some(account) = self.account(key, from) {
            account.is_seen = true;
        }
        self.take_places_along(Some(key), from, to);
        Ok(())
    }

    /// Places of the plan `from` are of the plan `to` from now on, of one key or of all.
    fn take_places_along(&mut self, only: Option<u64>, from: usize, to: usize) {
        for index in 0..self.places.len() {
            let Place { key, plan, .. } = self.places[index];
            let goes_along = plan == from && only.is_none_or(|only| only == key);
            if goes_along {
                self.moved.insert(key);
            }
            let is_on_both = self.alive(key, to) > 0 && self.alive(key, from) > 0;
            if goes_along && (self.has_overflowed || is_on_both) {
                self.blurred.insert(key);
            }
        }
        for place in &mut self.places {
            if place.plan == from && only.is_none_or(|only| only == place.key) {
                place.plan = to;
            }
        }
    }

    pub(crate) fn reload(&mut self, policy: &PolicySpec, hi: u64) {
        self.judges_denials = false;
        let old = std::mem::replace(&mut self.policy, policy.clone());
        let Some(default) = policy.plan(0) else { return };
        for plan in 0..policy.plans.len() {
            let keys: Vec<u64> = self.accounts.keys().filter(|(_, of)| *of == plan).map(|(key, _)| *key).collect();
            match (old.plan(plan), policy.plan(plan)) {
                (Some(was), Some(is)) if was.quotas == is.quotas => {}
                (Some(_), Some(is)) => {
                    for key in keys {
                        let account = &self.accounts[&(key, plan)];
                        // What the overflow as a whole keeps is not said.
                        let new = if key == OVERFLOW { Account::new(is) } else { account.carried(is, hi) };
                        self.accounts.insert((key, plan), new);
                    }
                }
                // The default plan is never gone, and has been carried over before.
                (Some(_), None) => {
                    for key in keys {
                        let gone = self.accounts.remove(&(key, plan));
                        if let Some(gone) = gone.filter(|_| key != OVERFLOW && !self.has_overflowed) {
                            self.waiting.insert((key, plan), gone.carried(default, hi));
                        }
                    }
                    if self.is_fixed {
                        // Where the key is known on the default plan, its places may stay where
                        // they are.
                        let seen =
                            |place: &Place| self.accounts.get(&(place.key, 0)).is_some_and(|account| account.is_seen);
                        let blurred: Vec<_> = self
                            .places
                            .iter()
                            .filter(|place| place.plan == plan && seen(place))
                            .map(|place| place.key)
                            .collect();
                        self.blurred.extend(blurred);
                    }
                    self.take_places_along(None, plan, 0);
                }
                (None, Some(_)) => {
                    // In a fixed store, the use may be back on it, or the key be known on the
                    // default plan from now on.
                    for key in
                        self.waiting.keys().filter(|(_, of)| *of == plan).map(|(key, _)| *key).collect::<Vec<_>>()
                    {
                        self.waiting.remove(&(key, plan));
                        if let Some(account) = self.account(key, 0) {
                            account.is_seen = true;
                        }
                    }
                    if self.is_fixed {
                        self.blurred.extend(self.places.iter().map(|place| place.key));
                    }
                }
                (None, None) => {}
            }
        }
        let quotas_stay = old.plan(0).is_some_and(|old| old.quotas == default.quotas);
        if !quotas_stay {
            self.waiting.values_mut().for_each(|account| *account = account.carried(default, hi));
        }
        if !self.is_fixed {
            for ((key, _), waiting) in std::mem::take(&mut self.waiting) {
                if let Some(account) = self.account(key, 0) {
                    account.absorb(&waiting, hi);
                    account.is_seen = true;
                }
            }
        }
    }
}
