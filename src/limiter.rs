//! The front door: finds the plan, visits the key, reads the clock once, returns a decision.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, PoisonError};

use crate::builder::Builder;
use crate::clock::Clock;
use crate::current::Current;
use crate::decision::{Allow, Decision, Deny, Others, Seen};
use crate::error::{BuildError, UnknownPlan};
use crate::hasher::RandomState;
use crate::in_flight::InFlight;
use crate::key::Key;
use crate::plan_limiter::PlanLimiter;
use crate::plans::{MAX_QUOTAS, Move, PlanTicks, is_overflow};
use crate::policy::{Compiled, PlanId, Policy};
use crate::quota::{Quota, QuotaTicks};
use crate::several::{self, AllTaken, Ask, Verdict};
use crate::standing::{Standing, standings};
use crate::stats::{PlanStats, Stats, count};
use crate::store::{KeyState, Newcomer, Sharded, Taken, Visited};
use crate::sync::Mutex;
use crate::ticks::Now;
use crate::unit::Unit;

/// A limiter with buckets for every key.
///
/// In any window of length *t* each key is admitted at most `burst + rate × t` units of each of its quotas, exactly,
/// whatever threads race and whatever the clock does; see [`Quota`] for what rounding costs. A check of a known key
/// allocates nothing and takes the key in borrowed form: `check("alice")` on a limiter whose keys are `str`. A denial
/// writes nothing to any bucket.
///
/// Clones share the buckets. Keys are `str`, kept as `String`, unless [`Builder::keys`] says otherwise.
///
/// # Plans
///
/// A key is on a [`Plan`](crate::Plan) of one or several quotas, all of which have to allow a request, see
/// [`Policy`]. It has buckets of its own on each plan that it is seen on. The answer of several quotas has the numbers of
/// the one that denies for longest, or allows the fewest requests more; [`standings`](Self::standings) lists all.
///
/// # Keys come and go
///
/// A key is kept until it is idle, its buckets full again and nothing in flight, and then dropped as new keys come: each
/// newcomer looks at two others. There is nothing to call and no task to run, and a key that comes back is as if it had
/// never gone.
///
/// At most [`max_keys`](Builder::max_keys) are kept. Beyond that, newcomers share the *overflow* buckets of their plan
/// until there is room, and [`stats`](Limiter::stats) counts them; who is known already is decided as before. Whoever
/// invents keys can't use up memory, but can use up those buckets, so that real newcomers are denied meanwhile.
///
/// Before its first key a limiter takes 200 bytes for each shard.
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
pub struct Limiter<K: Key + ?Sized = str, S = RandomState> {
    inner: Arc<Inner<K, S>>,
}

struct Inner<K: Key + ?Sized, S> {
    current: Current<Compiled<K>>,
    store: Sharded<K, S>,
    clock: Clock,
    reloads: Reloads,
}

/// Reloads take turns, and of those that wait only the newest counts.
#[derive(Debug)]
struct Reloads {
    called: Mutex<u64>,
    done: Mutex<u64>,
}

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

impl<K: Key + ?Sized, S: BuildHasher + Clone> Limiter<K, S> {
    pub(crate) fn from_parts(policy: Compiled<K>, clock: Clock, store: Sharded<K, S>) -> Self {
        let reloads = Reloads { called: Mutex::new(0), done: Mutex::new(0) };
        Self { inner: Arc::new(Inner { current: Current::new(policy), store, clock, reloads }) }
    }

    /// Takes one request of `key` now.
    #[inline]
    pub fn check(&self, key: &K) -> Decision {
        self.take(key, None, 1, || self.now())
    }

    /// Takes `cost` requests of `key` now, all or nothing. A cost of 0 takes nothing; one above a burst is denied for
    /// good.
    #[inline]
    pub fn check_cost(&self, key: &K, cost: u64) -> Decision {
        self.take(key, None, cost, || self.now())
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
        self.ask(key, None, Ask { costs, enter: false }, || self.now())
    }

    /// [`check`](Self::check) at the instant `now`.
    #[inline]
    pub fn check_at(&self, key: &K, now: Now) -> Decision {
        self.take(key, None, 1, || now)
    }

    /// [`check_cost`](Self::check_cost) at the instant `now`.
    #[inline]
    pub fn check_cost_at(&self, key: &K, cost: u64, now: Now) -> Decision {
        self.take(key, None, cost, || now)
    }

