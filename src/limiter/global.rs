//! What a limiter has to do with its fleet beside plain checks.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_channel::oneshot;

use super::{Inner, Limiter};
use crate::decision::{Allow, Cause, Decision, Deny, Others, Reason, Seen, Source};
use crate::global::internal::{Answered, Ledger, QuotaRef};
use crate::global::{Answer, Body, Holder, Link, Request, WhenAway, WireName};
use crate::key::Key;
use crate::plans::PlanTicks;
use crate::policy::PlanId;
use crate::several::Ask;
use crate::shared::Ledgers;
use crate::store::{KeyState, State, Store, Stores};
use crate::ticks::{Now, from_duration, to_duration};
use crate::unit::Unit;

/// How long the authority may take to answer a question that is for it alone.
const PATIENCE: Duration = Duration::from_secs(1);

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> Holder for Inner<K, S, T> {
    fn dirty(&self) -> Vec<Arc<Ledger>> {
        // While a shard is locked they are no more than gathered.
        let mut dirty = Vec::new();
        let mut look = |state: &KeyState| {
            let ledgers = state.ledgers().into_iter().flat_map(|ledgers| ledgers.each());
            dirty.extend(ledgers.filter(|ledger| ledger.is_dirty()).cloned());
        };
        self.store.each(&mut look);
        for plan in self.current.get().plans.iter() {
            let overflow = plan.home.overflow.read().unwrap_or_else(PoisonError::into_inner);
            overflow.iter().for_each(&mut look);
        }
        dirty
    }
}

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> Limiter<K, S, T> {
    /// Takes `cost` requests of `key`, and waits for that `within` at the most: one round trip for a first
    /// [lease](crate::global), or until there is room again.
    ///
    /// It returns the denial at once where what denies will not be over in time, and where it never will be. Nothing is taken if
    /// it is dropped while it waits. The fleet's thread does the waiting: any executor will do. Of several who wait for the same
    /// key, whoever looks first is served; they wake in the order in which they came.
    ///
    /// On a limiter without a fleet this is a plain [`check_cost`](Self::check_cost).
    pub async fn acquire_global(&self, key: &K, cost: u64, within: Duration) -> Decision {
        self.acquire(key, None, cost, within).await
    }

    pub(crate) async fn acquire(&self, key: &K, given: Option<PlanId>, cost: u64, within: Duration) -> Decision {
        let check = || self.take(key, given, cost, self.clock());
        let start = self.now().ticks();
        let until = start.saturating_add(u64::try_from(from_duration(within)).unwrap_or(u64::MAX));
        loop {
            let Some(wait) = self.acquire_or_wait(key, given, cost, until) else { return check() };
            match wait {
                Wait::Over(decision) => return decision,
                // Who is told nothing any more finds out by looking once more.
                Wait::For(told) => _ = told.await,
            }
            if self.inner.fleet.as_ref().is_none_or(|link| link.is_stopped()) {
                return check();
            }
        }
    }

    /// Takes what is there, or says what to wait for. `None` without a fleet.
    fn acquire_or_wait(&self, key: &K, given: Option<PlanId>, cost: u64, until: u64) -> Option<Wait> {
        let check = || self.take(key, given, cost, self.clock());
        let link = self.inner.fleet.as_ref()?;
        loop {
            let denied = check();
            if self.now().ticks() >= until || !lacks_lease(&denied) {
                return Some(self.sleep(link, denied, until));
            }
            // What was lacking may have come in between, or its key gone: then a look is worth as much as news.
            let Some(ledger) = self.lacking(key, denied.seen().plan, cost) else { continue };
            let (tell, told) = oneshot::channel();
            link.request(Request::Watch { ledger, until, tell });
            // Once more after that: of what has come before it nobody would tell.
            let denied = check();
            return Some(if lacks_lease(&denied) { Wait::For(told) } else { self.sleep(link, denied, until) });
        }
    }

    /// Waits if `decision` is a denial that is over in time.
    fn sleep(&self, link: &Link, decision: Decision, until: u64) -> Wait {
        let (Decision::Deny(deny), now) = (&decision, self.now().ticks()) else { return Wait::Over(decision) };
        let Some(wait) = deny.retry_after() else { return Wait::Over(decision) };
        let wake = now.saturating_add(u64::try_from(from_duration(wait)).unwrap_or(u64::MAX));
        if wake > until {
            return Wait::Over(decision);
        }
        let (tell, told) = oneshot::channel();
        link.request(Request::Sleep { until: wake, tell });
        Wait::For(told)
    }

    /// The first ledger of `key` that lacks a lease for `cost` requests on the plan of that index.
    fn lacking(&self, key: &K, plan: u16, cost: u64) -> Option<Arc<Ledger>> {
        let now = self.now().ticks();
        let cost = u32::try_from(cost).ok()?;
        let lacks = |ledger: &&Arc<Ledger>| {
            ledger.quota().counted() == Unit::REQUESTS && matches!(ledger.peek(cost, now), Answered::NoLease { .. })
        };
        let first = |ledgers: Option<&Ledgers>| ledgers.and_then(|ledgers| ledgers.each().iter().find(lacks).cloned());
        let policy = self.inner.current.get();
        let plan = policy.plans.get(plan);
        match self.inner.store.visit(key, plan, policy.plans.version, |state, _| first(state.ledgers())) {
            Some(ledger) => ledger,
            None => first(plan.home.overflow.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.ledgers()),
        }
    }

    /// Takes one request of `key`, and asks the authority about global quotas, every time: what the fleet has admitted is then
    /// known exactly, whatever leases are out. For limits that are low and matter, as on logins; it takes a round trip, or two
    /// where a report is just under way, and no more than a second.
    ///
    /// If the authority does not answer, each global quota's [`when_away`](crate::global::GlobalQuota::when_away) holds, and
    /// the request may have been counted all the same. Where a plan has several global quotas they are asked in turn, and what
    /// was counted by one stays so if the next one denies.
    pub async fn check_exact(&self, key: &K) -> Decision {
        self.exact(key, None, 1).await
    }

    /// [`check_exact`](Self::check_exact) of `cost` requests.
    pub async fn check_exact_cost(&self, key: &K, cost: u64) -> Decision {
        self.exact(key, None, cost).await
    }

    pub(crate) async fn exact(&self, key: &K, given: Option<PlanId>, cost: u64) -> Decision {
        let costs = [(Unit::REQUESTS, cost)];
        let (plan, questions, own) = {
            let policy = self.inner.current.get();
            let plan = &**policy.plan_of(key, given);
            let questions = self.questions(key, plan, Ask::of_costs(&costs));
            let ask = Ask { exact: true, ..Ask::of_costs(&costs) };
            (plan.index, questions, self.ask_on((&policy, plan), key, given, ask, self.clock()))
        };
        let Decision::Allow(own) = own else { return own };
        let now = self.clock().latest();
        let mut seen = None;
        for (name, quota, cost) in questions.into_iter().filter(|(.., cost)| *cost > 0) {
            let body = Body::Exact { cost: u32::try_from(cost).unwrap_or(u32::MAX) };
            let answer = self.question(name, &quota, body).await;
            let (next, cause) = match answer {
                Some(answer) => {
                    let seen = seen_by(&quota, cost, answer.room, now, plan, Source::Lease);
                    let wait = if answer.retry_after == u64::MAX {
                        u64::MAX
                    } else {
                        answer.retry_after.saturating_mul(crate::global::MICRO)
                    };
                    (seen, (u64::from(answer.granted) < cost).then_some(Cause::Full { wait }))
                }
                None => match quota.when_away() {
                    WhenAway::Allow => (seen_by(&quota, cost, 0, now, plan, Source::Away), None),
                    WhenAway::Deny => {
                        let wait = u64::try_from(from_duration(PATIENCE)).unwrap_or(u64::MAX);
                        (seen_by(&quota, cost, 0, now, plan, Source::Away), Some(Cause::NoLease { wait }))
                    }
                    WhenAway::Local => {
                        self.refund(key, own);
                        // On the same plan: which it is was asked for this check already.
                        return self.take(key, Some(PlanId(plan)), cost, self.clock());
                    }
                },
            };
            if let Some(cause) = cause {
                self.refund(key, own);
                return Decision::Deny(Deny { seen: next, others: Others::None, cause });
            }
            seen = Some(next);
        }
        Decision::Allow(seen.map_or(own, Allow::alone))
    }

    /// How `key` stands with each global quota of its plan, fleet-wide, in the order of the plan. Nothing is taken.
    ///
    /// # Errors
    ///
    /// [`NoAnswer`] if the authority does not answer within a second, or the limiter belongs to no fleet.
    pub async fn status_global(&self, key: &K) -> Result<Vec<GlobalStatus>, NoAnswer> {
        self.status(key, None).await
    }

    pub(crate) async fn status(&self, key: &K, given: Option<PlanId>) -> Result<Vec<GlobalStatus>, NoAnswer> {
        let questions = {
            let policy = self.inner.current.get();
            self.questions(key, policy.plan_of(key, given), Ask::of_costs(&[]))
        };
        let mut all = Vec::with_capacity(questions.len());
        for (name, quota, _) in questions {
            let answer = self.question(name, &quota, Body::Status).await.ok_or(NoAnswer)?;
            let limit = quota.limit();
            all.push(GlobalStatus {
                quota: Arc::clone(quota.label()),
                limit: u64::from(limit),
                used: u64::from(limit - answer.room.min(limit)),
                remaining: u64::from(answer.room),
                reset_after: Duration::from_micros(answer.reset_after),
            });
        }
        Ok(all)
    }

    fn questions(&self, key: &K, plan: &PlanTicks, ask: Ask<'_>) -> Vec<(WireName, QuotaRef, u64)> {
        plan.shared.questions(&plan.name, self.inner.store.who(key), ask)
    }

    /// What the authority answers, if it does in time and makes sense of what it has.
    async fn question(&self, name: WireName, quota: &QuotaRef, body: Body) -> Option<Answer> {
        let told = {
            let link = self.inner.fleet.as_ref()?;
            let (tell, told) = oneshot::channel();
            let until = self.now().ticks().saturating_add(from_duration(PATIENCE) as u64);
            link.request(Request::Ask { name, rule: quota.rule(), body, until, tell });
            told
        };
        told.await.ok().filter(|answer| !answer.failed)
    }
}

