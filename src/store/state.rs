//! What is kept of one key on one plan.

use std::fmt;

use super::{CLOSED, State};
use crate::bucket::{Bucket, Demand};
use crate::clock::Time;
use crate::decision::{Allow, Decision, Seen, Source};
use crate::plans::{Granted, Move, PlanTicks, Simple};
use crate::quota::QuotaTicks;
use crate::refunds::{Patience, Refunds, RefundsSeen, grain, grains_of};
use crate::shared::{Ledgers, Who};
use crate::sync::{AtomicU32, Ordering};
use crate::ticks::Now;

/// All that is kept of a key on a plan, in 24 bytes of its own: a plan of one quota, as most are, has its bucket right
/// here, so that a look-up reads little; one of several has them behind a pointer.
///
/// What is not atomic changes only while nobody else can see the state.
// The fields before the bucket are in both, since only so do they fit beside the tag.
#[derive(Debug)]
pub(crate) enum KeyState {
    /// For a plan of one quota.
    One {
        /// Requests that have entered and not left.
        in_flight: AtomicU32,
        /// The plan's index.
        plan: u16,
        /// The low bits of the version of the policy that the bucket is counted by.
        version: u8,
        /// Its bucket.
        slot: Slot,
    },
    /// For any other plan.
    Many {
        /// Requests that have entered and not left.
        in_flight: AtomicU32,
        /// The plan's index.
        plan: u16,
        /// The low bits of the version of the policy that the buckets are counted by.
        version: u8,
        /// A bucket for each quota of the plan, in its order.
        slots: Box<[Slot]>,
    },
    /// For a plan with global quotas.
    Shared {
        /// Requests that have entered and not left.
        in_flight: AtomicU32,
        /// The plan's index.
        plan: u16,
        /// The low bits of the version of the policy that the buckets are counted by.
        version: u8,
        /// What it has.
        accounts: Box<Accounts>,
    },
}

/// The buckets of a key, one for each quota of the plan, and its ledgers, one for each global quota.
#[derive(Debug)]
pub(crate) struct Accounts {
    slots: Slots,
    ledgers: Ledgers,
}

/// A plan with a global quota mostly has one other, whose bucket is then found without a further step.
#[derive(Debug)]
enum Slots {
    One(Slot),
    Any(Box<[Slot]>),
}

impl Slots {
    fn new(mut slots: impl ExactSizeIterator<Item = Slot>) -> Self {
        match (slots.len(), slots.next()) {
            (1, Some(slot)) => Self::One(slot),
            (_, first) => Self::Any(first.into_iter().chain(slots).collect()),
        }
    }

    #[inline]
    fn all(&self) -> &[Slot] {
        match self {
            Self::One(slot) => std::slice::from_ref(slot),
            Self::Any(slots) => slots,
        }
    }
}

/// The bucket of one quota, and what its refunds need.
#[derive(Debug)]
pub struct Slot {
    pub(crate) bucket: Bucket,
    pub(crate) refunds: Refunds,
}

impl Slot {
    /// A bucket that is full from `tat` on, in the life `life`, see `refunds.rs`.
    pub fn new(tat: u64, life: u64) -> Self {
        Self { bucket: Bucket::full_at(tat), refunds: Refunds::in_life(life) }
    }
}

impl KeyState {
    /// A key on `plan` that has taken nothing yet. The bucket of the n-th quota is full from `tat(n)` on.
    pub(crate) fn new<K: ?Sized>(
        plan: &PlanTicks,
        version: u64,
        life: u64,
        tat: impl Fn(usize) -> u64,
        who: Who<'_, K>,
    ) -> Self {
        let slots = (0..plan.quotas.len()).map(|n| Slot::new(tat(n), life));
        Self::of(plan, version, 0, slots, plan.shared.open(&plan.name, who))
    }

    fn of(
        plan: &PlanTicks,
        version: u64,
        in_flight: u32,
        slots: impl ExactSizeIterator<Item = Slot>,
        ledgers: Option<Ledgers>,
    ) -> Self {
        let (in_flight, plan, version) = (AtomicU32::new(in_flight), plan.index, version as u8);
        if let Some(ledgers) = ledgers {
            let accounts = Box::new(Accounts { slots: Slots::new(slots), ledgers });
            return Self::Shared { in_flight, plan, version, accounts };
        }
        let mut slots = slots.fuse();
        match (slots.len(), slots.next()) {
            (1, Some(slot)) => Self::One { in_flight, plan, version, slot },
            (_, first) => Self::Many { in_flight, plan, version, slots: first.into_iter().chain(slots).collect() },
        }
    }

