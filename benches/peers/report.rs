//! Groups of rows that are measured in turns, each compared with the last of its group.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints what it has found")]

use std::path::PathBuf;
use std::time::Instant;

use super::figures::Figures;
use super::{Load, Maker, Subject};

/// How groups are measured, and which.
#[derive(clap::Args)]
pub struct Measured {
    /// How many rounds are measured
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Where the figures are written to as JSON, besides the table
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Only groups whose name contains this
    #[arg(default_value = "")]
    only: String,
}

/// One thing that is measured: its name, and how long it takes for its number of checks, in nanoseconds a check.
pub struct Row<'a> {
    pub name: &'static str,
    pub measure: Box<dyn Fn() -> f64 + 'a>,
}

impl<'a> Row<'a> {
    pub fn new(name: &'static str, measure: impl Fn() -> f64 + 'a) -> Self {
        Self { name, measure: Box::new(measure) }
    }
}

/// Limiters that are all asked the same.
pub struct Contest<'a, K> {
    pub title: String,
    pub load: &'a Load<K>,
    /// What the keys are answered once all are known.
    pub is_allowed: bool,
    /// The one to compare with is the last.
    pub makers: Vec<Maker<'a, K>>,
    /// Nanoseconds a check.
    pub time: &'a dyn Fn(&dyn Subject<K>) -> f64,
}

pub struct Report {
    measured: Measured,
    figures: Figures,
}

impl Report {
    pub fn new(measured: Measured) -> Self {
        Self { measured, figures: Figures::new(["row", "what", "ns", "ratio", "least", "greatest"], 2) }
    }

    pub fn wants(&self, title: &str) -> bool {
        title.contains(&self.measured.only)
    }

    /// Runs the rows of one group in turn, and adds them to the table.
    pub fn group(&mut self, title: &str, rows: &[Row<'_>]) {
        if self.wants(title) {
            eprintln!("{title}");
            let mut times = vec![Vec::new(); rows.len()];
            rounds(self.measured.rounds, rows, &mut times);
            let names: Vec<_> = rows.iter().map(|row| row.name).collect();
            self.add(title, &names, times);
        }
    }

    /// A group with a row for each limiter, every key known to it.
    pub fn contest<K>(&mut self, contest: &Contest<'_, K>) {
        let Contest { title, load, is_allowed, makers, time } = contest;
        if !self.wants(title) {
            return;
        }
        eprintln!("{title}");
        let mut times = vec![Vec::new(); makers.len()];
        // Made anew with another first each time: with a million keys, what is made first was found to be up to a fifth
        // slower, by where its memory lies.
        let passes = self.measured.rounds.div_ceil(3);
        for first in 0..3 {
            let mut subjects: Vec<Option<Box<dyn Subject<K>>>> = makers.iter().map(|_| None).collect();
            for turn in 0..makers.len() {
                let index = (makers.len() * first / 3 + turn) % makers.len();
                let subject = makers[index].make();
                let denied = load.keys.iter().filter(|key| !subject.check(key)).count();
                assert!(denied <= load.keys.len() / 10_000, "{} denies {denied} new keys", makers[index].name);
                subjects[index] = Some(subject);
            }
            let rows: Vec<_> =
                subjects.iter().flatten().map(|subject| Row::new("", move || time(&**subject))).collect();
            rounds(passes, &rows, &mut times);
            for (subject, maker) in subjects.iter().flatten().zip(makers) {
                let answer = subject.check(&load.keys[0]);
                assert_eq!(answer, *is_allowed, "{} at the end of «{title}», is it allowed", maker.name);
            }
        }
        self.add(title, &makers.iter().map(|maker| maker.name).collect::<Vec<_>>(), times);
    }

    fn add(&mut self, title: &str, names: &[&str], mut times: Vec<Vec<f64>>) {
        let base = times.last().cloned().expect("a group has rows");
        for (name, times) in names.iter().zip(&mut times) {
            let mut ratios: Vec<f64> = times.iter().zip(&base).map(|(time, base)| time / base).collect();
            let (time, ratio) = (median(times), median(&mut ratios));
            self.figures.row([
                title.to_owned(),
                (*name).to_owned(),
                format!("{time:.1}"),
                format!("{ratio:.2}"),
                format!("{:.2}", ratios[0]),
                format!("{:.2}", ratios[ratios.len() - 1]),
            ]);
        }
    }

    /// Prints the table, and writes it where it was asked to.
    pub fn finish(self) {
        let Self { measured: Measured { rounds, json, .. }, figures } = self;
        println!("{rounds} interleaved rounds, medians; the ratio is to the last of each group\n\n{figures}");
        figures.save(json.as_deref());
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
pub fn timed(checks: u64, mut check: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..checks {
        check();
    }
    start.elapsed().as_nanos() as f64 / checks as f64
}
