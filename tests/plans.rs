//! Plans, several quotas at once, requests in flight and reloads against the plain model, and what they are for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that meets the unexpected stops")]

#[path = "oracle/plans.rs"]
mod oracle;
mod stores;

use std::time::Duration;

use oracle::{PlanSpec, PlanStep, PolicySpec, play_plans};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use stores::{Kind, over_both};
use tollgate::{BuildError, Decision, Limiter, Now, Plan, Policy, Quota, Reason, Unit};

over_both!(
    what_was_used_stays_used,
    use_is_worked_out_when_the_policy_changes_and_not_when_the_key_comes,
    a_policy_that_makes_no_sense_changes_nothing_and_says_why,
    unknown_plans_are_errors_or_the_default_by_choice,
    an_override_comes_before_the_caller_and_he_before_the_resolver,
    a_resolver_may_check_other_keys,
    the_longest_wait_answers_and_all_are_listed,
    a_refund_gives_back_to_all_quotas,
    shadow_mode_never_denies_and_counts,
    an_unlimited_plan_keeps_nothing,
    a_request_in_flight_keeps_its_key,
    a_place_is_given_back_where_its_plan_went,
);

fn secs(seconds: u64) -> Now {
    Now::since_origin(Duration::from_secs(seconds)).unwrap()
}

fn policy(plan: impl Into<Plan>) -> Policy {
    Policy::new().plan("default", plan)
}

fn what_was_used_stays_used<T: Kind>() {
    let limiter = T::of(Quota::per_hour(2_000));
    assert!(limiter.check_cost_at("alice", 199, secs(0)).is_allowed());
    limiter.reload_at(policy(Quota::per_hour(200)), secs(0)).unwrap();
    assert_eq!(limiter.peek_at("alice", secs(0)).remaining(), 1);
    limiter.reload_at(policy(Quota::per_hour(2_000)), secs(0)).unwrap();
    assert_eq!(limiter.peek_at("alice", secs(0)).remaining(), 1_801);
}

/// Worked out at the instant of the change: a second later a thousand would have come back.
fn use_is_worked_out_when_the_policy_changes_and_not_when_the_key_comes<T: Kind>() {
    let limiter = T::of(Quota::per_second(1_000));
    assert!(limiter.check_cost_at("alice", 1_000, secs(0)).is_allowed());
    limiter.reload_at(policy(Quota::per_hour(1)), secs(0)).unwrap();
    let decision = limiter.check_at("alice", secs(1));
    // Never longer than under the new quota alone.
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(3_599)));
}

fn a_policy_that_makes_no_sense_changes_nothing_and_says_why<T: Kind>() {
    let limiter = T::roomy(Limiter::builder().plan("free", Quota::per_hour(10)), 10).unwrap();
    assert!(limiter.check_at("alice", secs(0)).is_allowed());
    let refused = |policy: Policy| {
        let error = limiter.reload_at(policy, secs(0)).unwrap_err();
        assert_eq!(limiter.peek_at("alice", secs(0)).remaining(), 9, "{error}");
        assert_eq!(limiter.peek_all_at("alice", secs(0))[0].plan(), "free");
        error
    };
    let free = || Policy::new().plan("free", Quota::per_hour(20));
    assert_eq!(refused(Policy::new()), BuildError::NoQuota);
    assert_eq!(refused(free().plan("pro", Quota::per_hour(30))), BuildError::NoDefaultPlan);
    assert_eq!(refused(free().default_plan("pro")), BuildError::UnknownPlan { plan: "pro".into() });
    assert_eq!(refused(free().override_key("bob", "pro")), BuildError::UnknownPlan { plan: "pro".into() });
    assert_eq!(refused(free().plan("free", Quota::per_hour(1))), BuildError::DuplicatePlan { plan: "free".into() });
    assert_eq!(refused(policy(Plan::new([]))), BuildError::EmptyPlan { plan: "default".into() });
    assert_eq!(refused(policy(Quota::per_hour(0))), BuildError::ZeroBurst { quota: Quota::per_hour(0) });
    let nothing = Plan::new([Quota::per_hour(1)]).in_flight(0);
    assert_eq!(refused(policy(nothing)), BuildError::NothingInFlight { plan: "default".into() });
    assert_eq!(refused(policy(vec![Quota::per_hour(1); 9])), BuildError::TooManyQuotas { plan: "default".into() });
    let error = refused(policy([Quota::per_hour(1), Quota::per_hour(2)]));
    assert!(error.to_string().contains("requests/h") && error.to_string().contains("named"), "{error}");
}

