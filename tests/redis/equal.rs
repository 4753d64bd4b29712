//! Random batches, answered by the script as by the books in memory, field by field.

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestError, TestRunner};
use tollgate::global::{Batch, Body, Books, Record, Reply, Report, Rule, WireName};

use crate::conformance::SECOND;

/// The longest sub-window or period that the script can count in.
const LONGEST: u64 = 1 << 44;

/// Plays so many sequences, always the same.
pub(crate) fn run(cases: u32, far: bool, test: impl Fn(Vec<Rule>, Vec<Step>)) {
    let config = ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(0x4ED1_5000),
        failure_persistence: None,
        max_shrink_iters: 5_000,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(&sequences(far), |(rules, steps)| {
        test(rules, steps);
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, input)) => panic!("{reason}\nby {input:#?}"),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

/// What happens next.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// The clock goes on.
    Wait(u64),
    /// The clock goes back.
    Back(u64),
    Tell(Said),
}

/// What a batch says; its records are told by the places of their rules, and sub-windows by how far they are before the head.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    node: u64,
    number: Number,
    records: Vec<(u128, prop::sample::Index, Body)>,
}

/// What is wrong with the number of a batch, if anything is.
#[derive(Clone, Copy, Debug)]
enum Number {
    Next,
    /// Whatever was said before does not matter.
    Afresh(u64),
    Again,
    Lower,
    /// One that the authority has not carried out was before.
    Gap(u64),
}

/// Rules, and a sequence of steps. With `far`, as large as the script can count; else as small as limits mostly are.
fn sequences(far: bool) -> impl Strategy<Value = (Vec<Rule>, Vec<Step>)> {
    let limit = move || if far { prop_oneof![0_u32..40, any::<u32>()].boxed() } else { (0_u32..40).boxed() };
    let length = move || {
        let near = prop_oneof![1_u64..50, Just(100_000), Just(SECOND), Just(60 * SECOND)];
        if far { prop_oneof![near, 1..=LONGEST, Just(LONGEST)].boxed() } else { near.boxed() }
    };
    let subs = move || if far { prop_oneof![1_u16..9, 1_u16..300].boxed() } else { (1_u16..9).boxed() };
    let windows = (limit(), length(), subs(), any::<bool>()).prop_map(|(limit, sub, subs, smooth)| Rule::Window {
        limit,
        sub,
        subs,
        smooth,
    });
    let buckets =
        (limit(), limit(), length()).prop_map(|(burst, units, period)| Rule::Bucket { burst, units, period, life: 1 });
    let nonsense = Just(Rule::Window { limit: 5, sub: 0, subs: 3, smooth: false });
    let rule = prop_oneof![12 => windows, 12 => buckets, 1 => nonsense];
    let rules = prop::collection::vec(rule, 1..4);
    rules.prop_flat_map(move |rules| {
        let longest = rules.iter().map(|rule| rule.memory().min(1 << 50)).max().unwrap_or(1);
        let steps = prop::collection::vec(step(longest, far), 1..40);
        (Just(rules), steps)
    })
}

fn step(longest: u64, far: bool) -> impl Strategy<Value = Step> {
    let number = prop_oneof![
        20 => Just(Number::Next),
        2 => (1_u64..4).prop_map(Number::Afresh),
        1 => Just(Number::Again),
        1 => Just(Number::Lower),
        1 => (1_u64..4).prop_map(Number::Gap),
    ];
    let record = (0_u128..3, any::<prop::sample::Index>(), body(far));
    let said = (0_u64..3, number, prop::collection::vec(record, 0..4));
    prop_oneof![
        2 => (0..longest / 8 + 2).prop_map(Step::Wait),
        1 => (0..longest + 2).prop_map(Step::Wait),
        1 => (0..70 * SECOND).prop_map(Step::Wait),
        1 => prop_oneof![0..SECOND, 0..7 * SECOND, 0..100 * SECOND, Just(5 * SECOND)].prop_map(Step::Back),
        12 => said.prop_map(|(node, number, records)| Step::Tell(Said { node, number, records })),
    ]
}