    /// The index of the plan.
    #[inline]
    pub(crate) const fn plan(&self) -> u16 {
        match self {
            Self::One { plan, .. } | Self::Many { plan, .. } | Self::Shared { plan, .. } => *plan,
        }
    }

    /// Whether this is counted by that version of the policy. One that isn't is counted by the one before.
    #[inline]
    pub(crate) const fn is_of(&self, version: u64) -> bool {
        match self {
            Self::One { version: own, .. } | Self::Many { version: own, .. } | Self::Shared { version: own, .. } => {
                *own == version as u8
            }
        }
    }

    pub(crate) const fn in_flight(&self) -> &AtomicU32 {
        match self {
            Self::One { in_flight, .. } | Self::Many { in_flight, .. } | Self::Shared { in_flight, .. } => in_flight,
        }
    }

    /// A bucket for each quota of the plan, in its order.
    #[inline]
    pub(crate) fn slots(&self) -> &[Slot] {
        match self {
            Self::One { slot, .. } => std::slice::from_ref(slot),
            Self::Many { slots, .. } => slots,
            Self::Shared { accounts, .. } => accounts.slots.all(),
        }
    }

    /// A ledger for each global quota of the plan, if it has any.
    #[inline]
    pub(crate) fn ledgers(&self) -> Option<&Ledgers> {
        match self {
            Self::Shared { accounts, .. } => Some(&accounts.ledgers),
            _ => None,
        }
    }

    /// Whether this equals a fresh state on `plan`, in the eyes of whoever comes at `now` or later.
    pub(crate) fn is_idle(&self, plan: &PlanTicks, now: Now) -> bool {
        // Relaxed: nobody else can see the state.
        self.in_flight().load(Ordering::Relaxed) == 0
            && self.slots().iter().zip(&plan.quotas).all(|(slot, quota)| slot.bucket.tat() <= quota.ticks.at(now))
            && self.ledgers().is_none_or(|ledgers| ledgers.are_idle(now))
    }

    /// Adds what a key may have used elsewhere, which would leave its buckets on `plan` at `tats`.
    pub(crate) fn inherit(&self, plan: &PlanTicks, tats: &[u64], at: Now) {
        for ((slot, quota), tat) in self.slots().iter().zip(&plan.quotas).zip(tats) {
            slot.bucket.change(|own| quota.sum(own, *tat, at));
        }
    }

    /// Takes what the buckets have before `instant`.
    pub(crate) fn full_no_earlier(&self, instant: u64) {
        self.slots().iter().for_each(|slot| slot.bucket.raise(instant));
    }

    /// When all buckets are full again.
    pub(crate) fn full_at(&self) -> u64 {
        self.slots().iter().map(|slot| slot.bucket.tat()).max().unwrap_or(0)
    }

    /// The latest life of a bucket.
    pub(crate) fn last_life(&self) -> u64 {
        self.slots().iter().map(|slot| slot.refunds.seen().life()).max().unwrap_or(0)
    }