fn unknown_plans_are_errors_or_the_default_by_choice<T: Kind>() {
    let policy = || Policy::new().plan("free", Quota::per_hour(10));
    let strict = T::make(Limiter::builder().policy(policy())).unwrap();
    assert!(strict.plan("pro").unwrap_err().to_string().contains("`pro`"));
    assert!(strict.move_plan("alice", "free", "pro").is_err());
    let lenient = policy().override_key("bob", "gold").unknown_plan_is_default();
    let lenient = T::make(Limiter::builder().policy(lenient)).unwrap();
    assert_eq!(lenient.plan("pro").unwrap().check("alice").limit(), 10);
    assert_eq!(lenient.check("bob").limit(), 10);
}

fn an_override_comes_before_the_caller_and_he_before_the_resolver<T: Kind>() {
    let policy = Policy::new()
        .plan("free", Quota::per_hour(1))
        .plan("pro", Quota::per_hour(2))
        .plan("vip", Quota::per_hour(3))
        .default_plan("free")
        .override_key("carol", "vip")
        .resolver(|key: &str, plans| plans.id(if key == "bob" { "pro" } else { "gone" }));
    let limiter = T::make(Limiter::builder().policy(policy)).unwrap();
    let limits = ["alice", "bob", "carol"].map(|key| limiter.peek(key).limit());
    assert_eq!(limits, [1, 2, 3]);
    let free = limiter.plan("free").unwrap();
    assert_eq!(["alice", "bob", "carol"].map(|key| free.peek(key).limit()), [1, 1, 3]);
    assert_eq!(limiter.plan_by_id(free.id()).peek("bob").limit(), 1);
}

/// A resolver may ask the limiter that it belongs to, also once the policy was reloaded.
fn a_resolver_may_check_other_keys<T: Kind>() {
    let limiter = T::make(Limiter::builder().plan("free", Quota::per_hour(3))).unwrap();
    let inner = limiter.clone();
    let free = limiter.plan("free").unwrap();
    let resolver = move |_: &str, plans: &tollgate::PlanNames<'_>| {
        assert!(inner.plan_by_id(free.id()).check("others").is_allowed());
        plans.id("free")
    };
    limiter.reload(Policy::new().plan("free", Quota::per_hour(3)).resolver(resolver)).unwrap();
    assert!(limiter.check("alice").is_allowed() && limiter.check("alice").is_allowed());
    assert_eq!(limiter.len(), 2);
}

#[test]
fn a_handle_of_a_plan_that_is_gone_is_on_the_default_with_its_use() {
    let both =
        || Policy::new().plan("free", Quota::per_hour(10)).plan("pro", Quota::per_hour(100)).default_plan("free");
    let limiter = Limiter::builder().policy(both()).build().unwrap();
    let pro = limiter.plan("pro").unwrap();
    assert!(pro.check_cost("alice", 4).is_allowed() && limiter.check_cost("alice", 3).is_allowed());
    limiter.reload(Policy::new().plan("free", Quota::per_hour(10))).unwrap();
    assert_eq!((limiter.peek("alice").remaining(), pro.peek("alice").remaining()), (3, 3));
    assert_eq!(limiter.len(), 1);
    // The name comes back as another plan, which the old handle does not know.
    limiter.reload(both()).unwrap();
    assert_eq!((limiter.plan("pro").unwrap().peek("alice").remaining(), pro.peek("alice").remaining()), (100, 3));
}

