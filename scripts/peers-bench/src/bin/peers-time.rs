//! What does a check cost, beside that of the peers? Interleaved rounds in one run; of each the median, and the ratio of each
//! round to that of governor as it comes in that round: median, least, greatest.

use std::hint::black_box;
use std::time::Duration;

use clap::Parser;
use governor::clock::QuantaUpkeepClock;
use peers_bench::peers;
use peers_bench::shared::report::{Contest, Measured, Report, Row, timed};
use peers_bench::shared::{
    HOT, HOURLY, Load, Maker, PLENTY, Subject, Terms, coarsely, governors, load, one_thread, ours, string_key,
    two_threads,
};
use ratelimit::Ratelimiter;
use tollgate::DirectLimiter;

/// What does a check cost, beside that of the peers?
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    measured: Measured,
}

fn main() {
    let mut report = Report::new(Arguments::parse().measured);
    direct_allowed(&mut report);
    direct_denied(&mut report);
    hot(&mut report);
    let few = load("10k uniform", string_key, 10_000, false, 1 << 20);
    many(&mut report, &few);
    own_keys(&mut report, &few);
    many(&mut report, &load("1M zipf 1.0", string_key, 1_000_000, true, 1 << 20));
    report.finish();
}

const CHECKS: u64 = 2_000_000;

/// A second's worth is more than a round takes.
const RATE: u32 = 4_000_000_000;

fn direct_allowed(report: &mut Report) {
    let quota = tollgate::Quota::per_second(u64::from(RATE));
    let precise = DirectLimiter::new(quota).expect("a quota that makes sense");
    let lagging = DirectLimiter::with_clock(quota, coarsely()).expect("a quota that makes sense");
    let quota = governor::Quota::per_second(RATE.try_into().expect("not zero"));
    let fast = governor::RateLimiter::direct_with_clock(quota, upkeep());
    let governor = governor::RateLimiter::direct(quota);
    let leaky = leaky_bucket::RateLimiter::builder()
        .refill(RATE as usize / 10)
        .interval(Duration::from_millis(100))
        .max(RATE as usize)
        .initial(RATE as usize)
        .fair(false)
        .build();
    let rate = Ratelimiter::builder(u64::from(RATE)).initial_available(u64::from(RATE)).build();
    let rate = rate.expect("a rate that makes sense");
    report.group(
        "direct, allowed",
        &[
            Row::new("tollgate", || timed(CHECKS, || _ = black_box(precise.check().is_allowed()))),
            Row::new("tollgate, coarse", || timed(CHECKS, || _ = black_box(lagging.check().is_allowed()))),
            Row::new("leaky-bucket, unfair", || timed(CHECKS, || _ = black_box(leaky.try_acquire(1)))),
            Row::new("ratelimit", || timed(CHECKS, || _ = black_box(rate.try_wait().is_ok()))),
            Row::new("governor, fast", || timed(CHECKS, || _ = black_box(fast.check().is_ok()))),
            Row::new("governor", || timed(CHECKS, || _ = black_box(governor.check().is_ok()))),
        ],
    );
    assert!(leaky.try_acquire(1) && rate.try_wait().is_ok(), "it is not used up");
}

fn direct_denied(report: &mut Report) {
    const HOUR: Duration = Duration::from_secs(3_600);
    let precise = DirectLimiter::new(HOURLY.tollgate()).expect("a quota that makes sense");
    let lagging = DirectLimiter::with_clock(HOURLY.tollgate(), coarsely()).expect("a quota that makes sense");
    let fast = governor::RateLimiter::direct_with_clock(HOURLY.governor(), upkeep());
    let governor = governor::RateLimiter::direct(HOURLY.governor());
    let leaky = leaky_bucket::RateLimiter::builder().refill(1).interval(HOUR).max(1).initial(1).fair(false).build();
    let rate = Ratelimiter::builder(1).period(HOUR).initial_available(1).build().expect("a rate that makes sense");
    assert!(precise.check().is_allowed() && lagging.check().is_allowed(), "the first is allowed");
    assert!(fast.check().is_ok() && governor.check().is_ok(), "the first is allowed");
    assert!(leaky.try_acquire(1) && rate.try_wait().is_ok(), "the first is allowed");
    report.group(
        "direct, denied",
        &[
            Row::new("tollgate", || timed(CHECKS, || _ = black_box(precise.check().is_allowed()))),
            Row::new("tollgate, coarse", || timed(CHECKS, || _ = black_box(lagging.check().is_allowed()))),
            Row::new("leaky-bucket, unfair", || timed(CHECKS, || _ = black_box(leaky.try_acquire(1)))),
            Row::new("ratelimit", || timed(CHECKS, || _ = black_box(rate.try_wait().is_ok()))),
            Row::new("governor, fast", || timed(CHECKS, || _ = black_box(fast.check().is_ok()))),
            Row::new("governor", || timed(CHECKS, || _ = black_box(governor.check().is_ok()))),
        ],
    );
    assert!(!leaky.try_acquire(1) && rate.try_wait().is_err(), "it is used up");
}

fn upkeep() -> QuantaUpkeepClock {
    QuantaUpkeepClock::from_interval(Duration::from_millis(1)).expect("one upkeep at a time")
}

fn hot(report: &mut Report) {
    let load = load("hot key", string_key, 1, false, 1 << 20);
    let alone = |subject: &dyn Subject<String>| one_thread(subject, &load);
    for (outcome, terms, is_allowed) in [("allowed", HOT, true), ("denied", HOURLY, false)] {
        let title = format!("string, hot key, {outcome}");
        report.contest(&Contest { title, load: &load, is_allowed, makers: all(terms, 1, 1, 1), time: &alone });
    }
    let both = |subject: &dyn Subject<String>| two_threads(subject, &[&load.keys, &load.keys]);
    let title = "string, same key, allowed, 2 threads".to_owned();
    report.contest(&Contest { title, load: &load, is_allowed: true, makers: all(HOT, 1, 1, 2), time: &both });
}

fn many(report: &mut Report, load: &Load<String>) {
    let keys = load.keys.len();
    let alone = |subject: &dyn Subject<String>| one_thread(subject, load);
    let title = format!("string, {}, allowed", load.name);
    report.contest(&Contest { title, load, is_allowed: true, makers: all(PLENTY, keys, keys, 1), time: &alone });
}

fn own_keys(report: &mut Report, load: &Load<String>) {
    let (mine, yours) = load.keys.split_at(load.keys.len() / 2);
    let both = |subject: &dyn Subject<String>| two_threads(subject, &[mine, yours]);
    let title = "string, own keys, allowed, 2 threads".to_owned();
    let makers = all(PLENTY, 1_000_000, load.keys.len(), 2);
    report.contest(&Contest { title, load, is_allowed: true, makers, time: &both });
}

/// Fixed stores are made for `capacity` keys.
fn all<'a>(terms: Terms, capacity: usize, keys: usize, threads: usize) -> Vec<Maker<'a, String>> {
    let mut makers = ours(terms, capacity);
    makers.extend(peers::keyed(terms, keys, threads));
    makers.extend(governors(terms));
    makers
}
