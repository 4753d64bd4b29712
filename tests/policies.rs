//! What a check asks of a policy, and for how long one that was replaced is there.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets the unexpected stops")]

mod stores;

use std::cell::{Cell, RefCell};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use stores::{Kind, over_both};
use tollgate::{BuildError, Check, Limiter, Now, Plan, Policy, Quota, Unit};

over_both!(
    each_check_asks_the_resolver_once,
    each_check_looks_for_an_override_once,
    a_policy_that_was_replaced_is_dropped_while_idle_threads_live,
    a_policy_that_was_replaced_is_dropped_after_use_on_many_threads,
    a_destructor_of_a_thread_local_may_leave_and_check,
    two_limiters_and_two_plans_in_turn_have_their_own_quotas,
);

const ONE: [(Unit, u64); 1] = [(Unit::REQUESTS, 1)];

/// What is called of a key.
type Call<'a> = &'a dyn Fn(&str);

/// A policy of four plans, whose resolver puts each key on the one that it begins with, and tells `counter`.
fn resolving(counter: &Arc<AtomicU64>) -> Policy {
    let counter = Arc::clone(counter);
    Policy::new()
        .plan("one", Quota::per_hour(1_000))
        .plan("three", [Quota::per_second(500), Quota::per_hour(1_000), Quota::per_day(2_000)])
        .plan("places", Plan::new([Quota::per_hour(1_000)]).in_flight(100))
        .plan("none", Plan::unlimited())
        .default_plan("one")
        .resolver(move |key: &str, plans| {
            counter.fetch_add(1, Ordering::Relaxed);
            plans.id(key.split(' ').next().unwrap_or(key))
        })
}

