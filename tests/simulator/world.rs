//! The course of events: what is sent, lost, late, and what goes wrong, all in virtual time.

mod callers;
mod faults;
mod network;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use tollgate::global::{AuthorityError, Batch, Books, Reply};
use tollgate::internal::{Answered, Event as Told};

use super::chance::Chance;
use super::check;
use super::node::{Caller, Node, key_of};
use super::scenario::{Fault, How, MILLI, SECOND, Scenario};
use super::store::Store;

/// What units were taken from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    Lease,
    Overdraft,
    /// What a node gave itself.
    Away {
        nodes: u32,
    },
    Authority,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub(crate) at: u64,
    pub(crate) units: u64,
    /// The incarnation.
    pub(crate) node: u64,
    pub(crate) from: From,
}

/// What an authority has lost of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    pub(crate) key: usize,
    pub(crate) at: u64,
    pub(crate) units: u64,
    /// How far its clock leapt.
    pub(crate) leap: u64,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// By key.
    pub(crate) log: Vec<Vec<Admission>>,
    /// First tries, with what they cost.
    pub(crate) arrivals: Vec<Vec<(u64, u32)>>,
    pub(crate) losses: Vec<Loss>,
    /// Batches that came to the authority and were carried out.
    pub(crate) batches: u64,
    /// The waits of callers who waited, from first try to admission.
    pub(crate) longest_wait: u64,
}

#[derive(Debug)]
enum Event {
    Arrive(usize),
    Try(Caller),
    /// Somebody who waits for news has waited long enough.
    Impatient {
        node: usize,
        key: usize,
        id: u64,
    },
    Refund {
        node: usize,
        id: u64,
        key: usize,
        entry: usize,
        units: u32,
        answer: Answered,
    },
    Wake(usize),
    ToAuthority(usize, Arc<Batch>),
    ToNode {
        node: usize,
        id: u64,
        shard: u16,
        number: u64,
        reply: Result<Reply, AuthorityError>,
    },
    Fault(usize),
    Restart(usize),
    TakeBack {
        node: usize,
        id: u64,
        number: u64,
    },
    Look,
}

struct Entry(u64, u64, Event);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    chance: Chance,
    events: BinaryHeap<Reverse<Entry>>,
    order: u64,
    time: u64,
    nodes: Vec<Node>,
    next_id: u64,
    store: Store,
    cut_until: Vec<u64>,
    outage: (u64, How),
    slow: (u64, u64),
    lossy: (u64, f64),
    log: Vec<Vec<Admission>>,
    arrivals: Vec<Vec<(u64, u32)>>,
    losses: Vec<Loss>,
    longest_wait: u64,
    /// How many wait for room, by key.
    lines: Vec<u32>,
    fault: Option<String>,
    traces: bool,
}

/// How many may wait for room in one key's window, all over the fleet.
const MOST_IN_LINE: u32 = 48;

/// More than any run takes.
const MOST_STEPS: u64 = 3_000_000;

/// Runs it to its end, and checks all that is promised.
pub(crate) fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let outcome = World::new(scenario).run()?;
    check::all(scenario, &outcome)?;
    Ok(outcome)
}

