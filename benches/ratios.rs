//! Is a keyed check faster than governor's, and by how much? Interleaved rounds in one run; of each the median, and the
//! ratio of each round to governor's in that round: median, least, greatest.
//!
//! `cargo bench --bench ratios`, or with `-- --rounds 15 "string, 10k"` for the groups of that name.
#![allow(clippy::print_stdout, reason = "a bench prints what it has found")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a bench that can't be set up has nothing to measure")]
#![allow(missing_docs, unreachable_pub, clippy::exhaustive_structs, reason = "no library")]

mod peers;

use std::hash::Hash;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use governor::clock::QuantaUpkeepClock;
use peers::{
    HOURLY, Load, Many, PLENTY, Subject, Terms, coarse, fast_governor, fixed, governor, load, string_key, tollgate,
    two_threads,
};
use tollgate::{Clock, DirectLimiter, Limiter, Policy};

/// One thing that is measured: its name, and how long it takes for its number of checks, in nanoseconds a check.
struct Row<'a> {
    name: &'static str,
    measure: Box<dyn Fn() -> f64 + 'a>,
}

/// Is a check faster than governor's, and by how much?
#[derive(Parser)]
struct Arguments {
    /// How many rounds are measured
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Only groups whose name contains this
    #[arg(default_value = "")]
    only: String,
    /// What cargo gives to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

struct Report {
    arguments: Arguments,
    table: Table,
}

fn main() {
    let arguments = Arguments::parse();
    let rounds = arguments.rounds;
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(["row", "what", "ns", "ratio", "least", "greatest"]);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut report = Report { arguments, table };
    direct(&mut report);
    on_plans(&mut report);
    for (name, keys, zipf) in [("hot key", 1, false), ("10k uniform", 10_000, false), ("1M zipf 1.0", 1_000_000, true)]
    {
        keyed(&mut report, "u64", &load(name, u64::from, keys, zipf, 1 << 20));
        keyed(&mut report, "string", &load(name, string_key, keys, zipf, 1 << 20));
    }
    println!("\n{rounds} interleaved rounds, medians; the ratio is to the last of each group\n\n{}", report.table);
}

impl Report {
    fn wants(&self, title: &str) -> bool {
        title.contains(&self.arguments.only)
    }

    /// Runs the rows of one group in turn, and adds them to the table, each compared with the last.
    fn group(&mut self, title: &str, rows: &[Row<'_>]) {
        if self.wants(title) {
            println!("{title}");
            let mut times = vec![Vec::new(); rows.len()];
            rounds(self.arguments.rounds, rows, &mut times);
            let names: Vec<_> = rows.iter().map(|row| row.name).collect();
            self.add(title, &names, times);
        }
    }

    fn add(&mut self, title: &str, names: &[&str], mut times: Vec<Vec<f64>>) {
        let base = times.last().cloned().expect("a group has rows");
        for (name, times) in names.iter().zip(&mut times) {
            let mut ratios: Vec<f64> = times.iter().zip(&base).map(|(time, base)| time / base).collect();
            let (time, ratio) = (median(times), median(&mut ratios));
            self.table.add_row([
                title.to_owned(),
                (*name).to_owned(),
                format!("{time:.1}"),
                format!("{ratio:.2}"),
                format!("{:.2}", ratios[0]),
                format!("{:.2}", ratios[ratios.len() - 1]),
            ]);
        }
    }
}

/// Measures each row once a round, each round beginning with another, after a round to warm up.
fn rounds(rounds: usize, rows: &[Row<'_>], times: &mut [Vec<f64>]) {
    for round in 0..=rounds {
        for turn in 0..rows.len() {
            let index = (round + turn) % rows.len();
            let time = (rows[index].measure)();
            if round > 0 {
                times[index].push(time);
            }
        }
    }
}

/// Sorts, and returns the middle.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds for each of `checks` calls.
fn timed(checks: u64, mut check: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..checks {
        check();
    }
    start.elapsed().as_nanos() as f64 / checks as f64
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
            Row {
                name: "tollgate",
                measure: Box::new(|| timed(CHECKS, || _ = black_box(plenty.check().is_allowed()))),
            },
            Row { name: "governor", measure: Box::new(|| timed(CHECKS, || _ = black_box(theirs.check().is_ok()))) },
            Row {
                name: "TSC + load + CAS",
                measure: Box::new(|| {
                    timed(CHECKS, || {
                        let now = clock.raw();
                        let seen = word.load(Relaxed);
                        _ = black_box(word.compare_exchange(seen, seen.max(now) + 1, Relaxed, Relaxed));
                    })
                }),
            },
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
                Row {
                    name: "tollgate",
                    measure: Box::new(|| timed(CHECKS, || _ = black_box(plenty.check().is_allowed()))),
                },
                Row { name: "governor", measure: Box::new(|| timed(CHECKS, || _ = black_box(theirs.check().is_ok()))) },
                Row {
                    name: "load + load + CAS",
                    measure: Box::new(|| {
                        timed(CHECKS, || {
                            let now = now.load(Relaxed);
                            let seen = word.load(Relaxed);
                            _ = black_box(word.compare_exchange(seen, seen.max(now) + 1, Relaxed, Relaxed));
                        })
                    }),
                },
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
            Row {
                name: "tollgate",
                measure: Box::new(|| timed(CHECKS, || _ = black_box(hourly.check().is_allowed()))),
            },
            Row {
                name: "tollgate, coarse",
                measure: Box::new(|| timed(CHECKS, || _ = black_box(lagging.check().is_allowed()))),
            },
            Row { name: "governor", measure: Box::new(|| timed(CHECKS, || _ = black_box(theirs.check().is_ok()))) },
        ],
    );
}

/// A plan that the caller names, of one quota and of three, beside the one plan of a limiter that is given a quota only; and
/// that after a reload, when each thread has to look up its policy.
fn on_plans(report: &mut Report) {
    let load = load("hot key", string_key, 1, false, 1 << 20);
    let key = &load.keys[0];
    let plain = Limiter::new(PLENTY.tollgate()).unwrap();
    let reloaded = Limiter::new(PLENTY.tollgate()).unwrap();
    reloaded.reload(Policy::new().plan("default", PLENTY.tollgate())).unwrap();
    let plans = peers::plans(PLENTY);
    let [one, three] = ["one", "three"].map(|name| plans.plan(name).unwrap());
    let checks = load.order.len() as u64;
    report.group(
        "string, hot key, plans",
        &[
            Row {
                name: "three quotas",
                measure: Box::new(|| timed(checks, || _ = black_box(three.check(black_box(key)).is_allowed()))),
            },
            Row {
                name: "one quota",
                measure: Box::new(|| timed(checks, || _ = black_box(one.check(black_box(key)).is_allowed()))),
            },
            Row {
                name: "reloaded",
                measure: Box::new(|| timed(checks, || _ = black_box(reloaded.check(black_box(key)).is_allowed()))),
            },
            Row {
                name: "without plans",
                measure: Box::new(|| timed(checks, || _ = black_box(plain.check(black_box(key)).is_allowed()))),
            },
        ],
    );
}

fn keyed<K: Eq + Hash + Clone + Send + Sync + 'static>(report: &mut Report, kind: &str, load: &Load<K>) {
    let hot = load.keys.len() == 1;
    for (outcome, terms) in [("allowed", PLENTY), ("denied", HOURLY)] {
        if outcome == "allowed" || hot {
            let title = format!("{kind}, {}, {outcome}", load.name);
            report.subjects(&title, terms, load, load.keys.len(), &|subject| one_thread(subject, load));
            if hot {
                let two = |subject: &dyn Subject<K>| two_threads(subject, &[&load.keys, &load.keys]);
                report.subjects(&format!("{title}, 2 threads"), terms, load, load.keys.len(), &two);
            }
        }
    }
    if load.name == "10k uniform" {
        let (mine, yours) = load.keys.split_at(load.keys.len() / 2);
        let title = format!("{kind}, own keys, allowed, 2 threads");
        report.subjects(&title, PLENTY, load, 1_000_000, &|subject| two_threads(subject, &[mine, yours]));
    }
}

