//! A server, a network, nodes under load, and one fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use redis::{Connection, cmd};
use tollgate::global::{FleetStats, WhenAway};

use super::judge::Dates;
use super::node::{Admitted, Apart, KINDS, Load, Node, STEADY};
use super::rows::{Loss, Path, Row, silent};
use crate::live::assert_all_end;
use crate::proxy::Proxy;
use crate::server::{PATIENT, Server};

/// How long things last.
#[derive(Clone, Copy)]
pub(crate) struct Course {
    pub(crate) before: Duration,
    pub(crate) fault: Duration,
    pub(crate) after: Duration,
}

/// What a fault can be forced on.
pub(crate) struct Field {
    pub(crate) load: Load,
    pub(crate) course: Course,
    pub(crate) server: Server,
    pub(crate) proxy: Proxy,
    pub(crate) admin: Connection,
    pub(crate) nodes: Vec<Node>,
    pub(crate) apart: Option<Apart>,
    /// What was admitted by nodes that are no more.
    pub(crate) buried: Vec<Admitted>,
    /// How many of a thousand answers are lost on their way to the fleets.
    pub(crate) loses: Arc<AtomicU32>,
    /// A server that follows the first, and the network between them.
    pub(crate) replica: Option<(Server, Proxy)>,
    path: Path,
}

impl Field {
    fn new(row: &Row, load: Load, course: Course) -> Self {
        let server = Server::with(row.options);
        let (proxy, admin) = (Proxy::to(server.port), server.connection());
        let mut field = Self {
            load,
            course,
            server,
            proxy,
            admin,
            nodes: Vec::new(),
            apart: None,
            buried: Vec::new(),
            loses: Arc::default(),
            replica: None,
            path: row.path,
        };
        (row.prepare)(&mut field);
        if row.has_one_apart {
            field.apart = Some(Apart::start(&field.url(0), &load));
        }
        for _ in usize::from(row.has_one_apart)..load.nodes {
            field.add_node();
        }
        field
    }

    pub(crate) fn add_node(&mut self) {
        let url = self.url(self.nodes.len());
        self.nodes.push(Node::start(&url, &self.load, &self.loses));
    }

    fn url(&self, node: usize) -> String {
        let is_far = match self.path {
            Path::Straight => false,
            Path::Proxy => true,
            Path::HalfByProxy => node % 2 == 1,
        };
        if is_far { self.proxy.url() } else { self.server.url() }
    }

    /// Waits for as long as the fault is to last.
    pub(crate) fn last(&self) {
        thread::sleep(self.course.fault);
    }

    /// The same, and until a node has noticed: one that is used to a server that takes long is patient.
    pub(crate) fn last_until_silent(&self) {
        let before = self.seen();
        self.last();
        let begun = Instant::now();
        while !silent(&before, &self.seen()) {
            assert!(begun.elapsed() < PATIENT, "no node notices");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn config(&mut self, name: &str, value: &str) {
        cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut self.admin).unwrap();
    }

    pub(crate) fn command(&mut self, words: &[&str]) {
        cmd(words[0]).arg(&words[1..]).exec(&mut self.admin).unwrap();
    }

    /// All nodes together.
    pub(crate) fn seen(&self) -> Seen {
        let mut seen = Seen { accepted: self.proxy.accepted() as u64, ..Seen::default() };
        for node in &self.nodes {
            let FleetStats { silences, batches, resent, timeouts, errors, gaps, lost_batches, .. } = node.fleet.stats();
            let of_node = [silences, batches, resent, timeouts, errors, gaps, lost_batches];
            let sums = [
                &mut seen.silences,
                &mut seen.batches,
                &mut seen.resent,
                &mut seen.timeouts,
                &mut seen.errors,
                &mut seen.gaps,
                &mut seen.lost_batches,
            ];
            sums.into_iter().zip(of_node).for_each(|(sum, one)| *sum += one);
            seen.round_trip = seen.round_trip.max(node.fleet.stats().round_trip);
            seen.away += node.watch.away.load(Ordering::SeqCst);
        }
        seen
    }

    /// When each node was last admitted on a lease of that kind.
    fn leased(&self, kind: usize) -> Vec<u64> {
        let of_apart = |apart: &Apart| {
            let mut of_kind = apart.admitted().into_iter().filter(|one| one.kind == kind);
            of_kind.next_back().map_or(0, |one| one.before)
        };
        self.nodes.iter().map(|node| node.watch.leased(kind)).chain(self.apart.iter().map(of_apart)).collect()
    }

    fn enter(&self, phase: usize) {
        self.nodes.iter().for_each(|node| node.watch.phase.store(phase, Ordering::SeqCst));
    }
}

/// What all nodes together have seen of the authority.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) silences: u64,
    pub(crate) batches: u64,
    pub(crate) resent: u64,
    pub(crate) timeouts: u64,
    pub(crate) errors: u64,
    pub(crate) gaps: u64,
    pub(crate) lost_batches: u64,
    /// Connections by way of the proxy.
    pub(crate) accepted: u64,
    /// Requests that were admitted since the authority was away.
    pub(crate) away: u64,
    /// The longest round trip of any node.
    pub(crate) round_trip: Duration,
}

