//! Random scripts, made of scenes.
//!
//! Steps that are drawn one by one miss what takes a plan: a take that is held while its key is
//! evicted and comes back. So a script is a row of *scenes*, each of a few steps that belong
//! together, on few keys, at few instants. Each script draws which scenes it has and how often
//! (swarm testing), so that some scripts have much of one scene and nothing of another.

use std::time::Duration;

use tollgate::{Quota, Unit};

use super::chance::Chance;
use super::script::{Costs, PlanSpec, PolicySpec, Script, Step, Store, Time};

const SECOND: u64 = 1_000_000_000;

/// Kinds of stores, each in several sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Sharded,
    Fixed,
    Direct,
}

/// The part that all scripts of a run have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) time: Time,
    /// Quotas of the first plan, 1 to 3.
    pub(crate) quotas: usize,
}

impl Shape {
    /// A number below 256 that no other shape has.
    pub(crate) const fn number(self) -> u64 {
        (self.kind as u64) << 4 | (self.time as u64) << 2 | self.quotas as u64
    }
}

/// A few steps that belong together.
#[derive(Clone, Copy, Debug)]
enum Scene {
    /// Takes up to the burst, of which most are given back at once and the rest is held.
    Volley,
    /// Time passes.
    Gap,
    /// New keys use what they have.
    Newcomers,
    /// A client uses what it has.
    Drain,
    /// Allows that were held are given back, and what they are worth is used.
    Late,
    /// The same with a gap, newcomers and a return before it.
    Return,
    /// Takes that are given back at once, many times.
    Cycle,
    /// A key is reset between two drains, and a take from before is given back.
    Reset,
    /// Requests in flight.
    Flights,
    /// The same while newcomers come and go.
    Crowd,
    Reload,
    /// A plan goes and comes back.
    Removal,
    /// A key moves to another plan, and may come back.
    Move,
    /// An allow goes to another limiter or key.
    Misdirect,
    Back,
    /// Single steps.
    Noise,
}

const SCENES: [Scene; 16] = [
    Scene::Volley,
    Scene::Gap,
    Scene::Newcomers,
    Scene::Drain,
    Scene::Late,
    Scene::Return,
    Scene::Cycle,
    Scene::Reset,
    Scene::Flights,
    Scene::Crowd,
    Scene::Reload,
    Scene::Removal,
    Scene::Move,
    Scene::Misdirect,
    Scene::Back,
    Scene::Noise,
];

/// The quotas that others are compared with.
const QUOTAS: [Quota; 12] = [
    Quota::per_second(1).burst(4),
    Quota::per_second(1).burst(4),
    Quota::new(1, Duration::from_secs(86_400)).burst(4),
    Quota::new(1, Duration::from_secs(86_400)).burst(4),
    Quota::per_second(0).burst(4),
    Quota::per_second(0).burst(4),
    Quota::per_second(10).burst(10),
    Quota::per_second(3).burst(5),
    Quota::per_day(100_000),
    Quota::per_second(1).burst(100),
    Quota::per_second(600_000_000).burst(50),
    Quota::per_second(2).burst(1),
];

/// Draws a script of about `scenes` scenes.
pub(crate) fn script(chance: &mut Chance<'_>, shape: Shape, scenes: u64) -> Script {
    let store = match shape.kind {
        Kind::Sharded => Store::Sharded { max_keys: chance.pick(&[1, 2, 3, 8, 1_000_000]) },
        Kind::Fixed => Store::Fixed { keys: chance.pick(&[4, 8, 8, 12, 12, 100, 2_000]) },
        Kind::Direct => Store::Direct,
    };
    let first = chance.pick(&QUOTAS);
    let policies = policies(chance, first, shape.quotas);
    let unit = match first.rate() {
        0 => SECOND,
        rate => (first.period().as_nanos() as u64).div_ceil(rate),
    };
    let author = Author {
        chance,
        store,
        time: shape.time,
        quota: first,
        counts_tokens: policies[0].counts_tokens(),
        limits_flights: policies.iter().flat_map(|policy| policy.plans.iter().flatten()).any(|p| p.in_flight.is_some()),
        policies,
        clients: 1,
        limiters: 1,
        unit,
        steps: Vec::new(),
        tags: 0,
        held: Vec::new(),
        flying: Vec::new(),
        refunds: 0,
        newcomers: 1_000,
    };
    author.write(scenes)
}

