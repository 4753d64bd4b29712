//! Options, turned into a limiter or an error that says what is wrong with them.

use std::fmt;
use std::hash::BuildHasher;

use crate::clock::Clock;
use crate::error::BuildError;
use crate::hasher::RandomState;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::{Compiled, Plan, Policy};
use crate::quota::Quota;
use crate::shared::{Fleet, Write};
use crate::store::{Fixed, Sharded, Stores};
use crate::ticks::Now;

/// The options of a [`Limiter`]. Only a quota or a plan must be given; every mistake is found by
/// [`build`](Builder::build).
///
/// ```
/// use std::net::IpAddr;
/// use tollgate::{Clock, Limiter, Quota};
///
/// let limiter = Limiter::builder()
///     .keys::<IpAddr>()
///     .quota(Quota::per_second(5).burst(20))
///     .clock(Clock::std())
///     .build()?;
/// assert!(limiter.check(&IpAddr::from([192, 0, 2, 1])).is_allowed());
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<K: Key + ?Sized = str, S = RandomState, T = Sharded> {
    policy: Policy<K>,
    clock: Option<Clock>,
    store: T,
    hasher: S,
    fleet: Fleet,
    write: Write<K>,
    dropped: Dropped,
}

/// The things that [`keys`](Builder::keys) could not take along, since they speak of keys of another type, and that are not given
/// again yet.
#[derive(Clone, Copy, Default)]
struct Dropped {
    fleet: bool,
    overrides: usize,
    resolver: bool,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            policy: Policy::new(),
            clock: None,
            store: Sharded::DEFAULT,
            hasher: RandomState::new(),
            fleet: Fleet::default(),
            write: Write::default(),
            dropped: Dropped::default(),
        }
    }
}

impl<K: Key + ?Sized, S, T> Builder<K, S, T> {
    /// What each key is granted: short for [`plan`](Self::plan) with the name `default`.
    pub fn quota(self, quota: Quota) -> Self {
        self.plan("default", quota)
    }

    /// Adds the plan `name`, see [`Policy::plan`].
    pub fn plan(self, name: impl Into<String>, plan: impl Into<Plan>) -> Self {
        Self { policy: self.policy.plan(name, plan), ..self }
    }

    /// The plan of a key that gets none otherwise, see [`Policy::default_plan`].
    pub fn default_plan(self, name: impl Into<String>) -> Self {
        Self { policy: self.policy.default_plan(name), ..self }
    }

    /// All plans and how a key gets one, in the place of any that were given before.
    pub fn policy(self, policy: Policy<K>) -> Self {
        let dropped = Dropped { overrides: 0, resolver: false, ..self.dropped };
        Self { policy, dropped, ..self }
    }

    /// The type of the keys, `str` by default: any that can be hashed and compared. Keys are looked up by reference to this
    /// type and kept in its owned form: `str` as `String`, `[u8]` as `Vec<u8>`, a `Clone` type as itself.
    ///
    /// It comes before what speaks of keys: the fleet, and a policy with overrides or a resolver. What of that was given before
    /// can't be taken along, and unless it is given again after, [`build`](Self::build) refuses.
    pub fn keys<Q: Key + ?Sized>(self) -> Builder<Q, S, T> {
        let Self { policy, clock, store, hasher, fleet, write: _, dropped } = self;
        let (overrides, resolver) = policy.of_single_keys();
        let dropped = Dropped {
            fleet: dropped.fleet || fleet.is_some(),
            overrides: dropped.overrides + overrides,
            resolver: dropped.resolver || resolver,
        };
        let (fleet, write) = (Fleet::default(), Write::default());
        Builder { policy: policy.of_keys(), clock, store, hasher, fleet, write, dropped }
    }

    /// The clock, [`Clock::precise`] by default.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// The fleet whose nodes share the [global quotas](Plan::global) of this limiter's plans. The limiter goes by the fleet's
    /// clock.
    ///
    /// Keys have to have a name that all nodes agree on, see [`WireKey`](crate::global::WireKey).
    #[cfg(all(feature = "global", not(loom)))]
    pub fn fleet(self, fleet: &crate::global::Fleet) -> Self
    where
        K: crate::global::WireKey,
    {
        let dropped = Dropped { fleet: false, ..self.dropped };
        Self { fleet: Some(std::sync::Arc::clone(fleet.link())), write: Some(K::write), dropped, ..self }
    }