    /// [`check_costs`](Self::check_costs) at the instant `now`.
    pub fn check_costs_at(&self, key: &K, costs: &[(Unit, u64)], now: Now) -> Decision {
        self.ask(key, None, Ask { costs, enter: false }, || now)
    }

    /// Takes `cost` requests of `key`. Most plans have one quota of requests, and that is done right here.
    #[inline]
    pub(crate) fn take(&self, key: &K, given: Option<PlanId>, cost: u64, clock: impl Fn() -> Now) -> Decision {
        // Made here and not in there, so that who asks no more than whether it is allowed has nothing written to memory.
        match self.take_simple(key, given, cost, &clock) {
            Some((allowed, seen)) => seen.decision(allowed),
            None => self.ask(key, given, Ask { costs: &[(Unit::REQUESTS, cost)], enter: false }, clock),
        }
    }

    /// Takes `cost` requests, if it can be anything at all, of a known key, if its plan has one quota of requests.
    #[inline]
    fn take_simple(&self, key: &K, given: Option<PlanId>, cost: u64, clock: &impl Fn() -> Now) -> Option<(bool, Seen)> {
        let Inner { current, store, .. } = &*self.inner;
        let policy = current.get();
        let plan = policy.plan_of(key, given);
        let quota = plan.simple.as_ref()?;
        // What can take nothing must not leave a key behind either.
        if cost == 0 || cost > quota.burst() {
            return None;
        }
        let version = policy.plans.version;
        store.visit(key, plan.index, |state, hash| match state {
            KeyState::One { slot, .. } if state.is_of(version) && current.is(version) => {
                Some(Visited::new(slot, plan.index, hash).take_seen(quota, cost, clock))
            }
            _ => None,
        })?
    }

    /// Takes what `ask` says of `key`, whatever its plan.
    pub(crate) fn ask(&self, key: &K, given: Option<PlanId>, ask: Ask<'_>, clock: impl Fn() -> Now) -> Decision {
        let Inner { current, store, .. } = &*self.inner;
        loop {
            let policy = current.get();
            let plan = &**policy.plan_of(key, given);
            if plan.is_unlimited() {
                return Decision::Allow(Allow::alone(Seen::unlimited(plan.index)));
            }
            let version = policy.plans.version;
            let mut taken = [Taken::default(); MAX_QUOTAS];
            let known = store.visit(key, plan.index, |state, id| {
                let usable = state.is_of(version) && current.is(version);
                usable.then(|| several::Key { state, plan, id }.take(ask, &clock, &mut taken))
            });
            let verdict = known.flatten().or_else(|| {
                // What can take nothing must not leave a key behind either.
                let newcomer = if ask.takes_nothing(plan) { Newcomer::Show } else { Newcomer::Keep };
                let is_current = || current.is(version);
                store.settle(key, &policy.plans, plan, newcomer, is_current, &clock, |state, id, now| {
                    several::Key { state, plan, id }.take(ask, || now, &mut taken)
                })
            });
            let Some(verdict) = verdict else { continue };
            if plan.shadow {
                let counts = &plan.home.counts;
                count(if verdict.denied.is_some() { &counts.shadow_denied } else { &counts.shadow_allowed });
            }
            return decision(plan, verdict, taken);
        }
    }

    /// What [`check`](Self::check) would answer now. Nothing is taken, no key is made, and the `remaining` of an allow
    /// is what is left without it.
    pub fn peek(&self, key: &K) -> Decision {
        self.peek_cost_at(key, 1, self.now())
    }

    /// What [`check_cost`](Self::check_cost) would answer now. Nothing is taken, and no key is made.
    pub fn peek_cost(&self, key: &K, cost: u64) -> Decision {
        self.peek_cost_at(key, cost, self.now())
    }

    /// What [`check_costs`](Self::check_costs) would answer now. Nothing is taken, and no key is made.
    pub fn peek_costs(&self, key: &K, costs: &[(Unit, u64)]) -> Decision {
        self.peek_costs_at(key, costs, self.now())
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
        self.look_at(key, None, Ask { costs, enter: false }, now)
    }

    pub(crate) fn look_at(&self, key: &K, given: Option<PlanId>, ask: Ask<'_>, now: Now) -> Decision {
        loop {
            let policy = self.inner.current.get();
            if let Some(decision) = self.look(key, &policy, policy.plan_of(key, given), ask, now) {
                return decision;
            }
        }
    }