/// The policies of a script: the first, one with other numbers, one without the other plans, and
/// the first again.
fn policies(chance: &mut Chance<'_>, first: Quota, quotas: usize) -> Vec<PolicySpec> {
    let limit = |chance: &mut Chance<'_>| if chance.one_in(2) { Some(chance.between(1, 2) as u32) } else { None };
    let in_flight = limit(chance);
    let default = PlanSpec { quotas: of_plan(chance, first, quotas), in_flight };
    let pro = match chance.below(3) {
        0 => None,
        // Alike, but for its name.
        1 => Some(default.clone()),
        _ => {
            let quota = chance.pick(&QUOTAS);
            Some(PlanSpec { quotas: of_plan(chance, quota, quotas), in_flight })
        }
    };
    let one = PolicySpec { plans: [Some(default.clone()), pro, None] };
    let mut policies = vec![one.clone()];
    let others = chance.below(3);
    for _ in 0..others {
        let mut other = one.clone();
        match chance.below(4) {
            0 => {
                // Other numbers of the same quotas, by name.
                let factor = chance.pick(&[1, 2, 10]);
                for quota in other.plans.iter_mut().flatten().flat_map(|plan| &mut plan.quotas) {
                    let burst = if chance.one_in(2) { quota.limit() * factor } else { (quota.limit() / factor).max(1) };
                    *quota = quota.burst(burst);
                }
            }
            1 => {
                let quota = chance.pick(&QUOTAS);
                other.plans[0] = Some(PlanSpec { quotas: of_plan(chance, quota, quotas), in_flight });
            }
            2 => {
                for plan in other.plans.iter_mut().flatten() {
                    plan.in_flight = limit(chance);
                }
            }
            _ => other.plans[1] = None,
        }
        policies.push(other);
    }
    let mut without = one.clone();
    without.plans[1] = None;
    policies.push(without);
    policies
}

/// Quotas of a plan, the first of which is `first`.
fn of_plan(chance: &mut Chance<'_>, first: Quota, quotas: usize) -> Vec<Quota> {
    let mut plan = vec![first];
    for name in ["second", "third"].iter().take(quotas - 1) {
        plan.push(match chance.below(5) {
            // The same once more, so that it is idle when the other is.
            0 => first.named(name),
            1 => first.unit(Unit::TOKENS).named(name),
            2 => first.burst(first.limit() * 2).named(name),
            3 => Quota::new(first.rate().max(1), Duration::from_millis(500)).burst(first.limit()).named(name),
            _ => Quota::per_second(0).burst(40).named(name),
        });
    }
    plan
}

struct Author<'a, 'b> {
    chance: &'a mut Chance<'b>,
    store: Store,
    time: Time,
    /// The first of the default plan, by which times and costs are chosen.
    quota: Quota,
    counts_tokens: bool,
    limits_flights: bool,
    policies: Vec<PolicySpec>,
    clients: u64,
    limiters: usize,
    /// The time in which one unit of it comes back.
    unit: u64,
    steps: Vec<Step>,
    tags: u32,
    /// Tags of takes that were not given back, with the limiter and the key.
    held: Vec<(u32, usize, u64)>,
    flying: Vec<u32>,
    /// The number of takes that were given back.
    refunds: u64,
    /// The next new key.
    newcomers: u64,
}

