//! How many bytes does a key take? Counted by the allocator, key and all, after a million and after ten. A fixed store is
//! made for as many keys as come. Governor has one quota a limiter: for three it takes three limiters.
//!
//! `cargo bench --bench memory`
#![allow(clippy::print_stdout, reason = "a bench prints what it has found")]
#![allow(clippy::expect_used, reason = "a bench that can't be set up has nothing to measure")]
#![allow(missing_docs, unreachable_pub, clippy::exhaustive_structs, reason = "no library")]

#[path = "../tests/counting/mod.rs"]
mod counting;
mod peers;

use std::path::PathBuf;
use std::thread;

use clap::Parser;
use counting::in_use;
use peers::figures::Figures;
use peers::{Governor, PLENTY, Subject, Three, fixed, governor, string_key, three_fixed, three_sharded, tollgate};
use tollgate::{Clock, Key};

/// How many bytes does a key take?
#[derive(Parser)]
struct Arguments {
    /// Where the figures are written to as JSON, besides the table
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// What cargo gives to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// A limiter that is to hold so many keys.
type New<K> = fn(usize) -> Box<dyn Subject<K>>;

fn main() {
    let arguments = Arguments::parse();
    let mut figures = Figures::new(["bytes a key", "keys", "quotas", "1M keys", "10M keys"], 2);
    one_quota(&mut figures, "u64", u64::from);
    one_quota(&mut figures, "20-byte string", string_key);
    three_quotas(&mut figures, "20-byte string", string_key);
    println!("{figures}");
    figures.save(arguments.json.as_deref());
}

fn one_quota<K: Key + Clone>(figures: &mut Figures, kind: &str, make: fn(u64) -> K) {
    rows(
        figures,
        kind,
        1,
        make,
        [
            |_| Box::new(tollgate(PLENTY)),
            |keys| Box::new(fixed(PLENTY, keys, Clock::precise())),
            |_| Box::new(governor(PLENTY)),
        ],
    );
}

fn three_quotas<K: Key + Clone>(figures: &mut Figures, kind: &str, make: fn(u64) -> K) {
    rows(
        figures,
        kind,
        3,
        make,
        [
            |_| Box::new(three_sharded(PLENTY)),
            |keys| Box::new(three_fixed(PLENTY, keys)),
            |_| Box::new(Three::<Governor<K>>([0; 3].map(|_| governor(PLENTY)))),
        ],
    );
}

fn rows<K>(figures: &mut Figures, kind: &str, quotas: u32, make: fn(u64) -> K, limiters: [New<K>; 3]) {
    for (name, new) in ["sharded", "fixed", "governor"].into_iter().zip(limiters) {
        let mut cells = vec![name.to_owned(), kind.to_owned(), quotas.to_string()];
        cells.extend([1_000_000, 10_000_000].map(|keys| format!("{:.0}", bytes_a_key(keys, make, new))));
        figures.row(cells);
    }
}

fn bytes_a_key<K>(keys: usize, make: fn(u64) -> K, new: New<K>) -> f64 {
    let before = in_use();
    let subject = new(keys);
    let check = |from: usize, to: usize| (from..to).filter(|key| subject.check(&make(*key as u64))).count();
    // On two threads, to be done sooner.
    let admitted = thread::scope(|scope| {
        let half = scope.spawn(|| check(0, keys / 2));
        check(keys / 2, keys) + half.join().expect("a check does not panic")
    });
    assert!(admitted > keys / 1_000 * 999, "only {admitted} of {keys} new keys are admitted");
    (in_use() - before) as f64 / keys as f64
}
