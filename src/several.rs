//! Several quotas on one key, all or nothing.
//!
//! All quotas are looked at before anything is taken, so that a denial writes nothing. Then each is taken from in order,
//! and if one has changed its mind since, what was taken before is given back by the rule of `refunds.rs`: nobody extra is
//! admitted, and nothing is lost. Meanwhile others may be denied by units that are just being given back, so a caller
//! whose denial no longer holds looks once more.

use crate::bucket::Demand;
use crate::decision::{Allow, Cause, Others, Seen};
use crate::plans::{Granted, MAX_QUOTAS, PlanTicks};
use crate::quota::QuotaTicks;
use crate::store::{KeyState, Slot, Taken};
use crate::sync::Ordering;
use crate::ticks::Now;
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

/// What is taken from, or looked at in, each bucket of a key.
pub(crate) type AllTaken = [Taken; MAX_QUOTAS];

/// A decision without what it has taken, which is large and is handed on by reference.
pub(crate) struct Verdict {
    /// What denies, if it is denied.
    pub(crate) denied: Option<Cause>,
    /// What the quota that the answer is about has seen.
    pub(crate) seen: Seen,
    pub(crate) now: Now,
    /// Requests in flight, this one included.
    pub(crate) in_flight: u32,
    /// Which quota that is, if it is one.
    quota: Option<usize>,
}

/// The state of a key, its plan, and which key it is.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(crate) state: &'a KeyState,
    pub(crate) plan: &'a PlanTicks,
    pub(crate) id: u64,
}

impl<'a> Key<'a> {
    fn buckets(self) -> impl Iterator<Item = (&'a Slot, &'a Granted)> {
        self.state.slots().iter().zip(&self.plan.quotas)
    }

    /// Takes what is asked for, all or nothing, at the time that `clock` tells, and notes it in `taken`.
    pub(crate) fn take(self, ask: Ask<'_>, clock: impl Fn() -> Now, taken: &mut AllTaken) -> Verdict {
        let verdict = self.try_take(ask, &clock, taken);
        if self.has_changed(&verdict) { self.try_take(ask, &clock, taken) } else { verdict }
    }

    /// What [`take`](Self::take) would answer, places in flight aside.
    pub(crate) fn peek(self, ask: Ask<'_>, now: Now, taken: &mut AllTaken) -> Verdict {
        let mut verdict = match self.look(ask, now, taken) {
            Some(worst) => return self.denied_by(worst, now, taken),
            None => self.allowed(now, taken),
        };
        verdict.seen.cost = 0;
        taken.iter_mut().for_each(|taken| taken.cost = 0);
        verdict
    }

    fn try_take(self, ask: Ask<'_>, clock: &impl Fn() -> Now, taken: &mut AllTaken) -> Verdict {
        let now = clock();
        if let Some(worst) = self.look(ask, now, taken) {
            return self.denied_by(worst, now, taken);
        }
        let limit = self.plan.in_flight.unwrap_or(u32::MAX);
        if ask.enter && !self.state.enter(limit) {
            let seen = Seen { cost: 1, id: self.id, ..Seen::places(limit, limit, self.plan.index) };
            return self.verdict(Some(Cause::InFlight), seen, now, None);
        }
        for (n, (slot, quota)) in self.buckets().enumerate() {
            let Some(demand) = Demand::new(&quota.ticks, taken[n].cost) else { continue };
            match slot.bucket.draw(&demand, taken[n].tat, quota.ticks.at(now)) {
                Ok(tat) => taken[n].tat = tat,
                Err(tat) => {
                    for ((slot, quota), taken) in self.buckets().zip(&taken[..n]) {
                        if taken.cost != 0 {
                            slot.give_back(&quota.ticks, taken, quota.ticks.at(now), clock);
                        }
                    }
                    if ask.enter {
                        self.state.leave();
                    }
                    taken[n].tat = tat;
                    return self.denied_by(n, now, taken);
                }
            }
        }
        self.allowed(now, taken)
    }