    /// What a take would be answered; `None` if the policy has changed.
    fn look(&self, key: &K, policy: &Compiled<K>, plan: &PlanTicks, ask: Ask<'_>, now: Now) -> Option<Decision> {
        let Inner { current, store, .. } = &*self.inner;
        if plan.is_unlimited() {
            return Some(Decision::Allow(Allow::alone(Seen::unlimited(plan.index))));
        }
        let look = |state: &KeyState, id: u64| look(state, plan, ask, id, now);
        let is_current = || current.is(policy.plans.version);
        let known = store.visit(key, plan.index, |state, hash| {
            (state.is_of(policy.plans.version) && is_current()).then(|| look(state, hash))
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
                |state, id, _| look(state, id),
            ),
        }
    }

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
    pub fn enter(&self, key: &K) -> Result<InFlight, Deny>
    where
        S: Send + Sync + 'static,
    {
        self.enter_costs(key, &[(Unit::REQUESTS, 1)])
    }

    /// Takes `costs` of `key` now as [`check_costs`](Self::check_costs) does, and counts the request as in flight until the
    /// answer is dropped.
    ///
    /// # Errors
    ///
    /// The denial. Nothing was taken then.
    pub fn enter_costs(&self, key: &K, costs: &[(Unit, u64)]) -> Result<InFlight, Deny>
    where
        S: Send + Sync + 'static,
    {
        self.go_in(key, None, costs, || self.now())
    }

    /// [`enter_costs`](Self::enter_costs) at the instant `now`.
    ///
    /// # Errors
    ///
    /// The denial. Nothing was taken then.
    pub fn enter_costs_at(&self, key: &K, costs: &[(Unit, u64)], now: Now) -> Result<InFlight, Deny>
    where
        S: Send + Sync + 'static,
    {
        self.go_in(key, None, costs, || now)
    }

    pub(crate) fn go_in(
        &self,
        key: &K,
        given: Option<PlanId>,
        costs: &[(Unit, u64)],
        clock: impl Fn() -> Now,
    ) -> Result<InFlight, Deny>
    where
        S: Send + Sync + 'static,
    {
        match self.ask(key, given, Ask { costs, enter: true }, clock) {
            Decision::Deny(deny) => Err(deny),
            // What is not limited, or let in by shadow mode, is not counted.
            Decision::Allow(allow) if allow.instead_of.is_some() || allow.seen.quota == QuotaTicks::UNLIMITED => {
                Ok(InFlight::new(allow, None))
            }
            Decision::Allow(allow) => {
                let (limiter, key, plan, id) = (self.clone(), key.to_owned(), allow.seen.plan, allow.seen.id);
                let leave = move || limiter.leave(std::borrow::Borrow::borrow(&key), plan, id);
                Ok(InFlight::new(allow, Some(Box::new(leave))))
            }
        }
    }

    /// Whether any plan limits how many requests are in flight.
    #[cfg(feature = "http")]
    pub(crate) fn limits_in_flight(&self) -> bool {
        self.inner.current.get().plans.iter().any(|plan| plan.in_flight.is_some())
    }

    fn leave(&self, key: &K, plan: u16, id: u64) {
        let Inner { current, store, .. } = &*self.inner;
        loop {
            let policy = current.get();
            let is_current = || current.is(policy.plans.version);
            let done = if is_overflow(id) {
                policy.plans.with_overflow(policy.plans.get(plan), is_current, KeyState::leave).is_some()
            } else {
                // Where it was counted; where its plan went, if that was removed; or where its key was moved. A state that is
                // carried over meanwhile may be passed by once, and twice only if there is a further policy.
                let all = || (0..policy.plans.plans.len()).chain(0..policy.plans.plans.len());
                store.leave(key, plan)
                    || store.leave(key, policy.plans.get(plan).index)
                    || all().any(|index| store.leave(key, index as u16))
                    || is_current()
            };
            if done {
                return;
            }
        }
    }