fn each_check_asks_the_resolver_once<T: Kind>() {
    let counter = Arc::new(AtomicU64::new(0));
    for is_reloaded in [false, true] {
        let limiter = T::roomy(Limiter::builder().policy(resolving(&counter)), 1_000).unwrap();
        if is_reloaded {
            limiter.reload(resolving(&counter)).unwrap();
        }
        let calls = |expected: u64, about: &str, call: &dyn Fn()| {
            let before = counter.load(Ordering::Relaxed);
            call();
            assert_eq!(counter.load(Ordering::Relaxed) - before, expected, "{about}");
        };
        for plan in ["one", "three", "places", "none"] {
            let calls_of: [(&str, Call<'_>); 10] = [
                ("check", &|key| _ = limiter.check(key)),
                ("check_cost", &|key| _ = limiter.check_cost(key, 2)),
                ("check_cost of nothing", &|key| _ = limiter.check_cost(key, 0)),
                ("check_costs", &|key| _ = limiter.check_costs(key, &ONE)),
                ("check_at", &|key| _ = limiter.check_at(key, Now::ORIGIN)),
                ("peek", &|key| _ = limiter.peek(key)),
                ("peek_cost", &|key| _ = limiter.peek_cost(key, 2)),
                ("peek_all", &|key| _ = limiter.peek_all(key)),
                ("enter", &|key| drop(limiter.enter(key))),
                ("a denial", &|key| assert_eq!(limiter.check_cost(key, 1 << 40).is_denied(), plan != "none")),
            ];
            for (name, call) in calls_of {
                let key = format!("{plan} for {name}");
                for time in ["first", "second"] {
                    calls(1, &format!("{name}, {plan}, the {time} time, reloaded: {is_reloaded}"), &|| call(&key));
                }
                calls(0, "reset", &|| _ = limiter.reset(&key));
            }
            let keys = [0, 1, 2, 0].map(|n| format!("{plan} in a batch {n}"));
            for _ in 0..2 {
                calls(4, &format!("check_many, {plan}"), &|| {
                    limiter.check_many(&mut keys.each_ref().map(|key| Check::new(&**key)));
                });
            }
            calls(0, "a plan that is named", &|| _ = limiter.plan(plan).unwrap().check("three by name"));
        }
    }
}

thread_local! {
    static HASHED: Cell<u64> = const { Cell::new(0) };
}

#[derive(Clone, PartialEq, Eq)]
struct Counted(u64);

impl Hash for Counted {
    fn hash<H: Hasher>(&self, state: &mut H) {
        HASHED.set(HASHED.get() + 1);
        self.0.hash(state);
    }
}

/// The key is hashed once more where there are overrides.
fn each_check_looks_for_an_override_once<T: Kind<Counted>>() {
    let plan = || Plan::new([Quota::per_hour(1_000), Quota::per_day(2_000)]).in_flight(5);
    let make = |policy: Policy<Counted>| T::make(Limiter::builder().keys::<Counted>().policy(policy)).unwrap();
    let policy = || Policy::new().plan("one", Quota::per_hour(1_000)).plan("two", plan()).default_plan("one");
    let [plain, overriding] = [make(policy()), make(policy().override_key(Counted(9), "two"))];
    let hashed = |call: &dyn Fn()| {
        let before = HASHED.get();
        call();
        HASHED.get() - before
    };
    for key in [1, 9].map(Counted) {
        for _ in 0..2 {
            let on = |limiter: &Limiter<Counted, tollgate::RandomState, T>| {
                let plan = limiter.plan(if key.0 == 9 { "two" } else { "one" }).unwrap();
                [
                    hashed(&|| _ = plan.check(&key)),
                    hashed(&|| _ = plan.check_costs(&key, &ONE)),
                    hashed(&|| _ = plan.peek(&key)),
                    hashed(&|| drop(plan.enter(&key))),
                ]
            };
            assert_eq!(on(&overriding), on(&plain).map(|count| count + 1));
        }
    }
}

/// A policy that holds on to `token` for as long as it is there.
fn holding(token: &Arc<()>, limit: u64) -> Policy {
    let token = Arc::clone(token);
    Policy::new().plan("default", Quota::per_hour(limit)).resolver(move |_: &str, _| {
        _ = &token;
        None
    })
}

/// How many policies are there that hold on to it.
fn alive(token: &Arc<()>) -> usize {
    Arc::strong_count(token) - 1
}

fn a_policy_that_was_replaced_is_dropped_while_idle_threads_live<T: Kind>() {
    let token = Arc::new(());
    let limiter = T::make(Limiter::builder().policy(holding(&token, 1_000))).unwrap();
    assert_eq!(alive(&token), 1);
    thread::scope(|scope| {
        let mut ends = Vec::new();
        for reload in 0..50 {
            let ((told, tell), (end, ended)) = (channel(), channel::<()>());
            let limiter = &limiter;
            scope.spawn(move || {
                let allowed = limiter.check("alice").is_allowed() && limiter.enter("bob").is_ok();
                told.send(allowed).unwrap();
                // Idle, and alive.
                _ = ended.recv();
            });
            assert!(tell_is(&tell));
            ends.push(end);
            limiter.reload(holding(&token, 1_001 + reload)).unwrap();
            assert_eq!(alive(&token), 1, "after reload {reload}");
        }
    });
    drop(limiter);
    assert_eq!(alive(&token), 0);
}

fn tell_is(told: &std::sync::mpsc::Receiver<bool>) -> bool {
    told.recv().unwrap()
}

/// Plans that are the same for all keys are at hand, and that holds on to nothing either: what their policy has beside is gone.
fn a_policy_that_was_replaced_is_dropped_after_use_on_many_threads<T: Kind>() {
    let token = Arc::new(());
    let limiter = T::make(Limiter::builder().quota(Quota::per_hour(1_000_000))).unwrap();
    let by_name = limiter.plan("default").unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let (limiter, by_name) = (&limiter, &by_name);
            scope.spawn(move || {
                let key = format!("key {thread}");
                for _ in 0..20_000 {
                    assert!(limiter.check(&key).is_allowed() && by_name.check(&key).is_allowed());
                    assert!(limiter.peek(&key).is_allowed());
                }
            });
        }
        for limit in 0..50 {
            limiter.reload(holding(&token, 1_000_000 + limit)).unwrap();
        }
    });
    assert_eq!(alive(&token), 1);
}

struct AtEnd(RefCell<Vec<Box<dyn FnOnce()>>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|work| work());
    }
}

thread_local! {
    static AT_END: AtEnd = const { AtEnd(RefCell::new(Vec::new())) };
}

