//! As many checks as there can be.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::peers::{self, Check, Client, Failure, Kind, Limit, Node, Verdict};
use crate::server::Server;
use crate::table::{duration, quantiles, table};

#[derive(clap::Args)]
pub struct Args {
    /// How many requests are under way at once on a node where each waits for the network: each number a run.
    #[arg(long, value_delimiter = ',', default_value = "1,64,512")]
    in_flight: Vec<usize>,
    /// How many clients there are.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// How long each runs, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

/// That no run uses up.
const LIMIT: Limit = Limit { requests: 1_000_000_000, window: Duration::from_secs(10) };

/// For leases and caches to follow demand.
const WARM_UP: Duration = Duration::from_secs(3);

/// One check in so many is timed, so that the clock costs the others nothing.
const TIMED: u32 = 16;

pub fn run(args: &Args, kinds: &[Kind], url: &str) -> Result<(), Failure> {
    let (clients, mut server) = (peers::clients(args.clients)?, Server::new(url)?);
    let time = Duration::from_secs(args.seconds);
    let mut rows = table(
        &["one node", "under way", "checks/s", "by check", "mean", "p50", "p99", "p99.9", "max", "denied or failed"],
        1,
    );
    for &kind in kinds {
        // What an overdraft is worth is nothing here.
        if matches!(kind, Kind::Waiting | Kind::Tollgate(Some(_))) {
            continue;
        }
        let runs = if kind == Kind::RoundTrip { args.in_flight.as_slice() } else { &[1] };
        for &in_flight in runs {
            eprintln!("speed: {kind}, {in_flight} under way, {} s", args.seconds);
            server.clear()?;
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            let node = runtime.block_on(Node::new(kind, LIMIT, url))?;
            let lane = || -> Result<Lane, Failure> {
                let stop = AtomicBool::new(false);
                thread::scope(|scope| {
                    let stopper = scope.spawn(|| {
                        thread::sleep(WARM_UP);
                        stop.store(true, Ordering::Relaxed);
                    });
                    runtime.block_on(ask(&node, clients, &stop))?;
                    stopper.join().map_err(|_| "a thread panicked")?;
                    stop.store(false, Ordering::Relaxed);
                    scope.spawn(|| {
                        thread::sleep(time);
                        stop.store(true, Ordering::Relaxed);
                    });
                    runtime.block_on(ask(&node, clients, &stop))
                })
            };
            let begun = Instant::now();
            let (lane, took) = if in_flight == 1 {
                (lane()?, time)
            } else {
                let lane = runtime.block_on(crowd(&node, clients, in_flight, time))?;
                (lane, begun.elapsed())
            };
            let each = took.as_nanos() as f64 / lane.checks as f64;
            let rest = [duration(each), duration(lane.histogram.mean())];
            rows.add_row(
                [kind.to_string(), in_flight.to_string(), format!("{:.0}", lane.checks as f64 / took.as_secs_f64())]
                    .into_iter()
                    .chain(rest)
                    .chain(quantiles(&lane.histogram))
                    .chain([lane.wrong.to_string()]),
            );
            runtime.shutdown_background();
        }
    }
    println!("{} clients in turn, {} s, a limit that is never reached\n\n{rows}\n", args.clients, args.seconds);
    Ok(())
}

struct Lane {
    checks: u64,
    wrong: u64,
    histogram: Histogram<u64>,
}

impl Lane {
    fn new() -> Result<Self, Failure> {
        Ok(Self { checks: 0, wrong: 0, histogram: Histogram::new(3)? })
    }
}

/// One check after the other.
async fn ask(node: &Node, clients: &'static [Client], stop: &AtomicBool) -> Result<Lane, Failure> {
    let mut lane = Lane::new()?;
    for (n, client) in (0_u32..).zip(clients.iter().cycle()) {
        let start = n.is_multiple_of(TIMED).then(Instant::now);
        let verdict = match node.check(client) {
            Check::Now(verdict) => verdict,
            Check::Later(answer) => answer.await,
        };
        if let Some(start) = start {
            lane.histogram.record(start.elapsed().as_nanos() as u64)?;
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        lane.checks += 1;
        lane.wrong += u64::from(verdict != Verdict::Admit);
    }
    Ok(lane)
}

/// So many at once, each one check after the other.
async fn crowd(node: &Node, clients: &'static [Client], number: usize, time: Duration) -> Result<Lane, Failure> {
    let (end, mut askers) = (Instant::now() + time, JoinSet::new());
    for n in 0..number {
        let node = node.clone();
        askers.spawn(async move {
            let mut lane = Lane::new()?;
            for client in clients.iter().cycle().skip(n) {
                let start = Instant::now();
                if start >= end {
                    break;
                }
                let verdict = match node.check(client) {
                    Check::Now(verdict) => verdict,
                    Check::Later(answer) => answer.await,
                };
                lane.histogram.record(start.elapsed().as_nanos() as u64)?;
                lane.checks += 1;
                lane.wrong += u64::from(verdict != Verdict::Admit);
            }
            Ok::<_, Failure>(lane)
        });
    }
    let mut all = Lane::new()?;
    while let Some(lane) = askers.join_next().await {
        let lane = lane??;
        all.checks += lane.checks;
        all.wrong += lane.wrong;
        all.histogram.add(lane.histogram)?;
    }
    Ok(all)
}
