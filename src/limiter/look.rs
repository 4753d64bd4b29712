//! What can be seen of keys without taking anything.

#[cfg(not(loom))]
use std::hash::BuildHasher;
use std::sync::Arc;

use super::{Inner, Limiter, decision};
use crate::decision::{Allow, Decision, Seen};
use crate::key::Key;
use crate::plans::{MAX_QUOTAS, PlanTicks};
use crate::policy::{Compiled, PlanId};
use crate::several::{self, Ask};
use crate::standing::{Standing, standings};
#[cfg(not(loom))]
use crate::store::Sharded;
use crate::store::{Newcomer, State, Store, Stores, Taken};
use crate::ticks::Now;
use crate::unit::Unit;

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> Limiter<K, S, T> {
    /// What [`check`](Self::check) would answer now. Nothing is taken, no key is made, and the `remaining` of an allow
    /// is what is left without it.
    pub fn peek(&self, key: &K) -> Decision {
        self.peek_cost(key, 1)
    }

    /// What [`check_cost`](Self::check_cost) would answer now. Nothing is taken, and no key is made.
    pub fn peek_cost(&self, key: &K, cost: u64) -> Decision {
        self.peek_costs(key, &[(Unit::REQUESTS, cost)])
    }

    /// What [`check_costs`](Self::check_costs) would answer now. Nothing is taken, and no key is made.
    pub fn peek_costs(&self, key: &K, costs: &[(Unit, u64)]) -> Decision {
        self.look_now(key, None, Ask::of_costs(costs))
    }

    /// What [`check_at`](Self::check_at) would answer. Nothing is taken, and no key is made.
    pub fn peek_at(&self, key: &K, now: Now) -> Decision {
        self.peek_cost_at(key, 1, now)
    }

    /// What [`check_cost_at`](Self::check_cost_at) would answer. Nothing is taken, and no key is made.
    pub fn peek_cost_at(&self, key: &K, cost: u64, now: Now) -> Decision {
        self.peek_costs_at(key, &[(Unit::REQUESTS, cost)], now)
    }

    /// What [`check_costs_at`](Self::check_costs_at) would answer. Nothing is taken, and no key is made.
    pub fn peek_costs_at(&self, key: &K, costs: &[(Unit, u64)], now: Now) -> Decision {
        self.look_at(key, None, Ask::of_costs(costs), now)
    }

    /// What a take would be answered at the time of this limiter's clock, a step back of it having been settled.
    pub(crate) fn look_now(&self, key: &K, given: Option<PlanId>, ask: Ask<'_>) -> Decision {
        let look = || self.look_at(key, given, ask, self.clock().latest());
        let decision = look();
        if self.clock().settles(decision.seen()) { look() } else { decision }
    }

    pub(crate) fn look_at(&self, key: &K, given: Option<PlanId>, ask: Ask<'_>, now: Now) -> Decision {
        let current = &self.inner.current;
        loop {
            let policy = current.get();
            let plan = policy.plan_of(key, given);
            while current.is(policy.plans.version) {
                if let Some(decision) = self.look(key, &policy, plan, ask, now) {
                    return decision;
                }
            }
        }
    }

    /// What a take would be answered; `None` if the policy has changed, or the state was another key's meanwhile.
    fn look(&self, key: &K, policy: &Compiled<K>, plan: &PlanTicks, ask: Ask<'_>, now: Now) -> Option<Decision> {
        let Inner { current, store, .. } = &*self.inner;
        if plan.is_unlimited() {
            return Some(Decision::Allow(Allow::alone(Seen::unlimited(plan.index))));
        }
        let is_current = || current.is(policy.plans.version);
        let known = store.visit(key, plan, policy.plans.version, |state, id| {
            (state.is_of(policy.plans.version) && is_current()).then(|| look(state, plan, ask, id, now))?
        });
        match known.flatten() {
            Some(decision) => Some(decision),
            None => store.settle(
                key,
                &policy.plans,
                plan,
                Newcomer::Show,
                is_current,
                || now,
                |state, id, _| look(state, plan, ask, id, now),
            )?,
        }
    }

    /// What the plan with that id is called, or the one that its keys went to if it is gone.
    pub fn plan_name(&self, id: PlanId) -> Arc<str> {
        Arc::clone(&self.inner.current.get().plans.get(id.0).name)
    }

    /// Each quota of the plan of `decision` with its numbers as the decision saw them, in the order of the plan, and last the
    /// places in flight: for headers and logs. It is empty where nothing is limited. If the quotas of the plan have changed
    /// since, only the one is known that the decision tells itself.
    pub fn standings(&self, decision: &Decision) -> Vec<Standing> {
        standings(self.inner.current.get().plans.get(decision.seen().plan), decision)
    }

    /// Each quota of the plan of `key` with its numbers now. Nothing is taken, and no key is made.
    ///
    /// ```
    /// use tollgate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::builder().plan("pro", [Quota::per_second(20), Quota::per_day(1_000)]).build()?;
    /// assert!(limiter.check("alice").is_allowed());
    /// let left: Vec<String> = limiter.peek_all("alice").iter().map(ToString::to_string).collect();
    /// assert_eq!(left, ["requests/s: 19 of 20 left", "requests/day: 999 of 1000 left"]);
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn peek_all(&self, key: &K) -> Vec<Standing> {
        self.standings(&self.look_now(key, None, Ask::of_costs(&[(Unit::REQUESTS, 1)])))
    }

    /// Each quota of the plan of `key` with its numbers at the instant `now`. Nothing is taken, and no key is made.
    pub fn peek_all_at(&self, key: &K, now: Now) -> Vec<Standing> {
        self.standings(&self.look_at(key, None, Ask::of_costs(&[(Unit::REQUESTS, 1)]), now))
    }
}