    /// Gives back what `allow` took of `key`, now: the request was not served after all.
    ///
    /// A refund makes up for its own take and no more: in any window of length *t*, what was admitted and not given
    /// back is at most `burst + rate × t`. It never lifts a bucket above its burst, and it is worth at most what of the
    /// take has not come back by itself: units that were refilled since are not given twice. Where other units of the
    /// key were given back in between, that can't always be told, and it is worth less rather than more. An allow of
    /// another key or of a peek gives back nothing, nor does one of a key that was reset since, or of a plan whose quotas
    /// have changed.
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
    pub fn refund(&self, key: &K, allow: Allow) {
        self.give_back(key, &allow, || self.now());
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
            let refund = |state: &KeyState, id: u64| match (&allow.others, &plan.quotas[..], state.slots()) {
                (Others::None, [quota], [slot]) => {
                    Visited::new(slot, plan.index, id).refund(&quota.ticks, allow, &clock);
                }
                _ => several::Key { state, plan, id }.refund(allow, &clock),
            };
            let version = policy.plans.version;
            let is_current = || current.is(version);
            if is_overflow(allow.seen.id) {
                match policy.plans.with_overflow(plan, is_current, |state| refund(state, plan.home.id)) {
                    Some(()) => return,
                    None => continue,
                }
            }
            let refunded = store.visit(key, plan.index, |state, hash| {
                (state.is_of(version) && is_current()).then(|| refund(state, hash))
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

    /// Moves what `key` has used on the plan `from` to the plan `to`, as after an upgrade, now: true if there was
    /// anything.
    ///
    /// Quotas of the two plans are matched by [name](Quota::name), and a lone one with a lone one. Of each, the units used
    /// at this instant stay used, up to the new burst, in addition to what was used there already: 90 of 100 used leaves
    /// 910 of 1,000. A quota that has no match starts full. Requests in flight stay so.
    ///
    /// It moves use, not the key: which plan a key is on is for the caller or the [`Policy`] to say. Say so first, since a
    /// check on the old plan after this is counted there.
    ///
    /// # Errors
    ///
    /// [`UnknownPlan`] if there is no plan of the one name or the other.
    pub fn move_plan(&self, key: &K, from: &str, to: &str) -> Result<bool, UnknownPlan> {
        self.move_plan_at(key, from, to, self.now())
    }

    /// [`move_plan`](Self::move_plan) at the instant `now`.
    ///
    /// # Errors
    ///
    /// [`UnknownPlan`] if there is no plan of the one name or the other.
    pub fn move_plan_at(&self, key: &K, from: &str, to: &str, now: Now) -> Result<bool, UnknownPlan> {
        let Inner { current, store, .. } = &*self.inner;
        loop {
            let policy = current.get();
            let known =
                |name: &str| policy.named(name).map(|id| policy.plans.get(id.0)).ok_or_else(|| UnknownPlan::new(name));
            let by = Move::new(known(from)?, known(to)?);
            if let Some(moved) = store.move_use(key, &policy.plans, &by, now, || current.is(policy.plans.version)) {
                return Ok(moved);
            }
        }
    }

    /// Puts `policy` in force while requests run, now.
    ///
    /// What was used stays used: nobody is given a fresh burst, and nobody waits longer than under the new quota alone.
    ///
    /// - Plans are matched by name. Within a plan, quotas are matched by [name](Quota::name), by default their unit and
    ///   period, and a lone one with a lone one. Of each, the units used at this instant stay used, up to the new burst:
    ///   199 of 2,000 used leaves 1 of 200. A quota that has no match starts full.
    /// - What a smaller burst has no room for is forgotten: 1,500 of 2,000 used are 200 of 200, and 200 of 2,000 when the
    ///   old policy comes back.
    /// - The keys of a plan that is gone move to the default plan with their use, and so do handles of it.
    /// - What was taken before can be given back after, where the plan has the same quotas.
    /// - Each decision is taken by one policy. A request that runs meanwhile may still be decided by the old one; none is
    ///   once this has returned.
    ///
    /// It returns when all keys have been carried over. That takes some 0.3 µs each on the caller's thread where it has a
    /// core to itself, and on a busy machine longer, since it gives way: a shard is locked for a few keys at a time, as it
    /// is for a newcomer, and who waits comes first. A second reload waits for the first, and of several that wait only
    /// the one that was called last takes place.
    ///
    /// Where checks are given their instants, so must this be: [`reload_at`](Self::reload_at).
    ///
    /// # Errors
    ///
    /// [`BuildError`] if the policy makes no sense. The old one is then in force as before.
    pub fn reload(&self, policy: Policy<K>) -> Result<(), BuildError> {
        self.swap(policy, || self.now())
    }

    /// [`reload`](Self::reload) at the instant `now`.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if the policy makes no sense. The old one is then in force as before.
    pub fn reload_at(&self, policy: Policy<K>, now: Now) -> Result<(), BuildError> {
        self.swap(policy, || now)
    }

    fn swap(&self, policy: Policy<K>, clock: impl FnOnce() -> Now) -> Result<(), BuildError> {
        let Inner { current, store, reloads, .. } = &*self.inner;
        let call = {
            let mut called = reloads.called.lock().unwrap_or_else(PoisonError::into_inner);
            *called += 1;
            *called
        };
        let mut done = reloads.done.lock().unwrap_or_else(PoisonError::into_inner);
        let at = clock();
        let compiled = Compiled::new(policy, Some(&*current.get()), at)?;
        if call < *done {
            // A newer one came first, and stays.
            return Ok(());
        }
        *done = call;
        current.replace(compiled.plans.version, compiled);
        store.carry_all(&current.get().plans);
        Ok(())
    }

    /// The plan called `name`, for checks of keys of which the caller knows the plan. It is best looked up once.
    ///
    /// # Errors
    ///
    /// [`UnknownPlan`] if there is none, unless the policy says that
    /// [the default](Policy::unknown_plan_is_default) stands for it.
    pub fn plan(&self, name: &str) -> Result<PlanLimiter<K, S>, UnknownPlan> {
        let id = self.inner.current.get().named(name).ok_or_else(|| UnknownPlan::new(name))?;
        Ok(PlanLimiter::new(self.clone(), id))
    }

    /// The plan of that id, or where its keys went if it is gone.
    pub fn plan_by_id(&self, id: PlanId) -> PlanLimiter<K, S> {
        PlanLimiter::new(self.clone(), id)
    }

    /// What the plan with that id is called, or the one that its keys went to if it is gone.
    pub fn plan_name(&self, id: PlanId) -> Arc<str> {
        Arc::clone(&self.inner.current.get().plans.get(id.0).name)
    }

    /// Each quota of the plan of `decision` with its numbers as the decision saw them, in the order of the plan, and last
    /// the places in flight: for headers and logs. It is empty where nothing is limited. If the quotas of the plan have changed since, only the one
    /// is known that the decision tells itself.
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
        self.peek_all_at(key, self.now())
    }

    /// Each quota of the plan of `key` with its numbers at the instant `now`. Nothing is taken, and no key is made.
    pub fn peek_all_at(&self, key: &K, now: Now) -> Vec<Standing> {
        self.standings(&self.look_at(key, None, Ask { costs: &[(Unit::REQUESTS, 1)], enter: false }, now))
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
    #[cfg(not(loom))]
    pub fn entries(&self) -> impl Iterator<Item = (K::Owned, Decision)> + use<K, S>
    where
        K::Owned: Clone,
    {
        let Inner { store, current, .. } = &*self.inner;
        let now = self.now();
        let ask = Ask { costs: &[(Unit::REQUESTS, 1)], enter: false };
        let policy = current.get();
        let seen = store.snapshot(|_, state, hash| {
            // One that is being carried over is passed over.
            let plan = policy.plans.get(state.plan());
            let usable = state.is_of(policy.plans.version) && plan.index == state.plan();
            usable.then(|| look(state, plan, ask, hash, now))
        });
        seen.into_iter()
    }

    /// The time by this limiter's clock, for many checks at one instant.
    #[inline]
    pub fn now(&self) -> Now {
        self.inner.clock.now()
    }
}

/// What a take from `state` would be answered.
fn look(state: &KeyState, plan: &PlanTicks, ask: Ask<'_>, id: u64, now: Now) -> Decision {
    let mut taken = [Taken::default(); MAX_QUOTAS];
    decision(plan, several::Key { state, plan, id }.peek(ask, now, &mut taken), taken)
}

/// The answer of `plan`, which in shadow mode is never a denial.
#[inline(always)]
fn decision(plan: &PlanTicks, verdict: Verdict, taken: AllTaken) -> Decision {
    let Verdict { denied, seen, now, in_flight, .. } = verdict;
    let all = || Others::All { since: plan.since, now, in_flight, taken };
    let others = if plan.simple.is_some() { Others::None } else { all() };
    match denied {
        Some(cause) if !plan.shadow => Decision::Deny(Deny { seen, others, cause }),
        instead_of => Decision::Allow(Allow { seen, others, instead_of }),
    }
}

impl<K: Key + ?Sized, S> Clone for Limiter<K, S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K: Key + ?Sized, S> fmt::Debug for Limiter<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { current, clock, .. } = &*self.inner;
        f.debug_struct("Limiter").field("plans", &current.get().plans).field("clock", clock).finish_non_exhaustive()
    }
}