    /// Lets one more request in, if fewer than `limit` are in flight.
    pub(crate) fn enter(&self, limit: u32) -> bool {
        // Relaxed, here and below: the count is all there is, and it is changed by compare-and-swap.
        self.in_flight()
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < limit).then(|| count + 1))
            .is_ok()
    }

    /// Counts one request less in flight: true if there was one.
    pub(crate) fn leave(&self) -> bool {
        self.in_flight().fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
    }

    /// The same under the next policy: use is carried over. Where all quotas of the plan stay as they were, so do the
    /// buckets, and what was taken from them can still be given back. Others begin the life `life` or a later one.
    pub(crate) fn carry<K: ?Sized>(&mut self, version: u64, by: &Move, at: Now, life: u64, who: Who<'_, K>) {
        if by.as_before {
            match self {
                Self::One { version: own, .. }
                | Self::Many { version: own, .. }
                | Self::Shared { version: own, .. } => {
                    *own = version as u8;
                }
            }
            return;
        }
        let life = life.max(self.last_life() + 1);
        let slots = by.to.quotas.iter().zip(&by.matched).map(|(quota, matched)| {
            let Some((slot, old)) =
                matched.and_then(|from| Some((self.slots().get(from)?, &by.from.quotas.get(from)?.ticks)))
            else {
                return Slot::new(0, life);
            };
            Slot::new(old.carry(slot.bucket.tat(), &quota.ticks, at), life)
        });
        let ledgers = by.to.shared.carry(&by.to.name, self.ledgers(), who);
        *self = Self::of(&by.to, version, self.in_flight().load(Ordering::Relaxed), slots, ledgers);
    }

    /// Adds what `other` has used, on the same `plan`, and begins the life `life` or a later one.
    pub(crate) fn absorb(&mut self, other: &Self, plan: &PlanTicks, at: Now, life: u64) {
        let life = life.max(self.last_life().max(other.last_life()) + 1);
        let slots = self
            .slots()
            .iter()
            .zip(other.slots())
            .zip(&plan.quotas)
            .map(|((own, other), quota)| Slot::new(quota.sum(own.bucket.tat(), other.bucket.tat(), at), life));
        let in_flight = [&*self, other].map(|state| state.in_flight().load(Ordering::Relaxed));
        let version = match &*self {
            Self::One { version, .. } | Self::Many { version, .. } | Self::Shared { version, .. } => {
                u64::from(*version)
            }
        };
        // What the other has spent of global quotas the background thread knows, or will be told.
        let ledgers = plan.shared.carry(&plan.name, self.ledgers(), Who::<()>::Overflow);
        *self = Self::of(plan, version, in_flight[0].saturating_add(in_flight[1]), slots, ledgers);
    }

    /// Makes all buckets full, and begins the life `life` or a later one. What is in flight stays so, and what a fleet has
    /// used of global quotas.
    pub(crate) fn reset(&mut self, life: u64) {
        let life = life.max(self.last_life() + 1);
        let fresh = || Slot::new(0, life);
        match self {
            Self::One { slot, .. } => *slot = fresh(),
            Self::Many { slots, .. } => slots.iter_mut().for_each(|slot| *slot = fresh()),
            Self::Shared { accounts, .. } => {
                let count = accounts.slots.all().len();
                accounts.slots = Slots::new((0..count).map(|_| fresh()));
            }
        }
    }
}

impl State for &KeyState {
    #[inline]
    fn is_of(self, version: u64) -> bool {
        self.is_of(version)
    }

    /// All lives of a key are counted together.
    #[inline]
    fn home(self) -> u8 {
        0
    }

    #[inline]
    fn tat(self, n: usize) -> u64 {
        self.slots().get(n).map_or(CLOSED, |slot| slot.bucket.tat())
    }

    #[inline]
    fn refunds(self, n: usize) -> RefundsSeen {
        self.slots().get(n).map_or_else(RefundsSeen::default, |slot| slot.refunds.seen())
    }

    #[inline]
    fn draw(self, n: usize, demand: &Demand, tat: u64, now: u64) -> Result<u64, u64> {
        self.slots().get(n).ok_or(CLOSED)?.bucket.draw(demand, tat, now)
    }

    fn give_back(
        self,
        quotas: &[Granted],
        taken: &[Taken],
        then: Now,
        patience: Patience,
        clock: impl Fn() -> Now,
    ) -> u8 {
        for ((slot, quota), taken) in self.slots().iter().zip(quotas).zip(taken) {
            slot.give_back(&quota.ticks, taken, quota.ticks.at(then), patience, &clock);
        }
        // It is locked.
        0
    }

    fn in_flight(self) -> u32 {
        // Relaxed: the count is all there is.
        self.in_flight().load(Ordering::Relaxed)
    }

    fn enter(self, limit: u32) -> bool {
        self.enter(limit)
    }

    fn leave(self) -> bool {
        self.leave()
    }

    #[inline]
    fn ledgers(&self) -> Option<&Ledgers> {
        KeyState::ledgers(self)
    }

    /// Never, while it is locked.
    #[inline]
    fn has_left(self) -> bool {
        false
    }
}

/// One bucket as a visitor finds it.
#[derive(Clone, Copy)]
pub struct Visited<'a> {
    slot: &'a Slot,
    /// The index of the plan.
    plan: u16,
    /// The version since which the plan has its quotas.
    since: u32,
    /// Which key of which limiter this is, for refunds: what was taken from one is not given back to another.
    id: u64,
}

impl<'a> Visited<'a> {
    /// `slot`, and whose it is, where there is one plan.
    pub const fn new(slot: &'a Slot, id: u64) -> Self {
        Self { slot, plan: 0, since: 0, id }
    }

    /// `slot`, and whose it is, on that plan.
    #[inline(always)]
    pub(crate) const fn on_plan(slot: &'a Slot, plan: &Simple, id: u64) -> Self {
        Self { slot, plan: plan.plan, since: plan.since, id }
    }

