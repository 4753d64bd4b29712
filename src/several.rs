//! Several quotas on one key, all or nothing.
//!
//! All quotas are looked at before anything is taken, so that a denial writes nothing. Then each is taken from in order,
//! and if one has changed its mind since, what was taken before is given back by the rule of `refunds.rs`: nobody extra is
//! admitted, and nothing is lost. Meanwhile others may be denied by units that are just being given back, so a caller
//! whose denial no longer holds looks once more.

use crate::bucket::Demand;
use crate::clock::Time;
use crate::decision::{Allow, Cause, Decision, Others, Seen, Source};
use crate::plans::{Granted, MAX_QUOTAS, Move, PlanTicks, is_overflow};
use crate::quota::QuotaTicks;
use crate::refunds::Patience;
use crate::shared::Refused;
use crate::store::{CLOSED, State, Taken};
use crate::ticks::Now;
use crate::unit::Unit;

/// For so many ticks, a tenth of a second, the epoch of a ledger tells a lease from all others: it comes round after 1,024
/// looks of the background thread, which are a millisecond apart at the least.
const SAME_LEASE: u64 = 100_000_000 * crate::ticks::PER_NANO;

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    /// Units by kind.
    pub(crate) costs: &'a [(Unit, u64)],
    /// Whether it is to be counted as in flight.
    pub(crate) enter: bool,
    /// Whether global quotas are left out, since the authority is asked about them.
    pub(crate) exact: bool,
}

impl<'a> Ask<'a> {
    /// A plain check of these costs.
    pub(crate) const fn of_costs(costs: &'a [(Unit, u64)]) -> Self {
        Self { costs, enter: false, exact: false }
    }

    /// What it costs of a quota that counts `unit`: of the same kind may be asked in several places.
    pub(crate) fn of(&self, unit: Unit) -> u64 {
        let unit = unit.id();
        let of_kind = self.costs.iter().filter(|(kind, _)| kind.id() == unit);
        of_kind.fold(0, |sum, (_, cost)| sum.saturating_add(*cost))
    }

    /// Whether it takes nothing from a key on `plan`, whatever that has: it asks for nothing, or for what never fits.
    pub(crate) fn takes_nothing(&self, plan: &PlanTicks) -> bool {
        let mut nothing = !self.enter && plan.shared.asks_nothing(*self);
        if plan.shared.exceeded(*self, 0, &mut [Taken::default(); MAX_QUOTAS]).is_some() {
            return true;
        }
        for quota in &plan.quotas {
            let cost = self.of(quota.quota.counted());
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
    /// Whether the request is counted as in flight.
    pub(crate) entered: bool,
    /// Those quotas, as bits, that were taken from and that a new policy has carried over before that could be given back.
    pub(crate) carried: u8,
    /// Whether the state was somebody else's before all was done: then nobody is admitted by this.
    pub(crate) is_lost: bool,
}

/// The state of a key, its plan, and which key it is.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a, St> {
    pub(crate) state: St,
    pub(crate) plan: &'a PlanTicks,
    pub(crate) id: u64,
}

impl<'a, St: State> Key<'a, St> {
    fn buckets(self) -> impl Iterator<Item = (usize, &'a Granted)> {
        self.plan.quotas.iter().enumerate()
    }

    /// Takes what is asked for, all or nothing, at the time that `clock` tells, and notes it in `taken`.
    pub(crate) fn take(self, ask: Ask<'_>, clock: impl Fn() -> Now, taken: &mut AllTaken) -> Verdict {
        let verdict = self.try_take(ask, &clock, taken);
        let again = self.has_changed(&verdict) && !verdict.entered;
        let verdict = if again { self.try_take(ask, &clock, taken) } else { verdict };
        let is_lost = !self.is_own(&verdict);
        if is_lost && verdict.denied.is_none() {
            self.unspend(taken);
        }
        Verdict { is_lost, ..verdict }
    }

    /// Gives back what was taken of global quotas.
    fn unspend(self, taken: &AllTaken) {
        if let Some(ledgers) = self.state.ledgers() {
            self.plan.shared.unspend(ledgers, self.plan.quotas.len(), taken);
        }
    }

