//! The plans of a policy as decisions use them, and how use is carried from one policy to the next.
//!
//! A policy has a *version*. The state of a key is counted by the quotas of one version, and says of which. While a shard
//! is locked and the version is the current one, each state in it is of this version or the one before: a reload walks
//! through all shards before the next one begins. The same goes for each overflow and its lock. So a decision under the
//! lock compares two small numbers to know that it calculates with the quotas that the buckets are counted in, and a state
//! of the version before is carried over by whoever meets it first.

use std::sync::{Arc, PoisonError};

use crate::bucket::Demand;
use crate::quota::{Quota, QuotaTicks};
use crate::shared::{Shared, Who};
use crate::stats::PlanCounts;
use crate::store::KeyState;
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::ticks::Now;

/// The most quotas that a plan may have.
pub(crate) const MAX_QUOTAS: usize = 8;

/// One plan of one version of a policy.
#[derive(Debug)]
pub(crate) struct PlanTicks {
    /// Its place among all plans that the limiter ever had.
    pub(crate) index: u16,
    pub(crate) name: Arc<str>,
    pub(crate) quotas: Box<[Granted]>,
    /// Which word each quota has, where the words of a key are of a fixed number. A quota keeps its place while it stays.
    pub(crate) places: Box<[u8]>,
    /// The global ones.
    pub(crate) shared: Shared,
    /// The most requests in flight at once.
    pub(crate) in_flight: Option<u32>,
    /// Decides and counts, and never denies.
    pub(crate) shadow: bool,
    /// The quota, where there is nothing but one, of requests, and a denial is a denial: as most plans are.
    pub(crate) simple: Option<Simple>,
    /// Whether there is one global quota and at most one other, all of requests, and a denial is a denial.
    pub(crate) is_paired: bool,
    /// The version since which the quotas are what they are: what was taken before can't be given back.
    pub(crate) since: u64,
    pub(crate) home: Arc<Home>,
}

/// A plan of one quota as checks go by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simple {
    /// The index of the plan.
    pub(crate) plan: u16,
    pub(crate) quota: QuotaTicks,
    /// What one request asks for, worked out: five instructions of 180.
    one: Demand,
}

impl Simple {
    /// `None` for a quota that has room for nobody.
    pub(crate) fn new(plan: u16, quota: QuotaTicks) -> Option<Self> {
        Some(Self { plan, quota, one: Demand::new(&quota, 1)? })
    }

    /// What `cost` requests ask for, by that version of the policy. `None` if they can take nothing: so they must not leave a
    /// key behind either.
    #[inline(always)]
    pub(crate) fn wish(&self, cost: u64, version: u64) -> Option<Wish<'_>> {
        let demand = if cost == 1 { self.one } else { Demand::new(&self.quota, cost)? };
        Some(Wish { by: self, cost, demand, version })
    }
}

/// What a check asks for of a plan of one quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    pub(crate) by: &'a Simple,
    /// In units, and as little as one.
    pub(crate) cost: u64,
    pub(crate) demand: Demand,
    /// The version of the policy.
    pub(crate) version: u64,
}

/// A quota of a plan.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Granted {
    pub(crate) name: Arc<str>,
    pub(crate) quota: Quota,
    pub(crate) ticks: QuotaTicks,
    /// How far ahead `tat` is when the burst is used up.
    pub(crate) empty: u64,
}

impl Granted {
    /// Where `tat` is when the use of two buckets of this quota becomes that of one at the instant `at`.
    pub(crate) fn sum(&self, one: u64, other: u64, at: Now) -> u64 {
        let now = self.ticks.at(at);
        let used = (one.saturating_sub(now) + other.saturating_sub(now)).min(self.empty);
        if used == 0 { one.max(other) } else { now + used }
    }
}

/// What belongs to a plan whatever its quotas are.
#[derive(Debug)]
pub(crate) struct Home {
    /// The buckets that newcomers share when there is no room for them, once there was none.
    pub(crate) overflow: RwLock<Option<KeyState>>,
    /// Which buckets these are, for refunds and places in flight, with the top bit set.
    pub(crate) id: u64,
    pub(crate) counts: PlanCounts,
}

