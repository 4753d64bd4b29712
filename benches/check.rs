//! What does one check cost? Each row beside `governor` as it comes.
//!
//! `cargo bench --bench check`
#![allow(missing_docs, reason = "criterion's macros make public items without")]
#![allow(clippy::unwrap_used, reason = "a bench that can't be set up has nothing to measure")]

use std::hint::black_box;
use std::num::NonZeroU32;

use criterion::{Criterion, criterion_group, criterion_main};
use tollgate::{DirectLimiter, Limiter, Now, Quota};

/// Twenty bytes, the length of an API key.
const KEY: &str = "key-0123456789abcdef";

/// Never used up in a run: every check is allowed.
const PLENTY: u32 = 4_000_000_000;

/// Used up for an hour by its first check.
const HOURLY: Quota = Quota::per_hour(1);

fn direct(c: &mut Criterion) {
    let mut group = c.benchmark_group("direct");
    let plenty = DirectLimiter::new(Quota::per_second(u64::from(PLENTY))).unwrap();
    group.bench_function("tollgate/allowed", |b| b.iter(|| black_box(plenty.check().is_allowed())));
    group.bench_function("tollgate/allowed, time given", |b| {
        b.iter(|| black_box(plenty.check_at(black_box(Now::MAX)).is_allowed()));
    });
    let hourly = DirectLimiter::new(HOURLY).unwrap();
    assert!(hourly.check().is_allowed());
    group.bench_function("tollgate/denied", |b| b.iter(|| black_box(hourly.check().is_allowed())));

    let plenty = governor::RateLimiter::direct(governor::Quota::per_second(NonZeroU32::new(PLENTY).unwrap()));
    group.bench_function("governor/allowed", |b| b.iter(|| black_box(plenty.check().is_ok())));
    let hourly = governor::RateLimiter::direct(governor::Quota::per_hour(NonZeroU32::MIN));
    assert!(hourly.check().is_ok());
    group.bench_function("governor/denied", |b| b.iter(|| black_box(hourly.check().is_ok())));
    group.finish();
}

fn keyed(c: &mut Criterion) {
    let mut group = c.benchmark_group("keyed, hot 20-byte string");
    let plenty = Limiter::new(Quota::per_second(u64::from(PLENTY))).unwrap();
    group.bench_function("tollgate/allowed", |b| b.iter(|| black_box(plenty.check(black_box(KEY)).is_allowed())));
    let hourly = Limiter::new(HOURLY).unwrap();
    assert!(hourly.check(KEY).is_allowed());
    group.bench_function("tollgate/denied", |b| b.iter(|| black_box(hourly.check(black_box(KEY)).is_allowed())));

    // Its look-ups take the key by reference to the owned type.
    let key = String::from(KEY);
    let plenty = governor::RateLimiter::keyed(governor::Quota::per_second(NonZeroU32::new(PLENTY).unwrap()));
    group.bench_function("governor/allowed", |b| b.iter(|| black_box(plenty.check_key(black_box(&key)).is_ok())));
    let hourly = governor::RateLimiter::keyed(governor::Quota::per_hour(NonZeroU32::MIN));
    assert!(hourly.check_key(&key).is_ok());
    group.bench_function("governor/denied", |b| b.iter(|| black_box(hourly.check_key(black_box(&key)).is_ok())));
    group.finish();
}

criterion_group!(benches, direct, keyed);
criterion_main!(benches);
