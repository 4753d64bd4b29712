//! Plans, several quotas at once, requests in flight and reloads against the plain model, and what they are for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that meets the unexpected stops")]

mod oracle;

use std::time::Duration;

use oracle::plans::{PlanSpec, PlanStep, PolicySpec, play_plans};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tollgate::{Quota, Unit};

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
