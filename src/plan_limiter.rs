//! A limiter on a plan that the caller names.

use std::fmt;

use crate::decision::{Decision, Deny};
use crate::hasher::RandomState;
use crate::in_flight::InFlight;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::PlanId;
use crate::several::Ask;
use crate::standing::Standing;
use crate::store::{Sharded, Stores};
use crate::ticks::Now;
use crate::unit::Unit;

/// A plan of a limiter: its checks are on this plan, but for keys that the policy [puts](crate::Policy::override_key) on
/// another. Made by [`Limiter::plan`]; it is cheap to keep and to clone.
///
/// It stays on the plan of that name when the policy is reloaded. When that has no such plan any more, it goes where the
/// keys of the plan go, to the one that is the default then, and stays there.
///
/// ```
/// use tollgate::{Limiter, Quota};
///
/// let limiter = Limiter::builder()
///     .plan("free", [Quota::per_minute(10)])
///     .plan("pro", [Quota::per_second(20)])
///     .default_plan("free")
///     .build()?;
/// let pro = limiter.plan("pro")?;
/// assert_eq!(pro.check("alice").limit(), 20);
/// assert!(limiter.plan("prp").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PlanLimiter<K: Key + ?Sized = str, S: 'static = RandomState, T: Stores<K, S> = Sharded> {
    limiter: Limiter<K, S, T>,
    id: PlanId,
}

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> PlanLimiter<K, S, T> {
    pub(crate) const fn new(limiter: Limiter<K, S, T>, id: PlanId) -> Self {
        Self { limiter, id }
    }

    /// Which plan it is.
    pub const fn id(&self) -> PlanId {
        self.id
    }

    /// The limiter with all its plans.
    pub const fn limiter(&self) -> &Limiter<K, S, T> {
        &self.limiter
    }
}

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> PlanLimiter<K, S, T> {
    /// See [`Limiter::check`].
    #[inline]
    pub fn check(&self, key: &K) -> Decision {
        self.limiter.take(key, Some(self.id), 1, self.limiter.clock())
    }

    /// See [`Limiter::check_cost`].
    #[inline]
    pub fn check_cost(&self, key: &K, cost: u64) -> Decision {
        self.limiter.take(key, Some(self.id), cost, self.limiter.clock())
    }

    /// See [`Limiter::check_costs`].
    pub fn check_costs(&self, key: &K, costs: &[(Unit, u64)]) -> Decision {
        self.limiter.ask(key, Some(self.id), Ask::of_costs(costs), self.limiter.clock())
    }

    /// See [`Limiter::check_at`].
    #[inline]
    pub fn check_at(&self, key: &K, now: Now) -> Decision {
        self.limiter.take(key, Some(self.id), 1, now)
    }

    /// See [`Limiter::check_cost_at`].
    #[inline]
    pub fn check_cost_at(&self, key: &K, cost: u64, now: Now) -> Decision {
        self.limiter.take(key, Some(self.id), cost, now)
    }

    /// See [`Limiter::check_costs_at`].
    pub fn check_costs_at(&self, key: &K, costs: &[(Unit, u64)], now: Now) -> Decision {
        self.limiter.ask(key, Some(self.id), Ask::of_costs(costs), now)
    }

    /// See [`Limiter::acquire_global`].
    #[cfg(all(feature = "global", not(loom)))]
    pub async fn acquire_global(&self, key: &K, cost: u64, within: std::time::Duration) -> Decision {
        self.limiter.acquire(key, Some(self.id), cost, within).await
    }

    /// See [`Limiter::check_exact`].
    #[cfg(all(feature = "global", not(loom)))]
    pub async fn check_exact(&self, key: &K) -> Decision {
        self.limiter.exact(key, Some(self.id), 1).await
    }

    /// See [`Limiter::check_exact_cost`].
    #[cfg(all(feature = "global", not(loom)))]
    pub async fn check_exact_cost(&self, key: &K, cost: u64) -> Decision {
        self.limiter.exact(key, Some(self.id), cost).await
    }

    /// See [`Limiter::status_global`].
    ///
    /// # Errors
    ///
    /// As there.
    #[cfg(all(feature = "global", not(loom)))]
    pub async fn status_global(&self, key: &K) -> Result<Vec<crate::global::GlobalStatus>, crate::global::NoAnswer> {
        self.limiter.status(key, Some(self.id)).await
    }

    /// See [`Limiter::peek`].
    pub fn peek(&self, key: &K) -> Decision {
        self.peek_cost(key, 1)
    }

    /// See [`Limiter::peek_cost`].
    pub fn peek_cost(&self, key: &K, cost: u64) -> Decision {
        self.peek_costs(key, &[(Unit::REQUESTS, cost)])
    }

    /// See [`Limiter::peek_costs`].
    pub fn peek_costs(&self, key: &K, costs: &[(Unit, u64)]) -> Decision {
        self.limiter.look_now(key, Some(self.id), Ask::of_costs(costs))
    }

    /// See [`Limiter::peek_at`].
    pub fn peek_at(&self, key: &K, now: Now) -> Decision {
        self.peek_cost_at(key, 1, now)
    }

    /// See [`Limiter::peek_cost_at`].
    pub fn peek_cost_at(&self, key: &K, cost: u64, now: Now) -> Decision {
        self.peek_costs_at(key, &[(Unit::REQUESTS, cost)], now)
    }

    /// See [`Limiter::peek_costs_at`].
    pub fn peek_costs_at(&self, key: &K, costs: &[(Unit, u64)], now: Now) -> Decision {
        self.limiter.look_at(key, Some(self.id), Ask::of_costs(costs), now)
    }

    /// See [`Limiter::peek_all`].
    pub fn peek_all(&self, key: &K) -> Vec<Standing> {
        self.limiter.standings(&self.peek(key))
    }

    /// See [`Limiter::peek_all_at`].
    pub fn peek_all_at(&self, key: &K, now: Now) -> Vec<Standing> {
        self.limiter.standings(&self.peek_at(key, now))
    }

    /// See [`Limiter::enter`].
    ///
    /// # Errors
    ///
    /// The denial. Nothing was taken then.
    pub fn enter(&self, key: &K) -> Result<InFlight, Deny> {
        self.enter_costs(key, &[(Unit::REQUESTS, 1)])
    }

    /// See [`Limiter::enter_costs`].
    ///
    /// # Errors
    ///
    /// The denial. Nothing was taken then.
    pub fn enter_costs(&self, key: &K, costs: &[(Unit, u64)]) -> Result<InFlight, Deny> {
        self.limiter.go_in(key, Some(self.id), costs, self.limiter.clock())
    }

    /// See [`Limiter::enter_costs_at`].
    ///
    /// # Errors
    ///
    /// The denial. Nothing was taken then.
    pub fn enter_costs_at(&self, key: &K, costs: &[(Unit, u64)], now: Now) -> Result<InFlight, Deny> {
        self.limiter.go_in(key, Some(self.id), costs, now)
    }
}

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> Clone for PlanLimiter<K, S, T> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), id: self.id }
    }
}

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> fmt::Debug for PlanLimiter<K, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanLimiter").field("id", &self.id).finish_non_exhaustive()
    }
}
