//! Plans, several quotas, requests in flight and reloads as one plain model: nothing shared, nothing atomic, nothing
//! forgotten. [`play_plans`] does the same to it and to a limiter and compares every answer.
//!
//! Quotas are such that a unit takes whole ticks of 1/8 ns, so that rounding has no part in it but where use is carried
//! over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tollgate::{BuildError, Decision, InFlight, Limiter, Now, Plan, Policy, Quota, RandomState, Reason, Stores, Unit};

/// The plans that there may be, by number.
pub(crate) const NAMES: [&str; 4] = ["free", "pro", "team", "trial"];

const TICKS: u128 = 8;

/// A plan as it is described.
#[derive(Clone, Debug)]
pub(crate) struct PlanSpec {
    pub(crate) quotas: Vec<Quota>,
    pub(crate) in_flight: Option<u32>,
    pub(crate) shadow: bool,
}

/// A policy as it is described: a plan for some of the names.
#[derive(Clone, Debug)]
pub(crate) struct PolicySpec {
    pub(crate) plans: [Option<PlanSpec>; 4],
    pub(crate) default: usize,
    /// Key 0 is always on this plan.
    pub(crate) override_of_0: Option<usize>,
    /// Key 1 is resolved to this plan.
    pub(crate) resolves_1_to: Option<usize>,
}

/// One thing to do in virtual time.
#[derive(Clone, Debug)]
pub(crate) enum PlanStep {
    Forward(u64),
    /// A key, the plan that the caller names, requests and tokens.
    Check(u8, Option<usize>, u64, u64),
    Enter(u8, Option<usize>, u64, u64),
    /// One of those that are in flight leaves.
    Leave(usize),
    /// Give back one of the takes at this very instant.
    Refund(usize),
    Reset(u8),
    Move(u8, usize, usize),
    Reload(PolicySpec),
}

impl PlanSpec {
    /// Whether anything is limited, and so counted.
    fn limits(&self) -> bool {
        !self.quotas.is_empty() || self.in_flight.is_some()
    }
}

impl PolicySpec {
    fn policy(&self) -> Policy<u8> {
        let mut policy = Policy::new().default_plan(NAMES[self.default]);
        for (name, plan) in NAMES.iter().zip(&self.plans) {
            if let Some(PlanSpec { quotas, in_flight, shadow }) = plan {
                let mut plan = if quotas.is_empty() && in_flight.is_none() {
                    Plan::unlimited()
                } else {
                    Plan::new(quotas.clone())
                };
                if let Some(limit) = in_flight {
                    plan = plan.in_flight(*limit);
                }
                policy = policy.plan(*name, if *shadow { plan.shadow() } else { plan });
            }
        }
        if let Some(plan) = self.override_of_0 {
            policy = policy.override_key(0, NAMES[plan]);
        }
        let resolved = self.resolves_1_to;
        policy.resolver(move |key, plans| resolved.filter(|_| *key == 1).and_then(|plan| plans.id(NAMES[plan])))
    }

    /// Whether it makes sense: every plan that is named is there, and no plan has two quotas of one name.
    fn is_valid(&self) -> bool {
        let there = |plan: usize| self.plans[plan].is_some();
        let distinct = |plan: &PlanSpec| {
            let mut names: Vec<_> = plan.quotas.iter().map(Quota::name).collect();
            names.sort();
            names.dedup();
            names.len() == plan.quotas.len()
        };
        there(self.default) && self.override_of_0.is_none_or(there) && self.plans.iter().flatten().all(distinct)
    }

    /// The plan of a key: what is said of that key, what the caller says, what the resolver says, the default.
    fn plan_of(&self, key: u8, named: Option<usize>) -> usize {
        let resolved = self.resolves_1_to.filter(|_| key == 1);
        let plan =
            self.override_of_0.filter(|_| key == 0).or(named).or(resolved.filter(|plan| self.plans[*plan].is_some()));
        // Who is on a plan that is gone is on the default.
        plan.filter(|plan| self.plans[*plan].is_some()).unwrap_or(self.default)
    }
}

