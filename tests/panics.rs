//! Code of the user that panics: `Hash`, `Eq` and `Clone` of a key, and the resolver, at each call of a script.
//!
//! A script runs on a limiter and on its twin. On the limiter the n-th call of such code panics; its twin is never disturbed.
//! From then on every other key has the same answers on both, nothing is locked, and all counts are right. Then n + 1.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that meets the unexpected stops")]

mod stores;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use stores::{Kind, over_both};
use tollgate::{Builder, Check, Decision, Fixed, InFlight, Limiter, Now, Plan, Policy, Quota, Sharded, Unit};

over_both!(every_call_of_a_random_script_may_panic, a_place_is_given_back_where_the_copy_of_its_key_panics,);

thread_local! {
    /// How many calls there are until one panics.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    /// The keys that the one was about.
    static CULPRITS: RefCell<BTreeSet<u64>> = const { RefCell::new(BTreeSet::new()) };
}

thread_local! {
    /// How many low bits of a key its hash leaves out.
    static SHARED_BITS: Cell<u32> = const { Cell::new(0) };
}

/// What is thrown, past the hook that would print it.
struct Disturbed;

/// One call of code of the user about these keys.
fn touch(keys: [u64; 2]) {
    match LEFT.get() {
        Some(0) => {
            LEFT.set(None);
            CULPRITS.with_borrow_mut(|culprits| culprits.extend(keys));
            resume_unwind(Box::new(Disturbed));
        }
        Some(left) => LEFT.set(Some(left - 1)),
        None => {}
    }
}

/// Runs `work`, whose n-th call of code of the user panics if `left` is that: how many are left then, or whose it was.
fn disturb<R>(left: Option<u64>, work: impl FnOnce() -> R) -> (Option<u64>, Result<R, BTreeSet<u64>>) {
    LEFT.set(left);
    let result = catch_unwind(AssertUnwindSafe(work));
    let left = LEFT.take();
    let result = result.map_err(|panic| {
        assert!(panic.is::<Disturbed>(), "it panics by itself");
        CULPRITS.with_borrow_mut(std::mem::take)
    });
    (left, result)
}

#[derive(Debug)]
struct Touchy(u64);

impl Clone for Touchy {
    fn clone(&self) -> Self {
        touch([self.0; 2]);
        Self(self.0)
    }
}

impl PartialEq for Touchy {
    fn eq(&self, other: &Self) -> bool {
        touch([self.0, other.0]);
        self.0 == other.0
    }
}

impl Eq for Touchy {}

impl Hash for Touchy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        touch([self.0; 2]);
        (self.0 >> SHARED_BITS.get()).hash(state);
    }
}

trait Inspect: Kind<Touchy> {
    /// Whether keys whose hashes are the same have buckets of their own.
    const IS_EXACT: bool;

    /// The keys that it has, once for each plan, where it keeps them.
    fn keys(limiter: &Limiter<Touchy, tollgate::RandomState, Self>) -> Option<Vec<u64>>;
}

impl Inspect for Sharded {
    const IS_EXACT: bool = true;

    fn keys(limiter: &Limiter<Touchy>) -> Option<Vec<u64>> {
        Some(limiter.entries().map(|(key, _)| key.0).collect())
    }
}

impl Inspect for Fixed {
    const IS_EXACT: bool = false;

    fn keys(_: &Limiter<Touchy, tollgate::RandomState, Self>) -> Option<Vec<u64>> {
        None
    }
}

type Of<T> = Limiter<Touchy, tollgate::RandomState, T>;

const KEYS: u64 = 40;
const PLANS: [&str; 3] = ["a", "b", "c"];
const ONE: [(Unit, u64); 1] = [(Unit::REQUESTS, 1)];

fn at(millis: u64) -> Now {
    Now::since_origin(Duration::from_millis(millis)).unwrap()
}

