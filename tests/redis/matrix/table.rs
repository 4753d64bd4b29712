//! The long form: the same faults for 5 s each, on a load that is always the same, in tables. `scripts/faults` runs it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use redis::{Connection, cmd};
use tollgate::Limiter;
use tollgate::global::{Fleet, RedisAuthority};

use super::field::{Course, Outcome, play};
use super::node::{KINDS, Load, plan};
use super::{ROWS, holds, latency, rows};
use crate::server::Server;

const LOAD: Load = Load {
    limit: 1_000,
    window: Duration::from_secs(10),
    interval: Duration::from_millis(100),
    nodes: 4,
    rate: 1_000,
    calm: 50,
    subs: None,
};

const COURSE: Course =
    Course { before: Duration::from_secs(7), fault: Duration::from_secs(5), after: Duration::from_millis(10_500) };

/// Where the tables go.
const VARIABLE: &str = "TOLLGATE_FAULTS";

const BOUNDS: &str = "\
The worst window of each quota in percent of its limit, by what it does while the authority is away and its overdraft.
*At most* is what the bounds above add up to for `Deny` and for `Local` with an overdraft of 0; one of 1 adds 0.1 a node.
*Batches lost* are those that nodes declared as too old to be told again.

";

const SERVICE: &str = "\
At 80 requests a second on all nodes together, with an overdraft of 0: what is admitted, in percent of that, in the 5 s of the
fault and in the 10 s after it, by what holds while the authority is away; how long after the fault the last node is admitted
on a lease again. And under the full load: how long a check takes meanwhile, on threads that sleep in between, and what all nodes
together send and use in the background.

";

const HOT: &str = "\
One key that eight nodes flood, 1,000 in 10 s.

";

const TAILS: &str = "\
What a thread sees that does nothing but check a hundred keys, with a quota of its node beside that of the fleet. Ratios are of
the p50, p99 and p99.9.

";

#[test]
#[ignore = "takes a quarter of an hour; run by scripts/faults"]
fn all_faults() {
    let mut bounds = table(&["fault", "deny, 0", "deny, 1", "local, 0", "local, 1", "at most", "batches lost"]);
    let mut service = table(&[
        "fault",
        "deny",
        "local",
        "deny, after",
        "local, after",
        "back in ms",
        "p50 ns",
        "p99.9 ns",
        "batches/s",
        "CPU ms/s",
    ]);
    let mut broken = String::new();
    for (number, row) in ROWS.iter().enumerate() {
        eprintln!("{} of {}: {}", number + 1, ROWS.len(), row.name);
        let outcome = play(row, LOAD, COURSE);
        bounds.add_row(bounds_of(row.name, &outcome));
        service.add_row(service_of(row.name, &outcome));
        note_broken(&mut broken, row, &outcome);
    }
    eprintln!("eight nodes");
    let eight = Load { nodes: 8, ..LOAD };
    let outcome = play(&rows::NONE, eight, COURSE);
    bounds.add_row(bounds_of("none, 8 nodes", &outcome));
    note_broken(&mut broken, &rows::NONE, &outcome);

    let mut hot = table(&["requests/s", "times the limit", "script calls/s"]);
    for rate in [100, 1_000] {
        eprintln!("one key, {rate} requests/s on each of eight nodes");
        let calls = hot_key(Load { rate, ..eight });
        hot.add_row([format!("{}", 8 * rate), format!("{}", 8 * rate / 100), format!("{calls:.1}")]);
        if calls > 20.0 {
            _ = writeln!(broken, "a key that eight nodes flood costs {calls:.1} script calls a second");
        }
    }

    eprintln!("latency");
    let mut tails = table(&[
        "Redis",
        "p50 ns",
        "p99",
        "p99.9",
        "against the node's quota alone",
        "against Redis that is well",
        "admitted",
    ]);
    let all = latency::measure();
    for one in &all {
        let [alone, shared, well] =
            [&one.alone, &one.shared, &all[0].shared].map(|of| [0.5, 0.99, 0.999].map(|at| of.value_at_quantile(at)));
        let ratios = |to: [u64; 3]| {
            let ratio = |n: usize| format!("{:.2}", shared[n] as f64 / to[n].max(1) as f64);
            [ratio(0), ratio(1), ratio(2)].join(", ")
        };
        let [p50, p99, p999] = shared.map(|nanos| nanos.to_string());
        tails.add_row([
            one.state.to_owned(),
            p50,
            p99,
            p999,
            ratios(alone),
            ratios(well),
            format!("{:.1} %", one.admitted),
        ]);
    }

    let all = format!("{BOUNDS}{bounds}\n\n{SERVICE}{service}\n\n{HOT}{hot}\n\n{TAILS}{tails}\n");
    println!("{all}");
    if let Some(path) = std::env::var_os(VARIABLE) {
        std::fs::write(path, all).unwrap();
    }
    assert!(broken.is_empty(), "{broken}");
}

