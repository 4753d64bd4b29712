//! Scripts: a store, policies, and what happens to one limiter or two.

use std::hash::{BuildHasher, Hasher};

use tollgate::{Plan, Policy, Quota, Unit};

use super::chance::mix;

/// The plans that there may be. The first is always there, and is the default.
pub(crate) const NAMES: [&str; 3] = ["default", "pro", "trial"];

/// Requests and tokens.
pub(crate) type Costs = (u64, u64);

/// A store and its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Store {
    /// Two shards, with room for so many keys.
    Sharded { max_keys: u64 },
    /// Made for so many keys.
    Fixed { keys: u64 },
    /// A limiter of one bucket. The key does not matter.
    Direct,
}

/// A source of instants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Time {
    /// Each call is given one.
    Given,
    /// A test clock.
    Clock,
    /// A coarse clock that is published by hand, over a test clock.
    Coarse,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlanSpec {
    pub(crate) quotas: Vec<Quota>,
    pub(crate) in_flight: Option<u32>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PolicySpec {
    pub(crate) plans: [Option<PlanSpec>; NAMES.len()],
}

impl PolicySpec {
    pub(crate) fn policy(&self) -> Policy<u64> {
        let mut policy = Policy::new().default_plan(NAMES[0]);
        for (name, spec) in NAMES.iter().zip(&self.plans) {
            if let Some(PlanSpec { quotas, in_flight }) = spec {
                let plan = Plan::new(quotas.clone());
                policy = policy.plan(*name, in_flight.map_or(plan.clone(), |limit| plan.in_flight(limit)));
            }
        }
        policy
    }

    /// The plan that a check for `plan` is on: the default, where there is none of that name.
    pub(crate) fn effective(&self, plan: usize) -> usize {
        if self.plans[plan].is_some() { plan } else { 0 }
    }

    pub(crate) fn counts_tokens(&self) -> bool {
        let mut quotas = self.plans.iter().flatten().flat_map(|plan| &plan.quotas);
        quotas.any(|quota| quota.counted() == Unit::TOKENS)
    }

    pub(crate) fn plan(&self, plan: usize) -> Option<&PlanSpec> {
        self.plans[plan].as_ref()
    }
}

/// One thing to do. `on` is the limiter, and a take that can be given back has a `tag`.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Moves the clock on by so many nanoseconds.
    Forward(u64),
    /// Moves it back, to the origin at most.
    Back(u64),
    /// Publishes the time of a coarse clock.
    Publish,
    Take {
        on: usize,
        key: u64,
        plan: usize,
        costs: Costs,
        tag: u32,
    },
    /// Takes single requests until one is denied.
    Drain {
        on: usize,
        key: u64,
        plan: usize,
    },
    /// Takes one request of each key, in one batch.
    Batch {
        on: usize,
        keys: Vec<u64>,
    },
    /// Takes and gives back, so many times.
    Cycle {
        on: usize,
        key: u64,
        plan: usize,
        costs: Costs,
        times: u64,
    },
    /// Takes, and is in flight until it leaves.
    Enter {
        on: usize,
        key: u64,
        plan: usize,
        costs: Costs,
        tag: u32,
    },
    /// Ends the latest request in flight of this tag.
    Leave {
        tag: u32,
    },
    /// Gives back the latest take of this tag.
    Refund {
        tag: u32,
    },
    /// Gives it back to a limiter or a key that it may not be of.
    Misdirect {
        tag: u32,
        on: usize,
        key: u64,
    },
    /// Gives back the answer of a peek.
    RefundPeek {
        on: usize,
        key: u64,
        plan: usize,
        costs: Costs,
    },
    Reset {
        on: usize,
        key: u64,
    },
    /// Puts a policy of the script in force.
    Reload {
        on: usize,
        policy: usize,
    },
    Move {
        on: usize,
        key: u64,
        from: usize,
        to: usize,
    },
}

impl Step {
    /// The step as a store of this kind knows it: a limiter of one bucket has one key and one plan.
    pub(crate) fn of_store(&self, store: Store) -> Self {
        let mut step = self.clone();
        if store == Store::Direct {
            match &mut step {
                Self::Take { key, plan, .. }
                | Self::Drain { key, plan, .. }
                | Self::Cycle { key, plan, .. }
                | Self::Enter { key, plan, .. }
                | Self::RefundPeek { key, plan, .. } => (*key, *plan) = (0, 0),
                Self::Misdirect { key, .. } => *key = 0,
                _ => {}
            }
        }
        step
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) store: Store,
    pub(crate) time: Time,
    /// Of the hashes, which are those of each limiter.
    pub(crate) hashes: u64,
    /// The number of limiters.
    pub(crate) limiters: usize,
    /// The first is the one that each limiter is made with.
    pub(crate) policies: Vec<PolicySpec>,
    pub(crate) steps: Vec<Step>,
}

impl Script {
    /// Whether there is room for all keys at any time, beyond all doubt.
    pub(crate) fn is_roomy(&self) -> bool {
        match self.store {
            Store::Sharded { max_keys } => max_keys >= 1_000_000,
            Store::Fixed { keys } => keys >= 1_000,
            Store::Direct => true,
        }
    }

    pub(crate) fn goes_back(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Back(_)))
    }
}

/// A hasher that spreads numbers over all 64 bits, alike in each run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread(pub(crate) u64);

impl BuildHasher for Spread {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(mix(self.0))
    }
}

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = mix(self.0 ^ n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
