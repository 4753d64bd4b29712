//! What happens in one run: drawn from a seed, or written down by a test.

use std::time::Duration;

use tollgate::Quota;
use tollgate::global::{GlobalQuota, Rule, WhenAway};
use tollgate::internal::QuotaRef;

use super::chance::Chance;

/// Nanoseconds, which the simulator counts true time in.
pub(crate) const MICRO: u64 = 1_000;
pub(crate) const MILLI: u64 = 1_000 * MICRO;
pub(crate) const SECOND: u64 = 1_000 * MILLI;

/// A global quota, and what it promises.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) compiled: QuotaRef,
    pub(crate) rule: Rule,
    pub(crate) limit: u64,
    /// In nanoseconds, as all that follow.
    pub(crate) window: u64,
    /// How long a lease can live.
    pub(crate) life: u64,
    pub(crate) when_away: WhenAway,
    /// The most that one node admits without a lease.
    pub(crate) overdraft: u64,
}

impl Shared {
    pub(crate) fn window(limit: u32, window: Duration, subs: u16, overdraft: u32, interval: Duration) -> Self {
        Self::of_window(limit, window, subs, Some(overdraft), false, WhenAway::Deny, interval)
    }

    pub(crate) fn of_window(
        limit: u32,
        window: Duration,
        subs: u16,
        overdraft: Option<u32>,
        smooth: bool,
        when_away: WhenAway,
        interval: Duration,
    ) -> Self {
        let mut quota = GlobalQuota::sliding_window(u64::from(limit), window).sub_windows(subs).when_away(when_away);
        if let Some(units) = overdraft {
            quota = quota.overdraft(units);
        }
        if smooth {
            quota = quota.smooth();
        }
        let sub = (window.as_nanos() as u64).div_ceil(1_000 * u64::from(subs));
        Self {
            compiled: quota.compile("sim", interval).unwrap(),
            rule: Rule::Window { limit, sub, subs, smooth },
            limit: u64::from(limit),
            window: window.as_nanos() as u64,
            life: 2 * sub * MICRO,
            when_away,
            overdraft: u64::from(overdraft.unwrap_or((limit / 100).max(1))),
        }
    }

    /// A bucket of `burst`, and `units` a second.
    pub(crate) fn bucket(burst: u32, units: u32, overdraft: u32, interval: Duration) -> Self {
        let quota = Quota::new(u64::from(units), Duration::from_secs(1)).burst(u64::from(burst));
        let fill = Duration::from_secs_f64(f64::from(burst) / f64::from(units));
        let life = (fill / 10).min(Duration::from_secs(2)).max(interval * 5);
        let global = GlobalQuota::token_bucket(quota).overdraft(overdraft).when_away(WhenAway::Deny);
        Self {
            compiled: global.compile("sim", interval).unwrap(),
            rule: Rule::Bucket { burst, units, period: 1_000_000, life: life.as_micros() as u64 },
            limit: u64::from(burst),
            window: fill.as_nanos() as u64,
            life: life.as_nanos() as u64,
            when_away: WhenAway::Deny,
            overdraft: u64::from(overdraft),
        }
    }
}

/// What a caller does who is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// Goes away.
    Leaves,
    /// Tries again when it was told to, three times.
    Retries,
    /// Waits for the answer of the authority, as `acquire_global` does, and for room.
    Waits,
    /// Waits for the answer of the authority, and goes away if there is no room.
    Asks,
}

/// Which nodes the requests for a key come to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spread {
    Even,
    /// Nine of ten to the first.
    Skewed,
    /// All to one, another every so often.
    Moving(u64),
}

/// How much is asked for in the course of time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    Steady,
    /// Ten times as much for 2 s of every 20 s, and a fifth in between.
    Bursts,
}

#[derive(Clone, Debug)]
pub(crate) struct Key {
    /// Of the scenario's quotas.
    pub(crate) quota: usize,
    /// Requests a second, all nodes together.
    pub(crate) rate: f64,
    pub(crate) costs: Vec<u32>,
    pub(crate) spread: Spread,
    pub(crate) shape: Shape,
    pub(crate) manner: Manner,
    /// Of a hundred requests so many are asked of the authority one by one.
    pub(crate) exact: u64,
    /// Of a hundred admissions so many are given back.
    pub(crate) refunds: u64,
}

