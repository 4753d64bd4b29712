//! Several quotas on one key, all or nothing.
//!
//! All quotas are looked at before anything is taken, so that a denial writes nothing. Then each is taken from in order,
//! and if one has changed its mind since, what was taken before is given back by the rule of `refunds.rs`: nobody extra is
//! admitted, and nothing is lost. Meanwhile others may be denied by units that are just being given back, so a caller
//! whose denial no longer holds looks once more.

use crate::bucket::Demand;
use crate::decision::{Allow, Cause, Decision, Deny, Others, Seen};
use crate::plans::{Granted, MAX_QUOTAS, PlanTicks};
use crate::quota::QuotaTicks;
use crate::store::{KeyState, Taken};
use crate::sync::Ordering;
use crate::ticks::{MAX_NOW, Now};
use crate::unit::Unit;

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    /// Units by kind.
    pub(crate) costs: &'a [(Unit, u64)],
    /// Whether it is to be counted as in flight.
    pub(crate) enter: bool,
}

impl Ask<'_> {
    /// What it costs of `quota`: of the same kind may be asked in several places.
    fn of(&self, quota: &Granted) -> u64 {
        let unit = quota.quota.counted().id();
        let of_kind = self.costs.iter().filter(|(kind, _)| kind.id() == unit);
        of_kind.fold(0, |sum, (_, cost)| sum.saturating_add(*cost))
    }

    /// Whether it takes nothing from a key on `plan`, whatever that has: it asks for nothing, or for what never fits.
    pub(crate) fn takes_nothing(&self, plan: &PlanTicks) -> bool {
        let mut nothing = !self.enter;
        for quota in &plan.quotas {
            let cost = self.of(quota);
            if cost > quota.ticks.burst() {
                return true;
            }
            nothing &= cost == 0;
        }
        nothing
    }
}

/// The state of a key, its plan, and which key it is.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(crate) state: &'a KeyState,
    pub(crate) plan: &'a PlanTicks,
    pub(crate) id: u64,
}

impl Key<'_> {
    /// Takes what is asked for, all or nothing, at the time that `clock` tells.
    pub(crate) fn take(self, ask: Ask<'_>, clock: impl Fn() -> Now) -> Decision {
        let answer = match self.try_take(ask, &clock) {
            Err(denial) if self.has_changed(&denial) => self.try_take(ask, &clock),
            answer => answer,
        };
        match answer {
            Ok(allow) => Decision::Allow(allow),
            Err(denial) => Decision::Deny(denial.deny),
        }
    }

    /// What [`take`](Self::take) would answer, places in flight aside.
    pub(crate) fn peek(self, ask: Ask<'_>, now: Now) -> Decision {
        let look = Look::new(self, ask, now);
        match look.denial() {
            Some(denial) => Decision::Deny(denial.deny),
            None => {
                let mut allow = look.allow(ask);
                allow.take_nothing();
                Decision::Allow(allow)
            }
        }
    }

    fn try_take(self, ask: Ask<'_>, clock: &impl Fn() -> Now) -> Result<Allow, Denial> {
        let Self { state, plan, .. } = self;
        let mut look = Look::new(self, ask, clock());
        if let Some(denial) = look.denial() {
            return Err(denial);
        }
        let limit = plan.in_flight.unwrap_or(u32::MAX);
        if ask.enter && !state.enter(limit) {
            return Err(look.full(limit));
        }
        let buckets = || state.slots().iter().zip(&plan.quotas);
        for (n, (slot, quota)) in buckets().enumerate() {
            let Taken { cost, .. } = look.taken[n];
            if cost == 0 {
                continue;
            }
            let now = quota.ticks.at(look.now);
            match slot.bucket.take(&quota.ticks, cost, || now).0 {
                Ok(tat) => look.taken[n].tat = tat,
                Err(tat) => {
                    for ((slot, quota), taken) in buckets().zip(&look.taken[..n]) {
                        if taken.cost != 0 {
                            slot.give_back(&quota.ticks, taken, quota.ticks.at(look.now), clock);
                        }
                    }
                    if ask.enter {
                        state.leave();
                    }
                    look.taken[n].tat = tat;
                    return Err(look.denied_by(n));
                }
            }
        }
        Ok(look.allow(ask))
    }

    /// Whether what denied has been given something back since.
    fn has_changed(self, denial: &Denial) -> bool {
        let slots = self.state.slots();
        match denial.by.and_then(|n| slots.get(n)) {
            Some(slot) => slot.bucket.tat() < denial.deny.seen.tat,
            // Relaxed: at worst the denial stands that was right a moment ago.
            None => u64::from(self.state.in_flight().load(Ordering::Relaxed)) < denial.deny.limit(),
        }
    }

    /// Gives back what `allow` took of all quotas.
    pub(crate) fn refund(self, allow: &Allow, clock: impl Fn() -> Now) {
        let Others::All { since, now, taken } = &allow.others else { return };
        if *since != self.plan.since || allow.seen.id != self.id || allow.instead_of.is_some() {
            return;
        }
        for ((slot, quota), taken) in self.state.slots().iter().zip(&self.plan.quotas).zip(taken) {
            if taken.cost != 0 {
                slot.give_back(&quota.ticks, taken, quota.ticks.at(*now), &clock);
            }
        }
    }
}