/// It runs when what this crate and others have in thread-locals is gone, or before: as many as there are ways to begin.
fn a_destructor_of_a_thread_local_may_leave_and_check<T: Kind>() {
    let token = Arc::new(());
    let plan = || Plan::new([Quota::per_hour(1_000)]).in_flight(1);
    let plain =
        |limit| Policy::new().plan("default", plan()).plan("one", Quota::per_hour(limit)).default_plan("default");
    for (policy, is_first) in [(plain(5), true), (plain(5), false), (holding(&token, 5), true)] {
        let limiter = T::roomy(Limiter::builder().policy(plain(4)), 1_000).unwrap();
        limiter.reload(policy).unwrap();
        let in_thread = limiter.clone();
        let work = move || {
            let limiter = in_thread;
            let at_end = |work: Box<dyn FnOnce()>| AT_END.with(|at_end| at_end.0.borrow_mut().push(work));
            if is_first {
                at_end(Box::new(|| ()));
            }
            let guard = limiter.enter("alice").unwrap();
            assert!(limiter.check("bob").is_allowed());
            at_end(Box::new(move || {
                drop(guard);
                assert!(limiter.check("bob").is_allowed() && limiter.check("carol").is_allowed());
                assert!(limiter.peek("bob").is_allowed());
            }));
        };
        thread::spawn(work).join().unwrap();
        assert!(limiter.enter("alice").is_ok());
        assert_eq!(limiter.peek("bob").limit() - limiter.peek("bob").remaining(), 2);
    }
}

fn two_limiters_and_two_plans_in_turn_have_their_own_quotas<T: Kind>() {
    let policy = |n: u64| {
        let plans = Policy::new().plan("a", Quota::per_hour(10 + n)).plan("b", Quota::per_hour(20 + n));
        plans.default_plan("a")
    };
    let limiters: Vec<_> = (0..6).map(|_| T::make(Limiter::builder().policy(policy(0))).unwrap()).collect();
    for round in 1..40 {
        for (n, limiter) in (0..).zip(&limiters) {
            limiter.reload(policy(100 * n + round)).unwrap();
        }
        for (n, limiter) in (0..).zip(&limiters) {
            let plans = ["a", "b"].map(|name| limiter.plan(name).unwrap().check("alice").limit());
            let expected = [10, 20].map(|limit| limit + 100 * n + round);
            assert_eq!((limiter.check("alice").limit(), plans), (expected[0], expected));
        }
    }
}

#[test]
fn keys_that_come_after_what_speaks_of_keys_are_refused() {
    let spoken = || Policy::new().plan("x", Quota::per_hour(1)).override_key("alice", "x").resolver(|_: &str, _| None);
    let refused = |fleet, overrides, resolver| Some(BuildError::KeysNotFirst { fleet, overrides, resolver });
    let error = Limiter::builder().policy(spoken()).keys::<u64>().build().err();
    assert_eq!(error, refused(false, 1, true));
    let text = error.unwrap().to_string();
    assert!(text.contains("the override of a key and the resolver") && text.contains("`.keys()` first"), "{text}");
    let resolver = Policy::new().plan("x", Quota::per_hour(1)).resolver(|_: &str, _| None);
    let twice = Limiter::builder().policy(resolver).keys::<u64>().keys::<u32>().fixed(10).build().err();
    assert_eq!(twice, refused(false, 0, true));
    // What is the same for all keys is kept, and what is given again is not missed.
    let limiter = Limiter::builder().quota(Quota::per_hour(3)).keys::<u64>().build().unwrap();
    assert_eq!(limiter.check(&7).limit(), 3);
    let again = Policy::new().plan("x", Quota::per_hour(2)).override_key(7_u64, "x");
    let limiter = Limiter::builder().policy(spoken()).keys::<u64>().policy(again).build().unwrap();
    assert_eq!(limiter.check(&7).limit(), 2);
}

#[cfg(feature = "global")]
#[test]
fn keys_that_come_after_the_fleet_are_refused() {
    use tollgate::global::{Fleet, MemoryAuthority};

    let fleet = Fleet::builder(MemoryAuthority::new()).start().unwrap();
    let builder = || Limiter::builder().quota(Quota::per_hour(1)).fleet(&fleet).keys::<String>();
    let error = builder().build().err();
    assert_eq!(error, Some(BuildError::KeysNotFirst { fleet: true, overrides: 0, resolver: false }));
    assert!(error.unwrap().to_string().contains("the fleet"));
    assert!(builder().fleet(&fleet).build().is_ok());
}