/// Policies that grow and shrink quotas, and take plans away and bring them back.
fn policy(which: u64) -> Policy<Touchy> {
    let hourly = |limit| Quota::per_hour(limit);
    let policy = Policy::new();
    let policy = match which % 4 {
        0 => policy.plan("a", hourly(10)).plan("b", Plan::new([hourly(20)]).in_flight(3)).plan("c", hourly(30)),
        1 => policy.plan("a", hourly(100)),
        2 => policy.plan("a", [hourly(10), Quota::per_minute(9)]).plan("c", hourly(3_000)),
        _ => policy.plan("a", hourly(7)).plan("b", Plan::new([hourly(200), Quota::per_day(500)]).in_flight(2)),
    };
    policy
        .default_plan("a")
        .override_key(Touchy(3), "a")
        .override_key(Touchy(4), "a")
        .unknown_plan_is_default()
        .resolver(|key: &Touchy, plans| {
            touch([key.0; 2]);
            plans.id(PLANS[(key.0 % 3) as usize])
        })
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Check(u64, Option<usize>, u64),
    Many([u64; 3]),
    Enter(u64, usize),
    Leave(usize),
    Reset(u64),
    Move(u64, usize, usize),
    Peek(u64),
    Reload(u64),
    /// So many keys that come once, on the default plan.
    Newcomers(u64, u64),
    Look,
}

impl Step {
    /// Whose use it changes, but for a reload.
    fn own(self) -> Vec<u64> {
        match self {
            Self::Check(key, ..) | Self::Enter(key, _) | Self::Reset(key) | Self::Move(key, ..) | Self::Peek(key) => {
                vec![key]
            }
            Self::Many(keys) => keys.into(),
            Self::Newcomers(first, count) => (first..first + count).collect(),
            Self::Leave(_) | Self::Reload(_) | Self::Look => Vec::new(),
        }
    }
}

/// Numbers that depend on the seed alone.
struct Random(u64);

impl Random {
    /// One below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn script(seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let mut next_newcomer = 1_000;
    (0..60)
        .map(|_| {
            let (key, other) = (random.below(KEYS), random.below(KEYS));
            let plan = random.below(4) as usize;
            match random.below(24) {
                0..8 => Step::Check(key, (plan < 3).then_some(plan), random.below(4)),
                8 => Step::Many([key, other, random.below(KEYS)]),
                9..12 => Step::Enter(key, plan % 3),
                12 => Step::Leave(other as usize),
                13 => Step::Reset(key),
                14..16 => Step::Move(key, plan % 3, (plan + 1) % 3),
                16 => Step::Peek(key),
                17..21 => Step::Reload(random.below(4)),
                21..23 => {
                    let count = 1 + random.below(12);
                    next_newcomer += count;
                    Step::Newcomers(next_newcomer - count, count)
                }
                _ => Step::Look,
            }
        })
        .collect()
}

/// A limiter with what it has handed out.
struct Side<T: Inspect> {
    limiter: Of<T>,
    guards: Vec<(u64, InFlight)>,
}

impl<T: Inspect> Side<T> {
    fn new() -> Self {
        let builder: Builder<Touchy> = Limiter::builder().keys::<Touchy>().policy(policy(0)).shards(2);
        Self { limiter: T::roomy(builder, 1_000).unwrap(), guards: Vec::new() }
    }

    /// What the step answers, one for each key.
    fn step(&mut self, step: Step, millis: u64, with: Option<Policy<Touchy>>) -> Vec<String> {
        let now = at(millis);
        let limiter = &self.limiter;
        match step {
            Step::Check(key, None, cost) => vec![told(&limiter.check_cost_at(&Touchy(key), cost, now))],
            Step::Check(key, Some(plan), cost) => {
                vec![told(&limiter.plan(PLANS[plan]).unwrap().check_cost_at(&Touchy(key), cost, now))]
            }
            Step::Many(keys) => {
                let keys = keys.map(Touchy);
                let mut checks = keys.each_ref().map(Check::new);
                limiter.check_many_at(&mut checks, now);
                checks.iter().map(|check| check.is_allowed().to_string()).collect()
            }
            Step::Enter(key, plan) => {
                let entered = limiter.plan(PLANS[plan]).unwrap().enter_costs_at(&Touchy(key), &ONE, now);
                let told = entered.as_ref().map_or_else(|deny| format!("{deny}"), |guard| format!("{}", guard.allow()));
                self.guards.extend(entered.ok().map(|guard| (key, guard)));
                vec![told]
            }
            Step::Leave(which) => {
                if !self.guards.is_empty() {
                    let index = which % self.guards.len();
                    drop(self.guards.swap_remove(index));
                }
                Vec::new()
            }
            Step::Reset(key) => vec![limiter.reset(&Touchy(key)).to_string()],
            Step::Move(key, from, to) => {
                vec![limiter.move_plan_at(&Touchy(key), PLANS[from], PLANS[to], now).unwrap().to_string()]
            }
            Step::Peek(key) => vec![told(&limiter.peek_at(&Touchy(key), now))],
            Step::Reload(_) => {
                limiter.reload_at(with.unwrap(), now).unwrap();
                Vec::new()
            }
            Step::Newcomers(first, count) => {
                let check = |key| told(&limiter.check_at(&Touchy(key), now));
                (first..first + count).map(check).collect()
            }
            Step::Look => {
                _ = (T::keys(limiter), limiter.stats(), limiter.plan_stats(), limiter.is_empty());
                Vec::new()
            }
        }
    }

