//! Requests in flight.

use std::borrow::Borrow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::{Inner, Limiter};
use crate::clock::Time;
use crate::decision::{Decision, Deny};
use crate::in_flight::InFlight;
use crate::key::Key;
use crate::plans::is_overflow;
use crate::policy::PlanId;
use crate::quota::QuotaTicks;
use crate::several::Ask;
use crate::store::{KeyState, Store, Stores};
use crate::ticks::Now;
use crate::unit::Unit;

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> Limiter<K, S, T> {
    /// Takes one request of `key` now, and counts it as in flight until the answer is dropped.
    ///
    /// On a plan with a limit of [requests in flight](crate::Plan::in_flight), this is the call to use: a plain check
    /// neither asks that limit nor counts for it. While any is in flight, its key is kept.
    ///
    /// ```
    /// use tollgate::{Limiter, Plan, Quota, Reason};
    ///
    /// let limiter = Limiter::builder().plan("default", Plan::new([Quota::per_minute(100)]).in_flight(1)).build()?;
    /// let first = limiter.enter("alice").expect("nobody else is there");
    /// let second = limiter.enter("alice").expect_err("one is");
    /// assert_eq!(second.reason(), Reason::InFlight);
    /// drop(first);
    /// assert!(limiter.enter("alice").is_ok());
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The denial. Nothing was taken then.
    pub fn enter(&self, key: &K) -> Result<InFlight, Deny> {
        self.enter_costs(key, &[(Unit::REQUESTS, 1)])
    }

    /// Takes `costs` of `key` now as [`check_costs`](Self::check_costs) does, and counts the request as in flight until the
    /// answer is dropped.
    ///
    /// # Errors
    ///
    /// The denial. Nothing was taken then.
    pub fn enter_costs(&self, key: &K, costs: &[(Unit, u64)]) -> Result<InFlight, Deny> {
        self.go_in(key, None, costs, self.clock())
    }

    /// [`enter_costs`](Self::enter_costs) at the instant `now`.
    ///
    /// # Errors
    ///
    /// The denial. Nothing was taken then.
    pub fn enter_costs_at(&self, key: &K, costs: &[(Unit, u64)], now: Now) -> Result<InFlight, Deny> {
        self.go_in(key, None, costs, now)
    }

    pub(crate) fn go_in(
        &self,
        key: &K,
        given: Option<PlanId>,
        costs: &[(Unit, u64)],
        time: impl Time,
    ) -> Result<InFlight, Deny> {
        match self.ask(key, given, Ask { enter: true, ..Ask::of_costs(costs) }, time) {
            Decision::Deny(deny) => Err(deny),
            // What is not limited, or let in by shadow mode, is not counted.
            Decision::Allow(allow) if allow.instead_of.is_some() || allow.seen.quota == QuotaTicks::UNLIMITED => {
                Ok(InFlight::new(allow, None))
            }
            Decision::Allow(allow) => {
                let (plan, id) = (allow.seen.plan, allow.seen.id);
                // Its place, which may be one that newcomers share, is not lost if that panics. By no guard: one that panics
                // in turn, as it looks for the key, would abort.
                let owned = catch_unwind(AssertUnwindSafe(|| key.to_owned())).unwrap_or_else(|panic| {
                    self.leave(key, plan, id);
                    resume_unwind(panic)
                });
                let (limiter, key) = (self.clone(), owned);
                let leave = move || limiter.leave(key.borrow(), plan, id);
                Ok(InFlight::new(allow, Some(Box::new(leave))))
            }
        }
    }

    /// Whether any plan limits how many requests are in flight.
    #[cfg(feature = "http")]
    pub(crate) fn limits_in_flight(&self) -> bool {
        self.inner.current.get().plans.iter().any(|plan| plan.in_flight.is_some())
    }

    pub(super) fn leave(&self, key: &K, plan: u16, id: u64) {
        let Inner { current, store, .. } = &*self.inner;
        loop {
            let policy = current.get();
            if !is_overflow(id) {
                store.leave(key, &policy.plans, plan);
                return;
            }
            let is_current = || current.is(policy.plans.version);
            let plan = policy.plans.get(plan);
            let leave = |state: &KeyState| {
                plan.home.guests.leave(id);
                state.leave();
            };
            if policy.plans.with_overflow(plan, is_current, leave).is_some() {
                return;
            }
        }
    }
}
