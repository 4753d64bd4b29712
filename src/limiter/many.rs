//! Many keys at once.

use std::fmt;

use super::{Inner, Limiter};
use crate::clock::Time;
use crate::decision::Decision;
use crate::key::Key;
use crate::plans::PlanTicks;
use crate::policy::Compiled;
use crate::store::{Store, Stores};
use crate::ticks::Now;

/// How many keys are looked for ahead: as many as a core can wait for at once.
const AHEAD: usize = 8;

/// One check of a batch: a key, a cost, and after [`Limiter::check_many`] the answer.
pub struct Check<'k, K: ?Sized = str> {
    key: &'k K,
    cost: u64,
    allowed: bool,
}

impl<'k, K: ?Sized> Check<'k, K> {
    /// A check of one request.
    pub const fn new(key: &'k K) -> Self {
        Self { key, cost: 1, allowed: false }
    }

    /// The same of `cost` requests, all or nothing.
    #[must_use]
    pub const fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// Whose it is.
    pub const fn key(&self) -> &'k K {
        self.key
    }

    /// Whether it was allowed. False until it has been decided.
    pub const fn is_allowed(&self) -> bool {
        self.allowed
    }
}

impl<K: ?Sized + fmt::Debug> fmt::Debug for Check<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, cost, allowed } = self;
        f.debug_struct("Check").field("key", key).field("cost", cost).field("allowed", allowed).finish()
    }
}

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> Limiter<K, S, T> {
    /// Takes what each of `checks` asks for now, one after the other, and writes the answers in place.
    ///
    /// The clock is read once for all of them. In a [fixed store](crate::Fixed) the memory of eight keys at a time is asked for
    /// before the first is decided, so that a batch waits for it once: with a million keys, that is most of the time that a
    /// check takes. What a denial has to tell beyond that is what [`peek_cost`](Self::peek_cost) says.
    ///
    /// ```
    /// use tollgate::{Check, Limiter, Quota};
    ///
    /// let limiter = Limiter::builder().quota(Quota::per_minute(5)).fixed(100_000).build()?;
    /// let mut checks = [Check::new("alice"), Check::new("bob").cost(6), Check::new("alice").cost(4)];
    /// limiter.check_many(&mut checks);
    /// assert_eq!(checks.each_ref().map(Check::is_allowed), [true, false, true]);
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn check_many(&self, checks: &mut [Check<'_, K>]) {
        self.take_many(checks, self.clock());
    }

    /// [`check_many`](Self::check_many) at the instant `now`.
    pub fn check_many_at(&self, checks: &mut [Check<'_, K>], now: Now) {
        self.take_many(checks, now);
    }

    #[inline]
    fn take_many(&self, checks: &mut [Check<'_, K>], time: impl Time + Copy) {
        let Inner { current, store, .. } = &*self.inner;
        let now = time.now();
        let policy = &*current.get();
        let (version, of_all) = (policy.plans.version, policy.simple.as_ref());
        for checks in checks.chunks_mut(AHEAD) {
            let mut hashes = [0; AHEAD];
            for (hash, check) in hashes.iter_mut().zip(&*checks) {
                *hash = store.hash(check.key);
                store.prefetch(*hash);
            }
            for hash in &hashes[..checks.len()] {
                store.prefetch_next(*hash);
            }
            // Not by `into_iter`, which moves the array first, and waits for what was just written.
            for (&hash, check) in hashes.iter().zip(checks) {
                let plan = match of_all {
                    Some(_) => None,
                    None => Some(&**policy.plan_of(check.key, None)),
                };
                let simple = of_all.or_else(|| plan?.simple.as_ref());
                let wish = simple.and_then(|simple| simple.wish(check.cost, version));
                let known = wish.and_then(|wish| store.take_one(hash, check.key, wish, || current.version(), &now));
                check.allowed = match known {
                    Some((true, _)) => true,
                    Some((false, seen)) if !time.doubts(&seen) => false,
                    Some(_) => self.is_allowed(policy, plan, check, time.latest()),
                    None => self.is_allowed_now(policy, plan, check, now, time),
                };
            }
        }
    }

    /// What of a batch takes more than a look: at its instant too, whoever is new, but nobody is denied for a time that is
    /// behind. Without a plan it is the default.
    #[inline(never)]
    fn is_allowed_now(
        &self,
        policy: &Compiled<K>,
        plan: Option<&PlanTicks>,
        check: &Check<'_, K>,
        now: Now,
        time: impl Time,
    ) -> bool {
        let found = (policy, plan.unwrap_or(&policy.plans.default));
        match self.take_on(found, check.key, None, check.cost, now) {
            Decision::Deny(deny) if time.doubts(&deny.seen) => self.is_allowed(policy, plan, check, time.latest()),
            decision => decision.is_allowed(),
        }
    }

    #[inline(never)]
    fn is_allowed(&self, policy: &Compiled<K>, plan: Option<&PlanTicks>, check: &Check<'_, K>, now: Now) -> bool {
        let found = (policy, plan.unwrap_or(&policy.plans.default));
        self.take_on(found, check.key, None, check.cost, now).is_allowed()
    }
}