/// Goes on with the other rows where one does not hold.
fn note_broken(broken: &mut String, row: &rows::Row, outcome: &Outcome) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| holds(row, outcome))).is_err() {
        _ = writeln!(broken, "{} breaks its bound or shows nothing", row.name);
    }
}

/// The worst window of each kind in percent of the limit, and what it may hold: of each, with an overdraft of 0.
fn bounds_of(name: &str, outcome: &Outcome) -> Vec<String> {
    let percent = |units: u64| format!("{:.1}", units as f64 * 100.0 / LOAD.limit as f64);
    let of = &outcome.kinds;
    let worst = of[..4].iter().map(|kind| percent(kind.worst));
    let most = format!("{}, {}", percent(of[0].bound), percent(of[2].bound));
    let lost = outcome.after.lost_batches - outcome.before.lost_batches;
    [name.to_owned()].into_iter().chain(worst).chain([most, lost.to_string()]).collect()
}

fn service_of(name: &str, outcome: &Outcome) -> Vec<String> {
    // What comes in that time.
    let comes = |time: Duration| LOAD.nodes as f64 * LOAD.rate as f64 / LOAD.calm as f64 * time.as_secs_f64();
    let share = |units: u64, time| format!("{:.0}", units as f64 * 100.0 / comes(time));
    let (deny, local) = (&outcome.kinds[4], &outcome.kinds[5]);
    let latency = &outcome.latency[1];
    let seconds = outcome.fault.as_secs_f64();
    let busy = outcome.busy.map_or("-".to_owned(), |busy| format!("{:.0}", busy.as_secs_f64() * 1_000.0 / seconds));
    vec![
        name.to_owned(),
        share(deny.during, outcome.fault),
        share(local.during, outcome.fault),
        share(deny.after, LOAD.window),
        share(local.after, LOAD.window),
        format!("{:.0}", outcome.recovery.as_secs_f64() * 1_000.0),
        latency.value_at_quantile(0.5).to_string(),
        latency.value_at_quantile(0.999).to_string(),
        format!("{:.1}", (outcome.during.batches - outcome.before.batches) as f64 / seconds),
        busy,
    ]
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Script calls a second for one key that all nodes flood.
fn hot_key(load: Load) -> f64 {
    let server = Server::new();
    let stop = Arc::new(AtomicBool::new(false));
    let nodes = (0..load.nodes).map(|_| {
        let fleet = Fleet::builder(RedisAuthority::builder(server.url()).build().unwrap()).interval(load.interval);
        let fleet = fleet.start().unwrap();
        let limiter = Limiter::builder().fleet(&fleet).plan("hot", plan(&KINDS[0], &load)).build().unwrap();
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            let (begun, mut sent) = (Instant::now(), 0);
            while !stop.load(Ordering::Relaxed) {
                let due = begun.elapsed().as_micros() as u64 * load.rate / 1_000_000;
                (sent..due).for_each(|_| _ = limiter.check("alice").is_allowed());
                sent = due;
                thread::sleep(Duration::from_millis(1));
            }
            drop(fleet);
        })
    });
    let nodes: Vec<_> = nodes.collect();
    thread::sleep(load.window);
    let mut connection = server.connection();
    let (begun, before) = (Instant::now(), calls(&mut connection));
    thread::sleep(load.window * 2);
    let calls = (calls(&mut connection) - before) / begun.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    nodes.into_iter().for_each(|node| node.join().unwrap());
    calls
}

fn calls(connection: &mut Connection) -> f64 {
    let stats: String = cmd("INFO").arg("commandstats").query(connection).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    line.split(',').next().unwrap().parse().unwrap()
}