/// The bucket of one quota: the instant in ticks at which it is full again. Of a quota that never refills, the units used.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    full_at: u128,
}

/// Ticks that a unit takes to come back; 1 where it never does.
fn per_unit(quota: &Quota) -> u128 {
    if quota.rate() == 0 { 1 } else { quota.period().as_nanos() * TICKS / u128::from(quota.rate()) }
}

/// The instant as a quota sees it: time stands still where nothing comes back.
fn seen_by(quota: &Quota, now: u128) -> u128 {
    if quota.rate() == 0 { 0 } else { now }
}

impl Bucket {
    /// In ticks.
    fn used(&self, quota: &Quota, now: u128) -> u128 {
        self.full_at.saturating_sub(seen_by(quota, now))
    }

    /// Units left.
    fn remaining(&self, quota: &Quota, now: u128) -> u128 {
        u128::from(quota.limit()).saturating_sub(self.used(quota, now).div_ceil(per_unit(quota)))
    }

    /// In ticks; `None` for never.
    fn wait(&self, quota: &Quota, cost: u64, now: u128) -> Option<u128> {
        if cost == 0 {
            return Some(0);
        }
        let room = u128::from(quota.limit().checked_sub(cost)?) * per_unit(quota);
        match self.used(quota, now).saturating_sub(room) {
            wait if wait > 0 && quota.rate() == 0 => None,
            wait => Some(wait),
        }
    }

    fn take(&mut self, quota: &Quota, cost: u64, now: u128) {
        self.full_at = self.full_at.max(seen_by(quota, now)) + u128::from(cost) * per_unit(quota);
    }

    /// Of what was taken at this very instant.
    fn give_back(&mut self, quota: &Quota, cost: u64, now: u128) {
        self.full_at -= (u128::from(cost) * per_unit(quota)).min(self.used(quota, now));
    }

    /// Adds use to this bucket, up to its burst.
    fn add(&mut self, quota: &Quota, used: u128, now: u128) {
        let used = (self.used(quota, now) + used).min(u128::from(quota.limit()) * per_unit(quota));
        self.full_at = seen_by(quota, now) + used;
    }
}

/// What a key has on a plan.
#[derive(Clone, Debug)]
struct Account {
    plan: PlanSpec,
    buckets: Vec<Bucket>,
    in_flight: u32,
    /// Whether anything was ever taken, so that the limiter may know of it.
    touched: bool,
}

impl Account {
    fn new(plan: &PlanSpec) -> Self {
        Self {
            plan: plan.clone(),
            buckets: vec![Bucket { full_at: 0 }; plan.quotas.len()],
            in_flight: 0,
            touched: false,
        }
    }

    fn quotas(&self) -> impl Iterator<Item = (&Quota, &Bucket)> {
        self.plan.quotas.iter().zip(&self.buckets)
    }

    /// Takes over what `other` has used: from the quota of the same name, or a lone one from a lone one; in units, up to
    /// the burst, a part of a tick rounded up.
    fn take_over(&mut self, other: &Self, now: u128) {
        let lone = self.plan.quotas.len() == 1 && other.plan.quotas.len() == 1;
        for (quota, bucket) in self.plan.quotas.iter().zip(&mut self.buckets) {
            for (old, old_bucket) in other.quotas() {
                if lone || old.name() == quota.name() {
                    let used = (old_bucket.used(old, now) * per_unit(quota)).div_ceil(per_unit(old));
                    bucket.add(quota, used.min(u128::from(quota.limit()) * per_unit(quota)), now);
                }
            }
        }
        self.in_flight += other.in_flight;
        self.touched |= other.touched;
    }
}

