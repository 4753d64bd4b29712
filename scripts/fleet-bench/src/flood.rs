//! Every node floods one client.

use std::time::Duration;

use crate::judge;
use crate::load::{self, Load};
use crate::peers::{self, Failure, Kind, Limit, Verdict};
use crate::server::Server;
use crate::table::{latencies, quantiles, table};

#[derive(clap::Args)]
pub struct Args {
    /// How many nodes there are: each number a run.
    #[arg(long, value_delimiter = ',', default_value = "4,8")]
    nodes: Vec<u32>,
    /// Requests a second that come to each node.
    #[arg(long, default_value_t = 1_000)]
    rate: u32,
    /// Requests that all nodes together may admit in a window.
    #[arg(long, default_value_t = 1_000)]
    limit: u32,
    /// The window in seconds.
    #[arg(long, default_value_t = 10)]
    window: u64,
    /// How long each is flooded, in seconds.
    #[arg(long, default_value_t = 25)]
    seconds: u32,
}

pub fn run(args: &Args, kinds: &[Kind], url: &str) -> Result<(), Failure> {
    let limit = Limit { requests: args.limit, window: Duration::from_secs(args.window) };
    let (clients, mut server) = (peers::clients(1)?, Server::new(url)?);
    let mut right = table(
        &["", "nodes", "most in a window", "over", "in its own window", "over", "admitted", "of a perfect one"],
        1,
    );
    let mut time = table(&["", "nodes", "p50", "p99", "p99.9", "max", "failed"], 1);
    let mut cost =
        table(&["", "nodes", "calls/s", "commands/s", "in, B/s", "out, B/s", "server's CPU", "keys", "bytes"], 1);
    for &nodes in &args.nodes {
        let load = flood(args, nodes);
        let (perfect, _) = judge::perfect(&load, limit);
        for &kind in kinds {
            eprintln!("flood: {kind}, {nodes} nodes, {} s", args.seconds);
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
            let name = [kind.to_string(), nodes.to_string()];
            let over = |most: usize| format!("{:+.1} %", (most as f64 / f64::from(args.limit) - 1.0) * 100.0);
            let instants = judge::instants(&outcome.records);
            let most = judge::most_sliding(&instants, limit);
            let own = kind.has_fixed_windows().then(|| judge::most_fixed(&instants, limit));
            right.add_row(name.iter().cloned().chain([
                most.to_string(),
                over(most),
                own.map_or_else(String::new, |own| own.to_string()),
                own.map_or_else(String::new, over),
                instants.len().to_string(),
                format!("{:.1} %", instants.len() as f64 / perfect as f64 * 100.0),
            ]));
            let failed = outcome.records.iter().filter(|record| record.verdict == Verdict::Fail).count();
            let failed = (failed + outcome.unanswered).to_string();
            time.add_row(name.iter().cloned().chain(quantiles(&latencies(&outcome.records)?)).chain([failed]));
            if let Some(work) = work {
                cost.add_row(name.iter().cloned().chain([
                    format!("{:.1}", work.calls),
                    format!("{:.0}", work.commands),
                    format!("{:.0}", work.bytes_in),
                    format!("{:.0}", work.bytes_out),
                    format!("{:.1} %", work.cpu * 100.0),
                    kept.0.to_string(),
                    kept.1.to_string(),
                ]));
            }
        }
    }
    println!("{} requests in {} s, {} requests/s to each node, {} s", args.limit, args.window, args.rate, args.seconds);
    println!("\n{right}\n\n{time}\n\n{cost}\n");
    Ok(())
}

/// Nodes take turns, evenly.
fn flood(args: &Args, nodes: u32) -> Load {
    let gap = Duration::from_secs(1) / args.rate;
    let requests = |node| (0..args.rate * args.seconds).map(move |n| (gap * n + gap * node / nodes, 0)).collect();
    (0..nodes).map(requests).collect()
}
