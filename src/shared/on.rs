//! With the feature `global`.

use std::fmt;
use std::sync::Arc;

use super::{Refused, Who};
use crate::decision::{Cause, Source};
use crate::error::BuildError;
pub(crate) use crate::global::GlobalQuota;
use crate::global::internal::{Answered, Ledger, QuotaRef};
use crate::global::{Link, Named, WireHasher, name};
use crate::quota::QuotaTicks;
use crate::refunds::RefundsSeen;
use crate::several::{AllTaken, Ask};
use crate::store::Taken;
use crate::ticks::Now;
use crate::unit::Unit;

/// Which fleet a limiter belongs to, if any.
pub(crate) type Fleet = Option<Arc<Link>>;

/// How keys give what tells them apart, if they can.
pub(crate) type Write<K> = Option<fn(&K, &mut WireHasher)>;

/// The global quotas of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    quotas: Box<[QuotaRef]>,
    link: Fleet,
}

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        self.quotas == other.quotas
    }
}

impl Shared {
    pub(crate) fn compile(plan: &str, quotas: &[GlobalQuota], fleet: &Fleet) -> Result<Self, BuildError> {
        let Some(link) = fleet else {
            return match quotas {
                [] => Ok(Self { quotas: [].into(), link: None }),
                _ => Err(BuildError::NoFleet { plan: plan.to_owned() }),
            };
        };
        let quotas = quotas.iter().map(|quota| quota.compile(plan, link.interval()));
        let quotas = quotas.collect::<Result<Box<[_]>, _>>()?;
        Ok(Self { quotas, link: Some(Arc::clone(link)) })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.quotas.is_empty()
    }

    /// Whether the limiter belongs to a fleet.
    pub(crate) const fn is_of_fleet(&self) -> bool {
        self.link.is_some()
    }