fn the_longest_wait_answers_and_all_are_listed<T: Kind>() {
    let quotas = [Quota::per_second(2), Quota::per_minute(3), Quota::per_hour(4).unit(Unit::TOKENS)];
    let limiter = T::make(Limiter::builder().plan("default", quotas)).unwrap();
    let costs = [(Unit::REQUESTS, 1), (Unit::TOKENS, 2), (Unit::BYTES, 1 << 40)];
    let allowed = limiter.check_costs_at("alice", &costs, secs(0));
    assert_eq!((allowed.limit(), allowed.remaining()), (2, 1));
    assert!(limiter.check_costs_at("alice", &costs, secs(0)).is_allowed());
    let denied = limiter.check_costs_at("alice", &costs, secs(0));
    assert_eq!((denied.limit(), denied.retry_after()), (4, Some(Duration::from_secs(1_800))));
    let listed: Vec<_> = limiter.standings(&denied).iter().map(ToString::to_string).collect();
    assert_eq!(listed, ["requests/s: 0 of 2 left", "requests/min: 1 of 3 left", "tokens/h: 0 of 4 left"]);
    let waits: Vec<_> = limiter.standings(&denied).iter().map(|one| one.retry_after().unwrap().as_millis()).collect();
    assert_eq!(waits, [500, 0, 1_800_000]);
    // The denial has taken nothing of those that would have allowed.
    assert_eq!(limiter.peek_all_at("alice", secs(0))[1].remaining(), 1);
}

fn a_refund_gives_back_to_all_quotas<T: Kind>() {
    let quotas = [Quota::per_second(2), Quota::per_hour(10).unit(Unit::TOKENS)];
    let limiter = T::make(Limiter::builder().plan("default", quotas)).unwrap();
    let costs = [(Unit::REQUESTS, 1), (Unit::TOKENS, 7)];
    let Decision::Allow(allow) = limiter.check_costs_at("alice", &costs, secs(0)) else { panic!("a full bucket") };
    limiter.refund_at("alice", allow, secs(0));
    let left: Vec<_> = limiter.peek_all_at("alice", secs(0)).iter().map(|one| one.remaining()).collect();
    assert_eq!(left, [2, 10]);
    // What was taken before a reload is given back where the quotas are the same, and nowhere else.
    for (policy, expected) in [(policy(quotas), 10), (policy([quotas[1], quotas[0]]), 3)] {
        limiter.reset("alice");
        let Decision::Allow(allow) = limiter.check_costs_at("alice", &costs, secs(0)) else { panic!("a full bucket") };
        limiter.reload_at(policy, secs(0)).unwrap();
        limiter.refund_at("alice", allow, secs(0));
        let standings = limiter.peek_all_at("alice", secs(0));
        let tokens = standings.iter().find(|one| one.unit() == Unit::TOKENS).unwrap();
        assert_eq!(tokens.remaining(), expected);
    }
}

fn shadow_mode_never_denies_and_counts<T: Kind>() {
    let plans = Limiter::builder()
        .plan("tried", Plan::new([Quota::per_hour(2)]).shadow())
        .plan("real", Quota::per_hour(2))
        .default_plan("real");
    let limiter = T::make(plans).unwrap();
    let tried = limiter.plan("tried").unwrap();
    let would: Vec<_> = (0..4)
        .map(|_| match tried.check_at("alice", secs(0)) {
            Decision::Allow(allow) => allow.would_deny().map(|deny| deny.retry_after()),
            Decision::Deny(deny) => panic!("{deny}"),
        })
        .collect();
    let wait = Some(Some(Duration::from_secs(1_800)));
    assert_eq!(would, [None, None, wait, wait]);
    assert!(tried.check_cost_at("alice", 3, secs(0)).is_allowed());
    assert_eq!((0..4).filter(|_| limiter.check_at("alice", secs(0)).is_allowed()).count(), 2);
    let stats = limiter.plan_stats();
    assert_eq!(stats[0].to_string(), "tried: 0 in overflow, in shadow mode 2 allowed and 3 denied");
    assert_eq!((stats[1].shadow_allowed, stats[1].shadow_denied), (0, 0));

    // What would have been denied has nothing to give back.
    let Decision::Allow(allow) = tried.check_at("alice", secs(0)) else { panic!("in shadow mode") };
    limiter.refund_at("alice", allow, secs(0));
    assert_eq!(tried.peek_at("alice", secs(0)).remaining(), 0);
    let all = Policy::new().plan("tried", Quota::per_hour(2)).plan("real", Quota::per_hour(2)).default_plan("real");
    limiter.reload_at(all.clone(), secs(0)).unwrap();
    assert!(tried.check_at("alice", secs(0)).is_denied());
    limiter.reload_at(all.shadow(), secs(0)).unwrap();
    assert!(tried.check_at("alice", secs(0)).is_allowed() && limiter.check_at("alice", secs(0)).is_allowed());
}