/// What an answer is expected to be.
#[derive(PartialEq, Debug)]
struct Expected {
    allowed: bool,
    would_deny: bool,
    reason: Option<Reason>,
    limit: u64,
    remaining: u64,
    retry_after: Option<Duration>,
    reset_after: Option<Duration>,
}

impl Expected {
    fn of(decision: &Decision) -> Self {
        let (would_deny, reason, retry_after) = match decision {
            Decision::Allow(allow) => match allow.would_deny() {
                Some(deny) => (true, Some(deny.reason()), deny.retry_after()),
                None => (false, None, Some(Duration::ZERO)),
            },
            Decision::Deny(deny) => (true, Some(deny.reason()), deny.retry_after()),
        };
        Self {
            allowed: decision.is_allowed(),
            would_deny,
            reason,
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after,
            reset_after: decision.reset_after(),
        }
    }
}

struct Model {
    policy: PolicySpec,
    accounts: BTreeMap<(u8, usize), Account>,
    now: u128,
}

/// Of what is asked, what a quota counts.
fn cost_of(quota: &Quota, requests: u64, tokens: u64) -> u64 {
    if quota.counted() == Unit::REQUESTS {
        requests
    } else if quota.counted() == Unit::TOKENS {
        tokens
    } else {
        0
    }
}

impl Model {
    fn account(&mut self, key: u8, plan: usize) -> &mut Account {
        let spec = self.policy.plans[plan].as_ref().expect("a key is on a plan that is there");
        self.accounts.entry((key, plan)).or_insert_with(|| Account::new(spec))
    }

    /// Decides, and takes if all quotas allow. The answer is that of the quota that denies for longest, or else of the one
    /// that allows the same again the fewest times.
    fn ask(&mut self, key: u8, named: Option<usize>, (requests, tokens): (u64, u64), enter: bool) -> Expected {
        let now = self.now;
        let account = self.account(key, self.policy.plan_of(key, named));
        let PlanSpec { quotas, in_flight, shadow } = account.plan.clone();
        let costs: Vec<_> = quotas.iter().map(|quota| cost_of(quota, requests, tokens)).collect();

        let mut longest: Option<(u128, usize)> = None;
        for (n, (quota, bucket)) in account.quotas().enumerate() {
            match bucket.wait(quota, costs[n], now).unwrap_or(u128::MAX) {
                0 => {}
                wait => longest = longest.max(Some((wait, n))),
            }
        }
        let full = enter && longest.is_none() && in_flight.is_some_and(|limit| account.in_flight >= limit);
        account.touched |= longest.is_none();
        if longest.is_none() && !full {
            for ((quota, bucket), cost) in quotas.iter().zip(&mut account.buckets).zip(&costs) {
                if *cost > 0 {
                    bucket.take(quota, *cost, now);
                }
            }
            account.in_flight += u32::from(enter && account.plan.limits());
        }

        let nanos = |ticks: u128| Duration::from_nanos(u64::try_from(ticks.div_ceil(TICKS)).expect("a wait"));
        let denied = longest.is_some() || full;
        let mut expected = Expected {
            allowed: !denied || shadow,
            would_deny: denied,
            reason: None,
            limit: u64::MAX,
            remaining: u64::MAX,
            retry_after: Some(Duration::ZERO),
            reset_after: Some(Duration::ZERO),
        };
        if full || quotas.is_empty() {
            if let Some(limit) = in_flight {
                let in_flight = if full { limit } else { account.in_flight };
                expected.limit = u64::from(limit);
                expected.remaining = u64::from(limit.saturating_sub(in_flight));
                expected.reset_after = (in_flight == 0).then_some(Duration::ZERO);
            }
            if full {
                expected.reason = Some(Reason::InFlight);
                expected.retry_after = None;
            }
            return expected;
        }
        let told = longest.map_or_else(
            || {
                // left / charge is the number of times more: compared across.
                let left = |n: usize| {
                    let quota = &quotas[n];
                    let empty = u128::from(quota.limit()) * per_unit(quota);
                    let charge = u128::from(costs[n].max(1)) * per_unit(quota);
                    (empty.saturating_sub(account.buckets[n].used(quota, now)), charge)
                };
                let fewer = |a: usize, b: usize| left(a).0 * left(b).1 < left(b).0 * left(a).1;
                (1..quotas.len()).fold(0, |least, n| if fewer(n, least) { n } else { least })
            },
            |(_, n)| n,
        );
        let (quota, bucket) = (&quotas[told], account.buckets[told]);
        expected.limit = quota.limit();
        expected.remaining = u64::try_from(bucket.remaining(quota, now)).expect("at most the burst");
        let used = bucket.used(quota, now);
        expected.reset_after = if used > 0 && quota.rate() == 0 { None } else { Some(nanos(used)) };
        if denied {
            let wait = bucket.wait(quota, costs[told], now);
            expected.retry_after = wait.map(nanos);
            expected.reason = Some(match wait {
                Some(_) => Reason::TooSoon,
                None if costs[told] > quota.limit() => Reason::CostExceedsBurst,
                None => Reason::NeverRefills,
            });
        }
        expected
    }

