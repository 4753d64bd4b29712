//! Limits over Redis under the same load: tollgate and its peers. `scripts/fleet-bench` runs it with a server of its own.
//!
//! | file | its one job |
//! |---|---|
//! | `peers.rs` | who is measured |
//! | `load.rs` | asks each the same, at the same instants |
//! | `judge.rs` | what of the answers was right |
//! | `server.rs` | what it cost the server |
//! | `flood.rs`, `replay.rs`, `speed.rs` | the three benches |

mod flood;
mod judge;
mod load;
mod peers;
mod replay;
mod server;
mod speed;
mod table;

use clap::{Parser, Subcommand};
use peers::{Failure, Kind};

/// Limits over Redis under the same load: tollgate and its peers.
#[derive(Parser)]
struct Args {
    /// The address of a Redis server that has nothing else to do: it is flushed.
    #[arg(long)]
    redis: String,
    /// Only those whose name has this in it.
    #[arg(long, default_value = "")]
    only: String,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Every node floods one client: who admits too much or too little, what a check takes, and what the server has to do.
    Flood(flood::Args),
    /// Many clients, most of them far below their limit: how many requests are misjudged.
    Replay(replay::Args),
    /// As many checks as there can be: how many, and how long each takes.
    Speed(speed::Args),
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let is_chosen = |kind: &Kind| kind.to_string().contains(&args.only);
    let all = [
        Kind::Tollgate(Some(0)),
        Kind::Waiting,
        Kind::Tollgate(Some(1)),
        Kind::Tollgate(None),
        Kind::Trypema(None),
        Kind::Trypema(Some(100)),
        Kind::Limitador(None),
        Kind::Limitador(Some(100)),
        Kind::RoundTrip,
    ];
    let kinds: Vec<Kind> = all.into_iter().filter(is_chosen).collect();
    match &args.bench {
        Bench::Flood(flood) => flood::run(flood, &kinds, &args.redis),
        Bench::Replay(replay) => replay::run(replay, &kinds, &args.redis),
        Bench::Speed(speed) => speed::run(speed, &kinds, &args.redis),
    }
}