    /// Takes `cost` units, all or nothing, at the instant `now`.
    #[inline(always)]
    pub fn take(self, quota: &QuotaTicks, cost: u64, now: Now) -> Decision {
        let (allowed, seen) = self.take_seen(quota, cost, Demand::new(quota, cost).as_ref(), &now);
        seen.decision(allowed)
    }

    /// Whether [`take`](Self::take) of a `cost` of that `demand` allows, and what it has seen, at a `time` that is read last: see
    /// [`Bucket::take`].
    // Always: the copy for a new key, out of line, must not keep the one for a known key from being inlined. No closure, for
    // the same reason: those that stand in several places are left out of line, 5 of 40 ns.
    #[inline(always)]
    pub(crate) fn take_seen(
        self,
        quota: &QuotaTicks,
        cost: u64,
        demand: Option<&Demand>,
        time: &impl Time,
    ) -> (bool, Seen) {
        let (refunds, bucket) = (self.slot.refunds.seen(), &self.slot.bucket);
        let tat = bucket.tat();
        let now = quota.at(time.now());
        let answer = bucket.draw_any(demand, quota, cost, tat, now);
        let (Ok(tat) | Err(tat)) = answer;
        (answer.is_ok(), self.seen(quota, cost, tat, now, refunds))
    }

    /// What [`take`](Self::take) would answer. An allow of it has taken nothing that could be given back.
    #[inline]
    pub fn peek(self, quota: &QuotaTicks, cost: u64, now: Now) -> Decision {
        let refunds = self.slot.refunds.seen();
        let now = quota.at(now);
        let answer = self.slot.bucket.peek(quota, cost, now);
        let (Ok(tat) | Err(tat)) = answer;
        let cost = if answer.is_ok() { 0 } else { cost };
        self.seen(quota, cost, tat, now, refunds).decision(answer.is_ok())
    }

    #[inline(always)]
    const fn seen(self, quota: &QuotaTicks, cost: u64, tat: u64, now: u64, refunds: RefundsSeen) -> Seen {
        let Self { plan, since, id, .. } = self;
        Seen { quota: *quota, tat, now, cost, refunds, id, since, plan, home: 0, source: Source::Local }
    }

    /// Gives back of what `allow` took what was taken from here and has not come back by itself by the time that `clock`
    /// tells. `refunds.rs` says how much that is, and why.
    pub fn refund(self, quota: &QuotaTicks, allow: &Allow, clock: impl Fn() -> Now) {
        let seen = &allow.seen;
        if seen.cost != 0 && allow.instead_of.is_none() && seen.id == self.id {
            self.slot.give_back(quota, &seen.taken(), seen.now, Patience::Waits, clock);
        }
    }
}

impl fmt::Debug for Visited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slot.fmt(f)
    }
}

/// What was taken from one bucket, or looked at.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Taken {
    /// Units, 0 where nothing was.
    pub(crate) cost: u64,
    /// Where it left `tat`.
    pub(crate) tat: u64,
    /// The refunds of the bucket as they were before.
    pub(crate) refunds: RefundsSeen,
}

impl Taken {
    /// What giving it back is worth at the instant `now`, if it was taken at `then`, both as the quota sees them, and so many
    /// ticks have been given back since: see `refunds.rs`.
    pub(crate) fn worth(&self, quota: &QuotaTicks, given_back: u64, then: u64, now: u64) -> u64 {
        let charge = quota.charge(self.cost);
        let by_time = charge.saturating_sub(now.saturating_sub(then));
        let by_debt = charge.min(self.tat.saturating_sub(given_back).saturating_sub(now));
        by_time.max(by_debt)
    }
}

impl Slot {
    /// Gives back what was taken at the instant `then`, as the quota sees it, and has not come back by itself.
    pub(crate) fn give_back(
        &self,
        quota: &QuotaTicks,
        taken: &Taken,
        then: u64,
        patience: Patience,
        clock: impl Fn() -> Now,
    ) {
        if taken.cost == 0 {
            return;
        }
        let grain = grain(quota.charge(quota.burst()));
        self.refunds.give_back(taken.refunds, patience, |before| {
            let given_back = before.since(taken.refunds, grain);
            let lowered = self.bucket.lower(|| {
                let now = quota.at(clock());
                (taken.worth(quota, given_back, then, now), now)
            });
            grains(quota, lowered)
        });
    }
}

/// What is counted as given back where that many ticks were. Of a quota that never refills nothing comes back by time, so that
/// a refund is worth its take whatever else was given back.
pub(crate) const fn grains(quota: &QuotaTicks, lowered: u64) -> u64 {
    if quota.never_refills() { 0 } else { grains_of(lowered, grain(quota.charge(quota.burst()))) }
}