    /// Lets one more request in, if fewer than `limit` are in flight of this key, wherever they are.
    fn enter(self, limit: u32) -> bool {
        if is_overflow(self.id) {
            let entered = self.state.enter(limit);
            if entered {
                self.plan.home.guests.enter(self.id);
            }
            return entered;
        }
        // In this order: while one is in flight here the key goes to no overflow, so that its guests become no more.
        self.state.enter(limit) && {
            let guests = self.plan.guests(self.id);
            guests == 0 || self.state.in_flight().saturating_add(guests) <= limit || {
                self.state.leave();
                false
            }
        }
    }

    /// Counts one request less in flight: true if there was one.
    fn leave(self) -> bool {
        if is_overflow(self.id) {
            self.plan.home.guests.leave(self.id);
        }
        self.state.leave()
    }

    /// What [`take`](Self::take) would answer, places in flight aside.
    pub(crate) fn peek(self, ask: Ask<'_>, now: Now, taken: &mut AllTaken) -> Option<Verdict> {
        let verdict = match self.look(ask, now, taken) {
            Some(worst) => self.denied_by(worst, now, taken),
            None => match self.look_at_shared(ask, now, taken) {
                Ok(source) => {
                    let mut verdict = self.allowed(now, taken, source);
                    verdict.seen.cost = 0;
                    taken.iter_mut().for_each(|taken| taken.cost = 0);
                    verdict
                }
                Err(refused) => self.refused(&refused, now, taken),
            },
        };
        self.is_own(&verdict).then_some(verdict)
    }

    /// Whether the verdict is about the state of this key.
    fn is_own(self, verdict: &Verdict) -> bool {
        verdict.seen.tat < CLOSED && !self.state.has_left()
    }

    fn try_take(self, ask: Ask<'_>, clock: &impl Fn() -> Now, taken: &mut AllTaken) -> Verdict {
        let now = clock();
        if let Some(worst) = self.look(ask, now, taken) {
            return self.denied_by(worst, now, taken);
        }
        if let Some(n) = self.plan.shared.exceeded(ask, self.plan.quotas.len(), taken) {
            return self.denied_by(n, now, taken);
        }
        let limit = self.plan.in_flight.unwrap_or(u32::MAX);
        if ask.enter && !self.enter(limit) {
            let seen =
                Seen { cost: 1, id: self.id, since: self.plan.since, ..Seen::places(limit, limit, self.plan.index) };
            return self.verdict(Some(Cause::InFlight), seen, now, None);
        }
        let mut source = Source::Local;
        if let Some(ledgers) = self.state.ledgers().filter(|_| !ask.exact) {
            match self.plan.shared.spend(ledgers, ask, now, self.plan.quotas.len(), taken) {
                Ok(of_fleet) => source = of_fleet,
                Err(refused) => {
                    if ask.enter {
                        self.leave();
                    }
                    return self.refused(&refused, now, taken);
                }
            }
        }
        for (n, quota) in self.buckets() {
            let Some(demand) = Demand::new(&quota.ticks, taken[n].cost) else { continue };
            match self.state.draw(n, &demand, taken[n].tat, quota.ticks.at(now)) {
                Ok(tat) => taken[n].tat = tat,
                Err(tat) => {
                    // A check does not wait for a refund: at worst the units stay taken.
                    let quotas = &self.plan.quotas[..n];
                    let carried = self.state.give_back(quotas, &taken[..n], now, Patience::Tries, clock);
                    self.unspend(taken);
                    // Not where the state has left, and the place in flight with it.
                    let entered = ask.enter && !self.leave();
                    taken[n].tat = tat;
                    return Verdict { entered, carried, ..self.denied_by(n, now, taken) };
                }
            }
        }
        Verdict { entered: ask.enter, ..self.allowed(now, taken, source) }
    }

