//! How many bytes does a key of 20 bytes take with the peers? Counted by the allocator, key and all, after a million.

#[path = "../../../../tests/counting/mod.rs"]
mod counting;

use std::path::PathBuf;

use clap::Parser;
use counting::in_use;
use peers_bench::peers::{Limitador, Pingora, Throttlecrab, Trypema};
use peers_bench::shared::figures::Figures;
use peers_bench::shared::{Maker, PLENTY, fixed, governor, string_key, tollgate};
use tollgate::Clock;

/// How many bytes does a key of 20 bytes take with the peers?
#[derive(Parser)]
struct Arguments {
    /// Where the figures are written to as JSON, besides the table
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

const KEYS: usize = 1_000_000;

fn main() {
    let arguments = Arguments::parse();
    let mut figures = Figures::new(["bytes a key", "1M keys"], 1);
    let makers = [
        Maker::new("sharded", || tollgate::<String>(PLENTY)),
        Maker::new("fixed", || fixed(PLENTY, KEYS, Clock::precise())),
        Maker::new("limitador", || Limitador::new(PLENTY, KEYS)),
        Maker::new("throttlecrab", || Throttlecrab::new(PLENTY, KEYS)),
        Maker::new("trypema", || Trypema::new(PLENTY)),
        Maker::new("pingora-limits (estimates)", || Pingora::new(PLENTY)),
        Maker::new("governor", || governor(PLENTY)),
    ];
    for maker in makers {
        let before = in_use();
        let subject = maker.make();
        let admitted = (0..KEYS as u64).filter(|key| subject.check(&string_key(*key))).count();
        assert!(admitted > KEYS / 1_000 * 999, "{} admits only {admitted} of {KEYS} new keys", maker.name);
        figures.row([maker.name.to_owned(), format!("{:.0}", (in_use() - before) as f64 / KEYS as f64)]);
    }
    println!("{figures}");
    figures.save(arguments.json.as_deref());
}