impl Author<'_, '_> {
    fn write(mut self, scenes: u64) -> Script {
        self.clients = self.chance.between(1, 3);
        self.limiters = if self.chance.one_in(4) { 2 } else { 1 };
        // One script in three has nothing but what refunds depend on.
        let about_refunds = self.chance.one_in(3);
        let weights: Vec<u64> = SCENES
            .iter()
            .map(|scene| match scene {
                Scene::Volley | Scene::Gap | Scene::Newcomers | Scene::Return | Scene::Cycle if about_refunds => 1,
                _ if about_refunds => 0,
                _ => self.chance.pick(&[0, 0, 1, 3]),
            })
            .collect();
        let total: u64 = weights.iter().sum();
        for _ in 0..self.chance.between(2, scenes) {
            if self.chance.is_used_up() {
                break;
            }
            let mut drawn = self.chance.below(total.max(1));
            let scene = SCENES.iter().zip(&weights).find(|(_, weight)| {
                let is_it = drawn < **weight;
                drawn = drawn.wrapping_sub(**weight);
                is_it
            });
            let on = self.chance.index(self.limiters);
            let key = self.chance.below(self.clients);
            let plan = if self.policies.iter().any(|p| p.plans[1].is_some()) && self.chance.one_in(3) { 1 } else { 0 };
            self.scene(scene.map_or(Scene::Noise, |(scene, _)| *scene), on, key, plan);
            if self.time == Time::Coarse && self.chance.one_in(3) {
                self.steps.push(Step::Publish);
            }
        }
        Script {
            store: self.store,
            time: self.time,
            hashes: self.chance.below(1 << 16),
            limiters: self.limiters,
            policies: self.policies,
            steps: self.steps,
        }
    }

    fn costs(&mut self, units: u64) -> Costs {
        (units, if self.counts_tokens && !self.chance.one_in(4) { units } else { 0 })
    }

    /// A cost that matters.
    fn some_cost(&mut self) -> u64 {
        let burst = self.quota.limit();
        let options = [0, 1, 1, 1, 2, burst, burst.div_ceil(2), burst + 1, burst * 3 / 5, burst * 9 / 10];
        self.chance.pick(&options)
    }

    fn take(&mut self, on: usize, key: u64, plan: usize, units: u64) {
        self.tags += 1;
        let (costs, tag) = (self.costs(units), self.tags);
        self.steps.push(Step::Take { on, key, plan, costs, tag });
        self.held.push((tag, on, key));
    }

    fn refund(&mut self, index: usize) {
        let (tag, ..) = self.held.remove(index);
        self.steps.push(Step::Refund { tag });
        self.refunds += 1;
    }

    fn gap(&mut self) {
        let (unit, fill) = (self.unit, self.unit.saturating_mul(self.quota.limit()).min(200 * 86_400 * SECOND));
        let some = self.chance.below(fill.saturating_mul(2).max(1));
        let step = self.chance.pick(&[
            unit,
            unit * 2,
            unit * 2,
            fill / 2,
            fill - 1,
            fill,
            fill + 1,
            fill + unit,
            fill * 2,
            unit + 1,
            some,
            some / 8,
        ]);
        self.steps.push(Step::Forward(step));
    }

    fn volley(&mut self, on: usize, key: u64, plan: usize) {
        let burst = self.quota.limit();
        let start = self.held.len();
        if burst > 12 || self.chance.one_in(4) {
            // In two takes, of which the larger one is given back.
            let larger = self.chance.pick(&[burst * 3 / 5, burst.div_ceil(2), burst * 9 / 10]);
            self.take(on, key, plan, larger);
            self.take(on, key, plan, burst - larger);
            self.refund(start);
            return;
        }
        let takes = self.chance.between(burst.div_ceil(2), burst);
        (0..takes).for_each(|_| self.take(on, key, plan, 1));
        // The last, mostly: its bucket was ahead by most.
        let last = self.held.len() - 1;
        let kept = if self.chance.one_in(4) { start + self.chance.index(last - start + 1) } else { last };
        let tag = self.held[kept].0;
        let is_in_order = self.chance.one_in(2);
        while self.held.len() > start + 1 {
            let mut others: Vec<_> = (start..self.held.len()).filter(|at| self.held[*at].0 != tag).collect();
            if !is_in_order {
                others.reverse();
            }
            self.refund(others[0]);
        }
    }