    /// Gives back, by the next policy, what was taken at the instant `then` from the quotas `carried` of the one before, which
    /// `by` has carried over: but where that may have been more than the new burst has room for, so that a part was forgotten.
    pub(crate) fn take_back(
        self,
        by: &Move,
        carried: u8,
        taken: &AllTaken,
        then: Now,
        at: Now,
        clock: impl Fn() -> Now,
    ) {
        let mut carried_over = [Taken::default(); MAX_QUOTAS];
        for ((n, quota), matched) in self.buckets().zip(&by.matched) {
            let Some(from) = matched.filter(|from| carried >> from & 1 != 0) else { continue };
            let (old, new, now) = (&by.from.quotas[from].ticks, &quota.ticks, clock());
            let ahead = self.state.tat(n).saturating_sub(new.at(now));
            let fits = old.burst() <= new.burst() || ahead + now.ticks().saturating_sub(at.ticks()) < quota.empty;
            if fits
                && new.has_whole_ticks()
                && old.never_refills() == new.never_refills()
                && taken[from].cost <= new.burst()
            {
                // By time only: where it left the bucket is not known any more.
                carried_over[n] = Taken { cost: taken[from].cost, tat: 0, refunds: self.state.refunds(n) };
            }
        }
        self.state.give_back(&self.plan.quotas, &carried_over, then, Patience::Tries, clock);
    }

    /// Takes `cost` requests from a lease of the only global quota, and of the one other if there is one. `None`, and nothing
    /// is taken, if that is not allowed; [`take`](Self::take) knows why.
    #[inline]
    pub(crate) fn take_paired(self, cost: u64, time: &impl Time) -> Option<Pair> {
        let ledgers = self.state.ledgers()?;
        let now = time.now();
        let (id, plan, since, home) = (self.id, self.plan.index, self.plan.since, self.state.home());
        let own = match self.plan.quotas.first() {
            None => None,
            Some(quota) => {
                let demand = Demand::new(&quota.ticks, cost)?;
                let refunds = self.state.refunds(0);
                let (tat, at) = (self.state.tat(0), quota.ticks.at(now));
                if tat.saturating_sub(at) > demand.room {
                    return None;
                }
                Some((quota, demand, refunds, tat, at))
            }
        };
        let (fleet, source) = self.plan.shared.spend_lease(ledgers, cost, now)?;
        let own = match own {
            None => None,
            Some((quota, demand, refunds, tat, at)) => {
                let Ok(tat) = self.state.draw(0, &demand, tat, at) else {
                    self.plan.shared.unspend(ledgers, 0, &[fleet.1]);
                    return None;
                };
                Some((quota.ticks, Taken { cost, tat, refunds }))
            }
        };
        if self.state.has_left() {
            self.plan.shared.unspend(ledgers, 0, &[fleet.1]);
            return None;
        }
        Some(Pair { own, fleet, now, id, plan, since, home, source })
    }

    fn look_at_shared(self, ask: Ask<'_>, now: Now, taken: &mut AllTaken) -> Result<Source, Refused> {
        let from = self.plan.quotas.len();
        match self.state.ledgers() {
            None => Ok(Source::Local),
            Some(ledgers) => self.plan.shared.look(ledgers, ask, now, from, taken),
        }
    }

    /// The denial by a global quota.
    fn refused(self, refused: &Refused, now: Now, taken: &AllTaken) -> Verdict {
        let seen = Seen { source: refused.source, ..self.seen(refused.quota, now, taken) };
        self.verdict(Some(refused.cause), seen, now, Some(refused.quota))
    }

