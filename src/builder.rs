//! Options, turned into a limiter or an error that says what is wrong with them.

use std::fmt;
use std::hash::BuildHasher;
use std::thread;

use crate::clock::Clock;
use crate::error::BuildError;
use crate::hasher::RandomState;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::{Compiled, Plan, Policy};
use crate::quota::Quota;
use crate::store::Sharded;
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
pub struct Builder<K: Key + ?Sized = str, S = RandomState> {
    policy: Policy<K>,
    clock: Option<Clock>,
    shards: Option<usize>,
    max_keys: u64,
    hasher: S,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self { policy: Policy::new(), clock: None, shards: None, max_keys: MAX_KEYS, hasher: RandomState::new() }
    }
}

impl<K: Key + ?Sized, S> Builder<K, S> {
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
        Self { policy, ..self }
    }

    /// The type of the keys, `str` by default: any that can be hashed and compared. Keys are looked up by reference to this
    /// type and kept in its owned form: `str` as `String`, `[u8]` as `Vec<u8>`, a `Clone` type as itself.
    ///
    /// It comes before plans are given, since a policy can speak of keys.
    pub fn keys<T: Key + ?Sized>(self) -> Builder<T, S> {
        let Self { policy, clock, shards, max_keys, hasher } = self;
        Builder { policy: policy.of_keys(), clock, shards, max_keys, hasher }
    }

    /// The clock, [`Clock::precise`] by default.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// How keys are hashed, [`RandomState`] by default, which says what attacks it resists.
    pub fn hasher<T: BuildHasher + Clone>(self, hasher: T) -> Builder<K, T> {
        let Self { policy, clock, shards, max_keys, .. } = self;
        Builder { policy, clock, shards, max_keys, hasher }
    }

    /// The number of shards, each with a lock of its own: a power of two from 2 to 65,536. More shards, fewer threads
    /// that meet at a lock. By default 16 for each thread that the machine runs at once, and at least 64.
    pub fn shards(self, shards: usize) -> Self {
        Self { shards: Some(shards), ..self }
    }

    /// The most keys that are kept at once, 10,000,000 by default, which takes some 1.2 GB of memory with keys of 20
    /// bytes. Keys that are idle make room for new ones, see [`Limiter`].
    pub fn max_keys(self, max_keys: u64) -> Self {
        Self { max_keys, ..self }
    }

    /// Makes the limiter, and with it the clock: [`Clock::precise`] can take 200 ms the first time.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if no quota was given, if one or a plan makes no sense, if there is room for no key, or for a
    /// number of shards that is no power of two from 2 to 65,536.
    pub fn build(self) -> Result<Limiter<K, S>, BuildError>
    where
        S: BuildHasher + Clone,
    {
        let policy = Compiled::new(self.policy, None, Now::ORIGIN)?;
        if self.max_keys == 0 {
            return Err(BuildError::NoRoom);
        }
        let shards = match self.shards {
            None => default_shards(),
            Some(shards) if shards.is_power_of_two() && (2..=65_536).contains(&shards) => shards,
            Some(shards) => return Err(BuildError::BadShards { shards }),
        };
        let clock = self.clock.unwrap_or_default();
        Ok(Limiter::from_parts(policy, clock, Sharded::new(self.hasher, shards, self.max_keys)))
    }
}

impl<K: Key + ?Sized, S> fmt::Debug for Builder<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, clock, shards, max_keys, .. } = self;
        f.debug_struct("Builder")
            .field("policy", policy)
            .field("clock", clock)
            .field("shards", shards)
            .field("max_keys", max_keys)
            .finish_non_exhaustive()
    }
}

/// What [`Builder::max_keys`] is unless told otherwise.
const MAX_KEYS: u64 = 10_000_000;

fn default_shards() -> usize {
    let threads = thread::available_parallelism().map_or(4, usize::from);
    (threads * 16).next_power_of_two().clamp(64, 65_536)
}
