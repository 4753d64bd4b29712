//! The plans of a policy as decisions use them, and how use is carried from one policy to the next.
//!
//! A policy has a *version*. The state of a key is counted by the quotas of one version, and says of which. While a shard
//! is locked and the version is the current one, each state in it is of this version or the one before: a reload walks
//! through all shards before the next one begins. The same goes for each overflow and its lock. So a decision under the
//! lock compares two small numbers to know that it calculates with the quotas that the buckets are counted in, and a state
//! of the version before is carried over by whoever meets it first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError};

use crate::bucket::Demand;
use crate::hasher::RandomState;
use crate::quota::{Quota, QuotaTicks};
use crate::shared::{Shared, Who};
use crate::stats::PlanCounts;
use crate::store::KeyState;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard};
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
    /// The low bits of the version since which the quotas are what they are: what was taken before can't be given back.
    pub(crate) since: u32,
    pub(crate) home: Arc<Home>,
    /// Those of the plans that are gone and whose keys came here with this version.
    pub(crate) joined: Box<[Arc<Home>]>,
}

/// A plan of one quota as checks go by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simple {
    /// The index of the plan.
    pub(crate) plan: u16,
    /// As that of the plan.
    pub(crate) since: u32,
    pub(crate) quota: QuotaTicks,
    /// What one request asks for, worked out: five instructions of 180.
    one: Demand,
}

impl Simple {
    /// `None` for a quota that has room for nobody.
    pub(crate) fn new(plan: u16, since: u32, quota: QuotaTicks) -> Option<Self> {
        Some(Self { plan, since, quota, one: Demand::new(&quota, 1)? })
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
    /// Whether there are any, so that nothing is locked where there are none: 0 or 1.
    has_overflow: AtomicU64,
    /// Whose requests are in flight in there.
    pub(crate) guests: Guests,
    pub(crate) counts: PlanCounts,
}

/// The bit that tells what a key has in an overflow from what it has for itself.
const OVERFLOW: u64 = 1 << 63;

/// Whether that is the id of a key in an overflow.
pub(crate) const fn is_overflow(id: u64) -> bool {
    id & OVERFLOW != 0
}

/// The id in an overflow of the key that has the other one for itself.
pub(crate) const fn in_overflow(id: u64) -> u64 {
    id | OVERFLOW
}

impl Home {
    pub(crate) fn new() -> Self {
        let (overflow, has_overflow) = (RwLock::new(None), AtomicU64::new(0));
        Self { overflow, has_overflow, guests: Guests::new(), counts: PlanCounts::default() }
    }
}

/// The requests in flight of an overflow by key, so that they bind a key that has come to a place of its own since.
#[derive(Debug)]
pub(crate) struct Guests {
    /// How many there are: mostly none, and then nothing is locked.
    count: AtomicU64,
    by_key: Mutex<HashMap<u64, u32, RandomState>>,
}

impl Guests {
    fn new() -> Self {
        Self { count: AtomicU64::new(0), by_key: Mutex::new(HashMap::with_hasher(RandomState::new())) }
    }

    fn by_key(&self) -> MutexGuard<'_, HashMap<u64, u32, RandomState>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, id: u64) {
        self.add(id, 1);
    }

    fn add(&self, id: u64, more: u32) {
        let mut by_key = self.by_key();
        let own = by_key.entry(id & !OVERFLOW).or_default();
        *own = own.saturating_add(more);
        // Relaxed, here and below: a key comes to a place of its own under a lock that it was in here under, and only then
        // has to see its own.
        self.count.fetch_add(u64::from(more), Ordering::Relaxed);
    }

