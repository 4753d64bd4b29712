//! How long does the slowest check take while keys come and go? One thread times single checks of keys that are in use,
//! another brings new ones as fast as it can; keys go idle a microsecond for each key after their last check, in about
//! the time in which all of them are replaced. Governor's user has to call `retain_recent`: here the thread that brings
//! the keys does, each time a tenth of them is new.
//!
//! A check that takes longer than the interval at which requests would come, 2 µs, stands for all that would have waited
//! behind it: a stall of a second is not one slow check in a second, it is half a million.
//!
//! `cargo bench --bench latency`, or with `-- --keys 10000000 --shards 1024`.
#![allow(clippy::print_stdout, reason = "a bench prints what it has found")]
#![allow(clippy::expect_used, reason = "a bench that can't be set up has nothing to measure")]
#![allow(missing_docs, unreachable_pub, clippy::exhaustive_structs, reason = "no library")]

mod peers;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;
use peers::{Subject, Terms, governor, string_key};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tollgate::Limiter;

const CHECKS: u64 = 5_000_000;

/// Between two requests, in nanoseconds.
const INTERVAL: u64 = 2_000;

const QUANTILES: [f64; 5] = [0.5, 0.99, 0.999, 0.9999, 1.0];

/// How long does the slowest check take while keys come and go?
#[derive(Parser)]
struct Arguments {
    /// How many keys are in use
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10..3_600_000_000))]
    keys: u64,
    /// Shards of our limiter, unless the default
    #[arg(long)]
    shards: Option<usize>,
    /// What cargo gives to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let Arguments { keys, shards, .. } = Arguments::parse();
    // A unit comes back in a microsecond for each key.
    let terms = Terms { rate_per_hour: (3_600_000_000 / keys) as u32, burst: 4 };

    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(["ns", "p50", "p99", "p99.9", "p99.99", "max", "new keys"]);
    for at_rest in [true, false] {
        let builder = Limiter::builder().keys::<String>().quota(terms.tollgate());
        let builder = shards.into_iter().fold(builder, |builder, shards| builder.shards(shards));
        let ours = builder.build().expect("terms make sense");
        row(&mut table, &ours, &|| (), keys, at_rest);
        println!("{}", ours.stats());
        drop(ours);
        let theirs = governor::<String>(terms);
        row(&mut table, &theirs, &|| theirs.retain_recent(), keys, at_rest);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("\n{keys} keys of 20 bytes, {CHECKS} checks of one thread, each timed by two TSC reads\n\n{table}");
}

fn row(table: &mut Table, subject: &dyn Subject<String>, upkeep: &(dyn Fn() + Sync), keys: u64, at_rest: bool) {
    for key in 0..keys {
        subject.check(&string_key(key));
    }
    // The keys in use are the last `keys` that came.
    let newest = AtomicU64::new(keys);
    let done = AtomicBool::new(at_rest);
    let histogram = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let key = newest.fetch_add(1, Ordering::Relaxed);
                subject.check(&string_key(key));
                if key.is_multiple_of(keys / 10) {
                    upkeep();
                }
            }
        });
        let histogram = timed_checks(subject, &newest, keys);
        done.store(true, Ordering::Relaxed);
        histogram
    });
    let what = if at_rest { "at rest" } else { "keys come and go" };
    let mut cells = vec![format!("{}, {what}", subject.name())];
    cells.extend(QUANTILES.map(|quantile| histogram.value_at_quantile(quantile).to_string()));
    cells.push((newest.into_inner() - keys).to_string());
    table.add_row(cells);
}

fn timed_checks(subject: &dyn Subject<String>, newest: &AtomicU64, keys: u64) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three digits");
    let clock = quanta::Clock::new();
    let mut rng = SmallRng::seed_from_u64(1);
    for _ in 0..CHECKS {
        // Made outside of what is timed.
        let key = string_key(newest.load(Ordering::Relaxed) - 1 - rng.random_range(0..keys));
        let start = clock.raw();
        black_box(subject.check(&key));
        let end = clock.raw();
        let taken = clock.delta_as_nanos(start, end);
        histogram.record_correct(taken, INTERVAL).expect("a histogram that grows");
    }
    histogram
}