    /// What was used stays used: of plans by name, of quotas by name or the only one, of a plan that is gone on the
    /// default.
    fn reload(&mut self, policy: &PolicySpec) {
        let old = std::mem::take(&mut self.accounts);
        self.policy = policy.clone();
        let now = self.now;
        for ((key, plan), account) in old {
            let to = if policy.plans[plan].is_some() { plan } else { policy.default };
            self.account(key, to).take_over(&account, now);
        }
    }

    /// Whether a key that has taken of two plans would have them become one.
    fn adds_up(&self, policy: &PolicySpec) -> bool {
        let touched = self.accounts.iter().filter(|(_, account)| account.touched).map(|(on, _)| *on);
        let goes_to = |plan: usize| if policy.plans[plan].is_some() { plan } else { policy.default };
        let mut all = BTreeSet::new();
        !touched.into_iter().all(|(key, plan)| all.insert((key, goes_to(plan))))
    }

    /// A place is given back on the plan that it was taken on, or, if nothing is in flight there since the key was moved,
    /// on another. False if there are several others: which one is not specified.
    fn leave(&mut self, key: u8, plan: usize) -> bool {
        let of_key = self.accounts.iter_mut().filter(|((other, _), account)| *other == key && account.in_flight > 0);
        let mut accounts: Vec<_> = of_key.map(|((_, on), account)| (*on != plan, account)).collect();
        accounts.sort_by_key(|(elsewhere, _)| *elsewhere);
        if let Some((_, account)) = accounts.first_mut() {
            account.in_flight -= 1;
        }
        !matches!(&accounts[..], [(true, _), _, ..])
    }
}

/// Plays `steps` on a limiter and on the model, and compares all that the limiter says.
pub(crate) fn play_plans(first: &PolicySpec, steps: &[PlanStep]) {
    let builder = || Limiter::builder().keys::<u8>().policy(first.policy());
    play_on(builder().shards(2).build(), false, first, steps);
    // Of one set or a few, where states are dropped as idle as others come; and one where they stay where they are.
    for keys in [1, 10, 100] {
        play_on(builder().fixed(keys).room_for(8, true).build(), true, first, steps);
    }
}