    /// Counts one of the key less: true if there was one.
    pub(crate) fn leave(&self, id: u64) -> bool {
        let mut by_key = self.by_key();
        let Entry::Occupied(mut own) = by_key.entry(id & !OVERFLOW) else { return false };
        *own.get_mut() -= 1;
        if *own.get() == 0 {
            own.remove();
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// How many of the key there are.
    pub(crate) fn of(&self, id: u64) -> u32 {
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.by_key().get(&(id & !OVERFLOW)).copied().unwrap_or(0)
    }

    /// Takes over all that are in `other`.
    fn absorb(&self, other: &Self) {
        // One after the other, and so that none is in neither.
        let theirs = other.by_key().clone();
        for (id, count) in theirs {
            self.add(id, count);
        }
        other.by_key().clear();
        other.count.store(0, Ordering::Relaxed);
    }
}

impl PlanTicks {
    /// The same plan with its global quotas and nothing else. `old` is what that was in the version before.
    #[cfg(feature = "global")]
    fn of_ledgers(&self, old: Option<&Arc<Self>>) -> Self {
        let home = old
            .filter(|old| old.index == self.index)
            .map_or_else(|| Arc::new(Home::new()), |old| Arc::clone(&old.home));
        Self {
            index: self.index,
            name: Arc::clone(&self.name),
            quotas: [].into(),
            places: [].into(),
            shared: self.shared.clone(),
            in_flight: None,
            shadow: self.shadow,
            simple: None,
            is_paired: false,
            since: self.since,
            home,
            joined: [].into(),
        }
    }

    /// How many requests of the key that has that id are in flight in the overflow, of this plan or of one whose keys came
    /// here with this version and are still to be carried over.
    pub(crate) fn guests(&self, id: u64) -> u32 {
        let joined = self.joined.iter().map(|home| home.guests.of(id));
        joined.fold(self.home.guests.of(id), u32::saturating_add)
    }

    /// Whether nothing is counted at all.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.quotas.is_empty() && self.shared.is_empty() && self.in_flight.is_none()
    }

    /// Whether both grant the same, so that state of the one is state of the other.
    const fn grants_as(&self, other: &Self) -> bool {
        self.index == other.index && self.since == other.since
    }

    /// The same plan in a version since which nothing that was taken before can be given back.
    fn renewed(&self, version: u64) -> Self {
        let since = version as u32;
        Self {
            index: self.index,
            name: Arc::clone(&self.name),
            quotas: self.quotas.clone(),
            places: self.places.clone(),
            shared: self.shared.clone(),
            in_flight: self.in_flight,
            shadow: self.shadow,
            simple: self.simple.map(|simple| Simple { since, ..simple }),
            is_paired: self.is_paired,
            since,
            home: Arc::clone(&self.home),
            joined: [].into(),
        }
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

/// The places of `quotas`, which come after those of `old`. One that stays has the place that it had, so that its word is
/// carried over by itself; but for a lone one, which is where checks look for it.
pub(crate) fn places(quotas: &[Granted], old: Option<&PlanTicks>) -> Box<[u8]> {
    if let [_] = quotas {
        return [0].into();
    }
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
    /// Whether time goes on from there, though it was later before.
    pub(crate) rewinds: bool,
    /// By index. In the place of a plan that was removed is the one that its keys went to.
    pub(crate) plans: Vec<Arc<PlanTicks>>,
    pub(crate) default: Arc<PlanTicks>,
    /// By index: where each plan of the version before went.
    pub(crate) moves: Vec<Option<Move>>,
    /// The same plans with their global quotas and nothing else, for a store that keeps ledgers apart from buckets.
    #[cfg(feature = "global")]
    pub(crate) of_ledgers: Option<Box<Plans>>,
}

impl Plans {
    /// All plans of a version that began at the instant `at`, by index and with where those of the version before, `old`, went.
    pub(crate) fn new(
        version: u64,
        at: Now,
        plans: Vec<Arc<PlanTicks>>,
        default: Arc<PlanTicks>,
        old: &[Arc<PlanTicks>],
    ) -> Self {
        let moves = old.iter().zip(&plans).map(|(old, new)| Some(Move::new(old, new))).collect();
        Self {
            version,
            at,
            rewinds: false,
            plans,
            default,
            moves,
            #[cfg(feature = "global")]
            of_ledgers: None,
        }
    }

    /// The same plans in the next version, in which time goes on from the instant `at`, though it was later before. What was
    /// used stays so up to the burst, as if the buckets were emptied at that instant, and nothing of it can be given back.
    pub(crate) fn rewound(&self, at: Now) -> Self {
        let version = self.version + 1;
        let own = self.each(|plan| plan.renewed(version));
        let plans = self.plans.iter().filter_map(|plan| own[usize::from(plan.index)].clone()).collect();
        let default = own[usize::from(self.default.index)].clone().unwrap_or_else(|| Arc::clone(&self.default));
        let rewound = Self { rewinds: true, ..Self::new(version, at, plans, default, &self.plans) };
        #[cfg(feature = "global")]
        let rewound = rewound.with_ledgers(Some(self));
        rewound
    }

    /// What `f` makes of the plans that there are, by index.
    fn each(&self, f: impl Fn(&PlanTicks) -> PlanTicks) -> Vec<Option<Arc<PlanTicks>>> {
        let own =
            |(index, plan): (usize, &Arc<PlanTicks>)| (usize::from(plan.index) == index).then(|| Arc::new(f(plan)));
        self.plans.iter().enumerate().map(own).collect()
    }

    /// The same with the plans that a store goes by which keeps ledgers apart from buckets, if the limiter belongs to a fleet.
    #[cfg(feature = "global")]
    pub(crate) fn with_ledgers(self, before: Option<&Self>) -> Self {
        if !self.default.shared.is_of_fleet() {
            return self;
        }
        let old = before.and_then(|before| before.of_ledgers.as_deref()).map_or(&[][..], |old| &old.plans[..]);
        let own = self.each(|plan| plan.of_ledgers(old.get(usize::from(plan.index))));
        let plans = self.plans.iter().filter_map(|plan| own[usize::from(plan.index)].clone()).collect();
        let Some(default) = own[usize::from(self.default.index)].clone() else { return self };
        let of_ledgers = Self { rewinds: self.rewinds, ..Self::new(self.version, self.at, plans, default, old) };
        Self { of_ledgers: Some(Box::new(of_ledgers)), ..self }
    }

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
            state.carry(self.version, by, self.at, 0, Who::<()>::Overflow);
        }
        for by in self.coming_to(plan) {
            let Some(mut state) = write(&by.from.home.overflow).take() else { continue };
            state.carry(self.version, by, self.at, 0, Who::<()>::Overflow);
            match overflow {
                Some(own) => own.absorb(&state, plan, self.at, 0),
                None => *overflow = Some(state),
            }
            plan.home.guests.absorb(&by.from.home.guests);
            // Release: as in `with_overflow`. The one that it went to has it before it is gone from the other.
            plan.home.has_overflow.store(1, Ordering::Release);
            by.from.home.has_overflow.store(0, Ordering::Release);
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
        // Release: pairs with the Acquire in `inherited`.
        plan.home.has_overflow.store(1, Ordering::Release);
        Some(f(overflow.get_or_insert_with(|| KeyState::new(plan, self.version, 0, |_| 0, Who::<()>::Overflow))))
    }

    /// The same for a key that comes to `plan` from another one and may have been in the overflow of both, if this version is the
    /// current one.
    pub(crate) fn inherited_by_mover(&self, plan: &PlanTicks) -> [u64; MAX_QUOTAS] {
        self.inherited(plan, || true).unwrap_or([0; MAX_QUOTAS])
    }

    /// Where the buckets of a newcomer to `plan` start at the earliest: it takes over what it may have used in overflow.
    pub(crate) fn inherited(&self, plan: &PlanTicks, is_current: impl Fn() -> bool) -> Option<[u64; MAX_QUOTAS]> {
        let mut tats = [0; MAX_QUOTAS];
        // Acquire: pairs with the Release in `with_overflow`. A key that was charged there was so under a lock that its newcomer has
        // by now.
        let used = |plan: &PlanTicks| plan.home.has_overflow.load(Ordering::Acquire) != 0;
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

// Nothing that runs under these locks can panic.
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
