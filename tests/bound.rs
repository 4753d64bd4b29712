//! Random quotas, costs and clocks against the naive judge.
#![allow(clippy::expect_used, clippy::panic, reason = "a judge that finds a fault stops the test")]

mod oracle;
mod stores;

use std::time::Duration;

use oracle::keyed::{Held, KeyedStep, play_fixed, play_keyed};
use oracle::{Step, play};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tollgate::{Fixed, Quota, Sharded};

/// Rates that divide a tick, that don't, that are slower than a day and faster than a tick.
fn quotas() -> impl Strategy<Value = Quota> {
    let rates = prop_oneof![
        1 => Just(0),
        6 => 1_u64..20,
        4 => 1_u64..1_000_000,
        2 => 1_u64..10_000_000_000,
        1 => any::<u64>(),
    ];
    let periods = prop_oneof![
        Just(Duration::from_secs(1)),
        Just(Duration::from_secs(60)),
        Just(Duration::from_secs(86_400)),
        (1_u64..1_000_000_000_000).prop_map(Duration::from_nanos),
        (1_u64..40_000_000).prop_map(Duration::from_secs),
    ];
    let bursts = prop_oneof![4 => 1_u64..12, 2 => 1_u64..1_000, 1 => 1_u64..1 << 40];
    (rates, periods, bursts).prop_map(|(rate, period, burst)| Quota::new(rate, period).burst(burst))
}

/// Rates whose unit is no whole number of ticks, with bursts that add up what rounding does.
fn fast_quotas() -> impl Strategy<Value = Quota> {
    let rates = prop_oneof![Just(600_000_000), Just(7_654_321), Just(u64::MAX), 1_000_000_u64..20_000_000_000];
    (rates, 1_u64..100).prop_map(|(rate, burst)| Quota::per_second(rate).burst(burst))
}

/// Steps whose times and costs are of the size that matters to `quota`. `back` and `refund` are the weights of steps back
/// and of refunds among 24 others.
fn scripts(quotas: impl Strategy<Value = Quota>, back: u32, refund: u32) -> impl Strategy<Value = (Quota, Vec<Step>)> {
    quotas.prop_flat_map(move |quota| {
        let unit = u64::try_from(quota.period().as_nanos() / u128::from(quota.rate().max(1))).unwrap_or(u64::MAX);
        let fill = unit.saturating_mul(quota.limit()).max(2);
        let unit = unit.max(2);
        let step = prop_oneof![
            2 => (0..=unit).prop_map(Step::Forward),
            2 => (0..=fill.saturating_mul(2)).prop_map(Step::Forward),
            1 => any::<u64>().prop_map(Step::Forward),
            back => (0..=fill).prop_map(Step::Back),
            back => any::<u64>().prop_map(Step::Back),
            4 => Just(Step::ToRetry),
            8 => Just(Step::Take(1)),
            6 => (0..=quota.limit().saturating_add(2)).prop_map(Step::Take),
            1 => any::<u64>().prop_map(Step::Take),
            refund => any::<usize>().prop_map(Step::Refund),
        ];
        (Just(quota), prop::collection::vec(step, 1..120))
    })
}

/// Steps on a few keys, so that some are idle while others come.
fn keyed_scripts(back: u32) -> impl Strategy<Value = (Quota, Vec<KeyedStep>)> {
    let quotas = (prop_oneof![1 => Just(0), 8 => 1_u64..20], 1_u64..6);
    let quotas = quotas.prop_map(|(rate, burst)| Quota::per_second(rate).burst(burst));
    quotas.prop_flat_map(move |quota| {
        let step = prop_oneof![
            4 => (0_u64..2_000_000_000).prop_map(KeyedStep::Forward),
            back => (0_u64..4_000_000_000).prop_map(KeyedStep::Back),
            12 => (0_u8..24, 1..=quota.limit()).prop_map(|(key, cost)| KeyedStep::Take(key, cost)),
            2 => (0_u8..24, 0..=quota.limit() + 1).prop_map(|(key, cost)| KeyedStep::Take(key, cost)),
            3 => any::<usize>().prop_map(KeyedStep::Refund),
            1 => (0_u8..24).prop_map(KeyedStep::Reset),
        ];
        (Just(quota), prop::collection::vec(step, 1..200))
    })
}