    /// Looks at all buckets, and says which denies for longest, if one does.
    fn look(self, ask: Ask<'_>, now: Now, taken: &mut AllTaken) -> Option<usize> {
        let mut worst = None;
        for (n, (slot, quota)) in self.buckets().enumerate() {
            // The refunds first: see `refunds.rs`.
            let refunds = slot.refunds.seen();
            taken[n] = Taken { cost: ask.of(quota), tat: slot.bucket.tat(), refunds };
            if let Some(wait) = wait(&quota.ticks, &taken[n], quota.ticks.at(now)) {
                worst = worst.max(Some((wait, n)));
            }
        }
        worst.map(|(_, n)| n)
    }

    /// The denial by the n-th quota.
    fn denied_by(self, n: usize, now: Now, taken: &AllTaken) -> Verdict {
        self.verdict(Some(Cause::Quota), self.seen(n, now, taken), now, Some(n))
    }

    #[inline]
    fn verdict(self, denied: Option<Cause>, seen: Seen, now: Now, quota: Option<usize>) -> Verdict {
        Verdict { denied, seen, now, in_flight: self.in_flight(), quota }
    }

    fn in_flight(self) -> u32 {
        // Relaxed: the count is all there is.
        self.state.in_flight().load(Ordering::Relaxed)
    }

    /// The allow, with the numbers of the quota that allows the same again the fewest times. One of which nothing was
    /// asked counts as if it had been asked for one unit.
    fn allowed(self, now: Now, taken: &AllTaken) -> Verdict {
        let mut tightest: Option<(u64, u64, usize)> = None;
        for ((n, quota), taken) in self.plan.quotas.iter().enumerate().zip(taken) {
            let left = quota.empty.saturating_sub(taken.tat.saturating_sub(quota.ticks.at(now)));
            let charge = quota.ticks.charge(taken.cost.max(1)).max(1);
            // left / charge, without a division.
            let fewer = |(least, per, _): (u64, u64, usize)| {
                u128::from(left) * u128::from(per) < u128::from(least) * u128::from(charge)
            };
            if tightest.is_none_or(fewer) {
                tightest = Some((left, charge, n));
            }
        }
        let seen = match (tightest, self.plan.in_flight) {
            (Some((_, _, n)), _) => self.seen(n, now, taken),
            (None, Some(limit)) => Seen { id: self.id, ..Seen::places(limit, self.in_flight(), self.plan.index) },
            (None, None) => Seen::unlimited(self.plan.index),
        };
        self.verdict(None, seen, now, tightest.map(|(_, _, n)| n))
    }

    fn seen(self, n: usize, now: Now, taken: &AllTaken) -> Seen {
        let Taken { cost, tat, refunds } = taken[n];
        let quota = self.plan.quotas[n].ticks;
        Seen { quota, tat, now: quota.at(now), cost, refunds, id: self.id, plan: self.plan.index }
    }

    /// Whether what denied has been given something back since.
    fn has_changed(self, verdict: &Verdict) -> bool {
        let slot = verdict.quota.and_then(|n| self.state.slots().get(n));
        match (verdict.denied, slot) {
            (Some(Cause::Quota), Some(slot)) => slot.bucket.tat() < verdict.seen.tat,
            (Some(Cause::InFlight), _) => u64::from(self.in_flight()) < verdict.seen.quota.burst(),
            _ => false,
        }
    }

    /// Gives back what `allow` took of all quotas.
    pub(crate) fn refund(self, allow: &Allow, clock: impl Fn() -> Now) {
        let Others::All { since, now, taken, .. } = &allow.others else { return };
        if *since != self.plan.since || allow.seen.id != self.id || allow.instead_of.is_some() {
            return;
        }
        for ((slot, quota), taken) in self.buckets().zip(taken) {
            if taken.cost != 0 {
                slot.give_back(&quota.ticks, taken, quota.ticks.at(*now), &clock);
            }
        }
    }
}

/// In ticks, how long what is asked for has to wait, `None` if it is there; the longest there is for never.
#[inline]
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
