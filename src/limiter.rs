//! The front door: finds the plan, visits the key, reads the clock once, returns a decision.

mod enter;
#[cfg(all(feature = "global", not(loom)))]
mod global;
mod look;
mod many;
mod reload;

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use crate::builder::Builder;
use crate::clock::{Clock, Time};
use crate::current::Current;
use crate::decision::{Allow, Cause, Decision, Deny, Others, Seen};
use crate::error::{BuildError, UnknownPlan};
use crate::hasher::RandomState;
use crate::key::Key;
use crate::plan_limiter::PlanLimiter;
use crate::plans::{MAX_QUOTAS, PlanTicks, Simple, in_overflow, is_overflow};
use crate::policy::{Compiled, PlanId};
use crate::quota::Quota;
use crate::several::{self, AllTaken, Ask, Pair, Verdict};
use crate::shared::Fleet;
use crate::stats::{PlanStats, Stats, count};
use crate::store::{Newcomer, Sharded, State, Store, Stores, Taken};
use crate::sync::at_hand;
use crate::ticks::Now;
use crate::unit::Unit;
pub use many::Check;
use reload::Reloads;

#[cfg(all(feature = "global", not(loom)))]
pub use global::{GlobalStatus, NoAnswer};

/// A limiter with buckets for every key.
///
/// In any window of length *t* each key is admitted at most `burst + rate × t` units of each of its quotas, exactly,
/// whatever threads race and whatever the clock does; see [`Quota`] for what rounding costs, and
/// [`Clock`](Clock#steps-back) for how *t* counts where a clock steps back. A check of a known key
/// allocates nothing and takes the key in borrowed form: `check("alice")` on a limiter whose keys are `str`. A denial
/// writes nothing to any bucket.
///
/// Clones share the buckets. Keys are `str`, kept as `String`, unless [`Builder::keys`] says otherwise.
///
/// # Plans
///
/// A key is on a [`Plan`](crate::Plan) of one or several quotas, all of which have to allow a request, see
/// [`Policy`](crate::Policy). It has buckets of its own on each plan that it is seen on. The answer of several quotas has the
/// numbers of the one that denies for longest, or allows the fewest requests more; [`standings`](Self::standings) lists all.
///
/// # Keys come and go
///
/// This is how the default store goes about it; [`Fixed`](crate::Fixed) says what the other one does. A key is kept until
/// it is idle, its buckets full again and nothing in flight, and then dropped as new keys come: each newcomer looks at two
/// others. There is nothing to call and no task to run, and a key that comes back is as if it had never gone.
///
/// At most [`max_keys`](Builder::max_keys) are kept. Beyond that, newcomers share the *overflow* buckets of their plan
/// until there is room, and [`stats`](Limiter::stats) counts them; who is known already is decided as before. Whoever
/// invents keys can't use up memory, but can use up those buckets, so that real newcomers are denied meanwhile.
///
/// Before its first key a limiter takes some 250 bytes for each shard.
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
pub struct Limiter<K: Key + ?Sized = str, S: 'static = RandomState, T: Stores<K, S> = Sharded> {
    inner: Arc<Inner<K, S, T>>,
}

struct Inner<K: Key + ?Sized, S: 'static, T: Stores<K, S>> {
    current: Current<Compiled<K>>,
    /// The default plan until the first reload, if it is a simple one and that of all keys: found without a further step.
    first: Option<Simple>,
    store: T::Of,
    clock: Clock,
    reloads: Reloads,
    fleet: Fleet,
}

/// A policy, and the plan that a key is on by it.
pub(crate) type Found<'a, K> = (&'a Compiled<K>, &'a PlanTicks);

impl Limiter {
    /// A limiter of one quota and `str` keys on the precise clock. [`builder`](Limiter::builder) has the options.
    ///
    /// # Errors
    ///
    /// [`BuildError`] for a quota that makes no sense, see [`Quota`].
    pub fn new(quota: Quota) -> Result<Self, BuildError> {
        Self::builder().quota(quota).build()
    }