    /// What each is called, what it counts, and its numbers.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&Arc<str>, Unit, &QuotaTicks)> {
        self.quotas.iter().map(|quota| (quota.label(), quota.counted(), quota.ticks()))
    }

    fn name_of<K: ?Sized>(&self, plan: &str, quota: &QuotaRef, who: Who<'_, K>) -> crate::global::WireName {
        let secret = self.link.as_ref().map_or(&[0; 16], |link| link.secret());
        match who {
            Who::Key(key, write) => name(secret, quota.scope(), Named::Key(key), |key, to| {
                if let Some(write) = write {
                    write(key, to);
                }
            }),
            Who::Overflow => name::<K>(secret, quota.scope(), Named::Overflow(plan), |_, _| ()),
        }
    }

    /// Each that `ask` asks something of, with the name of the key and the cost.
    #[cfg(not(loom))]
    pub(crate) fn questions<K: ?Sized>(
        &self,
        plan: &str,
        who: Who<'_, K>,
        ask: Ask<'_>,
    ) -> Vec<(crate::global::WireName, QuotaRef, u64)> {
        let question = |quota: &QuotaRef| (self.name_of(plan, quota, who), Arc::clone(quota), ask.of(quota.counted()));
        self.quotas.iter().map(question).collect()
    }

    /// A ledger for each, of someone of whom nothing is known. `None` if there are none.
    pub(crate) fn open<K: ?Sized>(&self, plan: &str, who: Who<'_, K>) -> Option<Ledgers> {
        if self.is_empty() {
            return None;
        }
        let open = |quota: &QuotaRef| Arc::new(Ledger::new(self.name_of(plan, quota, who), Arc::clone(quota)));
        Some(Ledgers::new(self.quotas.iter().map(open)))
    }

    /// A ledger for each, of someone who had `old`: those of the same quota go on.
    pub(crate) fn carry<K: ?Sized>(&self, plan: &str, old: Option<&Ledgers>, who: Who<'_, K>) -> Option<Ledgers> {
        if self.is_empty() {
            return None;
        }
        let old = || old.into_iter().flat_map(|ledgers| ledgers.each());
        let carry = |quota: &QuotaRef| match old().find(|ledger| ledger.quota().scope() == quota.scope()) {
            Some(ledger) if ledger.quota() == quota => Arc::clone(ledger),
            Some(ledger) => Arc::new(Ledger::after_another(ledger.name(), Arc::clone(quota))),
            None => Arc::new(Ledger::new(self.name_of(plan, quota, who), Arc::clone(quota))),
        };
        Some(Ledgers::new(self.quotas.iter().map(carry)))
    }

    /// The first that `ask` exceeds whatever is left of it, of those that are counted from `from` on.
    pub(crate) fn exceeded(&self, ask: Ask<'_>, from: usize, taken: &mut AllTaken) -> Option<usize> {
        let exceeds = |(_, quota): &(usize, &QuotaRef)| ask.of(quota.counted()) > u64::from(quota.limit());
        let (n, quota) = self.quotas.iter().enumerate().find(exceeds)?;
        taken[from + n] = Taken { cost: ask.of(quota.counted()), ..Taken::default() };
        Some(from + n)
    }

    /// Whether `ask` asks for nothing of any.
    pub(crate) fn asks_nothing(&self, ask: Ask<'_>) -> bool {
        self.quotas.iter().all(|quota| ask.of(quota.counted()) == 0)
    }

    /// Spends what is asked for of each, all or nothing, and notes it in `taken` from `from` on.
    pub(crate) fn spend(
        &self,
        ledgers: &Ledgers,
        ask: Ask<'_>,
        now: Now,
        from: usize,
        taken: &mut AllTaken,
    ) -> Result<Source, Refused> {
        let mut source = Source::Local;
        for (n, (ledger, quota)) in ledgers.each().iter().zip(&self.quotas).enumerate() {
            let cost = ask.of(quota.counted());
            let answer = if cost == 0 {
                ledger.peek(0, now.ticks())
            } else {
                // It is at most the limit.
                let spent = ledger.spend(cost as u32, now.ticks());
                if let Some(link) = &self.link {
                    link.note(ledger, spent);
                }
                spent.answer
            };
            taken[from + n] = self.taken(quota, cost, answer, now);
            if cost == 0 {
                continue;
            }
            if !answer.is_allowed() {
                for (undone, ledger) in ledgers.each().iter().enumerate().take(n) {
                    give_back(ledger, &taken[from + undone]);
                }
                let (cause, source) = self.cause(answer, now);
                return Err(Refused { quota: from + n, cause, source });
            }
            source = source.max(source_of(answer));
        }
        Ok(source)
    }

    /// Spends `cost` units of a lease of the only one, if there are so many, and says what was taken of it.
    #[inline]
    pub(crate) fn spend_lease(&self, ledgers: &Ledgers, cost: u64, now: Now) -> Option<((QuotaTicks, Taken), Source)> {
        let (Ledgers::One(ledger), [quota], Some(link)) = (ledgers, &*self.quotas, &self.link) else { return None };
        if cost == 0 || cost > u64::from(quota.limit()) {
            return None;
        }
        let spent = ledger.spend_lease(cost as u32, now.ticks())?;
        link.note(ledger, spent);
        Some(((*quota.ticks(), self.taken(quota, cost, spent.answer, now)), source_of(spent.answer)))
    }

    /// What [`spend`](Self::spend) would answer. Nothing is asked for.
    pub(crate) fn look(
        &self,
        ledgers: &Ledgers,
        ask: Ask<'_>,
        now: Now,
        from: usize,
        taken: &mut AllTaken,
    ) -> Result<Source, Refused> {
        let mut result = Ok(Source::Local);
        for (n, (ledger, quota)) in ledgers.each().iter().zip(&self.quotas).enumerate() {
            let cost = ask.of(quota.counted());
            let answer = ledger.peek(u32::try_from(cost).unwrap_or(u32::MAX), now.ticks());
            taken[from + n] = self.taken(quota, cost, answer, now);
            result = match result {
                Ok(_) if cost > 0 && !answer.is_allowed() => {
                    let (cause, source) = self.cause(answer, now);
                    Err(Refused { quota: from + n, cause, source })
                }
                Ok(source) if cost > 0 => Ok(source.max(source_of(answer))),
                other => other,
            };
        }
        result
    }

    /// Gives back what was spent, as far as that lease goes on.
    pub(crate) fn unspend(&self, ledgers: &Ledgers, from: usize, taken: &[Taken]) {
        for (ledger, taken) in ledgers.each().iter().zip(&taken[from..]) {
            give_back(ledger, taken);
        }
    }

    /// The numbers of one of them: where the `tat` of a bucket of that burst would be.
    fn taken(&self, quota: &QuotaRef, cost: u64, answer: Answered, now: Now) -> Taken {
        let (left, epoch) = match answer {
            Answered::Lease { left, room, epoch, .. } => (u64::from(left) + u64::from(room), epoch),
            Answered::Overdraft { room } | Answered::Full { room, .. } | Answered::NoLease { room } => {
                (u64::from(room), NO_LEASE)
            }
        };
        let used = u64::from(quota.limit()).saturating_sub(left);
        Taken { cost, tat: now.ticks() + quota.ticks().charge(used), refunds: RefundsSeen::of_lease(epoch) }
    }

    fn cause(&self, answer: Answered, now: Now) -> (Cause, Source) {
        match answer {
            Answered::Full { until, away, .. } => {
                let wait = if until == u64::MAX { u64::MAX } else { until.saturating_sub(now.ticks()) };
                (Cause::Full { wait }, if away { Source::Away } else { Source::Lease })
            }
            _ => {
                let wait = self.link.as_ref().map_or(0, |link| link.round_trip());
                (Cause::NoLease { wait }, Source::Lease)
            }
        }
    }
}

/// The epoch of what was not spent of a lease.
const NO_LEASE: u64 = u64::MAX;

const fn source_of(answer: Answered) -> Source {
    match answer {
        Answered::Lease { away: true, .. } => Source::Away,
        Answered::Overdraft { .. } => Source::Overdraft,
        _ => Source::Lease,
    }
}

fn give_back(ledger: &Ledger, taken: &Taken) {
    if taken.cost != 0 {
        let answer = Answered::Lease { left: 0, room: 0, epoch: taken.refunds.lease(), away: false };
        ledger.unspend(taken.cost as u32, answer);
    }
}

/// A ledger for each global quota of the plan; of most there is one, which is then found without a further step.
pub(crate) enum Ledgers {
    One(Arc<Ledger>),
    Any(Box<[Arc<Ledger>]>),
}

impl Ledgers {
    fn new(mut ledgers: impl ExactSizeIterator<Item = Arc<Ledger>>) -> Self {
        match (ledgers.len(), ledgers.next()) {
            (1, Some(ledger)) => Self::One(ledger),
            (_, first) => Self::Any(first.into_iter().chain(ledgers).collect()),
        }
    }

    #[inline]
    pub(crate) fn each(&self) -> &[Arc<Ledger>] {
        match self {
            Self::One(ledger) => std::slice::from_ref(ledger),
            Self::Any(ledgers) => ledgers,
        }
    }

    /// Whether none has anything to tell or to remember.
    pub(crate) fn are_idle(&self, now: Now) -> bool {
        self.each().iter().all(|ledger| ledger.is_idle(now.ticks()))
    }
}

impl fmt::Debug for Ledgers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.each()).finish()
    }
}