fn body(far: bool) -> impl Strategy<Value = Body> {
    let units = move || {
        let near = prop_oneof![3 => Just(0_u32), 4 => 0_u32..20, 1 => 0_u32..70_000];
        if far { prop_oneof![4 => near, 1 => any::<u32>(), 1 => Just(u32::MAX)].boxed() } else { near.boxed() }
    };
    let many = if far { prop_oneof![-40..40_i64, -1 << 40..1_i64 << 40].boxed() } else { (-40..40_i64).boxed() };
    // The head is added when it is known.
    let age = || prop_oneof![4 => 0_u64..4, 1 => 0_u64..12, 1 => 0_u64..400];
    let report = (age(), (units(), units(), units()), (units(), units(), units())).prop_map(
        |(lease, (used, kept, returned), (overdraft, need, want))| {
            let overdraft = overdraft.saturating_sub(1) / 3;
            Body::Report(Report { lease, used, kept, returned, overdraft, need, want })
        },
    );
    prop_oneof![
        6 => report,
        4 => units().prop_map(|cost| Body::Exact { cost }),
        1 => Just(Body::Status),
        1 => prop::collection::vec((age(), many), 0..6).prop_map(Body::Repair),
    ]
}

/// Numbers that batches are told under.
#[derive(Default)]
struct Numbers {
    last: [u64; 3],
    batches: [Option<Batch>; 3],
}

/// What became of a batch.
pub(crate) struct Applied {
    pub(crate) reply: Reply,
    /// By what clock.
    pub(crate) clock: u64,
    /// Whether all was forgotten before, since all was over.
    pub(crate) afresh: bool,
}

/// Plays the steps from `start` on. `apply` is told the clock and a batch.
pub(crate) fn play(rules: &[Rule], steps: &[Step], start: u64, mut apply: impl FnMut(u64, &Batch) -> Applied) {
    let mut books = Books::default();
    let mut numbers = Numbers::default();
    let mut clock = start;
    for (index, step) in steps.iter().enumerate() {
        let said = match step {
            Step::Wait(wait) => {
                // The script counts in doubles.
                clock = (clock + wait).min(1 << 52);
                continue;
            }
            Step::Back(back) => {
                clock = clock.saturating_sub(*back);
                continue;
            }
            Step::Tell(said) => said,
        };
        let batch = numbers.batch(said, rules, clock);
        let Applied { reply, clock: at, afresh } = apply(clock, &batch);
        if afresh {
            books.flush();
        }
        assert_eq!(reply, books.apply(&batch, at), "step {index} at {at}: {batch:?}");
        if matches!(reply, Reply::Done { .. }) {
            numbers.last[said.node as usize] = batch.number;
        }
        numbers.batches[said.node as usize] = Some(batch);
    }
}

impl Numbers {
    fn batch(&mut self, said: &Said, rules: &[Rule], clock: u64) -> Batch {
        let last = self.last[said.node as usize];
        let (number, after) = match said.number {
            Number::Next => (last + 1, (last > 0).then_some(last)),
            Number::Afresh(by) => (last + by, None),
            Number::Again => match &self.batches[said.node as usize] {
                Some(batch) => return batch.clone(),
                None => (1, None),
            },
            Number::Lower => (last.checked_sub(1).unwrap_or(1), None),
            Number::Gap(by) => (last + by + 1, Some(last + by)),
        };
        let records = said.records.iter().map(|(name, rule, body)| {
            let rule = rules[rule.index(rules.len())];
            let sub_window = |age: u64| (rule.head_at(clock) + 2).saturating_sub(age);
            let body = match body {
                Body::Report(report) => Body::Report(Report { lease: sub_window(report.lease), ..*report }),
                Body::Repair(charges) => {
                    Body::Repair(charges.iter().map(|(age, units)| (sub_window(*age), *units)).collect())
                }
                other => other.clone(),
            };
            Record { name: WireName(*name), rule, body }
        });
        Batch { node: said.node, shard: 0, number, after, records: records.collect() }
    }
}