    /// All that there is to tell of a key.
    fn all_of(&self, key: u64, millis: u64) -> String {
        let on = PLANS.map(|plan| {
            let standings = self.limiter.plan(plan).unwrap().peek_all_at(&Touchy(key), at(millis));
            standings.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        });
        on.join("; ")
    }
}

fn told(decision: &Decision) -> String {
    format!("{} {} of {}", decision.is_allowed(), decision.remaining(), decision.limit())
}

/// Every other key has the same on both sides, and the counts are right.
fn compare<T: Inspect>(one: &Side<T>, twin: &Side<T>, culprits: &BTreeSet<u64>, millis: u64, about: &impl Debug) {
    for key in (0..KEYS).chain(1_000..1_020).filter(|key| !culprits.contains(key)) {
        assert_eq!(one.all_of(key, millis), twin.all_of(key, millis), "key {key} after {about:?}");
    }
    let [len, of_twin] = [one, twin].map(|side| side.limiter.len());
    assert_eq!(one.limiter.stats().keys, len as u64);
    match T::keys(&one.limiter) {
        Some(keys) => assert_eq!(keys.len(), len, "after {about:?}"),
        None => assert!(len.abs_diff(of_twin) <= 3 * culprits.len(), "{len} and {of_twin} after {about:?}"),
    }
}

/// Plays the script with the n-th call disturbed: false once there are no so many calls.
fn play<T: Inspect>(script: &[Step], n: u64) -> bool {
    let (mut one, mut twin) = (Side::<T>::new(), Side::<T>::new());
    let mut left = Some(n);
    let mut culprits = BTreeSet::new();
    let mut millis = 0;
    for (index, step) in script.iter().enumerate() {
        millis += 1 + (index as u64 % 5) * 40_000;
        let policies = || match step {
            Step::Reload(which) => Some(policy(*which)),
            _ => None,
        };
        let with = policies();
        // A guard that is dropped is some key's own.
        let own: Vec<u64> = match step {
            Step::Leave(which) if !one.guards.is_empty() => vec![one.guards[which % one.guards.len()].0],
            _ => step.own(),
        };
        let (rest, result) = disturb(left, || one.step(*step, millis, with));
        let is_armed = left.is_some();
        left = rest;
        let answer = match result {
            Ok(answer) => Some(answer),
            Err(of_panic) => {
                culprits.extend(of_panic);
                culprits.extend(&own);
                // Whether it is in force or not, it is then; and the one before is swept to the end.
                if let Step::Reload(which) = step {
                    one.step(*step, millis, Some(policy(*which)));
                }
                None
            }
        };
        let of_twin = twin.step(*step, millis, policies());
        match answer {
            Some(answer) if own.iter().all(|key| !culprits.contains(key)) => {
                assert_eq!(answer, of_twin, "{step:?} of {own:?}, call {n}");
            }
            Some(_) => {}
            None => compare(&one, &twin, &culprits, millis, &(step, n)),
        }
        // They have the same guards but for culprits, in some order.
        if is_armed && left.is_none() || !culprits.is_empty() {
            for side in [&mut one, &mut twin] {
                side.guards.retain(|(key, _)| !culprits.contains(key));
                side.guards.sort_by_key(|(key, _)| *key);
            }
        }
    }
    compare(&one, &twin, &culprits, millis, &("the script", n));
    for which in [1, 0] {
        for side in [&one, &twin] {
            side.limiter.reload_at(policy(which), at(millis)).unwrap();
        }
        compare(&one, &twin, &culprits, millis, &("two reloads", n));
    }
    // Years later all are idle, and go as others come: nothing is forgotten in a shard.
    drop(one.guards);
    if let Some(keys) = T::keys(&one.limiter) {
        let later = at(millis + 100_000_000_000);
        for key in 0..2 * keys.len() as u64 + 100 {
            assert!(one.limiter.check_at(&Touchy(1_000_000 + key), later).is_allowed());
        }
        let is_left = |key: &u64| *key < 1_000_000 && !culprits.contains(key);
        assert_eq!(T::keys(&one.limiter).unwrap().iter().filter(|key| is_left(key)).count(), 0, "call {n}");
        assert_eq!(T::keys(&one.limiter).unwrap().len(), one.limiter.len());
    }
    left.is_none()
}

