//! The front door: reads the clock once, visits the key, returns a decision.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use crate::builder::Builder;
use crate::clock::Clock;
use crate::decision::{Allow, Decision};
use crate::error::BuildError;
use crate::hasher::RandomState;
use crate::quota::{Quota, QuotaTicks};
use crate::stats::Stats;
use crate::store::Sharded;
use crate::ticks::Now;

/// A limiter with one bucket for every key.
///
/// In any window of length *t* each key is admitted at most `burst + rate × t` units, exactly, whatever threads race
/// and whatever the clock does; see [`Quota`] for what rounding costs. A check of a known key allocates nothing and
/// looks it up in borrowed form: `check("alice")` on a limiter of `String` keys. A denial writes nothing to
/// the bucket.
///
/// Clones share the buckets. Keys are `String` unless [`Builder::keys`] says otherwise.
///
/// # Keys come and go
///
/// A key is kept until it is idle, its bucket full again, and then dropped as new keys come: each newcomer looks at two
/// others. There is nothing to call and no task to run, and a key that comes back is as if it had never gone.
///
/// At most [`max_keys`](Builder::max_keys) are kept. Beyond that, newcomers share one *overflow* bucket of the same
/// quota until there is room, and [`stats`](Limiter::stats) counts them; who is known already is decided as before.
/// Whoever invents keys can't use up memory, but can use up that bucket, so that real newcomers are denied meanwhile.
///
/// Before its first key a limiter takes 32 KiB, and 200 bytes for each shard: make one for each quota, not one for each
/// client.
///
/// ```
/// use tollgate::{Decision, Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_second(100).burst(20))?;
/// match limiter.check_cost("alice", 5) {
///     Decision::Allow(allow) => assert_eq!(allow.remaining(), 15),
///     Decision::Deny(deny) => println!("retry in {:?}", deny.retry_after()),
/// }
/// # Ok::<(), tollgate::BuildError>(())
/// ```
pub struct Limiter<K = String, S = RandomState> {
    inner: Arc<Inner<K, S>>,
}

struct Inner<K, S> {
    store: Sharded<K, S>,
    quota: QuotaTicks,
    clock: Clock,
}

impl Limiter {
    /// A limiter of `String` keys on the precise clock. [`builder`](Limiter::builder) has the options.
    ///
    /// # Errors
    ///
    /// [`BuildError`] for a quota that makes no sense, see [`Quota`].
    pub fn new(quota: Quota) -> Result<Self, BuildError> {
        Self::builder().quota(quota).build()
    }

    /// Starts the building of a limiter, of `String` keys unless told otherwise.
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl<K: Eq + Hash, S: BuildHasher + Clone> Limiter<K, S> {
    pub(crate) fn from_parts(quota: QuotaTicks, clock: Clock, store: Sharded<K, S>) -> Self {
        Self { inner: Arc::new(Inner { store, quota, clock }) }
    }

    #[cfg(feature = "http")]
    pub(crate) fn quota(&self) -> &QuotaTicks {
        &self.inner.quota
    }

    /// Takes one unit of `key` now.
    #[inline]
    pub fn check<Q>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
        Q: ToOwned<Owned = K> + Hash + Eq + ?Sized,
    {
        self.take(key, 1, || self.now())
    }

    /// Takes `cost` units of `key` now, all or nothing. A cost of 0 takes nothing; one above the burst is denied for
    /// good.
    #[inline]
    pub fn check_cost<Q>(&self, key: &Q, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: ToOwned<Owned = K> + Hash + Eq + ?Sized,
    {
        self.take(key, cost, || self.now())
    }

    /// Takes one unit of `key` at the instant `now`.
    #[inline]
    pub fn check_at<Q>(&self, key: &Q, now: Now) -> Decision
    where
        K: Borrow<Q>,
        Q: ToOwned<Owned = K> + Hash + Eq + ?Sized,
    {
        self.check_cost_at(key, 1, now)
    }

    /// Takes `cost` units of `key` at the instant `now`, all or nothing.
    #[inline]
    pub fn check_cost_at<Q>(&self, key: &Q, cost: u64, now: Now) -> Decision
    where
        K: Borrow<Q>,
        Q: ToOwned<Owned = K> + Hash + Eq + ?Sized,
    {
        self.take(key, cost, || now)
    }

    #[inline]
    fn take<Q>(&self, key: &Q, cost: u64, clock: impl Fn() -> Now) -> Decision
    where
        K: Borrow<Q>,
        Q: ToOwned<Owned = K> + Hash + Eq + ?Sized,
    {
        let Inner { store, quota, .. } = &*self.inner;
        // What can take nothing must not leave a key behind either.
        if cost == 0 || cost > quota.burst() {
            return self.take_nothing(key, cost, clock());
        }
        match store.visit(key, |visited| visited.take(quota, cost, &clock)) {
            Some(decision) => decision,
            None => store.insert(key, quota, &clock, |visited, now| visited.take(quota, cost, || now)),
        }
    }

    #[cold]
    fn take_nothing<Q>(&self, key: &Q, cost: u64, now: Now) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.peek_cost_at(key, cost, now)
    }

    /// What [`check`](Self::check) would answer now. Nothing is taken, no key is made, and the `remaining` of an allow
    /// is what is left without it.
    #[inline]
    pub fn peek<Q>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.peek_cost_at(key, 1, self.now())
    }