#[cfg(not(loom))]
impl<K: Key + ?Sized, S: BuildHasher + Clone + Send + Sync + 'static> Limiter<K, S, Sharded> {
    /// Every known key with what a [`peek`](Self::peek) on its plan says of it, in no order, for inspection. A key comes
    /// once for each [plan](Decision::plan) that it is known on.
    ///
    /// The keys are copied before the first is returned, while one shard after another is locked for reading: for a
    /// support page, not for every request. What changes meanwhile may or may not show.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// # let limiter = Limiter::new(Quota::per_hour(1))?;
    /// # assert!(limiter.check("alice").is_allowed());
    /// let denied = limiter.entries().filter(|(_, decision)| decision.is_denied());
    /// assert_eq!(denied.map(|(key, _)| key).collect::<Vec<_>>(), ["alice"]);
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn entries(&self) -> impl Iterator<Item = (K::Owned, Decision)> + use<K, S>
    where
        K::Owned: Clone,
    {
        let mut seen = self.snapshot();
        if seen.iter().any(|(_, decision)| self.clock().settles(decision.seen())) {
            seen = self.snapshot();
        }
        seen.into_iter()
    }

    fn snapshot(&self) -> Vec<(K::Owned, Decision)>
    where
        K::Owned: Clone,
    {
        let Inner { store, current, .. } = &*self.inner;
        let now = self.clock().latest();
        let ask = Ask::of_costs(&[(Unit::REQUESTS, 1)]);
        let policy = current.get();
        store.snapshot(|state| {
            // One that is being carried over is passed over.
            let plan = policy.plans.get(state.plan());
            let usable = state.is_of(policy.plans.version) && plan.index == state.plan();
            // Which key it is, is for refunds, and a peek has nothing to give back.
            usable.then(|| look(state, plan, ask, 0, now))?
        })
    }
}

/// What a take from `state` would be answered; `None` if it was somebody else's meanwhile.
fn look(state: impl State, plan: &PlanTicks, ask: Ask<'_>, id: u64, now: Now) -> Option<Decision> {
    let mut taken = [Taken::default(); MAX_QUOTAS];
    let verdict = several::Key { state, plan, id }.peek(ask, now, &mut taken)?;
    Some(decision(plan, verdict, taken))
}