    fn newcomers(&mut self, on: usize, plan: usize) {
        let count = match self.store {
            Store::Sharded { .. } => self.chance.pick(&[1, 2, 3, 4, 9]),
            Store::Fixed { keys: 100 } => self.chance.pick(&[7, 60, 100, 140, 200]),
            Store::Fixed { keys: 12.. } => self.chance.pick(&[1, 7, 10, 12, 14, 17, 21, 30]),
            Store::Fixed { .. } => self.chance.pick(&[1, 3, 6, 7, 7, 8, 9, 10, 12, 14, 16]),
            Store::Direct => 0,
        };
        let units = self.chance.pick(&[1, 1, self.quota.limit()]);
        if units == 1 && self.chance.one_in(4) {
            let keys = (self.newcomers..self.newcomers + count).collect();
            self.steps.push(Step::Batch { on, keys });
        } else {
            for key in self.newcomers..self.newcomers + count {
                let costs = self.costs(units);
                self.steps.push(Step::Take { on, key, plan, costs, tag: 0 });
            }
        }
        // Some of them come again.
        self.newcomers += if self.chance.one_in(4) { count / 2 } else { count };
    }

    /// Gives back up to three takes that are held.
    fn late(&mut self, on: usize, key: u64, plan: usize) {
        for _ in 0..self.chance.between(1, 3) {
            if !self.held.is_empty() {
                // The latest of this very key, or any.
                let own = self.held.iter().rposition(|(_, of, held)| (*of, *held) == (on, key));
                let any = self.chance.index(self.held.len());
                let prefers_own = self.chance.one_in(2);
                self.refund(own.filter(|_| prefers_own).unwrap_or(any));
            }
        }
        self.steps.push(Step::Drain { on, key, plan });
    }

    fn enter(&mut self, on: usize, key: u64, plan: usize) {
        self.tags += 1;
        let (units, tag) = (self.chance.below(2), self.tags);
        let costs = self.costs(units);
        self.steps.push(Step::Enter { on, key, plan, costs, tag });
        self.flying.push(tag);
        self.held.push((tag, on, key));
    }

    fn leave(&mut self) {
        if !self.flying.is_empty() {
            let tag = self.flying.swap_remove(self.chance.index(self.flying.len()));
            self.steps.push(Step::Leave { tag });
        }
    }

