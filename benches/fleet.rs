//! What does a global quota add to a check? Keys with a lease against the same keys with the quota of their node alone,
//! while the authority answers, and while it does not.
//!
//! `cargo bench --bench fleet --features global`
#![allow(clippy::print_stdout, reason = "a bench prints what it has found")]
#![allow(clippy::expect_used, reason = "a bench that can't be set up has nothing to measure")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;
use tollgate::global::{Authority, Call, Fleet, GlobalQuota, MemoryAuthority};
use tollgate::{Limiter, Plan, Quota, Source};

const ROUNDS: usize = 9;
const CHECKS: usize = 1_000_000;
const QUANTILES: [f64; 5] = [0.5, 0.99, 0.999, 0.9999, 1.0];

/// An authority that can be stopped: it then says nothing at all.
#[derive(Clone)]
struct Stoppable {
    inner: MemoryAuthority,
    is_stopped: Arc<AtomicBool>,
}

impl Authority for Stoppable {
    fn call(&self, call: Call) {
        if !self.is_stopped.load(Ordering::Relaxed) {
            self.inner.call(call);
        }
    }
}

fn main() {
    let mut ratios =
        table(&["ns a check", "keys", "authority", "node alone", "leased", "ratio, median", "range", "leased"]);
    let mut tails = table(&["ns", "keys", "authority", "p50", "p99", "p99.9", "p99.99", "max"]);
    for keys in [1, 100, 10_000] {
        let authority = Stoppable { inner: MemoryAuthority::new(), is_stopped: Arc::new(AtomicBool::new(false)) };
        let fleet = Fleet::builder(authority.clone()).start().expect("there are threads");
        // It comes back so slowly that no key is idle, and evicted, between two checks.
        let own = Quota::per_hour(1_000_000).burst(4_000_000_000);
        let global = GlobalQuota::sliding_window(4_000_000_000, Duration::from_secs(60)).nodes(1);
        let alone = Limiter::builder().plan("api", own).build().expect("a quota that makes sense");
        let plan = Plan::new([own]).global(global);
        let leased = Limiter::builder().fleet(&fleet).plan("api", plan).build().expect("a quota that makes sense");
        let names: Vec<String> = (0..keys).map(|key| format!("client-{key:013}")).collect();
        for state in ["answers", "stopped"] {
            authority.is_stopped.store(state == "stopped", Ordering::Relaxed);
            // Long enough for leases to follow demand, and to be over once nobody renews them.
            let warm_up = Instant::now();
            while warm_up.elapsed() < Duration::from_secs(3) {
                run(&alone, &names, 10_000);
                run(&leased, &names, 10_000);
            }
            let mut times: Vec<(f64, f64)> =
                (0..ROUNDS).map(|_| (time(&alone, &names), time(&leased, &names))).collect();
            times.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
            let ratio = |n: usize| times[n].1 / times[n].0;
            let covered = run(&leased, &names, 100_000) as f64 / 1_000.0;
            ratios.add_row([
                String::new(),
                keys.to_string(),
                state.to_owned(),
                format!("{:.1}", times[ROUNDS / 2].0),
                format!("{:.1}", times[ROUNDS / 2].1),
                format!("{:.2}", ratio(ROUNDS / 2)),
                format!("{:.2} to {:.2}", ratio(0), ratio(ROUNDS - 1)),
                format!("{covered:.1} %"),
            ]);
            let histogram = histogram(&leased, &names);
            let quantiles = QUANTILES.map(|quantile| histogram.value_at_quantile(quantile).to_string());
            let row = [String::new(), keys.to_string(), state.to_owned()].into_iter().chain(quantiles);
            tails.add_row(row.collect::<Vec<_>>());
            thread::sleep(Duration::from_millis(100));
        }
    }
    println!("{ratios}\n\n{tails}");
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// How many of so many checks were admitted on a lease.
fn run(limiter: &Limiter, names: &[String], checks: usize) -> usize {
    let names = names.iter().cycle().take(checks);
    names.filter(|name| matches!(limiter.check(name).source(), Source::Lease | Source::Away)).count()
}

/// Nanoseconds a check.
fn time(limiter: &Limiter, names: &[String]) -> f64 {
    let start = Instant::now();
    for name in names.iter().cycle().take(CHECKS) {
        black_box(limiter.check(name).is_allowed());
    }
    start.elapsed().as_nanos() as f64 / CHECKS as f64
}

fn histogram(limiter: &Limiter, names: &[String]) -> Histogram<u64> {
    let clock = quanta::Clock::new();
    let mut histogram = Histogram::new(3).expect("three digits are legal");
    for name in names.iter().cycle().take(5 * CHECKS) {
        let start = clock.raw();
        black_box(limiter.check(name).is_allowed());
        histogram.record(clock.delta_as_nanos(start, clock.raw())).expect("it grows");
    }
    histogram
}