fn lacks_lease(decision: &Decision) -> bool {
    matches!(decision, Decision::Deny(deny) if deny.reason() == Reason::NoLease)
}

/// What there is to do about a denial.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is made")]
enum Wait {
    /// Nothing: this is the answer.
    Over(Decision),
    /// To look again when told.
    For(oneshot::Receiver<()>),
}

fn seen_by(quota: &QuotaRef, cost: u64, room: u32, now: Now, plan: u16, source: Source) -> Seen {
    let used = u64::from(quota.limit().saturating_sub(room));
    let tat = now.ticks() + quota.ticks().charge(used);
    Seen { quota: *quota.ticks(), tat, now: now.ticks(), cost, source, ..Seen::unlimited(plan) }
}

/// How a key stands with a global quota, fleet-wide.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GlobalStatus {
    /// What the quota is called.
    pub quota: Arc<str>,
    /// The most units there can be at once.
    pub limit: u64,
    /// Units that are counted now: used, or leased to some node.
    pub used: u64,
    /// Units that are left.
    pub remaining: u64,
    /// The wait until nothing is counted any more if nobody takes from it.
    pub reset_after: Duration,
}

impl fmt::Display for GlobalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, limit, remaining, .. } = self;
        write!(f, "{quota}: {remaining} of {limit} left")
    }
}

/// The authority has not answered in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "there is nothing more to say")]
pub struct NoAnswer;

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the authority has not answered within {:?}, or there is none",
            to_duration(from_duration(PATIENCE) as u64)
        )
    }
}

impl std::error::Error for NoAnswer {}
