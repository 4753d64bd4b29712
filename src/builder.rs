//! Options, turned into a limiter or an error that says what is wrong with them.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::thread;

use crate::clock::Clock;
use crate::error::BuildError;
use crate::hasher::RandomState;
use crate::limiter::Limiter;
use crate::quota::{Quota, QuotaTicks};
use crate::store::Sharded;

/// The options of a [`Limiter`]. Only the quota must be given; every mistake is found by [`build`](Builder::build).
///
/// ```
/// use std::net::IpAddr;
/// use tollgate::{Clock, Limiter, Quota};
///
/// let limiter = Limiter::builder()
///     .quota(Quota::per_second(5).burst(20))
///     .keys::<IpAddr>()
///     .clock(Clock::std())
///     .build()?;
/// assert!(limiter.check(&IpAddr::from([192, 0, 2, 1])).is_allowed());
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<K = String, S = RandomState> {
    quota: Option<Quota>,
    clock: Option<Clock>,
    shards: Option<usize>,
    max_keys: u64,
    hasher: S,
    keys: PhantomData<fn() -> K>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            quota: None,
            clock: None,
            shards: None,
            max_keys: MAX_KEYS,
            hasher: RandomState::new(),
            keys: PhantomData,
        }
    }
}

impl<K, S> Builder<K, S> {
    /// What each key is granted. There is no default.
    pub fn quota(self, quota: Quota) -> Self {
        Self { quota: Some(quota), ..self }
    }

    /// The type of the keys, `String` by default: any that can be hashed and compared. Look-ups take a borrowed form
    /// whose `to_owned` it is (`str` for `String`, `[u8]` for `Vec<u8>`), or the type itself by reference if it is
    /// `Clone`: an `Arc<str>` key is looked up by an `&Arc<str>`, not by an `&str`.
    pub fn keys<T: Eq + Hash>(self) -> Builder<T, S> {
        let Self { quota, clock, shards, max_keys, hasher, .. } = self;
        Builder { quota, clock, shards, max_keys, hasher, keys: PhantomData }
    }

    /// The clock, [`Clock::precise`] by default.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// How keys are hashed, [`RandomState`] by default, which says what attacks it resists.
    pub fn hasher<T: BuildHasher + Clone>(self, hasher: T) -> Builder<K, T> {
        let Self { quota, clock, shards, max_keys, keys, .. } = self;
        Builder { quota, clock, shards, max_keys, hasher, keys }
    }

    /// The number of shards, each with a lock of its own: a power of two from 2 to 65,536. More shards, fewer threads
    /// that meet at a lock. By default 16 for each thread that the machine runs at once, and at least 64.
    pub fn shards(self, shards: usize) -> Self {
        Self { shards: Some(shards), ..self }
    }

    /// The most keys that are kept at once, 10,000,000 by default, which takes some 900 MB of memory with keys of 20
    /// bytes. Keys that are idle make room for new ones, see [`Limiter`].
    pub fn max_keys(self, max_keys: u64) -> Self {
        Self { max_keys, ..self }
    }

    /// Makes the limiter, and with it the clock: [`Clock::precise`] can take 200 ms the first time.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if no quota was given, if it makes no sense (see [`Quota`]), if there is room for no key, or for a
    /// number of shards that is no power of two from 2 to 65,536.
    pub fn build(self) -> Result<Limiter<K, S>, BuildError>
    where
        K: Eq + Hash,
        S: BuildHasher + Clone,
    {
        let quota = QuotaTicks::new(self.quota.ok_or(BuildError::NoQuota)?)?;
        if self.max_keys == 0 {
            return Err(BuildError::NoRoom);
        }
        let shards = match self.shards {
            None => default_shards(),
            Some(shards) if shards.is_power_of_two() && (2..=65_536).contains(&shards) => shards,
            Some(shards) => return Err(BuildError::BadShards { shards }),
        };
        let clock = self.clock.unwrap_or_default();
        Ok(Limiter::from_parts(quota, clock, Sharded::new(self.hasher, shards, self.max_keys)))
    }
}

impl<K, S> fmt::Debug for Builder<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, clock, shards, max_keys, .. } = self;
        f.debug_struct("Builder")
            .field("quota", quota)
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
