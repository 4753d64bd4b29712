//! Many clients, most of them far below their limit.

use std::collections::HashSet;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Exp, Zipf};

use crate::judge;
use crate::load::{self, Load};
use crate::peers::{self, Failure, Kind, Limit, Verdict};
use crate::server::Server;
use crate::table::{latencies, quantiles, table};

#[derive(clap::Args)]
pub struct Args {
    /// How many nodes there are; each request comes to one of them by chance.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Requests a second in all, at random instants.
    #[arg(long, default_value_t = 4_000)]
    rate: u32,
    /// How many clients there are.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// The frequency of the client of rank r is r to the power of minus this.
    #[arg(long, default_value_t = 1.0)]
    exponent: f64,
    /// Requests of a client that all nodes together may admit in a window.
    #[arg(long, default_value_t = 400)]
    limit: u32,
    /// The window in seconds.
    #[arg(long, default_value_t = 10)]
    window: u64,
    /// How long it takes, in seconds.
    #[arg(long, default_value_t = 40)]
    seconds: u64,
    /// The same seed makes the same requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(args: &Args, kinds: &[Kind], url: &str) -> Result<(), Failure> {
    let limit = Limit { requests: args.limit, window: Duration::from_secs(args.window) };
    let (clients, mut server) = (peers::clients(args.clients)?, Server::new(url)?);
    let load = zipf(args)?;
    let requests = load.iter().map(Vec::len).sum::<usize>();
    let seen: HashSet<u32> = load.iter().flatten().map(|(_, client)| *client).collect();
    let (perfect, innocent) = judge::perfect(&load, limit);
    let mut wrong = table(
        &[
            "per million requests",
            "denied wrongly",
            "of clients within the limit",
            "admitted wrongly",
            "admitted",
            "failed",
        ],
        1,
    );
    let mut time = table(&["", "p50", "p99", "p99.9", "max"], 1);
    let mut cost =
        table(&["", "calls/s", "commands/s", "in, B/s", "out, B/s", "server's CPU", "keys", "bytes a client"], 1);
    for &kind in kinds {
        eprintln!("replay: {kind}, {} nodes, {} s", args.nodes, args.seconds);
        server.clear()?;
        let (mut work, mut kept) = (None, (0, 0));
        let shared = std::sync::Mutex::new(&mut server);
        let lock = || shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let outcome = load::run(
            kind,
            limit,
            url,
            clients,
            &load,
            || lock().since(),
            |since| {
                work = Some(lock().work(since)?);
                kept = lock().kept()?;
                Ok(())
            },
        )?;
        let found = judge::misjudged(&outcome.records, limit, &innocent);
        let admitted = judge::instants(&outcome.records).len();
        let failed = outcome.records.iter().filter(|record| record.verdict == Verdict::Fail).count();
        let per_million = |count: usize| format!("{:.0}", count as f64 / requests as f64 * 1e6);
        wrong.add_row([
            kind.to_string(),
            per_million(found.denied),
            per_million(found.denied_innocent),
            per_million(found.admitted),
            format!("{:.2} %", admitted as f64 / perfect as f64 * 100.0),
            (failed + outcome.unanswered).to_string(),
        ]);
        time.add_row([kind.to_string()].into_iter().chain(quantiles(&latencies(&outcome.records)?)));
        if let Some(work) = work {
            let last = load.iter().flatten().filter(|(at, _)| *at + limit.window > Duration::from_secs(args.seconds));
            let lately = last.map(|(_, client)| *client).collect::<HashSet<_>>().len();
            cost.add_row([
                kind.to_string(),
                format!("{:.1}", work.calls),
                format!("{:.0}", work.commands),
                format!("{:.0}", work.bytes_in),
                format!("{:.0}", work.bytes_out),
                format!("{:.1} %", work.cpu * 100.0),
                kept.0.to_string(),
                format!("{:.0}", kept.1 as f64 / lately as f64),
            ]);
        }
    }
    println!(
        "{} requests in {} s a client; {requests} requests of {} clients in {} s to {} nodes, of which a perfect limiter denies \
         {:.1} %, of {} clients",
        args.limit,
        args.window,
        seen.len(),
        args.seconds,
        args.nodes,
        (requests - perfect) as f64 / requests as f64 * 100.0,
        seen.len() - innocent.len()
    );
    println!("\n{wrong}\n\n{time}\n\n{cost}\n");
    Ok(())
}

fn zipf(args: &Args) -> Result<Load, Failure> {
    let mut rng = SmallRng::seed_from_u64(args.seed);
    let ranks = Zipf::new(f64::from(args.clients), args.exponent)?;
    let gaps = Exp::new(f64::from(args.rate))?;
    let mut load = vec![Vec::new(); args.nodes as usize];
    let mut at = 0.0;
    loop {
        at += rng.sample(gaps);
        if at >= args.seconds as f64 {
            return Ok(load);
        }
        let client = rng.sample(ranks) as u32 - 1;
        load[rng.random_range(0..args.nodes) as usize].push((Duration::from_secs_f64(at), client));
    }
}