/// What a decision sees, and what it will have been.
struct Look<'a> {
    key: Key<'a>,
    now: Now,
    /// By quota. A cost of more than the burst stays here.
    taken: [Taken; MAX_QUOTAS],
}

impl<'a> Look<'a> {
    #[inline]
    fn new(key: Key<'a>, ask: Ask<'_>, now: Now) -> Self {
        let mut taken = [Taken::default(); MAX_QUOTAS];
        for ((taken, slot), quota) in taken.iter_mut().zip(key.state.slots()).zip(&key.plan.quotas) {
            // The refunds first: see `refunds.rs`.
            let refunds = slot.refunds.seen();
            *taken = Taken { cost: ask.of(quota), tat: slot.bucket.tat(), refunds };
        }
        Self { key, now, taken }
    }

    fn quotas(&self) -> impl Iterator<Item = (usize, &'a QuotaTicks, &Taken)> {
        self.key.plan.quotas.iter().zip(&self.taken).enumerate().map(|(n, (quota, taken))| (n, &quota.ticks, taken))
    }

    /// The denial by the quota with the longest wait, if one denies.
    fn denial(&self) -> Option<Denial> {
        let waits = self.quotas().filter_map(|(n, quota, taken)| Some((wait(quota, taken, quota.at(self.now))?, n)));
        waits.max_by_key(|(wait, _)| *wait).map(|(_, n)| self.denied_by(n))
    }

    fn denied_by(&self, n: usize) -> Denial {
        let deny = Deny { seen: self.seen(n), others: self.others(), cause: Cause::Quota };
        Denial { deny, by: Some(n) }
    }

    /// The denial by the number of requests in flight.
    fn full(&self, limit: u32) -> Denial {
        let seen = Seen { cost: 1, ..self.places(limit, limit) };
        Denial { deny: Deny { seen, others: self.others(), cause: Cause::InFlight }, by: None }
    }

    /// The allow, with the numbers of the quota that allows the same again the fewest times. One of which nothing was
    /// asked counts as if it had been asked for one unit.
    fn allow(&self, ask: Ask<'_>) -> Allow {
        let mut tightest: Option<(u64, u64, usize)> = None;
        for (n, quota, taken) in self.quotas() {
            let cost = ask.of(&self.key.plan.quotas[n]).max(1);
            let empty = quota.charge(quota.burst());
            let left = empty.saturating_sub(taken.tat.saturating_sub(quota.at(self.now)));
            let charge = quota.charge(cost).max(1);
            // left / charge, without a division.
            if tightest.is_none_or(|(least, per, _)| {
                u128::from(left) * u128::from(per) < u128::from(least) * u128::from(charge)
            }) {
                tightest = Some((left, charge, n));
            }
        }
        let seen = tightest.map_or_else(|| self.none(), |(_, _, n)| self.seen(n));
        Allow { seen, others: self.others(), instead_of: None }
    }

    fn seen(&self, n: usize) -> Seen {
        let Taken { cost, tat, refunds } = self.taken[n];
        let quota = self.key.plan.quotas[n].ticks;
        Seen { quota, tat, now: quota.at(self.now), cost, refunds, id: self.key.id, plan: self.key.plan.index }
    }

    /// What is seen where there is no quota.
    fn none(&self) -> Seen {
        let in_flight = self.key.state.in_flight().load(Ordering::Relaxed);
        self.key
            .plan
            .in_flight
            .map_or_else(|| Seen::unlimited(self.key.plan.index), |limit| self.places(limit, in_flight))
    }

    /// Places in flight, as a quota of which nothing comes back by itself.
    fn places(&self, limit: u32, taken: u32) -> Seen {
        let (quota, tat) = (QuotaTicks::places(limit), MAX_NOW + u64::from(taken));
        Seen { quota, tat, now: MAX_NOW, id: self.key.id, ..Seen::unlimited(self.key.plan.index) }
    }

    const fn others(&self) -> Others {
        Others::All { since: self.key.plan.since, now: self.now, taken: self.taken }
    }
}

/// A denial, and by which quota, if by one.
struct Denial {
    deny: Deny,
    by: Option<usize>,
}

/// In ticks, how long what is asked for has to wait, `None` if it is there; the longest there is for never.
fn wait(quota: &QuotaTicks, asked: &Taken, now: u64) -> Option<u64> {
    if asked.cost > quota.burst() {
        return Some(u64::MAX);
    }
    let wait = asked.tat.saturating_sub(now).saturating_sub(Demand::new(quota, asked.cost)?.room);
    match wait {
        0 => None,
        _ if quota.never_refills() => Some(u64::MAX),
        wait => Some(wait),
    }
}
