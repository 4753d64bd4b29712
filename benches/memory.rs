//! How many bytes does a key take? Counted by the allocator, key and all, after a million and after ten.
//!
//! `cargo bench --bench memory`
#![allow(clippy::print_stdout, reason = "a bench prints what it has found")]
#![allow(clippy::expect_used, reason = "a bench that can't be set up has nothing to measure")]
#![allow(missing_docs, unreachable_pub, clippy::exhaustive_structs, reason = "no library")]

#[path = "../tests/counting/mod.rs"]
mod counting;
mod peers;

use std::hash::Hash;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use counting::in_use;
use peers::{PLENTY, Subject, governor, string_key, tollgate};

fn main() {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(["bytes a key", "1M keys", "10M keys"]);
    both(&mut table, "u64", u64::from);
    both(&mut table, "20-byte string", string_key);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
}

fn both<K: Eq + Hash + Clone + Send + Sync + 'static>(table: &mut Table, kind: &str, make: fn(u64) -> K) {
    row(table, kind, make, || Box::new(tollgate(PLENTY)));
    row(table, kind, make, || Box::new(governor(PLENTY)));
}

fn row<K>(table: &mut Table, kind: &str, make: fn(u64) -> K, new: impl Fn() -> Box<dyn Subject<K>>) {
    let mut cells = Vec::new();
    for keys in [1_000_000, 10_000_000] {
        let before = in_use();
        let subject = new();
        for key in 0..keys {
            subject.check(&make(key));
        }
        if cells.is_empty() {
            cells.push(format!("{}, {kind}", subject.name()));
        }
        cells.push(format!("{:.0}", (in_use() - before) as f64 / keys as f64));
    }
    table.add_row(cells);
}