fn play_on<T: Stores<u8, RandomState>>(
    limiter: Result<Limiter<u8, RandomState, T>, BuildError>,
    fixed: bool,
    first: &PolicySpec,
    steps: &[PlanStep],
) {
    let limiter = match limiter {
        Ok(limiter) if first.is_valid() => limiter,
        Err(_) if !first.is_valid() => return,
        other => panic!("{other:?} of {first:?}"),
    };
    let mut model = Model { policy: first.clone(), accounts: BTreeMap::new(), now: 0 };
    let mut in_flight: Vec<(u8, usize, bool, Option<InFlight>)> = Vec::new();
    // Takes at this instant.
    let mut refundable = Vec::new();

    for step in steps {
        let nanos = u64::try_from(model.now / TICKS).expect("steps end before the last instant");
        let now = Now::since_origin(Duration::from_nanos(nanos)).expect("steps end before the last instant");
        match step {
            PlanStep::Forward(nanos) => {
                model.now += u128::from(*nanos) * TICKS;
                refundable.clear();
            }
            PlanStep::Check(key, named, requests, tokens) => {
                let costs = [(Unit::REQUESTS, *requests), (Unit::TOKENS, *tokens)];
                let before = all(&limiter, *key, now);
                let decision = match named {
                    Some(plan) if model.policy.plans[*plan].is_some() => {
                        let plan = limiter.plan(NAMES[*plan]).expect("a plan that is there");
                        let peeked = plan.peek_costs_at(key, &costs, now);
                        let decision = plan.check_costs_at(key, &costs, now);
                        assert_eq!(peeked.is_allowed(), decision.is_allowed(), "a peek says what a check will");
                        decision
                    }
                    Some(plan) => {
                        assert!(limiter.plan(NAMES[*plan]).is_err());
                        continue;
                    }
                    None if *tokens == 0 => limiter.check_cost_at(key, *requests, now),
                    None => limiter.check_costs_at(key, &costs, now),
                };
                if limiter.stats().overflow > 0 {
                    // The model knows of none.
                    return;
                }
                let expected = model.ask(*key, *named, (*requests, *tokens), false);
                assert_eq!(Expected::of(&decision), expected, "{key} at {nanos} ns: {decision}");
                compare_all(&limiter, &mut model, *key, now);
                match decision {
                    Decision::Allow(allow) if allow.would_deny().is_none() => {
                        let plan = model.policy.plan_of(*key, *named);
                        refundable.push((*key, plan, (*requests, *tokens), allow));
                    }
                    _ => assert_eq!(all(&limiter, *key, now), before, "a denial has changed a bucket"),
                }
            }
            PlanStep::Enter(key, named, requests, tokens) => {
                let named = named.filter(|plan| model.policy.plans[*plan].is_some());
                let costs = [(Unit::REQUESTS, *requests), (Unit::TOKENS, *tokens)];
                let before = all(&limiter, *key, now);
                let entered = match named {
                    Some(plan) => limiter.plan(NAMES[plan]).expect("it is there").enter_costs_at(key, &costs, now),
                    None => limiter.enter_costs_at(key, &costs, now),
                };
                if limiter.stats().overflow > 0 {
                    return;
                }
                let expected = model.ask(*key, named, (*requests, *tokens), true);
                let (decision, guard) = match entered {
                    Ok(mut guard) => (Decision::Allow(guard.take_allow()), Some(guard)),
                    Err(deny) => (Decision::Deny(deny), None),
                };
                assert_eq!(Expected::of(&decision), expected, "{key} at {nanos} ns: {decision}");
                compare_all(&limiter, &mut model, *key, now);
                if expected.would_deny {
                    assert_eq!(all(&limiter, *key, now), before, "a denial has changed a bucket");
                } else {
                    let plan = model.policy.plan_of(*key, named);
                    let counted = model.account(*key, plan).plan.limits();
                    in_flight.push((*key, plan, counted, guard));
                }
            }
            PlanStep::Leave(which) => {
                if !in_flight.is_empty() {
                    let (key, plan, counted, guard) = in_flight.swap_remove(which % in_flight.len());
                    drop(guard);
                    if counted && !model.leave(key, plan) {
                        return;
                    }
                }
            }
            PlanStep::Refund(which) => {
                if !refundable.is_empty() {
                    let (key, plan, (requests, tokens), allow) = refundable.swap_remove(which % refundable.len());
                    limiter.refund_at(&key, allow, now);
                    let instant = model.now;
                    let Account { plan, buckets, .. } = model.account(key, plan);
                    for (quota, bucket) in plan.quotas.iter().zip(buckets) {
                        bucket.give_back(quota, cost_of(quota, requests, tokens), instant);
                    }
                    compare_all(&limiter, &mut model, key, now);
                }
            }
            PlanStep::Reset(key) => {
                limiter.reset(key);
                // In a fixed store, keys share what their refunds need.
                refundable.retain(|(of, ..)| of != key && !fixed);
                for account in model.accounts.iter_mut().filter(|((of, _), _)| of == key).map(|(_, account)| account) {
                    account.buckets.iter_mut().for_each(|bucket| bucket.full_at = 0);
                }
                compare_all(&limiter, &mut model, *key, now);
            }
            PlanStep::Move(key, from, to) => {
                let there = |plan: &usize| model.policy.plans[*plan].is_some();
                let moved = limiter.move_plan_at(key, NAMES[*from], NAMES[*to], now);
                assert_eq!(moved.is_ok(), there(from) && there(to));
                refundable.retain(|(of, ..)| of != key && !fixed);
                if moved.is_ok() && from != to {
                    if let Some(account) = model.accounts.remove(&(*key, *from)) {
                        let now = model.now;
                        model.account(*key, *to).take_over(&account, now);
                    }
                    compare_all(&limiter, &mut model, *key, now);
                }
            }
            // What a fixed store does then has a test of its own.
            PlanStep::Reload(policy) if fixed && policy.is_valid() && model.adds_up(policy) => {}
            PlanStep::Reload(policy) => {
                let reloaded = limiter.reload_at(policy.policy(), now);
                assert_eq!(reloaded.is_ok(), policy.is_valid(), "{reloaded:?} of {policy:?}");
                if let Err(error) = reloaded {
                    assert!(!error.to_string().is_empty());
                } else {
                    model.reload(policy);
                    refundable.clear();
                    for (_, plan, ..) in in_flight.iter_mut().filter(|(_, plan, ..)| policy.plans[*plan].is_none()) {
                        *plan = policy.default;
                    }
                }
                (0..4).for_each(|key| compare_all(&limiter, &mut model, key, now));
            }
        }
    }
}