    /// Looks at all buckets, and says which denies for longest, if one does.
    fn look(self, ask: Ask<'_>, now: Now, taken: &mut AllTaken) -> Option<usize> {
        let mut worst = None;
        for (n, quota) in self.buckets() {
            // The refunds first: see `refunds.rs`.
            let refunds = self.state.refunds(n);
            taken[n] = Taken { cost: ask.of(quota.quota.counted()), tat: self.state.tat(n), refunds };
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
        Verdict {
            denied,
            seen,
            now,
            in_flight: self.state.in_flight(),
            quota,
            entered: false,
            carried: 0,
            is_lost: false,
        }
    }

    /// The allow, with the numbers of the quota that allows the same again the fewest times.
    fn allowed(self, now: Now, taken: &AllTaken, source: Source) -> Verdict {
        // By `fold`, which goes through the two kinds of quota one after the other: with `for`, each step asks which it is.
        let tightest = self.plan.ticks().enumerate().fold(None, |tightest: Option<(Left, usize)>, (n, quota)| {
            let left = Left::of(quota, &taken[n], now);
            if tightest.is_none_or(|(least, _)| left.is_less(least)) { Some((left, n)) } else { tightest }
        });
        let seen = match (tightest, self.plan.in_flight) {
            (Some((_, n)), _) => self.seen(n, now, taken),
            (None, Some(limit)) => Seen::places(limit, self.state.in_flight(), self.plan.index),
            (None, None) => Seen::unlimited(self.plan.index),
        };
        let seen = Seen { id: self.id, since: self.plan.since, ..seen };
        self.verdict(None, Seen { source, ..seen }, now, tightest.map(|(_, n)| n))
    }

    fn seen(self, n: usize, now: Now, taken: &AllTaken) -> Seen {
        let Taken { cost, tat, refunds } = taken[n];
        let quota = self.plan.ticks().nth(n).copied().unwrap_or(QuotaTicks::UNLIMITED);
        let source = Source::Local;
        let (id, since, plan, home) = (self.id, self.plan.since, self.plan.index, self.state.home());
        Seen { quota, tat, now: quota.at(now), cost, refunds, id, since, plan, home, source }
    }

    /// Whether what denied has been given something back since.
    fn has_changed(self, verdict: &Verdict) -> bool {
        match (verdict.denied, verdict.quota) {
            (Some(Cause::Quota), Some(n)) if n < self.plan.quotas.len() => self.state.tat(n) < verdict.seen.tat,
            (Some(Cause::InFlight), _) => u64::from(self.state.in_flight()) < verdict.seen.quota.burst(),
            _ => false,
        }
    }

    /// Gives back what `allow` took.
    pub(crate) fn refund(self, allow: &Allow, clock: impl Fn() -> Now) {
        let seen = &allow.seen;
        let is_of_this = seen.id == self.id && seen.since == self.plan.since && seen.home == self.state.home();
        if !is_of_this || allow.instead_of.is_some() {
            return;
        }
        let Some((now, _, taken)) = allow.others.all() else {
            if let [quota] = &*self.plan.quotas {
                // A quota that never refills has no other instant: then it is not asked for.
                let then = Now::from_ticks(seen.now);
                let quotas = std::slice::from_ref(quota);
                self.state.give_back(quotas, &[seen.taken()], then, Patience::Waits, &clock);
            }
            return;
        };
        if let Some(ledgers) = self.state.ledgers()
            && clock().ticks().saturating_sub(now.ticks()) < SAME_LEASE
        {
            self.plan.shared.unspend(ledgers, self.plan.quotas.len(), taken);
        }
        self.state.give_back(&self.plan.quotas, taken, now, Patience::Waits, &clock);
    }
}

/// What was taken of a global quota and of one other, if there is one.
pub(crate) struct Pair {
    own: Option<(QuotaTicks, Taken)>,
    fleet: (QuotaTicks, Taken),
    now: Now,
    id: u64,
    plan: u16,
    since: u32,
    home: u8,
    source: Source,
}

impl Pair {
    /// The decision, with the numbers of the quota that allows the same again fewer times.
    #[inline(always)]
    pub(crate) fn decision(self) -> Decision {
        let Self { own, fleet, now, id, plan, since, home, source } = self;
        let left = |(ticks, taken): &(QuotaTicks, Taken)| Left::of(ticks, taken, now);
        let least = own.filter(|own| !left(&fleet).is_less(left(own))).unwrap_or(fleet);
        let taken = own.map_or([fleet.1, Taken::default()], |own| [own.1, fleet.1]);
        let (quota, Taken { cost, tat, refunds }) = least;
        let seen = Seen { quota, tat, now: quota.at(now), cost, refunds, id, since, plan, home, source };
        Decision::Allow(Allow { seen, others: Others::Few { now, taken }, instead_of: None })
    }
}

/// How many times more a quota allows the same, as a fraction. One of which nothing was asked counts as if it had been asked
/// for one unit.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    ticks: u64,
    charge: u64,
}

impl Left {
    #[inline]
    pub(crate) const fn of(quota: &QuotaTicks, taken: &Taken, now: Now) -> Self {
        let ahead = taken.tat.saturating_sub(quota.at(now));
        let ticks = quota.charge(quota.burst()).saturating_sub(ahead);
        let charge = quota.charge(if taken.cost == 0 { 1 } else { taken.cost });
        Self { ticks, charge: if charge == 0 { 1 } else { charge } }
    }

    /// Without a division.
    #[inline]
    pub(crate) const fn is_less(self, other: Self) -> bool {
        (self.ticks as u128) * (other.charge as u128) < (other.ticks as u128) * (self.charge as u128)
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