    /// Starts the building of a limiter, of `str` keys unless told otherwise.
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> Limiter<K, S, T> {
    pub(crate) fn from_parts(policy: Compiled<K>, clock: Clock, store: T::Of, fleet: Fleet) -> Self {
        let (is_kept, first) = (policy.plain, policy.simple);
        let current = Current::new(policy, is_kept);
        let inner = Arc::new(Inner { current, first, store, clock, reloads: Reloads::new(), fleet });
        #[cfg(all(feature = "global", not(loom)))]
        if let Some(link) = &inner.fleet {
            let holder: std::sync::Weak<Inner<K, S, T>> = Arc::downgrade(&inner);
            link.add_holder(holder);
        }
        Self { inner }
    }

    /// Takes one request of `key` now.
    #[inline]
    pub fn check(&self, key: &K) -> Decision {
        self.take(key, None, 1, self.clock())
    }

    /// Takes `cost` requests of `key` now, all or nothing. A cost of 0 takes nothing; one above a burst is denied for
    /// good.
    #[inline]
    pub fn check_cost(&self, key: &K, cost: u64) -> Decision {
        self.take(key, None, cost, self.clock())
    }

    /// Takes `costs` of `key` now, each of its kind of unit, all or nothing.
    ///
    /// A quota of a kind that is not in `costs` is not asked, and a kind that no quota of the plan counts is free: so
    /// callers need not know what is on whose plan. What is there twice is added up.
    ///
    /// ```
    /// use tollgate::{Limiter, Plan, Quota, Unit};
    ///
    /// let chat = Plan::new([Quota::per_minute(3), Quota::per_minute(1_000).unit(Unit::TOKENS)]);
    /// let limiter = Limiter::builder().plan("chat", chat).build()?;
    /// assert!(limiter.check_costs("alice", &[(Unit::REQUESTS, 1), (Unit::TOKENS, 800)]).is_allowed());
    /// let denied = limiter.check_costs("alice", &[(Unit::REQUESTS, 1), (Unit::TOKENS, 800)]);
    /// assert_eq!((denied.is_denied(), denied.limit(), denied.remaining()), (true, 1_000, 200));
    /// assert!(limiter.check_costs("alice", &[(Unit::REQUESTS, 1), (Unit::TOKENS, 200)]).is_allowed());
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn check_costs(&self, key: &K, costs: &[(Unit, u64)]) -> Decision {
        self.ask(key, None, Ask::of_costs(costs), self.clock())
    }

    /// [`check`](Self::check) at the instant `now`, which is taken at its word: a denial is not looked at twice, and an instant
    /// that is too early moves no clock and lowers no bucket.
    ///
    /// Where two callers bring instants that differ by *d*, such as two event loops, each key is admitted at most `burst + rate
    /// × (t + d)` units. The late one denies up to *d* for longer, and also the first request of a new client where an eviction
    /// at the later instant came ahead of it. So does one wild instant far ahead.
    #[inline]
    pub fn check_at(&self, key: &K, now: Now) -> Decision {
        self.take(key, None, 1, now)
    }

    /// [`check_cost`](Self::check_cost) at the instant `now`.
    #[inline]
    pub fn check_cost_at(&self, key: &K, cost: u64, now: Now) -> Decision {
        self.take(key, None, cost, now)
    }

    /// [`check_costs`](Self::check_costs) at the instant `now`.
    pub fn check_costs_at(&self, key: &K, costs: &[(Unit, u64)], now: Now) -> Decision {
        self.ask(key, None, Ask::of_costs(costs), now)
    }

    /// Takes `cost` requests of `key`. Most plans have one quota of requests, most limiters the policy that they were made with,
    /// and that is done right here.
    // Always: who asks no more than whether it is allowed has then nothing written to memory, 8 of 30 ns. For the same reason no
    // two ways to an answer meet before it is returned.
    #[inline(always)]
    pub(crate) fn take(&self, key: &K, given: Option<PlanId>, cost: u64, time: impl Time) -> Decision {
        let Inner { current, first, .. } = &*self.inner;
        if current.version() != 0 {
            return self.take_later(key, given, cost, time);
        }
        let simple = match given {
            None => first.as_ref(),
            Some(id) => current.only().and_then(|policy| policy.plans.get(id.0).simple.as_ref()),
        };
        let Some(simple) = simple else {
            return match current.only() {
                Some(_) => self.take_rest(key, given, cost, time),
                None => self.take_later(key, given, cost, time),
            };
        };
        match self.take_of(simple, 0, key, cost, &time) {
            Some((true, seen)) => Decision::Allow(Allow::alone(seen)),
            Some((false, seen)) if !time.doubts(&seen) => Decision::Deny(Deny::alone(seen)),
            Some(_) => self.take_later(key, given, cost, time.latest()),
            None => self.take_rest(key, given, cost, time),
        }
    }

    /// The same by whatever policy is in force, if what it takes of that is at hand.
    #[inline(never)]
    fn take_later(&self, key: &K, given: Option<PlanId>, cost: u64, time: impl Time) -> Decision {
        let current = &self.inner.current;
        let version = current.version();
        let Some(simple) = at_hand::get(current.id(), version, given) else {
            return self.take_looking(key, given, cost, time);
        };
        match self.take_of(&simple, version, key, cost, &time) {
            Some((true, seen)) => Decision::Allow(Allow::alone(seen)),
            Some((false, seen)) if !time.doubts(&seen) => Decision::Deny(Deny::alone(seen)),
            Some(_) => self.take_later(key, given, cost, time.latest()),
            None => self.take_rest(key, given, cost, time),
        }
    }

    /// The same, which the next check has at hand what it takes for, if all keys are on the same plan.
    #[inline(never)]
    fn take_looking(&self, key: &K, given: Option<PlanId>, cost: u64, time: impl Time) -> Decision {
        self.with_plan(key, given, |(policy, plan)| {
            let Some(simple) = &plan.simple else { return self.take_on((policy, plan), key, given, cost, time) };
            let (id, version) = (self.inner.current.id(), policy.plans.version);
            if policy.is_for_all(given) {
                at_hand::put(id, version, given, *simple);
            }
            match self.take_of(simple, version, key, cost, &time) {
                Some((true, seen)) => Decision::Allow(Allow::alone(seen)),
                Some((false, seen)) if !time.doubts(&seen) => Decision::Deny(Deny::alone(seen)),
                Some(_) => self.take_on((policy, plan), key, given, cost, time.latest()),
                None => self.take_on((policy, plan), key, given, cost, time),
            }
        })
    }

    /// The same whatever the plan, and of a key that is not known.
    #[inline(never)]
    fn take_rest(&self, key: &K, given: Option<PlanId>, cost: u64, time: impl Time) -> Decision {
        self.with_plan(key, given, |found| self.take_on(found, key, given, cost, time))
    }

    /// The same of a key that this policy has on this plan.
    #[inline(always)]
    fn take_on(&self, found: Found<'_, K>, key: &K, given: Option<PlanId>, cost: u64, time: impl Time) -> Decision {
        match self.take_paired(found, key, cost, &time) {
            Some(pair) => pair.decision(),
            None => self.ask_on(found, key, given, Ask::of_costs(&[(Unit::REQUESTS, cost)]), time),
        }
    }

    /// Hands `f` the policy in force with the plan that it has `key` on, which is found once.
    // The first policy apart, of which nothing has to be let go: an answer of several quotas would be copied else, 60 instructions.
    #[inline(always)]
    fn with_plan<R>(&self, key: &K, given: Option<PlanId>, f: impl FnOnce(Found<'_, K>) -> R) -> R {
        match self.inner.current.only() {
            Some(policy) => f((policy, policy.plan_of(key, given))),
            None => self.with_newest(key, given, f),
        }
    }

    #[inline(never)]
    fn with_newest<R>(&self, key: &K, given: Option<PlanId>, f: impl FnOnce(Found<'_, K>) -> R) -> R {
        let policy = self.inner.current.get();
        f((&policy, policy.plan_of(key, given)))
    }

    /// Takes `cost` requests, if it can be anything at all, of a known key, whose plan that is by that version of the policy.
    #[inline(always)]
    fn take_of(&self, plan: &Simple, version: u64, key: &K, cost: u64, time: &impl Time) -> Option<(bool, Seen)> {
        let Inner { current, store, .. } = &*self.inner;
        let wish = plan.wish(cost, version)?;
        store.take_one(store.hash(key), key, wish, || current.version(), time)
    }

    /// Takes `cost` requests, if it is allowed, of a known key with a lease of the only global quota of its plan, and at most one
    /// quota beside it.
    // Always: called, it would pass what it has taken through memory, and the decision be made from that.
    #[inline(always)]
    fn take_paired(&self, (policy, plan): Found<'_, K>, key: &K, cost: u64, time: &impl Time) -> Option<Pair> {
        let Inner { current, store, fleet, .. } = &*self.inner;
        // Without the feature `global` there is no fleet, and nothing of this is left.
        fleet.as_ref()?;
        if !plan.is_paired {
            return None;
        }
        let version = policy.plans.version;
        store.visit(key, plan, version, |state, id| {
            (state.is_of(version) && current.is(version))
                .then(|| several::Key { state, plan, id }.take_paired(cost, time))
        })??
    }

    /// Takes what `ask` says of `key`, whatever its plan.
    pub(crate) fn ask(&self, key: &K, given: Option<PlanId>, ask: Ask<'_>, time: impl Time) -> Decision {
        self.with_plan(key, given, |found| self.ask_on(found, key, given, ask, time))
    }

    /// The same of a key that this policy has on this plan. Another policy is asked only if that is not in force any more.
    // Never: its stack frame is large, and most checks do not come here.
    #[inline(never)]
    pub(crate) fn ask_on(
        &self,
        (policy, plan): Found<'_, K>,
        key: &K,
        given: Option<PlanId>,
        ask: Ask<'_>,
        time: impl Time,
    ) -> Decision {
        let Inner { current, store, .. } = &*self.inner;
        // Only the first instant may be behind. What is given back where a later quota denies is worth what it is at one that
        // no take since is later than, and a denial that is doubted is taken again.
        let behind = Cell::new(true);
        let clock = || if behind.replace(false) { time.now() } else { time.latest() };
        let mut doubted = false;
        if plan.is_unlimited() {
            return Decision::Allow(Allow::alone(Seen::unlimited(plan.index)));
        }
        let version = policy.plans.version;
        loop {
            let mut taken = [Taken::default(); MAX_QUOTAS];
            let (mut lost_places, mut carried) = (0, None);
            // A thread that has slept through two new policies may have taken by the wrong one.
            let mut is_own = |verdict: &Verdict| {
                let is_own = !verdict.is_lost && current.version().wrapping_sub(version) <= 1;
                lost_places += u32::from(verdict.entered && !is_own);
                if verdict.carried != 0 {
                    carried = Some((verdict.carried, verdict.now));
                }
                is_own
            };
            // Written from in there: handed out, it would be copied several times, 50 instructions.
            let mut own = None;
            store.visit(key, plan, version, |state, id| {
                if state.is_of(version) && current.is(version) {
                    let verdict = several::Key { state, plan, id }.take(ask, clock, &mut taken);
                    if is_own(&verdict) {
                        own = Some(verdict);
                    }
                }
            });
            if own.is_none() {
                // What can take nothing must not leave a key behind either.
                let newcomer = if ask.takes_nothing(plan) { Newcomer::Show } else { Newcomer::Keep };
                let is_current = || current.is(version);
                store.settle(key, &policy.plans, plan, newcomer, is_current, clock, |state, id, now| {
                    let verdict = several::Key { state, plan, id }.take(ask, || now, &mut taken);
                    if is_own(&verdict) {
                        own = Some(verdict);
                    }
                });
            }
            for _ in 0..lost_places {
                self.leave(key, plan.index, 0);
            }
            if let Some((carried, then)) = carried {
                self.take_back(key, (plan, version), carried, &taken, then, clock);
            }
            let Some(verdict) = own else {
                if current.is(version) {
                    continue;
                }
                return self.ask(key, given, ask, time);
            };
            if verdict.denied == Some(Cause::Quota) && !doubted && time.doubts(&verdict.seen) {
                doubted = true;
                continue;
            }
            if plan.shadow {
                let counts = &plan.home.counts;
                count(if verdict.denied.is_some() { &counts.shadow_denied } else { &counts.shadow_allowed });
            }
            return decision(plan, verdict, taken);
        }
    }

    /// Gives back what a check took of a known key from the quotas `carried` of `plan` by that version of the policy, which the
    /// next one has carried over meanwhile: the check is decided by that, and charged once.
    #[cold]
    fn take_back(
        &self,
        key: &K,
        (plan, version): (&PlanTicks, u64),
        carried: u8,
        taken: &AllTaken,
        then: Now,
        clock: impl Fn() -> Now,
    ) {
        let Inner { current, store, .. } = &*self.inner;
        let policy = current.get();
        let plans = &policy.plans;
        let Some(by) = plans.move_of(plan.index).filter(|by| plans.version == version + 1 && by.to.index == plan.index)
        else {
            return;
        };
        // It may be carried over in part: what is not has nothing to give back.
        store.visit(key, &by.to, plans.version, |state, id| {
            several::Key { state, plan: &by.to, id }
                .take_back(by, carried, taken, then, plans.at, || clock().max(then));
        });
    }

    /// Gives back what `allow` took of `key`, now: the request was not served after all.
    ///
    /// A refund makes up for its own take and no more: in any window of length *t*, what was admitted and not given
    /// back is at most `burst + rate × t`. It never lifts a bucket above its burst, and it is worth at most what of the
    /// take has not come back by itself: units that were refilled since are not given twice. Where other units of the
    /// key were given back in between, that can't always be told, and it is worth less rather than more. An allow of
    /// another key, another limiter or of a peek gives back nothing, nor does one of a key that was reset or moved since, or of a
    /// plan whose quotas have changed.
    ///
    /// Refunds of one key wait for one another. In the fixed store no check waits for them. In the sharded one a refund has its
    /// shard locked for reading, so that only a check of a new key of that shard does.
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
    pub fn refund(&self, key: &K, allow: Allow) {
        self.give_back(key, &allow, || self.inner.clock.latest());
    }

    /// Gives back what `allow` took of `key`, at the instant `now`; see [`refund`](Self::refund).
    ///
    /// If `now` is earlier than an instant that the key was checked at since the take, the refund may give once more
    /// what came back by itself in the time between the two, and at most what was taken.
    pub fn refund_at(&self, key: &K, allow: Allow, now: Now) {
        self.give_back(key, &allow, || now);
    }

    fn give_back(&self, key: &K, allow: &Allow, clock: impl Fn() -> Now) {
        let Inner { current, store, .. } = &*self.inner;
        loop {
            let policy = current.get();
            let plan = policy.plans.get(allow.seen.plan);
            if plan.index != allow.seen.plan {
                // Its plan was removed.
                return;
            }
            let version = policy.plans.version;
            let is_current = || current.is(version);
            if is_overflow(allow.seen.id) {
                let id = in_overflow(store.id(key));
                match policy.plans.with_overflow(plan, is_current, |state| {
                    several::Key { state, plan, id }.refund(allow, &clock);
                }) {
                    Some(()) => return,
                    None => continue,
                }
            }
            let refunded = store.visit(key, plan, version, |state, id| {
                let usable = state.is_of(version) && is_current();
                usable.then(|| several::Key { state, plan, id }.refund(allow, &clock))
            });
            if refunded != Some(None) {
                return;
            }
            // Carried over, it is found usable next.
            store.settle(key, &policy.plans, plan, Newcomer::Show, is_current, &clock, |_, _, _| ());
        }
    }

    /// Gives `key` its whole burst of every quota again, on every plan: true if the key was known. What is in flight
    /// stays so.
    pub fn reset(&self, key: &K) -> bool {
        let Inner { current, store, .. } = &*self.inner;
        loop {
            let policy = current.get();
            if let Some(known) = store.reset(key, &policy.plans, || current.is(policy.plans.version)) {
                return known;
            }
        }
    }

    /// The plan called `name`, for checks of keys of which the caller knows the plan. It is best looked up once.
    ///
    /// # Errors
    ///
    /// [`UnknownPlan`] if there is none, unless the policy says that
    /// [the default](crate::Policy::unknown_plan_is_default) stands for it.
    pub fn plan(&self, name: &str) -> Result<PlanLimiter<K, S, T>, UnknownPlan> {
        let id = self.inner.current.get().named(name).ok_or_else(|| UnknownPlan::new(name))?;
        Ok(PlanLimiter::new(self.clone(), id))
    }

    /// The plan of that id, or where its keys went if it is gone.
    pub fn plan_by_id(&self, id: PlanId) -> PlanLimiter<K, S, T> {
        PlanLimiter::new(self.clone(), id)
    }

    /// The number of keys that are known, once for each plan that they have been seen on, idle ones that are not dropped
    /// yet among them.
    pub fn len(&self) -> usize {
        usize::try_from(self.inner.store.len()).unwrap_or(usize::MAX)
    }

    /// What has happened so far. It locks one shard after another: for a gauge, not for every request.
    pub fn stats(&self) -> Stats {
        let (evictions, overflow) = self.inner.store.counts();
        Stats { keys: self.inner.store.len(), evictions, overflow }
    }

    /// What has happened so far on each plan.
    pub fn plan_stats(&self) -> Vec<PlanStats> {
        self.inner.current.get().plans.iter().map(|plan| plan.home.counts.read(&plan.name)).collect()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The time by this limiter's clock, for many checks at one instant; [`check_at`](Self::check_at) says what it costs where
    /// the instants of two event loops differ. Of a [coarse clock](Clock::coarse) it is what was published last, and checks
    /// that are given it are taken at their word: a denial is not looked at twice.
    #[inline]
    pub fn now(&self) -> Now {
        self.inner.clock.now()
    }

    #[inline]
    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }
}

/// The answer of `plan`, which in shadow mode is never a denial.
#[inline(always)]
fn decision(plan: &PlanTicks, verdict: Verdict, taken: AllTaken) -> Decision {
    let Verdict { denied, seen, now, in_flight, .. } = verdict;
    let all = || Others::All { now, in_flight, taken };
    let others = if plan.simple.is_some() { Others::None } else { all() };
    match denied {
        Some(cause) if !plan.shadow => Decision::Deny(Deny { seen, others, cause }),
        instead_of => Decision::Allow(Allow { seen, others, instead_of }),
    }
}

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> Clone for Limiter<K, S, T> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> fmt::Debug for Limiter<K, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { current, clock, .. } = &*self.inner;
        f.debug_struct("Limiter").field("plans", &current.get().plans).field("clock", clock).finish_non_exhaustive()
    }
}