impl Report {
    /// A group with each limiter, every key known to it; governor as it comes is last, the one to compare with. Fixed stores are
    /// made for `capacity` keys.
    fn subjects<K: Eq + Hash + Clone + Send + Sync + 'static>(
        &mut self,
        title: &str,
        terms: Terms,
        load: &Load<K>,
        capacity: usize,
        time: &dyn Fn(&dyn Subject<K>) -> f64,
    ) {
        if !self.wants(title) {
            return;
        }
        println!("{title}");
        const NAMES: [&str; 8] = [
            "sharded",
            "sharded + coarse",
            "fixed",
            "fixed + coarse",
            "fixed, 8 at a time",
            "fixed + coarse, 8 at a time",
            "governor, fast",
            "governor",
        ];
        let mut times = vec![Vec::new(); NAMES.len()];
        // Made anew with another first each time: with a million keys, what is made first was found to be up to a fifth
        // slower, by where its memory lies.
        let passes = self.arguments.rounds.div_ceil(3);
        for first in 0..3 {
            let mut subjects: [Option<Box<dyn Subject<K>>>; NAMES.len()] = [const { None }; NAMES.len()];
            for turn in 0..NAMES.len() {
                let index = (3 * first + turn) % NAMES.len();
                let fixed = |clock| fixed(terms, capacity, clock);
                let coarsely = || Clock::coarse().unwrap();
                let subject: Box<dyn Subject<K>> = match index {
                    0 => Box::new(tollgate(terms)),
                    1 => Box::new(coarse(terms)),
                    2 => Box::new(fixed(Clock::precise())),
                    3 => Box::new(fixed(coarsely())),
                    4 => Box::new(Many(fixed(Clock::precise()))),
                    5 => Box::new(Many(fixed(coarsely()))),
                    6 => Box::new(fast_governor(terms)),
                    _ => Box::new(governor(terms)),
                };
                let denied = load.keys.iter().filter(|key| !subject.check(key)).count();
                assert!(denied <= load.keys.len() / 10_000, "{} denies {denied} new keys", NAMES[index]);
                subjects[index] = Some(subject);
            }
            let rows: Vec<_> = subjects
                .iter()
                .flatten()
                .map(|subject| Row { name: "", measure: Box::new(move || time(&**subject)) })
                .collect();
            rounds(passes, &rows, &mut times);
        }
        self.add(title, &NAMES, times);
    }
}

fn one_thread<K>(subject: &dyn Subject<K>, load: &Load<K>) -> f64 {
    let start = Instant::now();
    subject.check_all(&load.keys, &load.order);
    start.elapsed().as_nanos() as f64 / load.order.len() as f64
}