impl Key {
    pub(crate) fn plain(rate: f64, manner: Manner) -> Self {
        Self {
            quota: 0,
            rate,
            costs: vec![1],
            spread: Spread::Even,
            shape: Shape::Steady,
            manner,
            exact: 0,
            refunds: 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum How {
    /// Every batch is answered by an error, at times after it was carried out.
    Errors,
    Silence,
}

#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Crash {
        node: usize,
        back_after: u64,
    },
    /// Nothing runs on it.
    Pause {
        node: usize,
        lasts: u64,
    },
    /// Its background thread does not run.
    Stall {
        node: usize,
        lasts: u64,
    },
    /// Ledgers that may be forgotten are.
    Forget {
        node: usize,
    },
    Cut {
        nodes: u64,
        lasts: u64,
    },
    Outage {
        how: How,
        lasts: u64,
    },
    Slow {
        by: u64,
        lasts: u64,
    },
    Lossy {
        loss: f64,
        lasts: u64,
    },
    /// What the authority was told in the last while is lost.
    LosesTail {
        tail: u64,
    },
    Flush,
    Evict {
        key: usize,
    },
    /// Microseconds.
    Step {
        by: i64,
    },
}

impl Fault {
    pub(crate) const fn lasts(&self) -> u64 {
        match self {
            Self::Crash { back_after: lasts, .. }
            | Self::Pause { lasts, .. }
            | Self::Stall { lasts, .. }
            | Self::Cut { lasts, .. }
            | Self::Outage { lasts, .. }
            | Self::Slow { lasts, .. }
            | Self::Lossy { lasts, .. } => *lasts,
            _ => 0,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// The least delay of a message, and what comes on top in the mean.
    pub(crate) least: u64,
    pub(crate) more: f64,
    pub(crate) loss: f64,
    pub(crate) duplicates: f64,
}

impl Network {
    /// A round trip of 1 ms.
    pub(crate) const GOOD: Self = Self { least: 300 * MICRO, more: 200_000.0, loss: 0.0, duplicates: 0.0 };
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    /// Parts per million by which the clock of each node is fast.
    pub(crate) drifts: Vec<i64>,
    pub(crate) interval: Duration,
    pub(crate) shards: u16,
    /// Places in a node's queue of ledgers with news.
    pub(crate) places: usize,
    pub(crate) quotas: Vec<Shared>,
    pub(crate) keys: Vec<Key>,
    pub(crate) network: Network,
    pub(crate) faults: Vec<(u64, Fault)>,
    /// When it ends.
    pub(crate) end: u64,
    /// From when on the fleet has to do as well as it can.
    pub(crate) well_from: u64,
}

impl Scenario {
    /// One quota, one key, and nothing goes wrong.
    pub(crate) fn calm(nodes: usize, quota: Shared, key: Key, end: u64) -> Self {
        Self {
            seed: 1,
            nodes,
            drifts: vec![0; nodes],
            interval: Duration::from_millis(100),
            shards: 1,
            places: 1_024,
            quotas: vec![quota],
            keys: vec![key],
            network: Network::GOOD,
            faults: Vec::new(),
            end,
            well_from: u64::MAX,
        }
    }

    pub(crate) fn with(mut self, at: u64, fault: Fault) -> Self {
        self.faults.push((at, fault));
        self
    }

    /// Whatever this seed brings.
    pub(crate) fn drawn(seed: u64) -> Self {
        let chance = &mut Chance::new(seed ^ 0x51_3A_7E);
        let interval = Duration::from_millis(chance.pick(&[50, 100, 100, 100]));
        let nodes = match chance.below(20) {
            0 => 64,
            1 | 2 => chance.between(17, 32) as usize,
            3..=8 => chance.between(6, 16) as usize,
            _ => chance.between(1, 5) as usize,
        };
        let quotas: Vec<_> = (0..chance.between(1, 3)).map(|_| drawn_quota(chance, interval)).collect();
        let longest = quotas.iter().map(|quota| quota.window + 2 * quota.life).max().unwrap();
        let keys: Vec<_> = (0..chance.between(1, 4)).map(|_| drawn_key(chance, &quotas, nodes)).collect();
        let trouble_until = chance.between(longest, 2 * longest);
        let mut faults = Vec::new();
        // In a third of all runs the authority is as good as can be.
        let of_authority = !chance.one_in(3);
        for _ in 0..chance.below(8) {
            let fault = drawn_fault(chance, nodes, keys.len(), longest, of_authority);
            let at = chance.between(longest / 10, trouble_until);
            faults.push((at, fault));
        }
        faults.sort_by_key(|(at, _)| *at);
        let over = faults.iter().map(|(at, fault)| at + fault.lasts()).max().unwrap_or(0);
        let loss = chance.pick(&[0.0, 0.0, 0.0, 0.01, 0.1]);
        // What is asked exactly while the network loses something is charged and not used.
        let well_from = over + longest + 4 * SECOND;
        Self {
            seed,
            nodes,
            drifts: (0..nodes).map(|_| chance.between(0, 1_000) as i64 - 500).collect(),
            interval,
            shards: chance.pick(&[1, 1, 2, 5]),
            places: chance.pick(&[1, 4, 1_024]),
            quotas,
            keys,
            network: Network {
                least: chance.between(50 * MICRO, 2 * MILLI),
                more: chance.pick(&[50_000.0, 200_000.0, 3_000_000.0]),
                loss,
                duplicates: chance.pick(&[0.0, 0.0, 0.02, 0.3]),
            },
            faults,
            end: well_from + longest,
            well_from,
        }
    }

    pub(crate) fn quota_of(&self, key: usize) -> &Shared {
        &self.quotas[self.keys[key].quota]
    }

    /// Whether what the authority knew was lost, or its clock was set.
    pub(crate) fn loses(&self) -> bool {
        let loses = |fault: &Fault| {
            matches!(fault, Fault::LosesTail { .. } | Fault::Flush | Fault::Evict { .. } | Fault::Step { .. })
        };
        self.faults.iter().any(|(_, fault)| loses(fault))
    }
}

fn drawn_quota(chance: &mut Chance, interval: Duration) -> Shared {
    let limit = chance.pick(&[1, 2, 5, 10, 20, 60, 100, 300, 1_000]);
    let overdraft = chance.pick(&[0, 0, 0, 1, 1, 2]);
    if chance.one_in(8) {
        let burst = limit.max(2);
        return Shared::bucket(burst, burst.div_ceil(chance.between(2, 6) as u32), 0, interval);
    }
    let subs = chance.pick(&[10, 10, 16, 20]);
    let shortest = interval.as_millis() as u64 * 5 / 2 * u64::from(subs);
    let window = Duration::from_millis(chance.between(shortest, shortest * 2));
    let overdraft = if chance.one_in(6) { None } else { Some(overdraft.min(limit)) };
    let when_away = chance.pick(&[WhenAway::Deny, WhenAway::Deny, WhenAway::Local, WhenAway::Local, WhenAway::Allow]);
    Shared::of_window(limit, window, subs, overdraft, chance.one_in(5), when_away, interval)
}

fn drawn_key(chance: &mut Chance, quotas: &[Shared], nodes: usize) -> Key {
    let quota = chance.below(quotas.len() as u64) as usize;
    let shared = &quotas[quota];
    let load = chance.pick(&[0.3, 0.8, 1.1, 2.0, 5.0]);
    let costs = match chance.below(4) {
        0 if shared.limit >= 20 => vec![1, 1, 1, 3, (shared.limit / 4) as u32],
        1 if shared.limit >= 5 => vec![1, 2],
        _ => vec![1],
    };
    let cost = costs.iter().sum::<u32>() as f64 / costs.len() as f64;
    // Enough to go wrong, and not so much that a run takes long.
    let rate = (load * shared.limit as f64 / (shared.window as f64 / 1e9) / cost).clamp(0.5, 250.0);
    Key {
        quota,
        rate,
        costs,
        spread: match chance.below(4) {
            0 => Spread::Skewed,
            1 if nodes > 1 => Spread::Moving(chance.between(200, 3_000) * MILLI),
            _ => Spread::Even,
        },
        shape: Shape::Steady,
        manner: chance.pick(&[Manner::Leaves, Manner::Retries, Manner::Waits, Manner::Waits, Manner::Asks]),
        exact: chance.pick(&[0, 0, 0, 10]),
        refunds: chance.pick(&[0, 0, 20]),
    }
}

fn drawn_fault(chance: &mut Chance, nodes: usize, keys: usize, longest: u64, of_authority: bool) -> Fault {
    let node = chance.below(nodes as u64) as usize;
    let lasts = chance.between(5 * MILLI, longest / 2);
    match chance.below(if of_authority { 13 } else { 7 }) {
        0 | 1 => Fault::Crash { node, back_after: lasts / 4 },
        2 => Fault::Pause { node, lasts },
        3 => Fault::Stall { node, lasts },
        4 => Fault::Forget { node },
        5 => Fault::Cut { nodes: chance.next() | 1 << node, lasts },
        6 => Fault::Lossy { loss: chance.pick(&[0.05, 0.3, 0.7]), lasts },
        7 => Fault::Outage { how: How::Errors, lasts },
        8 => Fault::Outage { how: How::Silence, lasts },
        9 => Fault::Slow { by: chance.pick(&[20, 200, 200, 700]) * MILLI, lasts },
        10 => match chance.below(3) {
            0 => Fault::Flush,
            _ => Fault::Evict { key: chance.below(keys as u64) as usize },
        },
        11 => Fault::LosesTail { tail: chance.between(MILLI, 2 * SECOND) },
        _ => {
            let by = chance.between(1_000, 4_000_000) as i64;
            Fault::Step { by: if chance.one_in(2) { by } else { -by } }
        }
    }
}
