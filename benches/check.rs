//! What does one check cost, by criterion? Each row beside `governor`, one after the other: `ratios` has them take turns.
//!
//! `cargo bench --bench check`, or with `-- string` for the groups of that name.
#![allow(missing_docs, reason = "criterion's macros make public items without")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a bench that can't be set up has nothing to measure")]
#![allow(unreachable_pub, clippy::exhaustive_structs, reason = "no library")]

mod peers;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use peers::{HOT, HOURLY, Load, PLENTY, Subject, fast_governor, governor, load, string_key, tollgate, two_threads};
use tollgate::{DirectLimiter, Key, Now, Quota};

/// Never used up in a run: every check is allowed.
const RATE: u32 = 4_000_000_000;

fn direct(c: &mut Criterion) {
    let mut group = c.benchmark_group("direct");
    let plenty = DirectLimiter::new(Quota::per_second(u64::from(RATE))).unwrap();
    group.bench_function("tollgate/allowed", |b| b.iter(|| black_box(plenty.check().is_allowed())));
    group.bench_function("tollgate/allowed, time given", |b| {
        b.iter(|| black_box(plenty.check_at(black_box(Now::MAX)).is_allowed()));
    });
    let hourly = DirectLimiter::new(Quota::per_hour(1)).unwrap();
    assert!(hourly.check().is_allowed());
    group.bench_function("tollgate/denied", |b| b.iter(|| black_box(hourly.check().is_allowed())));

    let plenty = ::governor::RateLimiter::direct(::governor::Quota::per_second(NonZeroU32::new(RATE).unwrap()));
    group.bench_function("governor/allowed", |b| b.iter(|| black_box(plenty.check().is_ok())));
    let hourly = ::governor::RateLimiter::direct(::governor::Quota::per_hour(NonZeroU32::MIN));
    assert!(hourly.check().is_ok());
    group.bench_function("governor/denied", |b| b.iter(|| black_box(hourly.check().is_ok())));
    group.finish();
}

/// Checks of one thread and of two, of a hot key and of many, each beside governor as it comes and at its best.
fn keyed(c: &mut Criterion) {
    for (name, keys, zipf) in [("hot key", 1, false), ("10k uniform", 10_000, false), ("1M zipf 1.0", 1_000_000, true)]
    {
        loaded(c, "u64", &load(name, u64::from, keys, zipf, 1 << 20));
        loaded(c, "string", &load(name, string_key, keys, zipf, 1 << 20));
    }
}

fn loaded<K: Key + Clone>(c: &mut Criterion, kind: &str, load: &Load<K>) {
    let outcomes =
        if load.keys.len() == 1 { &[("allowed", HOT), ("denied", HOURLY)][..] } else { &[("allowed", PLENTY)] };
    for (outcome, terms) in outcomes {
        let mut group = c.benchmark_group(format!("{kind}, {}, {outcome}", load.name));
        one_by_one(&mut group, "tollgate", load, &|| Box::new(tollgate(*terms)));
        one_by_one(&mut group, "governor", load, &|| Box::new(governor(*terms)));
        one_by_one(&mut group, "governor, fast", load, &|| Box::new(fast_governor(*terms)));
        group.finish();
    }
}

fn one_by_one<K: Key + Clone>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    load: &Load<K>,
    make: &dyn Fn() -> Box<dyn Subject<K>>,
) {
    let subject = make();
    assert!(load.keys.iter().all(|key| subject.check(key)), "{name} denies a new key");
    group.bench_function(name, |b| {
        b.iter_custom(|checks| {
            let order: Vec<u32> = load.order.iter().copied().cycle().take(checks as usize).collect();
            let start = Instant::now();
            subject.check_all(&load.keys, &order);
            start.elapsed()
        });
    });
    let halves = load.keys.split_at(load.keys.len() / 2);
    let (keys, what) = match halves {
        ([], all) => ([all, all], "the same key"),
        (mine, yours) => ([mine, yours], "own keys"),
    };
    group.bench_function(format!("{name}, 2 threads, {what}"), |b| {
        b.iter_custom(|checks| Duration::from_nanos((two_threads(&*subject, &keys) * checks as f64) as u64));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300));
    targets = direct, keyed
}
criterion_main!(benches);
