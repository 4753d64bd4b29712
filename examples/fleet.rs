//! Eight nodes share a limit: each floods it, and the fleet admits what the limit says and no more.
//!
//! ```text
//! cargo run --release --features global --example fleet
//! cargo run --release --features redis --example fleet -- --processes
//! ```
//!
//! All nodes run in this process, each with a fleet handle, a background thread and a limiter of its own, over an authority in
//! memory that answers after 5 ms; or, with `--features redis` and `-- --redis redis://127.0.0.1`, over a Redis server. With
//! `--processes` each node is a process of its own, over that server, or over one that is started for it. Exits with 1 if any
//! window held more than the bound.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to the person who runs it")]

#[cfg(all(feature = "redis", unix))]
#[path = "fleet/ask.rs"]
mod ask;
#[path = "fleet/node.rs"]
mod node;
#[cfg(all(feature = "redis", unix))]
#[path = "fleet/processes.rs"]
mod processes;
#[cfg(all(feature = "redis", unix))]
#[path = "fleet/server.rs"]
mod server;

use std::collections::VecDeque;
use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;

use node::{Log, now};

/// Why it can't go on.
type Failure = Box<dyn Error + Send + Sync>;

/// Nodes that share a limit, and what each admits, second by second.
#[derive(Parser, Clone)]
struct Args {
    /// How many nodes there are.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Requests that the fleet may admit in a window.
    #[arg(long, default_value_t = 1_000)]
    limit: u64,
    /// The window in seconds.
    #[arg(long, default_value_t = 10)]
    window: u64,
    /// Requests a second that come to each node.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// What a node may admit while it asks for its first lease; the fleet may exceed the limit by as much on each node.
    #[arg(long, default_value_t = 0)]
    overdraft: u32,
    /// The time the authority in memory takes to answer, in milliseconds.
    #[arg(long, default_value_t = 5)]
    delay: u64,
    /// The address of a Redis server that is the authority, each node with a connection of its own (feature `redis`).
    #[arg(long)]
    redis: Option<String>,
    /// Run each node as a process of its own, over the server at `--redis`, or over a `redis-server` that is started for it
    /// and stopped again (feature `redis`).
    #[arg(long)]
    processes: bool,
    /// How long to run, in seconds.
    #[arg(long, default_value_t = 25)]
    seconds: u64,
    /// What keys begin with at the server.
    #[arg(skip)]
    prefix: String,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fleet: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether no window held more than the bound.
fn run() -> Result<bool, Failure> {
    let mut args = Args::parse();
    // What a run before this has counted is none of ours.
    args.prefix = format!("fleet-{}", std::process::id());
    #[cfg(all(feature = "redis", unix))]
    {
        if let Some(begin) = processes::begin_of_child() {
            return processes::be_a_node(args, begin).map(|()| true);
        }
        if args.processes {
            return processes::run(args);
        }
    }
    #[cfg(all(feature = "redis", unix))]
    if let Some(url) = &args.redis {
        ask::ask(url, &args.prefix)?;
    }
    #[cfg(not(all(feature = "redis", unix)))]
    if args.processes || args.redis.is_some() {
        return Err("a server can be the authority on Unix and in a build with it: run with `--features redis`".into());
    }
    let logs = node::start_all(&args)?;
    judge(&args, logs)
}

/// Shows what the nodes admit while they do, and judges it.
fn judge(args: &Args, mut logs: Vec<Log>) -> Result<bool, Failure> {
    let begin = logs.first().map_or_else(now, Log::begin);
    println!(
        "{} requests in {} s for {} nodes, {} requests/s come to each",
        args.limit, args.window, args.nodes, args.rate
    );
    println!(
        "second | admitted by each node{:width$} | all | last {} s | batches/s",
        "",
        args.window,
        width = (usize::from(args.nodes) * 5).saturating_sub(21)
    );
    let (mut before, mut sums, mut batches) = (vec![0; logs.len()], VecDeque::new(), 0);
    for second in 1..=args.seconds {
        thread::sleep((begin + Duration::from_secs(second)).saturating_sub(now()));
        let counts: Vec<u64> = logs.iter().map(Log::admitted).collect();
        let each: Vec<String> = counts.iter().zip(&before).map(|(now, before)| format!("{:4}", now - before)).collect();
        let all = counts.iter().sum::<u64>() - before.iter().sum::<u64>();
        sums.push_back(all);
        if sums.len() as u64 > args.window {
            sums.pop_front();
        }
        let sent: u64 = logs.iter().map(Log::batches).sum();
        println!(
            "{second:6} | {} | {all:4} | {:6} of {} | {:4}",
            each.join(" "),
            sums.iter().sum::<u64>(),
            args.limit,
            sent - batches
        );
        (before, batches) = (counts, sent);
    }

    let mut spans = Vec::new();
    for log in &mut logs {
        spans.extend(log.finish()?);
    }
    let (admitted, most) = (spans.len(), most(&spans, Duration::from_secs(args.window)));
    let bound = args.limit + u64::from(args.nodes) * u64::from(args.overdraft);
    println!("admitted {admitted}; at most {most} in any {} s, where the bound is {bound}", args.window);
    if admitted == 0 {
        return Err("nothing was admitted: see what the nodes say".into());
    }
    Ok(most as u64 <= bound)
}

/// The most admissions that are known to lie in a window of that length. Of each, the instants before and after the check are
/// known.
fn most(spans: &[(Duration, Duration)], window: Duration) -> usize {
    let (mut befores, mut afters): (Vec<_>, Vec<_>) = spans.iter().copied().unzip();
    befores.sort_unstable();
    afters.sort_unstable();
    let held = |begin: &Duration| {
        let ended = afters.partition_point(|after| *after < *begin + window);
        ended.saturating_sub(befores.partition_point(|before| before < begin))
    };
    befores.iter().map(held).max().unwrap_or(0)
}