impl<'a> World<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Self {
        let mut chance = Chance::new(scenario.seed);
        let clock = 1_000_000_000 + chance.below(10_000_000) as i64;
        let mut store = Store::new(Books::default(), clock);
        store.keeps_snapshots = scenario.faults.iter().any(|(_, fault)| matches!(fault, Fault::LosesTail { .. }));
        let mut world = Self {
            scenario,
            chance,
            events: BinaryHeap::new(),
            order: 0,
            time: 0,
            nodes: Vec::new(),
            next_id: 1,
            store,
            cut_until: vec![0; scenario.nodes],
            outage: (0, How::Silence),
            slow: (0, 0),
            lossy: (0, 0.0),
            log: vec![Vec::new(); scenario.keys.len()],
            arrivals: vec![Vec::new(); scenario.keys.len()],
            losses: Vec::new(),
            longest_wait: 0,
            lines: vec![0; scenario.keys.len()],
            fault: None,
            traces: std::env::var_os("TOLLGATE_TRACE").is_some(),
        };
        for index in 0..scenario.nodes {
            let (id, chance) = (world.fresh_id(), world.chance.next());
            world.nodes.push(Node::new(id, index, scenario, 0, chance));
        }
        for key in 0..scenario.keys.len() {
            world.plan_arrival(key);
        }
        for (place, (at, _)) in scenario.faults.iter().enumerate() {
            world.plan(*at, Event::Fault(place));
        }
        if !scenario.loses() {
            for _ in 0..6 {
                let at = world.chance.below(scenario.end);
                world.plan(at, Event::Look);
            }
        }
        world
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse(Entry(at, self.order, event)));
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.traces {
            eprintln!("{:>12.6} {}", self.time as f64 / 1e9, what());
        }
    }

    pub(crate) fn run(mut self) -> Result<Outcome, String> {
        let scenario = self.scenario;
        let rest = scenario.quotas.iter().map(|quota| quota.window + 8 * quota.life).max().unwrap_or(0);
        let settled_by = scenario.end + rest / 2 + if scenario.network.loss > 0.05 { 20 } else { 4 } * SECOND;
        let forgotten_by = settled_by + rest * 2 + 4 * SECOND;
        let (mut is_settled, mut steps) = (false, 0_u64);
        while let Some(Reverse(Entry(at, _, event))) = self.events.pop() {
            if !is_settled && at > settled_by {
                is_settled = true;
                self.check_settled()?;
            }
            if at > forgotten_by {
                break;
            }
            assert!(at >= self.time, "time goes back");
            self.time = at;
            self.happens(event);
            steps += 1;
            if steps > MOST_STEPS {
                return Err(format!("there is no end to it at {:.6} s", at as f64 / 1e9));
            }
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
        }
        if !is_settled {
            self.check_settled()?;
        }
        self.time = forgotten_by;
        self.check_forgotten()?;
        let Self { log, arrivals, losses, store, longest_wait, .. } = self;
        Ok(Outcome { log, arrivals, losses, batches: store.applied, longest_wait })
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Arrive(key) => self.arrive(key),
            Event::Try(mut caller) => {
                if std::mem::take(&mut caller.is_in_line) {
                    self.lines[caller.key] -= 1;
                }
                self.attempt(caller);
            }
            Event::Impatient { node, key, id } => self.grow_impatient(node, key, id),
            Event::Refund { node, id, key, entry, units, answer } => self.refund(node, id, key, entry, units, answer),
            Event::Wake(node) => {
                if self.nodes[node].wake_at == self.time {
                    self.work(node);
                }
            }
            Event::ToAuthority(node, batch) => self.reach_authority(node, &batch),
            Event::ToNode { node, id, shard, number, reply } => self.reach_node(node, id, shard, number, reply),
            Event::Fault(place) => self.go_wrong(place),
            Event::Restart(index) => {
                let (id, chance) = (self.fresh_id(), self.chance.next());
                self.nodes[index] = Node::new(id, index, self.scenario, self.time, chance);
            }
            Event::TakeBack { node, id, number } => {
                if self.nodes[node].id == id {
                    self.nodes[node].protocol.take_back(number);
                }
            }
            Event::Look => self.look_at_escrow(),
        }
    }

    /// Has the background thread of a node run at `at`, or before.
    fn arm(&mut self, index: usize, at: u64) {
        let node = &mut self.nodes[index];
        let at = at.max(node.stalled_until).max(node.paused_until).max(self.time);
        if at < node.wake_at {
            node.wake_at = at;
            self.plan(at, Event::Wake(index));
        }
    }

    /// The background thread runs.
    fn work(&mut self, index: usize) {
        let time = self.time;
        let node = &mut self.nodes[index];
        node.wake_at = u64::MAX;
        if !node.up {
            return;
        }
        if time < node.paused_until || time < node.stalled_until {
            self.arm(index, time);
            return;
        }
        node.look(time);
        let now = self.nodes[index].clock.ticks(time);
        while let Some(batch) = self.nodes[index].protocol.poll_batch(now) {
            self.trace(|| format!("node {index} sends {batch:?}"));
            self.send(index, &batch);
        }
        for told in self.nodes[index].protocol.take_events() {
            self.trace(|| format!("node {index} is told {told:?}"));
            if let Told::Silent = told {
                self.nodes[index].note_silence(time);
            }
            if let Told::Changed(ledger) = told
                && let Some(key) = key_of(ledger.name(), self.scenario.keys.len())
            {
                for caller in self.nodes[index].take_waiting(key) {
                    self.attempt(caller);
                }
            }
        }
        let due = self.nodes[index].due(time);
        if due <= time && self.nodes[index].wake_at != time {
            // It has just had its say: what is due by now has to wait for the clock to move.
            self.arm(index, time + MILLI / 100);
        } else if due < u64::MAX {
            self.arm(index, due);
        }
    }
}