/// The bit that tells the id of an overflow from that of a key.
const OVERFLOW: u64 = 1 << 63;

/// Whether that is the id of an overflow.
pub(crate) const fn is_overflow(id: u64) -> bool {
    id & OVERFLOW != 0
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { overflow: RwLock::new(None), id: crate::hasher::random() | OVERFLOW, counts: PlanCounts::default() }
    }
}

impl PlanTicks {
    /// Whether nothing is counted at all.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.quotas.is_empty() && self.shared.is_empty() && self.in_flight.is_none()
    }

    /// Whether both grant the same, so that state of the one is state of the other.
    fn grants_as(&self, other: &Self) -> bool {
        self.index == other.index && self.quotas == other.quotas && self.shared == other.shared
    }

    /// The numbers of every quota, the global ones last.
    pub(crate) fn ticks(&self) -> impl Iterator<Item = &QuotaTicks> {
        self.quotas.iter().map(|quota| &quota.ticks).chain(self.shared.each().map(|(_, _, ticks)| ticks))
    }

    /// For each quota of this plan that of `old` whose use it takes over: the one of the same name, or the only one if
    /// both have one.
    fn matched(&self, old: &Self) -> Box<[Option<usize>]> {
        matched(&self.quotas, &old.quotas)
    }
}

fn matched(new: &[Granted], old: &[Granted]) -> Box<[Option<usize>]> {
    if let ([_], [_]) = (new, old) {
        return [Some(0)].into();
    }
    let from = |quota: &Granted| old.iter().position(|old| old.name == quota.name);
    new.iter().map(from).collect()
}

/// The places of `quotas`, which come after those of `old`.
pub(crate) fn places(quotas: &[Granted], old: Option<&PlanTicks>) -> Box<[u8]> {
    let kept: Vec<Option<u8>> = match old {
        Some(old) => matched(quotas, &old.quotas).iter().map(|from| from.map(|from| old.places[from])).collect(),
        None => vec![None; quotas.len()],
    };
    let mut free = (0..).filter(|place| !kept.contains(&Some(*place)));
    kept.iter().map(|place| place.unwrap_or_else(|| free.next().unwrap_or(0))).collect()
}

/// Where the use of a plan goes in the next version, or in a move.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) from: Arc<PlanTicks>,
    pub(crate) to: Arc<PlanTicks>,
    /// For each quota of `to` that of `from` whose use it takes over.
    pub(crate) matched: Box<[Option<usize>]>,
    /// Whether there is nothing to do.
    pub(crate) as_before: bool,
}

impl Move {
    pub(crate) fn new(from: &Arc<PlanTicks>, to: &Arc<PlanTicks>) -> Self {
        let (matched, as_before) = (to.matched(from), to.grants_as(from));
        Self { from: Arc::clone(from), to: Arc::clone(to), matched, as_before }
    }
}

/// All plans of one version.
#[derive(Debug)]
pub(crate) struct Plans {
    pub(crate) version: u64,
    /// When this version began.
    pub(crate) at: Now,
    /// By index. In the place of a plan that was removed is the one that its keys went to.
    pub(crate) plans: Vec<Arc<PlanTicks>>,
    pub(crate) default: Arc<PlanTicks>,
    /// By index: where each plan of the version before went.
    pub(crate) moves: Vec<Option<Move>>,
}

impl Plans {
    /// The plan with that index, or where its keys went if it was removed.
    #[inline]
    pub(crate) fn get(&self, index: u16) -> &Arc<PlanTicks> {
        self.plans.get(usize::from(index)).unwrap_or(&self.default)
    }

    /// Has a request that entered on the plan of that index `leave`, which counts one less in flight on a plan of the key whose
    /// index is one of those that it is given: on that plan; or, since it was removed, on one that has gone where it went; or
    /// wherever the key was moved.
    pub(crate) fn leave_in_turn(&self, plan: u16, leave: impl Fn(&dyn Fn(u16) -> bool) -> bool) -> bool {
        let went_to = self.get(plan).index;
        leave(&|index| index == plan) || leave(&|index| self.get(index).index == went_to) || leave(&|_| true)
    }