    /// What [`check_cost`](Self::check_cost) would answer now. Nothing is taken, and no key is made.
    #[inline]
    pub fn peek_cost<Q>(&self, key: &Q, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.peek_cost_at(key, cost, self.now())
    }

    /// What [`check_at`](Self::check_at) would answer. Nothing is taken, and no key is made.
    #[inline]
    pub fn peek_at<Q>(&self, key: &Q, now: Now) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.peek_cost_at(key, 1, now)
    }

    /// What [`check_cost_at`](Self::check_cost_at) would answer. Nothing is taken, and no key is made.
    #[inline]
    pub fn peek_cost_at<Q>(&self, key: &Q, cost: u64, now: Now) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Inner { store, quota, .. } = &*self.inner;
        match store.visit(key, |visited| visited.peek(quota, cost, now)) {
            Some(decision) => decision,
            None => store.peek_new(key, quota, cost, now),
        }
    }

    /// Gives back what `allow` took of `key`, now: the request was not served after all.
    ///
    /// A refund makes up for its own take and no more: in any window of length *t*, what was admitted and not given
    /// back is at most `burst + rate × t`. It never lifts a bucket above its burst, and it is worth at most what of the
    /// take has not come back by itself: units that were refilled since are not given twice. Where other units of the
    /// key were given back in between, that can't always be told, and it is worth less rather than more. An allow of a
    /// key that was reset since gives back nothing. (In these two, one in 4,096 of the other keys counts as the same.)
    /// An allow of another key or of a peek gives back nothing either.
    ///
    /// Refunds of one key wait for one another; checks never wait for them.
    ///
    /// ```
    /// use tollgate::{Decision, Limiter, Quota};
    ///
    /// let limiter = Limiter::new(Quota::per_hour(10))?;
    /// let Decision::Allow(allow) = limiter.check_cost("alice", 4) else { return Ok(()) };
    /// assert_eq!(allow.remaining(), 6);
    /// limiter.refund("alice", allow);
    /// assert_eq!(limiter.peek("alice").remaining(), 10);
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn refund<Q>(&self, key: &Q, allow: Allow)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Inner { store, quota, clock } = &*self.inner;
        store.refund(key, quota, &allow, || clock.now());
    }

    /// Gives back what `allow` took of `key`, at the instant `now`; see [`refund`](Self::refund).
    ///
    /// If `now` is earlier than an instant that the key was checked at since the take, the refund may give once more
    /// what came back by itself in the time between the two, and at most what was taken.
    pub fn refund_at<Q>(&self, key: &Q, allow: Allow, now: Now)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Inner { store, quota, .. } = &*self.inner;
        store.refund(key, quota, &allow, || now);
    }

    /// Gives `key` its whole burst again: true if the key was known.
    pub fn reset<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.inner.store.reset(key)
    }

    /// The number of keys that are known, idle ones that are not dropped yet among them.
    pub fn len(&self) -> usize {
        usize::try_from(self.inner.store.len()).unwrap_or(usize::MAX)
    }

    /// What has happened so far. It locks one shard after another: for a gauge, not for every request.
    pub fn stats(&self) -> Stats {
        self.inner.store.stats()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every known key with what [`peek`](Self::peek) says of it, in no order, for inspection.
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
    #[cfg(not(loom))]
    pub fn entries(&self) -> impl Iterator<Item = (K, Decision)> + use<K, S>
    where
        K: Clone,
    {
        let Inner { store, quota, .. } = &*self.inner;
        let now = self.now();
        store.snapshot(|visited| visited.peek(quota, 1, now)).into_iter()
    }

    /// The time by this limiter's clock, for many checks at one instant.
    #[inline]
    pub fn now(&self) -> Now {
        self.inner.clock.now()
    }
}

impl<K, S> Clone for Limiter<K, S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K, S> fmt::Debug for Limiter<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { quota, clock, .. } = &*self.inner;
        f.debug_struct("Limiter").field("quota", quota).field("clock", clock).finish_non_exhaustive()
    }
}
