//! Every quota of a plan with its numbers, as one decision saw them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::decision::{Decision, Reason, Seen};
use crate::plans::PlanTicks;
use crate::quota::QuotaTicks;
use crate::store::Taken;
use crate::unit::Unit;

/// How a key stands with one quota of its plan.
#[derive(Clone, Debug)]
pub struct Standing {
    plan: Arc<str>,
    name: Arc<str>,
    unit: Unit,
    seen: Seen,
}

impl Standing {
    /// What the plan is called.
    pub fn plan(&self) -> &str {
        &self.plan
    }

    /// What the quota is called, see [`Quota::name`](crate::Quota::name), or `in flight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it counts.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// The burst in units.
    pub const fn limit(&self) -> u64 {
        self.seen.quota.burst()
    }

    /// Units that the key could still take.
    pub const fn remaining(&self) -> u64 {
        self.seen.remaining()
    }

    /// The wait until what was asked of this quota is there, rounded up to the nanosecond: zero if it is, `None` for never
    /// or, of places in flight, unknown.
    pub const fn retry_after(&self) -> Option<Duration> {
        if self.seen.cost > self.limit() { None } else { self.seen.wait_for(self.seen.cost) }
    }

    /// The wait until the whole burst is there again if nobody takes from it, rounded up to the nanosecond; `None` for
    /// never.
    pub const fn reset_after(&self) -> Option<Duration> {
        self.seen.reset_after()
    }

    /// The time an empty bucket takes to fill, rounded up to the nanosecond; `None` if it never does.
    pub const fn window(&self) -> Option<Duration> {
        self.seen.quota.fill_time()
    }

    /// Whether it is the number of requests in flight that is limited.
    #[cfg(feature = "http")]
    pub(crate) fn is_in_flight(&self) -> bool {
        self.unit == IN_FLIGHT
    }

    /// The wait until one unit more can be taken.
    #[cfg(feature = "http")]
    pub(crate) const fn next_after(&self) -> Option<Duration> {
        self.seen.wait_for(1)
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of {} left", self.name, self.remaining(), self.limit())
    }
}

/// What places in flight are called, and what they count.
const IN_FLIGHT: Unit = Unit::new("in flight");

/// Of each quota of `plan` what `decision` saw.
pub(crate) fn standings(plan: &PlanTicks, decision: &Decision) -> Vec<Standing> {
    let seen = decision.seen();
    let of = |name: &Arc<str>, unit: Unit, seen: Seen| Standing {
        plan: Arc::clone(&plan.name),
        name: Arc::clone(name),
        unit,
        seen,
    };
    match (decision.others().all(), &*plan.quotas) {
        (Some((now, in_flight, taken)), quotas) if seen.since == plan.since => {
            let own = quotas.iter().map(|quota| (&quota.name, quota.quota.counted(), &quota.ticks));
            let of_quota = |((name, unit, ticks), taken): ((_, _, &QuotaTicks), &Taken)| {
                let Taken { cost, tat, refunds } = *taken;
                of(name, unit, Seen { quota: *ticks, tat, now: ticks.at(now), cost, refunds, ..*seen })
            };
            let mut standings: Vec<_> = own.chain(plan.shared.each()).zip(taken).map(of_quota).collect();
            if let Some(limit) = plan.in_flight {
                // A request that was denied for want of a place asked for one.
                let cost = u64::from(matches!(decision, Decision::Deny(deny) if deny.reason() == Reason::InFlight));
                let seen = Seen { cost, ..Seen::places(limit, in_flight, plan.index) };
                standings.push(of(&IN_FLIGHT.name().into(), IN_FLIGHT, seen));
            }
            standings
        }
        (None, [quota]) if quota.ticks == seen.quota => {
            vec![of(&quota.name, quota.quota.counted(), *seen)]
        }
        (None, []) => Vec::new(),
        _ => vec![of(&plan.name, Unit::REQUESTS, *seen)],
    }
}