    fn scene(&mut self, scene: Scene, on: usize, key: u64, plan: usize) {
        match scene {
            Scene::Volley => self.volley(on, key, plan),
            Scene::Gap => self.gap(),
            Scene::Newcomers => self.newcomers(on, plan),
            Scene::Drain => self.steps.push(Step::Drain { on, key, plan }),
            Scene::Late => self.late(on, key, plan),
            Scene::Return => {
                if !self.chance.one_in(4) {
                    self.volley(on, key, plan);
                }
                self.gap();
                for _ in 0..self.chance.between(1, 2) {
                    self.newcomers(on, plan);
                }
                self.steps.push(Step::Drain { on, key, plan });
                self.late(on, key, plan);
            }
            Scene::Cycle => {
                if self.chance.one_in(2) {
                    self.volley(on, key, plan);
                    self.gap();
                }
                let units = self.chance.pick(&[1, 1, self.quota.limit(), self.quota.limit() * 9 / 10]);
                // Up to where a counter of that many bits may come round, with what was given back
                // before, or not.
                let times = match self.chance.below(4) {
                    0 => self.chance.between(1, 8),
                    1 => (1_u64 << self.chance.pick(&[4, 8, 8, 10])) + self.chance.below(3) - 1,
                    _ => {
                        let round = 1_u64 << self.chance.pick(&[4, 6, 8, 8, 8, 8]);
                        round - self.refunds % round + self.chance.pick(&[0, 0, 1, round - 1])
                    }
                };
                let (costs, times) = (self.costs(units), if self.chance.one_in(1_000) { 1 << 16 } else { times });
                self.steps.push(Step::Cycle { on, key, plan, costs, times });
                self.refunds += times;
                self.steps.push(Step::Drain { on, key, plan });
                if !self.chance.one_in(3) {
                    self.late(on, key, plan);
                }
            }
            Scene::Reset => {
                if self.chance.one_in(2) {
                    let units = self.chance.pick(&[1, self.quota.limit()]);
                    self.take(on, key, plan, units);
                }
                self.steps.push(Step::Reset { on, key });
                if self.chance.one_in(2) {
                    self.newcomers(on, plan);
                }
                self.steps.push(Step::Drain { on, key, plan });
                if !self.chance.one_in(3) {
                    self.late(on, key, plan);
                }
            }
            Scene::Flights => {
                for _ in 0..self.chance.between(1, 4) {
                    if self.chance.one_in(3) { self.leave() } else { self.enter(on, key, plan) }
                }
            }
            Scene::Crowd if self.limits_flights => {
                // Keys that fill the store, some of them by what is in flight.
                if self.chance.one_in(2) {
                    self.newcomers(on, plan);
                }
                if self.chance.one_in(2) {
                    self.enter(on, self.newcomers, plan);
                    self.newcomers += 1;
                }
                self.enter(on, key, plan);
                self.leave();
                self.gap();
                self.enter(on, key, plan);
                self.enter(on, key, plan);
            }
            Scene::Crowd => self.newcomers(on, plan),
            Scene::Reload => {
                let policy = self.chance.index(self.policies.len());
                self.steps.push(Step::Reload { on, policy });
            }
            Scene::Removal => {
                self.steps.push(Step::Reload { on, policy: self.policies.len() - 1 });
                if self.chance.one_in(2) {
                    self.steps.push(Step::Drain { on, key, plan: 0 });
                }
                if self.chance.one_in(2) {
                    self.gap();
                }
                self.steps.push(Step::Reload { on, policy: 0 });
                self.steps.push(Step::Drain { on, key, plan });
            }
            Scene::Move => {
                self.steps.push(Step::Move { on, key, from: plan, to: 1 - plan });
                self.steps.push(Step::Drain { on, key, plan: 1 - plan });
                if self.chance.one_in(2) {
                    self.steps.push(Step::Move { on, key, from: 1 - plan, to: plan });
                    self.steps.push(Step::Drain { on, key, plan });
                }
            }
            Scene::Misdirect => self.misdirect(on, key, plan),
            Scene::Back if self.time != Time::Coarse => {
                let (unit, some) = (self.unit, self.chance.below(self.unit.saturating_mul(4)));
                let nanos = self.chance.pick(&[1, unit / 2, unit, unit * 2, some]);
                self.steps.push(Step::Back(nanos));
            }
            Scene::Back => self.steps.push(Step::Publish),
            Scene::Noise => {
                for _ in 0..self.chance.between(1, 6) {
                    let units = self.some_cost();
                    match self.chance.below(8) {
                        0 => self.gap(),
                        1 => {
                            let costs = self.costs(units);
                            self.steps.push(Step::RefundPeek { on, key, plan, costs });
                        }
                        2 if !self.held.is_empty() => {
                            let index = self.chance.index(self.held.len());
                            self.refund(index);
                        }
                        _ => self.take(on, key, plan, units),
                    }
                }
            }
        }
    }

    fn misdirect(&mut self, on: usize, key: u64, plan: usize) {
        if self.held.is_empty() {
            let units = self.chance.between(1, self.quota.limit());
            self.take(on, key, plan, units);
        }
        let (tag, on, key) = self.held.swap_remove(self.chance.index(self.held.len()));
        let other = if self.limiters == 2 { 1 - on } else { on };
        let to = if self.limiters == 2 && !self.chance.one_in(4) { key } else { self.chance.below(self.clients) };
        self.steps.push(Step::Drain { on: other, key: to, plan });
        self.steps.push(Step::Misdirect { tag, on: other, key: to });
        self.steps.push(Step::Drain { on: other, key: to, plan });
    }
}