fn an_unlimited_plan_keeps_nothing<T: Kind>() {
    let limiter = T::make(Limiter::builder().plan("internal", Plan::unlimited())).unwrap();
    assert!((0..1_000).all(|_| limiter.check_cost("alice", u64::MAX).is_allowed()));
    let decision = limiter.peek("alice");
    assert_eq!(
        (decision.limit(), decision.remaining(), decision.reset_after()),
        (u64::MAX, u64::MAX, Some(Duration::ZERO))
    );
    assert!(limiter.is_empty() && limiter.standings(&decision).is_empty());
}

/// While a request is in flight its key stays, however many others come when its buckets are full again.
fn a_request_in_flight_keeps_its_key<T: Kind>() {
    let plan = Plan::new([Quota::per_second(1)]).in_flight(1);
    let limiter = T::sized(Limiter::builder().plan("default", plan), 10).unwrap();
    let request = [(Unit::REQUESTS, 1)];
    let guard = limiter.enter_costs_at("alice", &request, secs(0)).unwrap();
    for n in 0..10_000 {
        assert!(limiter.check_at(&format!("other {n}"), secs(10 + n)).is_allowed());
    }
    assert!(limiter.stats().evictions > 9_000);
    let deny = limiter.enter_costs_at("alice", &request, secs(20_000)).unwrap_err();
    assert_eq!((deny.reason(), deny.retry_after(), deny.limit(), deny.remaining()), (Reason::InFlight, None, 1, 0));
    drop(guard);
    let again = limiter.enter_costs_at("alice", &request, secs(20_000)).unwrap();
    // A reset gives units back, and does not end requests.
    assert!(limiter.reset("alice"));
    assert_eq!(limiter.enter_costs_at("alice", &request, secs(20_000)).unwrap_err().reason(), Reason::InFlight);
    drop(again);
    assert!(limiter.enter_costs_at("alice", &request, secs(20_000)).is_ok());
}

/// A plan that is gone, and then the one that its keys went to: the place is given back where its key is now, and not on
/// another plan on which the key has requests in flight as well.
fn a_place_is_given_back_where_its_plan_went<T: Kind>() {
    let plan = || Plan::new([Quota::per_hour(10)]).in_flight(2);
    let policy = |default: &str| Policy::new().plan("free", plan()).plan(default, plan()).default_plan(default);
    for is_seen_on_the_way in [false, true] {
        let limiter = T::make(Limiter::builder().policy(policy("trial"))).unwrap();
        let left = || limiter.peek_all("alice").last().map(|one| one.remaining());
        let free = limiter.plan("free").unwrap();
        let _stays = free.enter("alice").unwrap();
        let leaves = limiter.enter("alice").unwrap();
        limiter.reload(policy("team")).unwrap();
        if is_seen_on_the_way {
            assert_eq!(left(), Some(1));
        }
        limiter.reload(policy("pro")).unwrap();
        drop(leaves);
        assert_eq!((free.peek_all("alice").last().map(|one| one.remaining()), left()), (Some(1), Some(2)));
    }
}