    /// What is legal about the policy and may not be meant. Each is also told as a `tracing` event when the limiter is built.
    #[cfg(feature = "global")]
    pub fn warnings(&self) -> Vec<crate::global::Warning> {
        self.policy.warnings()
    }

    /// How keys are hashed, [`RandomState`] by default, which says what attacks it resists.
    pub fn hasher<H: BuildHasher + Clone>(self, hasher: H) -> Builder<K, H, T> {
        let Self { policy, clock, store, fleet, write, dropped, .. } = self;
        Builder { policy, clock, store, hasher, fleet, write, dropped }
    }

    /// Makes the limiter, and with it the clock: [`Clock::precise`] can take 200 ms the first time.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if no quota was given, if one or a plan makes no sense, if there is room for no key, for a
    /// number of shards that is no power of two from 2 to 65,536, or if [`keys`](Self::keys) came after what speaks of keys.
    pub fn build(self) -> Result<Limiter<K, S, T>, BuildError>
    where
        S: 'static,
        T: Stores<K, S>,
    {
        #[cfg(feature = "global")]
        for warning in self.warnings() {
            tracing::warn!(target: "tollgate", plan = warning.plan, quota = warning.quota, "{warning}");
        }
        if let Dropped { fleet, overrides, resolver } = self.dropped
            && (fleet || overrides > 0 || resolver)
        {
            return Err(BuildError::KeysNotFirst { fleet, overrides, resolver });
        }
        let policy = Compiled::new(self.policy, None, Now::ORIGIN, &self.fleet)?;
        let store = self.store.build(self.hasher, &policy.plans, self.write)?;
        #[cfg(feature = "global")]
        let clock = match (self.clock, &self.fleet) {
            (Some(_), Some(_)) => return Err(BuildError::ClockOfFleet),
            (None, Some(link)) => link.clock().clone(),
            (clock, None) => clock.unwrap_or_default(),
        };
        #[cfg(not(feature = "global"))]
        let clock = self.clock.unwrap_or_default();
        Ok(Limiter::from_parts(policy, clock, store, self.fleet))
    }
}

impl<K: Key + ?Sized, S> Builder<K, S, Sharded> {
    /// Keeps keys in a store of fixed size instead, made for `keys` that are active at once: lock-free for whoever is known,
    /// and the fastest there is. [`Fixed`] has the trade-offs. It takes the place of what [`shards`](Self::shards) and
    /// [`max_keys`](Self::max_keys) have said.
    ///
    /// ```
    /// use tollgate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::builder().quota(Quota::per_second(10)).fixed(100_000).build()?;
    /// assert!(limiter.check("alice").is_allowed());
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn fixed(self, keys: u64) -> Builder<K, S, Fixed> {
        let Self { policy, clock, hasher, fleet, write, dropped, .. } = self;
        Builder { policy, clock, store: Fixed { keys, quotas: 0, in_flight: false }, hasher, fleet, write, dropped }
    }

    /// The number of shards, each with a lock of its own: a power of two from 2 to 65,536. More shards, fewer threads
    /// that meet at a lock. By default 16 for each thread that the machine runs at once, and at least 64.
    pub fn shards(self, shards: usize) -> Self {
        Self { store: Sharded { shards: Some(shards), ..self.store }, ..self }
    }

    /// The most keys that are kept at once, 10,000,000 by default, which takes some 1.2 GB of memory with keys of 20
    /// bytes. Keys that are idle make room for new ones, see [`Limiter`].
    pub fn max_keys(self, max_keys: u64) -> Self {
        Self { store: Sharded { max_keys, ..self.store }, ..self }
    }
}

impl<K: Key + ?Sized, S> Builder<K, S, Fixed> {
    /// Leaves room for plans of up to so many quotas, 8 at most, and for a limit of requests in flight if `in_flight` says so,
    /// where a policy that is put in force later will have more of that than the first one.
    pub fn room_for(self, quotas: usize, in_flight: bool) -> Self {
        Self { store: Fixed { quotas, in_flight, ..self.store }, ..self }
    }
}

impl<K: Key + ?Sized, S, T: fmt::Debug> fmt::Debug for Builder<K, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, clock, store, .. } = self;
        f.debug_struct("Builder")
            .field("policy", policy)
            .field("clock", clock)
            .field("store", store)
            .finish_non_exhaustive()
    }
}
