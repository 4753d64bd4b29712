//! Is a keyed check faster than governor's, and by how much? Interleaved rounds in one run; of each the median, and the
//! ratio of each round to governor's in that round: median, least, greatest.
//!
//! `cargo bench --bench ratios`, or with `-- --rounds 15 "string, 10k"` for the groups of that name.
#![allow(clippy::print_stdout, reason = "a bench prints what it has found")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a bench that can't be set up has nothing to measure")]
#![allow(missing_docs, unreachable_pub, clippy::exhaustive_structs, reason = "no library")]

mod peers;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use clap::Parser;
use governor::clock::QuantaUpkeepClock;
use peers::report::{Contest, Measured, Report, Row, timed};
use peers::{
    HOT, HOURLY, Load, Maker, Many, PLENTY, Subject, Terms, coarsely, fixed, governors, load, one_thread, ours,
    string_key, two_threads,
};
use tollgate::{Clock, DirectLimiter, Key, Limiter, Policy};

/// Is a check faster than governor's, and by how much?
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    measured: Measured,
    /// What cargo gives to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let mut report = Report::new(Arguments::parse().measured);
    direct(&mut report);
    on_plans(&mut report);
    for (name, keys, zipf) in [("hot key", 1, false), ("10k uniform", 10_000, false), ("1M zipf 1.0", 1_000_000, true)]
    {
        keyed(&mut report, "u64", &load(name, u64::from, keys, zipf, 1 << 20));
        keyed(&mut report, "string", &load(name, string_key, keys, zipf, 1 << 20));
    }
    report.finish();
}

/// One bucket, beside the floor: a TSC read, a load and a compare-and-swap.
fn direct(report: &mut Report) {
    const CHECKS: u64 = 2_000_000;
    let plenty = DirectLimiter::new(tollgate::Quota::per_second(4_000_000_000)).unwrap();
    let theirs = governor::RateLimiter::direct(governor::Quota::per_second(4_000_000_000.try_into().unwrap()));
    let clock = quanta::Clock::new();
    let word = AtomicU64::new(0);
    report.group(
        "direct, allowed",
        &[
            Row::new("tollgate", || timed(CHECKS, || _ = black_box(plenty.check().is_allowed()))),
            Row::new("governor", || timed(CHECKS, || _ = black_box(theirs.check().is_ok()))),
            Row::new("TSC + load + CAS", || {
                timed(CHECKS, || {
                    let now = clock.raw();
                    let seen = word.load(Relaxed);
                    _ = black_box(word.compare_exchange(seen, seen.max(now) + 1, Relaxed, Relaxed));
                })
            }),
        ],
    );
    let coarse = |quota| DirectLimiter::with_clock(quota, Clock::coarse().unwrap()).unwrap();
    let upkeep = || QuantaUpkeepClock::from_interval(Duration::from_millis(1)).unwrap();
    {
        let plenty = coarse(tollgate::Quota::per_second(4_000_000_000));
        let quota = governor::Quota::per_second(4_000_000_000.try_into().unwrap());
        let theirs = governor::RateLimiter::direct_with_clock(quota, upkeep());
        let now = AtomicU64::new(1);
        report.group(
            "direct, coarse, allowed",
            &[
                Row::new("tollgate", || timed(CHECKS, || _ = black_box(plenty.check().is_allowed()))),
                Row::new("governor", || timed(CHECKS, || _ = black_box(theirs.check().is_ok()))),
                Row::new("load + load + CAS", || {
                    timed(CHECKS, || {
                        let now = now.load(Relaxed);
                        let seen = word.load(Relaxed);
                        _ = black_box(word.compare_exchange(seen, seen.max(now) + 1, Relaxed, Relaxed));
                    })
                }),
            ],
        );
    }
    let hourly = DirectLimiter::new(HOURLY.tollgate()).unwrap();
    let lagging = coarse(HOURLY.tollgate());
    assert!(lagging.check().is_allowed());
    let theirs = governor::RateLimiter::direct(HOURLY.governor());
    assert!(hourly.check().is_allowed() && theirs.check().is_ok());
    report.group(
        "direct, denied",
        &[
            Row::new("tollgate", || timed(CHECKS, || _ = black_box(hourly.check().is_allowed()))),
            Row::new("tollgate, coarse", || timed(CHECKS, || _ = black_box(lagging.check().is_allowed()))),
            Row::new("governor", || timed(CHECKS, || _ = black_box(theirs.check().is_ok()))),
        ],
    );
}

/// A plan that the caller names, of one quota and of three, beside the one plan of a limiter that is given a quota only; and
/// that after a reload, when each thread has to look up its policy.
fn on_plans(report: &mut Report) {
    let load = load("hot key", string_key, 1, false, 1 << 20);
    let key = &load.keys[0];
    let plain = Limiter::new(HOT.tollgate()).unwrap();
    let reloaded = Limiter::new(HOT.tollgate()).unwrap();
    reloaded.reload(Policy::new().plan("default", HOT.tollgate())).unwrap();
    let plans = peers::plans(HOT);
    let [one, three] = ["one", "three"].map(|name| plans.plan(name).unwrap());
    let checks = load.order.len() as u64;
    report.group(
        "string, hot key, plans",
        &[
            Row::new("three quotas", || timed(checks, || _ = black_box(three.check(black_box(key)).is_allowed()))),
            Row::new("one quota", || timed(checks, || _ = black_box(one.check(black_box(key)).is_allowed()))),
            Row::new("reloaded", || timed(checks, || _ = black_box(reloaded.check(black_box(key)).is_allowed()))),
            Row::new("without plans", || timed(checks, || _ = black_box(plain.check(black_box(key)).is_allowed()))),
        ],
    );
}

fn keyed<K: Key + Clone + 'static>(report: &mut Report, kind: &str, load: &Load<K>) {
    let hot = load.keys.len() == 1;
    let alone = |subject: &dyn Subject<K>| one_thread(subject, load);
    if hot {
        let both = |subject: &dyn Subject<K>| two_threads(subject, &[&load.keys, &load.keys]);
        for (outcome, terms, is_allowed) in [("allowed", HOT, true), ("denied", HOURLY, false)] {
            let title = format!("{kind}, {}, {outcome}", load.name);
            let two = format!("{title}, 2 threads");
            report.contest(&Contest { title, load, is_allowed, makers: all(terms, 1), time: &alone });
            report.contest(&Contest { title: two, load, is_allowed, makers: all(terms, 1), time: &both });
        }
        return;
    }
    let title = format!("{kind}, {}, allowed", load.name);
    let makers = all(PLENTY, load.keys.len());
    report.contest(&Contest { title, load, is_allowed: true, makers, time: &alone });
    if load.name == "10k uniform" {
        let (mine, yours) = load.keys.split_at(load.keys.len() / 2);
        let both = |subject: &dyn Subject<K>| two_threads(subject, &[mine, yours]);
        let title = format!("{kind}, own keys, allowed, 2 threads");
        report.contest(&Contest { title, load, is_allowed: true, makers: all(PLENTY, 1_000_000), time: &both });
    }
}

/// Fixed stores are made for `capacity` keys.
fn all<'a, K: Key + Clone + 'static>(terms: Terms, capacity: usize) -> Vec<Maker<'a, K>> {
    let mut makers = ours(terms, capacity);
    makers.push(Maker::new("fixed, 8 at a time", move || Many(fixed(terms, capacity, Clock::precise()))));
    makers.push(Maker::new("fixed + coarse, 8 at a time", move || Many(fixed(terms, capacity, coarsely()))));
    makers.extend(governors(terms));
    makers
}