/// All that can be seen of a key's buckets, to the tick.
fn all<T: Stores<u8, RandomState>>(limiter: &Limiter<u8, RandomState, T>, key: u8, now: Now) -> Vec<String> {
    let plans = NAMES.iter().filter_map(|name| limiter.plan(name).ok());
    plans.map(|plan| format!("{:?}", limiter.standings(&plan.peek_costs_at(&key, &[], now)))).collect()
}

/// Every quota of every plan of `key` has the numbers that it should have.
fn compare_all<T: Stores<u8, RandomState>>(
    limiter: &Limiter<u8, RandomState, T>,
    model: &mut Model,
    key: u8,
    now: Now,
) {
    let instant = model.now;
    for (plan, name) in NAMES.iter().enumerate() {
        if model.policy.plans[plan].is_none() {
            continue;
        }
        let Ok(handle) = limiter.plan(name) else { panic!("{name} is not there") };
        let standings = limiter.standings(&handle.peek_costs_at(&key, &[], now));
        let account = model.account(key, model.policy.plan_of(key, Some(plan)));
        let mut expected: Vec<_> = account
            .quotas()
            .map(|(quota, bucket)| {
                (quota.name().into_owned(), quota.limit(), u64::try_from(bucket.remaining(quota, instant)).ok())
            })
            .collect();
        if let Some(limit) = account.plan.in_flight {
            let left = limit.saturating_sub(account.in_flight);
            expected.push((String::from("in flight"), u64::from(limit), Some(u64::from(left))));
        }
        let seen: Vec<_> = standings
            .iter()
            .map(|standing| (standing.name().to_owned(), standing.limit(), Some(standing.remaining())))
            .collect();
        assert_eq!(seen, expected, "plan {name} of key {key} at {now:?}");
    }
}
