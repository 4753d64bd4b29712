//! How many instructions does a check take? Counted by valgrind, which has to be there, in the loop of the checks alone.
//!
//! `cargo bench --bench instructions`
#![allow(clippy::print_stdout, reason = "a bench prints what it has found")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a bench that can't be set up has nothing to measure"
)]
#![allow(missing_docs, unreachable_pub, clippy::exhaustive_structs, reason = "no library")]

mod peers;

use std::env;
use std::hint::black_box;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use peers::{HOURLY, Many, PLENTY, Subject, coarse, fixed, governor, plans, string_key, tollgate};
use tollgate::{Clock, DirectLimiter, Policy, Quota};

const CHECKS: u64 = 10_000;

/// What is counted, by the name of its row.
const ROWS: [(&str, fn()); 21] = [
    ("TSC + load + CAS", floor),
    ("direct, allowed: tollgate", || {
        let limiter = DirectLimiter::new(Quota::per_second(4_000_000_000)).unwrap();
        repeat(|| limiter.check().is_allowed());
    }),
    ("direct, allowed: tollgate, coarse", || {
        let limiter = on_coarse(Quota::per_second(4_000_000_000));
        repeat(|| limiter.check().is_allowed());
    }),
    ("direct, denied: tollgate", || {
        let limiter = DirectLimiter::new(HOURLY.tollgate()).unwrap();
        repeat(|| limiter.check().is_allowed());
    }),
    ("direct, denied: tollgate, coarse", || {
        let limiter = on_coarse(HOURLY.tollgate());
        repeat(|| limiter.check().is_allowed());
    }),
    ("direct, allowed: governor", || {
        let quota = governor::Quota::per_second(4_000_000_000.try_into().unwrap());
        let limiter = governor::RateLimiter::direct(quota);
        repeat(|| limiter.check().is_ok());
    }),
    ("string, hot key, allowed: tollgate", || keyed(&tollgate(PLENTY))),
    ("string, hot key, allowed: tollgate, coarse", || keyed(&coarse(PLENTY))),
    ("string, hot key, allowed: fixed", || keyed(&fixed(PLENTY, 1_000, Clock::precise()))),
    ("string, hot key, allowed: fixed, coarse", || keyed(&fixed(PLENTY, 1_000, Clock::coarse().unwrap()))),
    ("string, hot key, allowed: fixed, coarse, 8 at a time", || {
        eight(&Many(fixed(PLENTY, 1_000, Clock::coarse().unwrap())))
    }),
    ("string, hot key, allowed: governor", || keyed(&governor(PLENTY))),
    ("string, hot key, denied: tollgate", || keyed(&tollgate(HOURLY))),
    ("string, hot key, denied: tollgate, coarse", || keyed(&coarse(HOURLY))),
    ("string, hot key, denied: fixed", || keyed(&fixed(HOURLY, 1_000, Clock::precise()))),
    ("string, hot key, denied: fixed, coarse", || keyed(&fixed(HOURLY, 1_000, Clock::coarse().unwrap()))),
    ("string, hot key, denied: governor", || keyed(&governor(HOURLY))),
    ("string, hot key, allowed: after a reload", || {
        let limiter = tollgate(PLENTY);
        limiter.reload(Policy::new().plan("default", PLENTY.tollgate())).unwrap();
        keyed(&limiter);
    }),
    ("string, hot key, allowed: a named plan", || {
        let limiter = plans(PLENTY);
        let plan = limiter.plan("one").unwrap();
        repeat(|| plan.check(black_box("key-0123456789abcdef")).is_allowed());
    }),
    ("string, hot key, allowed: a plan of three quotas", || {
        let limiter = plans(PLENTY);
        let plan = limiter.plan("three").unwrap();
        repeat(|| plan.check(black_box("key-0123456789abcdef")).is_allowed());
    }),
    ("nothing", || repeat(|| true)),
];

fn main() {
    let mut arguments = env::args().skip_while(|argument| argument != "--row").skip(1);
    if let Some(row) = arguments.next() {
        return ROWS[row.parse::<usize>().unwrap()].1();
    }
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(["row", "instructions"]);
    table.column_mut(1).unwrap().set_cell_alignment(CellAlignment::Right);
    for (row, (name, _)) in ROWS.iter().enumerate() {
        table.add_row([(*name).to_owned(), (instructions(row) / CHECKS).to_string()]);
    }
    println!("{table}");
}

/// The instructions of the loop.
fn instructions(row: usize) -> u64 {
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*repeat*"])
        .arg(env::current_exe().expect("a program that runs has a path"))
        .args(["--row", &row.to_string()])
        .output()
        .expect("valgrind is not there: install it first, as with `apt install valgrind`");
    let report = String::from_utf8_lossy(&run.stderr);
    let counted = report.lines().find_map(|line| line.split_once("Collected : "));
    counted.and_then(|(_, count)| count.trim().parse().ok()).unwrap_or_else(|| panic!("no count in:\n{report}"))
}

/// What valgrind looks for by its name.
#[inline(never)]
fn repeat(mut check: impl FnMut() -> bool) {
    for _ in 0..CHECKS {
        black_box(check());
    }
}

fn floor() {
    let clock = quanta::Clock::new();
    let word = AtomicU64::new(0);
    repeat(|| {
        let now = clock.raw();
        let seen = word.load(Relaxed);
        word.compare_exchange(seen, seen.max(now) + 1, Relaxed, Relaxed).is_ok()
    });
}

fn on_coarse(quota: Quota) -> DirectLimiter {
    DirectLimiter::with_clock(quota, Clock::coarse().unwrap()).unwrap()
}

/// The count is of each of eight.
fn eight(subject: &impl Subject<String>) {
    let keys = [string_key(1)];
    let order = vec![0; CHECKS as usize];
    repeat_once(|| subject.check_all(&keys, &order));
}

/// What valgrind looks for by its name.
#[inline(never)]
fn repeat_once(check: impl FnOnce()) {
    check();
}

fn keyed(subject: &impl Subject<String>) {
    let key = string_key(1);
    repeat(|| subject.check(black_box(&key)));
}
