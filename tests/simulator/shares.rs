//! What a fleet admits of what it could have, and at what price.

use std::collections::VecDeque;
use std::time::Duration;

use tollgate::global::Rule;

use super::check::most_in;
use super::scenario::{Key, MICRO, Manner, SECOND, Scenario, Shape, Shared, Spread};
use super::world::World;

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) limit: u32,
    pub(crate) nodes: usize,
    /// What is asked for, in limits.
    pub(crate) load: f64,
    pub(crate) spread: Spread,
    pub(crate) shape: Shape,
    pub(crate) manner: Manner,
    pub(crate) overdraft: u32,
    pub(crate) smooth: bool,
    pub(crate) subs: u16,
    pub(crate) window: Duration,
    pub(crate) lasts: Duration,
}

impl Cell {
    pub(crate) const fn new(limit: u32, nodes: usize, load: f64) -> Self {
        Self {
            limit,
            nodes,
            load,
            spread: Spread::Even,
            shape: Shape::Steady,
            manner: Manner::Asks,
            overdraft: 0,
            smooth: false,
            subs: 120,
            window: Duration::from_secs(60),
            lasts: Duration::from_secs(150),
        }
    }

    pub(crate) fn run(&self) -> Share {
        let interval = Duration::from_millis(100);
        let shared = Shared::of_window(
            self.limit,
            self.window,
            self.subs,
            Some(self.overdraft),
            self.smooth,
            tollgate::global::WhenAway::Deny,
            interval,
        );
        let rate = self.load * f64::from(self.limit) / self.window.as_secs_f64();
        let key = Key { spread: self.spread, shape: self.shape, ..Key::plain(rate, self.manner) };
        let end = self.lasts.as_nanos() as u64;
        let scenario = Scenario::calm(self.nodes, shared.clone(), key, end);
        let outcome = World::new(&scenario).run().unwrap();
        let exact = exact_log(&outcome.arrivals[0], &shared);
        let admitted: u64 = outcome.log[0].iter().map(|admission| admission.units).sum();
        let mut log = outcome.log[0].clone();
        log.sort_by_key(|admission| admission.at);
        let (most, _) = most_in(&log, shared.window);
        Share {
            part: admitted as f64 / exact.max(1) as f64,
            over: most as f64 / f64::from(self.limit) - 1.0,
            messages: outcome.batches as f64 / (end as f64 / SECOND as f64),
            ring: ring(&outcome.arrivals[0], &shared) as f64 / exact.max(1) as f64,
            units: exact,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Share {
    /// Of what an exact log admits.
    pub(crate) part: f64,
    /// How far the worst window is over the limit.
    pub(crate) over: f64,
    /// Batches a second, all nodes together.
    pub(crate) messages: f64,
    /// What a ring of sub-windows could have admitted of it.
    pub(crate) ring: f64,
    /// Units that an exact log admits.
    pub(crate) units: u64,
}

impl Share {
    /// Whether it is what is promised, but for two units.
    pub(crate) fn is_enough(&self, cell: &Cell) -> bool {
        self.part >= promised(cell, self) - 2.0 / self.units.max(1) as f64
    }
}

/// What an exact log admits of those who come and do not wait.
fn exact_log(arrivals: &[(u64, u32)], shared: &Shared) -> u64 {
    let (mut log, mut used, mut admitted) = (VecDeque::new(), 0, 0);
    for (at, cost) in arrivals {
        let cost = u64::from(*cost);
        while let Some((first, units)) = log.front().copied()
            && first + shared.window <= *at
        {
            log.pop_front();
            used -= units;
        }
        if used + cost <= shared.limit {
            log.push_back((*at, cost));
            (used, admitted) = (used + cost, admitted + cost);
        }
    }
    admitted
}

/// What the ring of sub-windows admits if it is asked for each request, without any delay.
fn ring(arrivals: &[(u64, u32)], shared: &Shared) -> u64 {
    let Rule::Window { sub, subs, .. } = shared.rule else { return 0 };
    let (mut ends, mut admitted) = (VecDeque::new(), 0);
    for (at, _) in arrivals {
        while ends.front().is_some_and(|end| end <= at) {
            ends.pop_front();
        }
        if (ends.len() as u64) < shared.limit {
            ends.push_back((at / (sub * MICRO) + u64::from(subs) + 1) * sub * MICRO);
            admitted += 1;
        }
    }
    admitted
}

/// The least part of what an exact log admits that is promised where demand carries a lease, or callers wait. In bursts the
/// ring itself, which frees units up to a sub-window late, is what limits.
pub(crate) fn promised(cell: &Cell, share: &Share) -> f64 {
    let late = 0.1 / (cell.window.as_secs_f64() / f64::from(cell.subs));
    let saturated = f64::from(cell.subs) / (f64::from(cell.subs) + 1.0 + late);
    let ring = if cell.smooth { 1.0 } else { share.ring * 0.975 };
    0.97_f64.min(saturated).min(ring)
}

/// The steady kinds of traffic.
const SPREADS: [Spread; 3] = [Spread::Even, Spread::Skewed, Spread::Moving(3 * SECOND)];

const LOADS: [f64; 5] = [0.5, 0.8, 1.1, 2.0, 8.0];

/// For each limit and number of nodes the least that is admitted of steady traffic, in percent of what an exact log admits, and
/// the most that any window held above the limit.
pub(crate) fn table(limits: &[u32], nodes: &[usize]) -> String {
    let mut lines = String::from(
        "| limit a minute | nodes | callers wait | in bursts | of the ring | leave, 0.5 | 0.8 | 1.1 | 2 | 8 | overdraft 1, 0.5 | \
         0.8 | 1.1 | 2 | 8 | over the limit |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for &limit in limits {
        for &nodes in nodes {
            let cell = |load, manner, overdraft| Cell { manner, overdraft, ..Cell::new(limit, nodes, load) };
            let least = |load, manner, overdraft| {
                let shares = SPREADS.map(|spread| Cell { spread, ..cell(load, manner, overdraft) }.run());
                let over = shares.iter().map(|share| share.over).fold(f64::MIN, f64::max);
                (shares.iter().map(|share| share.part).fold(f64::MAX, f64::min), over)
            };
            let waiting = LOADS.map(|load| least(load, Manner::Asks, 0));
            let bursts = Cell { shape: Shape::Bursts, ..cell(1.0, Manner::Asks, 0) }.run();
            let leaving = LOADS.map(|load| least(load, Manner::Leaves, 0));
            let early = LOADS.map(|load| least(load, Manner::Leaves, 1));
            assert!(waiting.iter().chain(&leaving).all(|(_, over)| *over <= 0.0), "{limit} on {nodes}");
            let percent = |part: f64| format!("{:.1}", part * 100.0);
            let mut cells = vec![limit.to_string(), nodes.to_string()];
            cells.push(percent(waiting.iter().map(|(part, _)| *part).fold(f64::MAX, f64::min)));
            cells.extend([percent(bursts.part), percent(bursts.part / bursts.ring)]);
            cells.extend(leaving.iter().chain(&early).map(|(part, _)| percent(*part)));
            let over = early.iter().map(|(_, over)| *over).fold(0.0, f64::max);
            cells.push(format!("{:+.1} %", over * 100.0));
            let line = format!("| {} |\n", cells.join(" | "));
            print!("{line}");
            lines += &line;
        }
    }
    lines
}

/// A few cells of the table, which are to hold in every run.
pub(crate) fn a_fleet_admits_what_it_may() {
    let base =
        [(60, 8), (600, 8), (600, 32), (6_000, 8), (6_000, 32)].map(|(limit, nodes)| Cell::new(limit, nodes, 1.0));
    for cell in base {
        for (spread, load) in
            [(Spread::Even, 0.8), (Spread::Even, 2.0), (Spread::Skewed, 1.1), (Spread::Moving(3 * SECOND), 2.0)]
        {
            check(&Cell { spread, load, ..cell });
        }
        for (subs, smooth) in [(120, false), (240, false), (120, true)] {
            check(&Cell { shape: Shape::Bursts, subs, smooth, ..cell });
        }
    }
    // Nobody waits, and demand carries leases.
    check(&Cell { manner: Manner::Leaves, ..Cell::new(6_000, 8, 2.0) });
}

fn check(cell: &Cell) {
    let share = cell.run();
    assert!(share.is_enough(cell), "{share:?} of {:.3}: {cell:?}", promised(cell, &share));
    // A smooth window may have as much more as fell into one sub-window.
    assert!(share.over <= if cell.smooth { 0.05 } else { 0.0 }, "{share:?}: {cell:?}");
}

/// 1000 units in 10 s, and far more is asked for.
pub(crate) fn a_flood_costs_few_messages_and_adds_a_unit_a_node_at_most() {
    for (nodes, load) in [(4, 8.0), (8, 8.0), (4, 40.0), (8, 80.0)] {
        for overdraft in [0, 1] {
            let cell = Cell {
                window: Duration::from_secs(10),
                subs: 20,
                overdraft,
                manner: Manner::Leaves,
                lasts: Duration::from_secs(40),
                ..Cell::new(1_000, nodes, load)
            };
            let share = cell.run();
            assert!(share.messages <= 20.0, "{share:?}: {cell:?}");
            assert!(share.over <= 0.01 * f64::from(overdraft), "{share:?}: {cell:?}");
            assert!(share.part >= promised(&cell, &share), "{share:?}: {cell:?}");
        }
    }
}
