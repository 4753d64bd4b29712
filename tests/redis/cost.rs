//! What a report of a key costs: bytes, memory, and time of the server's one core.
//!
//! Bytes and memory are the same on every machine. Time is compared with that of a pipelined `INCRBY` and `EXPIRE` on the same
//! server, and shown by an ignored test:
//! `cargo test --release --features redis --test redis -- --ignored --nocapture cost`.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::{Cmd, Connection, Script, Value, cmd};
use tollgate::global::{Batch, Body, Record, Report, Rule, WireName};
use tollgate::internal::{Packed, SCRIPT};

use crate::server::Server;

const KEYS: u64 = 64;

fn window(subs: u16) -> Rule {
    Rule::Window { limit: 6_000_000, sub: 1_000_000, subs, smooth: false }
}

/// What a node says of a busy key ten times a second: the lease is kept up.
fn batch(number: u64, first: u64, rule: Rule, report: Report) -> Batch {
    let name = |key: u64| WireName(u128::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
    let record = |key| Record { name: name(first + key), rule, body: Body::Report(report) };
    Batch { node: 7, shard: 0, number, after: number.checked_sub(1), records: (0..KEYS).map(record).collect() }
}

fn evalsha(batch: &Batch) -> Cmd {
    let packed = Packed::new(batch, "tg{3f}").unwrap();
    let mut evalsha = cmd("EVALSHA");
    evalsha.arg(Script::new(SCRIPT).get_hash()).arg(packed.keys.len()).arg(&packed.keys).arg(&packed.argument);
    evalsha
}

/// A server that has the script.
fn server() -> (Server, Connection) {
    let server = Server::new();
    let mut connection = server.connection();
    cmd("SCRIPT").arg("LOAD").arg(SCRIPT).exec(&mut connection).unwrap();
    (server, connection)
}

fn flush(connection: &mut Connection) {
    cmd("FLUSHALL").arg("SYNC").exec(connection).unwrap();
}

fn report(rule: Rule, now: u64) -> Report {
    Report { lease: rule.head_at(now), used: 30, kept: 40, returned: 5, overdraft: 0, need: 0, want: 20 }
}

fn info(connection: &mut Connection, section: &str, field: &str) -> f64 {
    let info: String = cmd("INFO").arg(section).query(connection).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().parse().unwrap()
}

fn now(connection: &mut Connection) -> u64 {
    let (seconds, micros): (u64, u64) = cmd("TIME").query(connection).unwrap();
    seconds * 1_000_000 + micros
}

#[test]
fn a_report_takes_few_bytes() {
    let (_server, mut connection) = server();
    let time = now(&mut connection);
    for (rule, large, out_at_most, back_at_most) in [
        (window(60), false, 70.0, 16.0),
        (window(60), true, 70.0, 16.0),
        (Rule::Bucket { burst: 6_000, units: 100, period: 1_000_000, life: 1_000_000 }, false, 70.0, 16.0),
    ] {
        // The lease that the report is about.
        let first = Report { want: 100, ..Report::default() };
        evalsha(&Batch { after: None, ..batch(1, 0, rule, first) }).exec(&mut connection).unwrap();
        let mut report = report(rule, time);
        if large {
            report.used = 70_000;
        }
        let evalsha = evalsha(&batch(2, 0, rule, report));
        let out = evalsha.get_packed_command().len() as f64 / KEYS as f64;
        let Value::BulkString(reply) = evalsha.query(&mut connection).unwrap() else { panic!("no string") };
        let back = reply.len() as f64 / KEYS as f64;
        println!("{rule:?}: {out:.1} bytes out, {back:.1} back for each key");
        assert!(out <= out_at_most && back <= back_at_most, "{out} out, {back} back");
        flush(&mut connection);
    }
}

#[test]
fn a_key_takes_little_memory() {
    let (_server, mut connection) = server();
    // In Redis 7.0.15: 195, 288, 448 and 176. Later ones, and Valkey, keep less beside a key.
    for (rule, at_most) in [
        (window(16), 200.0),
        (window(60), 300.0),
        (window(120), 460.0),
        (Rule::Bucket { burst: 6_000, units: 100, period: 1_000_000, life: 1_000_000 }, 200.0),
    ] {
        flush(&mut connection);
        let before = info(&mut connection, "memory", "used_memory");
        // Just before the tables of the server grow.
        let keys = 65_536 - 2 * KEYS;
        let time = now(&mut connection);
        for number in 0..keys / KEYS {
            let batch = batch(number + 1, number * KEYS, rule, report(rule, time));
            evalsha(&Batch { after: None, ..batch }).exec(&mut connection).unwrap();
        }
        let each = (info(&mut connection, "memory", "used_memory") - before) / keys as f64;
        println!("{rule:?}: {each:.0} bytes a key");
        assert!(each <= at_most, "{rule:?}: {each} bytes a key");
    }
}

/// The server's time for one report, in batches of 64, as a multiple of that for a pair of `INCRBY` and `EXPIRE`. Each round
/// times both, one right after the other; what is said is the median of the rounds, and the middle half of them.
#[test]
#[ignore = "takes a quiet machine"]
fn cost_in_time() {
    let (_server, mut connection) = server();
    let (rounds, calls) = (31, 400);
    let mut pairs = redis::pipe();
    for key in 0..KEYS {
        pairs.cmd("INCRBY").arg(format!("tg{{3f}}{key:022}")).arg(30).ignore();
        pairs.cmd("EXPIRE").arg(format!("tg{{3f}}{key:022}")).arg(60).ignore();
    }
    let bucket = Rule::Bucket { burst: 6_000_000, units: 100_000, period: 1_000_000, life: 1_000_000 };
    let Rule::Window { limit, sub, subs, .. } = window(60) else { panic!("a window") };
    for rule in [window(16), window(60), window(120), Rule::Window { limit, sub, subs, smooth: true }, bucket] {
        flush(&mut connection);
        let mut number = 0;
        let mut report = |connection: &mut Connection| {
            // The server is on this machine.
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
            number += 1;
            let batch = batch(number, 0, rule, report(rule, time));
            let batch = Batch { after: (number > 1).then_some(number - 1), ..batch };
            evalsha(&batch).exec(connection).unwrap();
        };
        let mut ratios = Vec::new();
        let mut least = [f64::MAX; 2];
        for _ in 0..rounds {
            let times = [
                cpu(&mut connection, calls, |connection| pairs.exec(connection).unwrap()),
                cpu(&mut connection, calls, &mut report),
            ];
            ratios.push(times[1] / times[0]);
            least = std::array::from_fn(|which| least[which].min(times[which]));
        }
        ratios.sort_by(f64::total_cmp);
        let [low, median, high] = [1, 2, 3].map(|quarter| ratios[rounds * quarter / 4]);
        let [pair, report] = least;
        println!(
            "{rule:?}: {median:.2} times as much ({low:.2} to {high:.2}), {report:.2} of {pair:.2} µs at the least"
        );
    }
}

/// The server's time for each key of so many calls, in microseconds.
fn cpu(connection: &mut Connection, calls: u32, mut call: impl FnMut(&mut Connection)) -> f64 {
    let used = |connection: &mut Connection| {
        info(connection, "cpu", "used_cpu_user") + info(connection, "cpu", "used_cpu_sys")
    };
    let before = used(connection);
    for _ in 0..calls {
        call(connection);
    }
    (used(connection) - before) * 1e6 / (u64::from(calls) * KEYS) as f64
}
