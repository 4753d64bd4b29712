//! Eight nodes share a limit: each floods it, and the fleet admits what the limit says and no more.
//!
//! ```text
//! cargo run --release --features global --example fleet
//! ```
//!
//! All nodes run in this process, each with a fleet handle, a background thread and a limiter of its own, over an authority
//! in memory that answers after 5 ms; or, with `--features redis` and `-- --redis redis://127.0.0.1`, over a Redis server.
//! Exits with 1 if any window held more than the bound.
#![allow(clippy::print_stdout, reason = "a program talks to the person who runs it")]

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use tollgate::global::{Authority, Call, Fleet, GlobalQuota, MemoryAuthority};
use tollgate::{Limiter, Plan};

/// Nodes that share a limit, and what each admits, second by second.
#[derive(Parser)]
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
    /// The time the authority takes to answer, in milliseconds.
    #[arg(long, default_value_t = 5)]
    delay: u64,
    /// The address of a Redis server that is the authority, each node with a connection of its own.
    #[cfg(feature = "redis")]
    #[arg(long)]
    redis: Option<String>,
    /// How long to run, in seconds.
    #[arg(long, default_value_t = 25)]
    seconds: u64,
}

/// An authority at the other end of a network that takes its time.
struct Distant(Sender<(Instant, Call)>, Duration);

impl Distant {
    fn new(inner: MemoryAuthority, delay: Duration) -> Self {
        let (sender, calls) = mpsc::channel::<(Instant, Call)>();
        thread::spawn(move || {
            // All take equally long, so that they come in the order in which they were made.
            for (due, call) in calls {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                inner.call(call);
            }
        });
        Self(sender, delay)
    }
}

impl Authority for Distant {
    fn call(&self, call: Call) {
        // The other end lives for as long as this.
        let _ = self.0.send((Instant::now() + self.1, call));
    }
}

/// The authority of one node.
enum Chosen {
    Distant(Distant),
    #[cfg(feature = "redis")]
    Redis(tollgate::global::RedisAuthority),
}

impl Chosen {
    fn new(args: &Args, memory: &MemoryAuthority) -> Result<Self, Box<dyn std::error::Error>> {
        #[cfg(feature = "redis")]
        if let Some(url) = &args.redis {
            // What a run before this has counted is none of ours.
            let prefix = format!("fleet-{}", std::process::id());
            return Ok(Self::Redis(tollgate::global::RedisAuthority::builder(url).key_prefix(prefix).build()?));
        }
        Ok(Self::Distant(Distant::new(memory.clone(), Duration::from_millis(args.delay))))
    }
}

impl Authority for Chosen {
    fn call(&self, call: Call) {
        match self {
            Self::Distant(distant) => distant.call(call),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.call(call),
        }
    }
}

struct Node {
    fleet: Fleet,
    admitted: Arc<AtomicU64>,
    driver: thread::JoinHandle<Vec<Duration>>,
}

fn start(
    args: &Args,
    authority: &MemoryAuthority,
    start: Instant,
    stop: &Arc<AtomicBool>,
) -> Result<Node, Box<dyn std::error::Error>> {
    let fleet = Fleet::builder(Chosen::new(args, authority)?).start()?;
    let quota = GlobalQuota::sliding_window(args.limit, Duration::from_secs(args.window)).overdraft(args.overdraft);
    let limiter = Limiter::builder().fleet(&fleet).plan("api", Plan::new([]).global(quota)).build()?;
    let admitted = Arc::new(AtomicU64::new(0));
    let (count, stop, rate) = (Arc::clone(&admitted), Arc::clone(stop), args.rate);
    let driver = thread::spawn(move || {
        let (mut log, mut sent) = (Vec::new(), 0);
        while !stop.load(Ordering::Relaxed) {
            let due = (start.elapsed().as_micros() * u128::from(rate) / 1_000_000) as u64;
            while sent < due {
                sent += 1;
                if limiter.check("alice").is_allowed() {
                    log.push(start.elapsed());
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
        log
    });
    Ok(Node { fleet, admitted, driver })
}

/// The most that any window of that length held.
fn most(mut log: Vec<Duration>, window: Duration) -> usize {
    log.sort_unstable();
    let (mut held, mut most) = (VecDeque::new(), 0);
    for at in log {
        while held.front().is_some_and(|first| *first + window <= at) {
            held.pop_front();
        }
        held.push_back(at);
        most = most.max(held.len());
    }
    most
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let args = Args::parse();
    let (authority, begun, stop) = (MemoryAuthority::new(), Instant::now(), Arc::new(AtomicBool::new(false)));
    let nodes = (0..args.nodes).map(|_| start(&args, &authority, begun, &stop));
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
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

    let (mut before, mut sums, mut batches) = (vec![0; nodes.len()], VecDeque::new(), 0);
    for second in 1..=args.seconds {
        thread::sleep((begun + Duration::from_secs(second)).saturating_duration_since(Instant::now()));
        let now: Vec<u64> = nodes.iter().map(|node| node.admitted.load(Ordering::Relaxed)).collect();
        let each: Vec<String> = now.iter().zip(&before).map(|(now, before)| format!("{:4}", now - before)).collect();
        let all = now.iter().sum::<u64>() - before.iter().sum::<u64>();
        sums.push_back(all);
        if sums.len() as u64 > args.window {
            sums.pop_front();
        }
        let sent: u64 = nodes.iter().map(|node| node.fleet.stats().batches).sum();
        println!(
            "{second:6} | {} | {all:4} | {:6} of {} | {:4}",
            each.join(" "),
            sums.iter().sum::<u64>(),
            args.limit,
            sent - batches
        );
        (before, batches) = (now, sent);
    }

    stop.store(true, Ordering::Relaxed);
    let mut log = Vec::new();
    for node in nodes {
        log.extend(node.driver.join().map_err(|_| "a node panicked")?);
        let end = node.fleet.shutdown(Duration::from_secs(5));
        if !end.is_settled {
            println!("a node could not report all in time: {end:?}");
        }
    }
    let (admitted, most) = (log.len(), most(log, Duration::from_secs(args.window)));
    let bound = args.limit + u64::from(args.nodes) * u64::from(args.overdraft);
    println!("admitted {admitted}; at most {most} in any {} s, where the bound is {bound}", args.window);
    Ok(if most as u64 > bound { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