    /// The plans that there are.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<PlanTicks>> {
        self.plans.iter().enumerate().filter(|(index, plan)| usize::from(plan.index) == *index).map(|(_, plan)| plan)
    }

    /// Where the use of a state of the version before goes.
    pub(crate) fn move_of(&self, index: u16) -> Option<&Move> {
        self.moves.get(usize::from(index)).and_then(Option::as_ref)
    }

    /// The plans that are gone and whose use goes to `plan`.
    fn coming_to(&self, plan: &PlanTicks) -> impl Iterator<Item = &Move> {
        let index = plan.index;
        self.moves.iter().flatten().filter(move |by| by.to.index == index && by.from.index != index)
    }

    /// Carries over what was used of the overflow buckets.
    pub(crate) fn carry_overflow(&self) {
        for plan in self.iter() {
            self.renew_overflow(plan, &mut write(&plan.home.overflow));
        }
    }

    /// When the overflow buckets of all plans are full again.
    pub(crate) fn overflow_full_at(&self) -> u64 {
        let full_at = |plan: &Arc<PlanTicks>| read(&plan.home.overflow).as_ref().map(KeyState::full_at);
        self.iter().filter_map(full_at).max().unwrap_or(0)
    }

    /// Carries over what was used of the overflow of `plan`, and what comes to it from plans that are gone: only then is it
    /// of this version.
    fn renew_overflow(&self, plan: &PlanTicks, overflow: &mut Option<KeyState>) {
        if overflow.as_ref().is_some_and(|state| state.is_of(self.version)) {
            return;
        }
        if let (Some(state), Some(by)) = (overflow.as_mut(), self.move_of(plan.index)) {
            state.carry(self.version, by, self.at, new_life(), Who::<()>::Overflow);
        }
        for by in self.coming_to(plan) {
            let Some(mut state) = write(&by.from.home.overflow).take() else { continue };
            state.carry(self.version, by, self.at, new_life(), Who::<()>::Overflow);
            match overflow {
                Some(own) => own.absorb(&state, plan, self.at, new_life()),
                None => *overflow = Some(state),
            }
        }
    }

    /// Runs `f` on the overflow buckets of `plan`, counted by this version. They are made if there are none. `None` if
    /// `is_current` finds that this version is not the current one any more.
    pub(crate) fn with_overflow<R>(
        &self,
        plan: &PlanTicks,
        is_current: impl Fn() -> bool,
        f: impl FnOnce(&KeyState) -> R,
    ) -> Option<R> {
        {
            let overflow = read(&plan.home.overflow);
            if !is_current() {
                return None;
            }
            if let Some(state) = overflow.as_ref().filter(|state| state.is_of(self.version)) {
                return Some(f(state));
            }
        }
        let mut overflow = write(&plan.home.overflow);
        if !is_current() {
            return None;
        }
        self.renew_overflow(plan, &mut overflow);
        Some(f(
            overflow.get_or_insert_with(|| KeyState::new(plan, self.version, new_life(), |_| 0, Who::<()>::Overflow))
        ))
    }

    /// Where the buckets of a newcomer to `plan` start at the earliest: it takes over what it may have used in overflow.
    pub(crate) fn inherited(&self, plan: &PlanTicks, is_current: impl Fn() -> bool) -> Option<[u64; MAX_QUOTAS]> {
        let mut tats = [0; MAX_QUOTAS];
        let used = |plan: &PlanTicks| read(&plan.home.overflow).is_some();
        // In this order: what is taken from the former is in the latter before that is unlocked.
        if self.coming_to(plan).any(|by| used(&by.from)) || used(plan) {
            self.with_overflow(plan, is_current, |state| {
                for (tat, slot) in tats.iter_mut().zip(state.slots()) {
                    *tat = slot.bucket.tat();
                }
            })?;
        } else if !is_current() {
            // It may be with the plan that it went to.
            return None;
        }
        Some(tats)
    }
}

/// For buckets that start anew: what was taken from others in their place can't be given back.
fn new_life() -> u32 {
    crate::hasher::random() as u32
}

// Nothing that runs under these locks can panic.
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
