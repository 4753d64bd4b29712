//! How long does the slowest check take while keys come and go? One thread times single checks of keys that are in use,
//! first by itself, then while another brings new ones as fast as it can, one a microsecond at most. Keys go idle a
//! microsecond for each key in use after their last check, the least time in which all of them are replaced, and up to four
//! times as long after several. Governor's user has to call `retain_recent`: here the thread that brings the keys does, each
//! time a tenth of them is new. The fixed store is made for four times the keys in use, as many as may not be idle yet.
//!
//! Counted twice: by checks, and by requests that would come every 2 µs, of which a check that takes longer stands for all that
//! would have waited behind it: a stall of a second is not one slow check in a second, it is half a million requests. What the
//! machine itself stalls is in both, at rest as well.
//!
//! `cargo bench --bench latency`, or with `-- --keys 10000000 --shards 4096`.
#![allow(clippy::print_stdout, reason = "a bench prints what it has found")]
#![allow(clippy::expect_used, reason = "a bench that can't be set up has nothing to measure")]
#![allow(missing_docs, unreachable_pub, clippy::exhaustive_structs, reason = "no library")]

mod peers;

use std::hint::{black_box, spin_loop};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use hdrhistogram::Histogram;
use peers::figures::Figures;
use peers::{Subject, Terms, fixed, governor, string_key};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tollgate::{Clock, Limiter};

/// Between two requests, in nanoseconds.
const INTERVAL: u64 = 2_000;

/// Between two new keys, in nanoseconds.
const NEW_KEY: u64 = 1_000;

const QUANTILES: [f64; 5] = [0.5, 0.99, 0.999, 0.9999, 1.0];

/// How long does the slowest check take while keys come and go?
#[derive(Parser)]
struct Arguments {
    /// How many keys are in use
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10..3_600_000_000))]
    keys: u64,
    /// How many checks are timed at rest, and again while keys come and go
    #[arg(long, default_value_t = 5_000_000)]
    checks: u64,
    /// Shards of our limiter that has some, unless the default
    #[arg(long)]
    shards: Option<usize>,
    /// Where the figures are written to as JSON, besides the table
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// What cargo gives to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let Arguments { keys, checks, shards, json, .. } = Arguments::parse();
    // A unit comes back in a microsecond for each key.
    let terms = Terms { rate_per_hour: (3_600_000_000 / keys) as u32, burst: 4 };
    let mut figures = Figures::new(["ns", "of", "", "p50", "p99", "p99.9", "p99.99", "max", "new keys"], 3);

    let builder = Limiter::builder().keys::<String>().quota(terms.tollgate());
    let builder = shards.into_iter().fold(builder, |builder, shards| builder.shards(shards));
    let sharded = builder.build().expect("terms make sense");
    rows(&mut figures, "sharded", &sharded, &|| (), keys, checks);
    println!("sharded: {}", sharded.stats());
    drop(sharded);
    let fixed = fixed::<String>(terms, 4 * keys as usize, Clock::precise());
    rows(&mut figures, "fixed", &fixed, &|| (), keys, checks);
    println!("fixed: {}", fixed.stats());
    drop(fixed);
    let governor = governor::<String>(terms);
    rows(&mut figures, "governor", &governor, &|| governor.retain_recent(), keys, checks);

    println!("\n{keys} keys of 20 bytes, {checks} checks of one thread, each timed by two TSC reads\n\n{figures}");
    figures.save(json.as_deref());
}

/// At rest, while keys come and go, and how many times as long it takes then.
fn rows(
    figures: &mut Figures,
    name: &str,
    subject: &dyn Subject<String>,
    upkeep: &(dyn Fn() + Sync),
    keys: u64,
    checks: u64,
) {
    for key in 0..keys {
        subject.check(&string_key(key));
    }
    // The keys in use are the last `keys` that came.
    let newest = AtomicU64::new(keys);
    let at_rest = timed_checks(subject, &newest, keys, checks);
    let done = AtomicBool::new(false);
    let busy = thread::scope(|scope| {
        scope.spawn(|| {
            bring_keys(subject, &newest, &done, &|key| {
                if key.is_multiple_of(keys / 10) {
                    upkeep();
                }
            });
        });
        let quantiles = timed_checks(subject, &newest, keys, checks);
        done.store(true, Ordering::Relaxed);
        quantiles
    });
    let new_keys = (newest.into_inner() - keys).to_string();
    for ((of, at_rest), busy) in ["checks", "requests"].into_iter().zip(at_rest).zip(busy) {
        let mut add = |what: &str, values: [String; 5], new_keys: &str| {
            let words = [name, of, what].map(str::to_owned);
            figures.row(words.into_iter().chain(values).chain([new_keys.to_owned()]));
        };
        add("at rest", at_rest.map(|ns| ns.to_string()), "0");
        add("keys come and go", busy.map(|ns| ns.to_string()), &new_keys);
        let ratio = |n: usize| format!("{:.2}", busy[n] as f64 / at_rest[n] as f64);
        add("times as long", [0, 1, 2, 3, 4].map(ratio), "");
    }
}

fn bring_keys(subject: &dyn Subject<String>, newest: &AtomicU64, done: &AtomicBool, after: &dyn Fn(u64)) {
    let clock = quanta::Clock::new();
    let mut last = clock.raw();
    while !done.load(Ordering::Relaxed) {
        let key = newest.fetch_add(1, Ordering::Relaxed);
        subject.check(&string_key(key));
        after(key);
        while clock.delta_as_nanos(last, clock.raw()) < NEW_KEY {
            spin_loop();
        }
        last = clock.raw();
    }
}

/// Of checks, and of requests.
fn timed_checks(subject: &dyn Subject<String>, newest: &AtomicU64, keys: u64, checks: u64) -> [[u64; 5]; 2] {
    let histogram = || Histogram::<u64>::new(3).expect("three digits");
    let (mut of_checks, mut of_requests) = (histogram(), histogram());
    let clock = quanta::Clock::new();
    let mut rng = SmallRng::seed_from_u64(1);
    for _ in 0..checks {
        // Made outside of what is timed.
        let key = string_key(newest.load(Ordering::Relaxed) - 1 - rng.random_range(0..keys));
        let start = clock.raw();
        black_box(subject.check(&key));
        let end = clock.raw();
        let taken = clock.delta_as_nanos(start, end);
        of_checks.record(taken).expect("a histogram that grows");
        of_requests.record_correct(taken, INTERVAL).expect("a histogram that grows");
    }
    [of_checks, of_requests].map(|histogram| QUANTILES.map(|quantile| histogram.value_at_quantile(quantile)))
}