/// Scenes on three clients and many newcomers: takes that are held while their key is evicted and comes back.
fn crowded_scripts() -> impl Strategy<Value = (Quota, Vec<KeyedStep>)> {
    let quotas = prop_oneof![
        3 => Just(Quota::per_second(1).burst(4)),
        1 => Just(Quota::per_day(1).burst(4)),
        1 => Just(Quota::per_second(10).burst(10)),
        1 => Just(Quota::per_second(0).burst(4)),
    ];
    quotas.prop_flat_map(|quota| {
        let unit = u64::try_from(quota.period().as_nanos()).unwrap_or(u64::MAX) / quota.rate().max(1);
        let (burst, client) = (quota.limit(), 0_u8..3);
        let gap =
            prop::sample::select(vec![unit, unit * 2, unit * 2, unit * burst / 2, unit * burst, unit * burst + 1]);
        let newcomers = (3_u8..200, 1_u8..24, prop::sample::select(vec![1, burst]));
        let singles = move |key| (0..burst).map(move |_| KeyedStep::Take(key, 1));
        // Of which all but the last are given back.
        let volley = move |key| singles(key).chain((1..burst).map(move |_| KeyedStep::RefundOf(key, Held::Oldest)));
        let come = |(first, count, cost): (u8, u8, u64)| {
            (first..first.saturating_add(count)).map(move |key| KeyedStep::Take(key, cost))
        };
        let late = |key, which| [KeyedStep::RefundOf(key, which), KeyedStep::Take(key, 1)];
        let scene = prop_oneof![
            2 => client.clone().prop_map(move |key| volley(key).collect()),
            2 => gap.clone().prop_map(|nanos| vec![KeyedStep::Forward(nanos)]),
            2 => newcomers.clone().prop_map(move |newcomers| come(newcomers).collect()),
            1 => client.clone().prop_map(move |key| singles(key).collect()),
            1 => client.clone().prop_map(move |key| late(key, Held::Latest).to_vec()),
            1 => client.clone().prop_map(move |key| late(key, Held::Oldest).to_vec()),
            1 => client.clone().prop_map(|key| vec![KeyedStep::Reset(key)]),
            // The key goes, and comes back.
            4 => (client, gap, newcomers).prop_map(move |(key, nanos, newcomers)| {
                let goes = volley(key).chain([KeyedStep::Forward(nanos)]).chain(come(newcomers));
                goes.chain(singles(key)).chain(late(key, Held::Oldest)).collect()
            }),
        ];
        let scenes = prop::collection::vec(scene, 1..24);
        (Just(quota), scenes.prop_map(|scenes: Vec<Vec<KeyedStep>>| scenes.concat()))
    })
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 5_000,
        rng_seed: RngSeed::Fixed(0x7011_6A7E),
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_window_holds_more_than_the_bound_whatever_the_clock_does((quota, steps) in scripts(quotas(), 1, 0)) {
        play::<Sharded>(quota, &steps);
        play::<Fixed>(quota, &steps);
    }

    #[test]
    fn nobody_is_denied_without_need_on_a_clock_that_runs_forwards((quota, steps) in scripts(quotas(), 0, 0)) {
        play::<Sharded>(quota, &steps);
        play::<Fixed>(quota, &steps);
    }

    #[test]
    fn what_is_kept_after_refunds_stays_within_the_bound((quota, steps) in scripts(quotas(), 0, 12)) {
        play::<Sharded>(quota, &steps);
        play::<Fixed>(quota, &steps);
    }

    #[test]
    fn what_is_kept_stays_within_the_bound_where_all_is_rounded((quota, steps) in scripts(fast_quotas(), 0, 24)) {
        play::<Sharded>(quota, &steps);
        play::<Fixed>(quota, &steps);
    }

    #[test]
    fn what_is_kept_stays_within_the_bound_when_the_clock_goes_back_between((quota, steps) in scripts(quotas(), 1, 4)) {
        play::<Sharded>(quota, &steps);
        play::<Fixed>(quota, &steps);
    }

    #[test]
    fn keys_that_come_and_go_are_decided_as_if_none_ever_went((quota, steps) in keyed_scripts(0)) {
        play_keyed(quota, u64::MAX, false, &steps);
        play_fixed(quota, 24, false, &steps);
    }

    #[test]
    fn neither_a_cap_nor_a_clock_that_goes_back_gives_a_key_more(
        (quota, steps) in keyed_scripts(1),
        room in 1_u64..12,
        shared in any::<bool>(),
    ) {
        play_keyed(quota, room, shared, &steps);
        play_fixed(quota, room, shared, &steps);
    }

    /// One set, two and three, with more keys than ways.
    #[test]
    fn a_take_that_is_held_while_its_key_comes_back_is_worth_what_is_left_of_it(
        (quota, steps) in crowded_scripts(),
        room in prop::sample::select(vec![4_u64, 8, 12]),
    ) {
        play_fixed(quota, room, false, &steps);
        play_keyed(quota, room, false, &steps);
    }

    #[test]
    fn keys_that_share_what_their_refunds_need_gain_nothing((quota, steps) in keyed_scripts(0)) {
        play_keyed(quota, u64::MAX, true, &steps);
        play_fixed(quota, 24, true, &steps);
    }
}

#[test]
fn the_judge_sees_one_unit_too_many() {
    let quota = Quota::per_second(2).burst(3);
    let scripts: [&[Step]; 2] = [
        &[Step::Take(3), Step::Forward(500_000_000), Step::Take(1)],
        &[Step::Take(1), Step::Take(2), Step::Forward(1_000_000_000), Step::Take(2)],
    ];
    for script in scripts {
        let admitted = play::<Sharded>(quota, script);
        let tighter = Quota::new(2, Duration::from_nanos(1_000_000_001)).burst(3);
        assert!(std::panic::catch_unwind(|| oracle::assert_bound(quota, &admitted)).is_ok());
        assert!(std::panic::catch_unwind(|| oracle::assert_bound(tighter, &admitted)).is_err());
    }
}