/// What came of a fault.
pub(crate) struct Outcome {
    pub(crate) kinds: Vec<OfKind>,
    /// From the end of the fault until each node was admitted on a lease again.
    pub(crate) recovery: Duration,
    pub(crate) latency: Vec<Histogram<u64>>,
    pub(crate) fault: Duration,
    pub(crate) before: Seen,
    pub(crate) during: Seen,
    pub(crate) after: Seen,
    /// Processor time of the threads in the background in the time of the fault, where the system tells it.
    pub(crate) busy: Option<Duration>,
}

/// What was admitted of one kind.
#[derive(Debug)]
pub(crate) struct OfKind {
    /// In the worst window.
    pub(crate) worst: u64,
    /// What a window may hold.
    pub(crate) bound: u64,
    /// While the fault lasted.
    pub(crate) during: u64,
    /// In the window after it.
    pub(crate) after: u64,
}

/// Forces a fault on nodes under load, waits until all is well again, and tells what was admitted.
pub(crate) fn play(row: &Row, load: Load, course: Course) -> Outcome {
    let clock = quanta::Clock::new();
    let begun = clock.raw();
    let nanos = |raw: u64| clock.delta_as_nanos(begun, raw);
    let mut field = Field::new(row, load, course);
    wait_for(row, "all nodes know of each other", || {
        let knows = |node: &Node| node.fleet.stats().nodes as usize >= load.nodes;
        field.nodes.iter().all(knows) && field.leased(STEADY).iter().all(|at| *at > 0)
    });
    thread::sleep(course.before);

    let (before, busy_before) = (field.seen(), busy());
    field.enter(1);
    let struck = clock.raw();
    (row.fault)(&mut field);
    let lifted = clock.raw();
    let alive = field.nodes.len() + usize::from(field.apart.is_some());
    let (mut recovery, mut end) = (None, None);
    wait_for(row, "each node is admitted on leases again", || {
        let now = clock.raw();
        if end.is_none() && nanos(now) >= nanos(struck) + course.fault.as_nanos() as u64 {
            end = Some((now, field.seen(), busy()));
            field.enter(2);
        }
        if recovery.is_none() {
            let leased = field.leased(STEADY);
            let is_back = leased.len() == alive && leased.iter().all(|at| *at > lifted);
            recovery = is_back.then(|| nanos(now) - nanos(lifted));
        }
        recovery.is_some() && end.is_some()
    });
    let ((over, during, busy_after), recovery) = (end.unwrap(), recovery.unwrap());
    for (number, kind) in KINDS.iter().enumerate() {
        wait_for(row, kind.plan, || field.leased(number).iter().any(|at| *at > lifted));
    }
    thread::sleep(course.after);
    let mut after = field.seen();
    after.round_trip = after.round_trip.max(during.round_trip);

    let mut admitted = field.apart.as_ref().map_or_else(Vec::new, Apart::admitted);
    admitted.append(&mut field.buried);
    let nodes = std::mem::take(&mut field.nodes);
    let all_nodes = nodes.len() + usize::from(row.has_one_apart);
    let mut latency = vec![Histogram::new(3).unwrap(); 3];
    let mut fleets = Vec::new();
    for node in nodes {
        let (fleet, log) = node.stop();
        fleets.push(fleet);
        admitted.extend(log.admitted);
        latency.iter_mut().zip(&log.latency).for_each(|(all, one)| all.add(one).unwrap());
    }
    let keys = assert_all_end(&mut field.admin).len();
    assert!(keys > KINDS.len(), "{}: {keys} keys", row.name);
    for fleet in fleets {
        let end = fleet.shutdown(PATIENT);
        assert!(end.is_settled, "{}: {end:?}", row.name);
    }
    assert_all_end(&mut field.admin);

    let window = load.window.as_nanos() as u64;
    let of_kind = |number: usize| {
        let kind = &KINDS[number];
        let dates = Dates::of(number, &admitted, nanos);
        let is_away = kind.when_away == WhenAway::Local && (row.is_away || after.silences > 0);
        let lost = match row.loss {
            Loss::Nothing => 0,
            Loss::WhatItLost => load.limit,
        };
        OfKind {
            worst: dates.worst(window),
            bound: load.limit
                + all_nodes as u64 * u64::from(kind.overdraft)
                + lost
                + if is_away { load.limit } else { 0 },
            during: dates.between(nanos(struck), nanos(over)),
            after: dates.between(nanos(lifted), nanos(lifted) + window),
        }
    };
    Outcome {
        kinds: (0..KINDS.len()).map(of_kind).collect(),
        recovery: Duration::from_nanos(recovery),
        latency,
        fault: Duration::from_nanos(nanos(over) - nanos(struck)),
        before,
        during,
        after,
        busy: busy_before.zip(busy_after).map(|(before, after)| after.saturating_sub(before)),
    }
}

fn wait_for(row: &Row, what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENT, "{}: it never comes that {what}", row.name);
        thread::sleep(Duration::from_millis(1));
    }
}

/// The processor time that the threads of all fleets of this process have used.
fn busy() -> Option<Duration> {
    let mut ticks = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let path = task.ok()?.path();
        // It may have ended.
        let (Ok(name), Ok(stat)) =
            (std::fs::read_to_string(path.join("comm")), std::fs::read_to_string(path.join("stat")))
        else {
            continue;
        };
        if name.starts_with("tollgate-") {
            let fields = stat.rsplit_once(") ")?.1.split(' ').collect::<Vec<_>>();
            ticks += fields[11..13].iter().filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
        }
    }
    // A hundred a second on all systems there are.
    Some(Duration::from_millis(ticks * 10))
}