fn every_call_of_a_random_script_may_panic<T: Inspect>() {
    let mut cases = 0;
    for seed in 0..4 {
        let script = script(seed);
        SHARED_BITS.set(if T::IS_EXACT && seed % 2 == 1 { 2 } else { 0 });
        let mut n = 0;
        while play::<T>(&script, n) {
            n += 1;
        }
        assert!(n > 100, "{n} calls in script {seed}");
        cases += n;
    }
    assert!(cases > 1_000, "{cases} calls");
}

/// Six of ten used; then ten, a hundred, a thousand times as much is granted, and whatever panics in the first reload.
#[test]
fn a_reload_that_panics_scales_the_use_of_no_other_key_twice() {
    let of = |limit| {
        let policy = Policy::<Touchy>::new().plan("x", Quota::per_hour(limit)).plan("y", Quota::per_hour(limit));
        policy.default_plan("x")
    };
    let only = |limit| Policy::<Touchy>::new().plan("x", Quota::per_hour(limit));
    for n in 0.. {
        let limiter: Limiter<Touchy> = Limiter::builder().keys().policy(of(10)).shards(2).build().unwrap();
        let y = limiter.plan("y").unwrap();
        for key in (0..8).map(Touchy) {
            assert!(limiter.check_cost_at(&key, 4, at(0)).is_allowed() && y.check_cost_at(&key, 2, at(0)).is_allowed());
        }
        // Two states of each key become one, for which they are compared.
        let policy = only(100);
        let (left, result) = disturb(Some(n), || limiter.reload_at(policy, at(0)).unwrap());
        let culprits = result.err().unwrap_or_default();
        for limit in [1_000, 10_000] {
            limiter.reload_at(only(limit), at(0)).unwrap();
        }
        for key in (0..8).filter(|key| !culprits.contains(key)) {
            assert_eq!(limiter.peek_at(&Touchy(key), at(0)).remaining(), 9_994, "key {key}, call {n}");
        }
        assert_eq!((limiter.len(), limiter.entries().count()), (8, 8));
        if left.is_some() {
            assert!(n >= 8, "one comparison for each key");
            return;
        }
    }
}

/// There is room for 20 keys: whatever panics as they come, 20 are there in the end, and no more.
#[test]
fn a_newcomer_that_panics_takes_no_room() {
    for n in 0.. {
        let builder = Limiter::builder().keys::<Touchy>().quota(Quota::per_hour(10)).shards(2).max_keys(20);
        let limiter: Limiter<Touchy> = builder.build().unwrap();
        let bring = || {
            for key in 0..25 {
                _ = limiter.check_at(&Touchy(key), at(0));
            }
        };
        let (left, _) = disturb(Some(n), bring);
        assert_eq!(limiter.len(), limiter.entries().count());
        bring();
        assert_eq!((limiter.len(), limiter.entries().count()), (20, 20), "call {n}");
        if left.is_some() {
            return;
        }
    }
}

fn a_place_is_given_back_where_the_copy_of_its_key_panics<T: Inspect>() {
    for n in 0.. {
        let plan = Plan::new([Quota::per_hour(1_000)]).in_flight(1);
        let limiter = T::make(Limiter::builder().keys::<Touchy>().plan("default", plan)).unwrap();
        let (left, result) = disturb(Some(n), || limiter.enter(&Touchy(1)).ok());
        drop(result);
        assert!(limiter.enter(&Touchy(1)).is_ok(), "call {n}");
        if left.is_some() {
            return;
        }
    }
}