/// Without room for them, newcomers share the buckets and the places of their plan, and not those of another.
#[test]
fn newcomers_in_overflow_share_what_their_plan_has() {
    let slow = Plan::new([Quota::per_hour(1), Quota::per_day(5)]).in_flight(2);
    let plans = Limiter::builder().plan("slow", slow).plan("fast", Quota::per_day(3)).default_plan("fast");
    let limiter = plans.max_keys(1).shards(2).build().unwrap();
    let slow = limiter.plan("slow").unwrap();
    assert!(limiter.check_at("resident", secs(0)).is_allowed());
    let request = [(Unit::REQUESTS, 1)];
    let first = slow.enter_costs_at("a", &request, secs(0)).unwrap();
    let second = slow.enter_costs_at("b", &request, secs(3_600)).unwrap();
    assert_eq!(slow.enter_costs_at("c", &request, secs(7_200)).unwrap_err().reason(), Reason::InFlight);
    drop(first);
    assert!(slow.enter_costs_at("d", &request, secs(7_200)).is_ok());
    assert!(slow.check_costs_at("e", &request, secs(7_200)).is_denied());
    assert_eq!((0..5).filter(|n| limiter.check_at(&format!("f{n}"), secs(0)).is_allowed()).count(), 3);
    drop(second);

    // A reload carries that over as well: to the default, where the plan is gone.
    limiter.reload_at(Policy::new().plan("fast", Quota::per_day(30)), secs(0)).unwrap();
    assert_eq!(limiter.check_at("g", secs(0)).remaining(), 30 - 3 - 3 - 1);
    assert_eq!(limiter.peek_at("resident", secs(0)).remaining(), 29);
}

/// Quotas whose unit is whole ticks, a few nanoseconds each, or never comes back.
fn quotas() -> impl Strategy<Value = Quota> {
    let terms = prop_oneof![
        8 => (1_u64..4, 1_u64..9).prop_map(|(rate, unit)| (rate, rate * unit)),
        1 => (1_u64..40).prop_map(|period| (0, period)),
    ];
    (terms, 1_u64..7, 0..4).prop_map(|((rate, period), burst, kind)| {
        let quota = Quota::new(rate, Duration::from_nanos(period)).burst(burst);
        match kind {
            0 => quota.unit(Unit::TOKENS),
            1 => quota.named("a"),
            2 => quota.named("b"),
            _ => quota,
        }
    })
}

fn plans() -> impl Strategy<Value = PlanSpec> {
    let quotas = prop_oneof![
        4 => prop::collection::vec(quotas(), 1),
        4 => prop::collection::vec(quotas(), 2..4),
        1 => Just(Vec::new()),
    ];
    let in_flight = prop_oneof![3 => Just(None), 1 => (1_u32..3).prop_map(Some)];
    (quotas, in_flight, prop::bool::weighted(0.1)).prop_map(|(quotas, in_flight, shadow)| PlanSpec {
        quotas,
        in_flight,
        shadow,
    })
}

fn policies() -> impl Strategy<Value = PolicySpec> {
    let plans = prop::array::uniform4(prop::option::weighted(0.7, plans()));
    let some = || prop::option::weighted(0.2, 0_usize..4);
    (plans, 0_usize..4, some(), some()).prop_map(|(mut plans, default, override_of_0, resolves_1_to)| {
        // Most of them make sense.
        if plans[default].is_none() && default > 0 {
            plans[default] = plans.iter().flatten().next().cloned();
        }
        let override_of_0 = override_of_0.filter(|plan| plans[*plan].is_some() || default == 3);
        PolicySpec { plans, default, override_of_0, resolves_1_to }
    })
}

fn steps() -> impl Strategy<Value = PlanStep> {
    let key = || 0_u8..4;
    let named = || prop::option::weighted(0.5, 0_usize..4);
    let cost = || prop_oneof![6 => Just(1_u64), 2 => 0_u64..4, 1 => 0_u64..9];
    prop_oneof![
        4 => (0_u64..12).prop_map(PlanStep::Forward),
        12 => (key(), named(), cost(), cost()).prop_map(|(key, named, one, two)| PlanStep::Check(key, named, one, two)),
        4 => (key(), named(), cost(), cost()).prop_map(|(key, named, one, two)| PlanStep::Enter(key, named, one, two)),
        3 => any::<usize>().prop_map(PlanStep::Leave),
        3 => any::<usize>().prop_map(PlanStep::Refund),
        1 => key().prop_map(PlanStep::Reset),
        2 => (key(), 0_usize..4, 0_usize..4).prop_map(|(key, from, to)| PlanStep::Move(key, from, to)),
        2 => policies().prop_map(PlanStep::Reload),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, rng_seed: RngSeed::Fixed(4), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_that_of_the_model(first in policies(), steps in prop::collection::vec(steps(), 1..60)) {
        play_plans(&first, &steps);
    }
}
