//! What can go wrong, and only before or beside a decision: a decision itself cannot fail.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::plans::MAX_QUOTAS;
use crate::quota::Quota;
use crate::ticks::{MAX_FILL, MAX_NOW, to_duration};

/// Why a limiter was not built.
///
/// New reasons may be added.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no quota, and no plan.
    NoQuota,
    /// The burst is 0, so that nothing could ever be admitted.
    ZeroBurst {
        /// The quota that was refused.
        quota: Quota,
    },
    /// The period is 0, so that the rate has no meaning.
    ZeroPeriod {
        /// The quota that was refused.
        quota: Quota,
    },
    /// The period is longer than 73 years (2^64 ticks of 1/8 ns).
    PeriodTooLong {
        /// The quota that was refused.
        quota: Quota,
    },
    /// An empty bucket would take more than four years to fill.
    FillTooLong {
        /// The quota that was refused.
        quota: Quota,
    },
    /// The rate is 0 and the burst is over 2^60 units, more than one bucket can count.
    BurstTooLarge {
        /// The quota that was refused.
        quota: Quota,
    },
    /// There is room for no key at all, so that all would share one bucket.
    NoRoom,
    /// A plan has no quota, and is not said to be unlimited.
    EmptyPlan {
        /// What it is called.
        plan: String,
    },
    /// A plan has more than eight quotas.
    TooManyQuotas {
        /// What it is called.
        plan: String,
    },
    /// Two quotas of a plan have the same name.
    DuplicateQuota {
        /// What the plan is called.
        plan: String,
        /// What both quotas are called.
        quota: String,
    },
    /// A plan lets 0 requests be in flight, so that none could ever enter.
    NothingInFlight {
        /// What it is called.
        plan: String,
    },
    /// Two plans have the same name.
    DuplicatePlan {
        /// What both are called.
        plan: String,
    },
    /// A plan is named that there is not.
    UnknownPlan {
        /// What it is called.
        plan: String,
    },
    /// There are several plans, and none is said to be the default.
    NoDefaultPlan,
    /// A limiter has had 65,536 plans of different names.
    TooManyPlans,
    /// The number of shards is not a power of two from 2 to 65,536.
    BadShards {
        /// The number that was refused.
        shards: usize,
    },
    /// [`Builder::keys`](crate::Builder::keys) came after what speaks of keys of the type before, and would have dropped it.
    KeysNotFirst {
        /// Whether there was a fleet.
        fleet: bool,
        /// How many keys the policy had put on a plan.
        overrides: usize,
        /// Whether the policy had a resolver.
        resolver: bool,
    },
    /// A plan has more quotas than a fixed store was built for.
    TooManyForStore {
        /// What it is called.
        plan: String,
        /// How many it may have.
        most: usize,
    },
    /// A plan limits requests in flight, and a fixed store was built without.
    NoPlacesInStore {
        /// What it is called.
        plan: String,
    },
    /// There is no memory for a fixed store of that size.
    NoMemory {
        /// What it would take.
        bytes: u64,
    },
    /// A plan has a global quota, and the limiter belongs to no fleet.
    #[cfg(feature = "global")]
    NoFleet {
        /// What the plan is called.
        plan: String,
    },
    /// A limiter of a fleet goes by the clock of the fleet, and was given another.
    #[cfg(feature = "global")]
    ClockOfFleet,
    /// A global quota has a limit, or a rate, of 2^32 units or more.
    #[cfg(feature = "global")]
    GlobalLimitTooLarge {
        /// The quota that was refused.
        quota: Quota,
    },
    /// A global token bucket has a rate of 0, so that leases that are lost would be lost for good.
    #[cfg(feature = "global")]
    GlobalRateZero {
        /// The quota that was refused.
        quota: Quota,
    },
    /// A sliding window is too short for ten sub-windows of two and a half intervals each.
    #[cfg(feature = "global")]
    GlobalWindowTooShort {
        /// The quota that was refused.
        quota: Quota,
        /// The shortest window at this interval.
        shortest: Duration,
    },
    /// A sliding window is to have fewer than 10 sub-windows, or more than there are 2.5 intervals in it.
    #[cfg(feature = "global")]
    BadSubWindows {
        /// The quota that was refused.
        quota: Quota,
        /// The number that was refused.
        subs: u16,
        /// The largest number at this interval.
        most: u16,
    },
    /// The overdrafts of all nodes together exceed the limit.
    #[cfg(feature = "global")]
    OverdraftTooLarge {
        /// The quota that was refused.
        quota: Quota,
        /// Units of a node.
        overdraft: u32,
        /// How many nodes there are.
        nodes: u32,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQuota => {
                write!(f, "the limiter has no quota: give one with `.quota(Quota::per_second(..))`, or plans")
            }
            Self::ZeroBurst { quota } => {
                write!(f, "quota `{quota}`: a burst of 0 admits nothing, ever: give at least 1 with `.burst(n)`")
            }
            Self::ZeroPeriod { quota } => {
                write!(f, "quota `{quota}`: the period is 0: give at least 1 ns")
            }
            Self::PeriodTooLong { quota } => write!(
                f,
                "quota `{quota}`: the period is longer than {} s: give a lower rate over a shorter period",
                to_duration(u64::MAX).as_secs()
            ),
            Self::FillTooLong { quota } => write!(
                f,
                "quota `{quota}`: the burst takes more than four years ({} s) to fill: lower the burst, raise the \
                 rate, or give a rate of 0 for a burst that never refills",
                to_duration(MAX_FILL).as_secs()
            ),
            Self::BurstTooLarge { quota } => {
                write!(f, "quota `{quota}`: a burst that never refills is at most 2^60 units")
            }
            Self::NoRoom => write!(
                f,
                "room for 0 keys: give at least 1 with `.max_keys(n)` or `.fixed(n)`, or use a `DirectLimiter` for one bucket \
                 that all share"
            ),
            Self::EmptyPlan { plan } => write!(
                f,
                "plan `{plan}` has no quota: give it one, or say that nothing is limited with `Plan::unlimited()`"
            ),
            Self::TooManyQuotas { plan } => {
                write!(f, "plan `{plan}` has more than {MAX_QUOTAS} quotas: leave out those that others imply")
            }
            Self::DuplicateQuota { plan, quota } => write!(
                f,
                "plan `{plan}` has two quotas called `{quota}`: tell them apart with `.named(\"..\")`, which also says \
                 which is which in a reload"
            ),
            Self::NothingInFlight { plan } => {
                write!(f, "plan `{plan}` lets 0 requests be in flight, and so admits none: give at least 1")
            }
            Self::DuplicatePlan { plan } => write!(f, "two plans are called `{plan}`: give each a name of its own"),
            Self::UnknownPlan { plan } => write!(
                f,
                "there is no plan `{plan}`: add it with `.plan(\"{plan}\", [..])`, or let unknown plans stand for the \
                 default with `.unknown_plan_is_default()`"
            ),
            Self::NoDefaultPlan => {
                write!(f, "there are several plans: say which is the default with `.default_plan(\"..\")`")
            }
            Self::TooManyPlans => {
                write!(
                    f,
                    "this limiter has had 65,536 plans of different names, and can't tell more apart: make a new one"
                )
            }
            Self::BadShards { shards } => {
                write!(f, "{shards} shards: give a power of two from 2 to 65,536")
            }
            Self::KeysNotFirst { fleet, overrides, resolver } => {
                let overrides = match overrides {
                    0 => None,
                    1 => Some(String::from("the override of a key")),
                    more => Some(format!("the overrides of {more} keys")),
                };
                let rest = [(fleet, "the fleet"), (resolver, "the resolver")];
                let rest = rest.iter().filter(|(is_dropped, _)| **is_dropped).map(|(_, name)| String::from(*name));
                let dropped: Vec<_> = overrides.into_iter().chain(rest).collect();
                write!(
                    f,
                    "`.keys()` comes after {}, which it can't keep: call `.keys()` first, since these speak of keys",
                    dropped.join(" and ")
                )
            }
            Self::TooManyForStore { plan, most } => write!(
                f,
                "plan `{plan}` has more quotas than the {most} that the fixed store was built for: say how many there will \
                 be with `.room_for(quotas, in_flight)`"
            ),
            Self::NoPlacesInStore { plan } => write!(
                f,
                "plan `{plan}` limits requests in flight, and the fixed store was built without: say so with \
                 `.room_for(quotas, true)`"
            ),
            Self::NoMemory { bytes } => {
                write!(f, "a fixed store of that size takes {bytes} bytes, which can't be had: expect fewer keys")
            }
            #[cfg(feature = "global")]
            Self::NoFleet { plan } => write!(
                f,
                "plan `{plan}` has a global quota, and the limiter belongs to no fleet: give it one with `.fleet(&fleet)`"
            ),
            #[cfg(feature = "global")]
            Self::ClockOfFleet => {
                write!(
                    f,
                    "a limiter of a fleet goes by the fleet's clock: give the clock to the fleet's builder instead"
                )
            }
            #[cfg(feature = "global")]
            Self::GlobalLimitTooLarge { quota } => {
                write!(f, "global quota `{quota}`: limit and rate are at most 2^32 - 1 units: count in larger units")
            }
            #[cfg(feature = "global")]
            Self::GlobalRateZero { quota } => {
                write!(f, "global quota `{quota}`: the rate is 0: a fleet can't share a bucket that never refills")
            }
            #[cfg(feature = "global")]
            Self::GlobalWindowTooShort { quota, shortest } => write!(
                f,
                "global quota `{quota}`: at this interval a sliding window is at least {shortest:?}: use \
                 `GlobalQuota::token_bucket`, or a shorter interval"
            ),
            #[cfg(feature = "global")]
            Self::BadSubWindows { quota, subs, most } => write!(
                f,
                "global quota `{quota}`: {subs} sub-windows: give from 10 to {most}, as each has to last two and a half \
                 intervals"
            ),
            #[cfg(feature = "global")]
            Self::OverdraftTooLarge { quota, overdraft, nodes } => write!(
                f,
                "global quota `{quota}`: {nodes} nodes with an overdraft of {overdraft} units each exceed the limit: give \
                 at most {}",
                quota.limit() / u64::from((*nodes).max(1))
            ),
        }
    }
}

impl Error for BuildError {}

/// A plan that the limiter's policy does not have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPlan {
    plan: String,
}

impl UnknownPlan {
    pub(crate) fn new(plan: &str) -> Self {
        Self { plan: plan.to_owned() }
    }

    /// What was asked for.
    pub fn plan(&self) -> &str {
        &self.plan
    }
}

impl fmt::Display for UnknownPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        write!(
            f,
            "the limiter has no plan `{plan}`: add it to its policy, or let unknown plans stand for the default with \
             `.unknown_plan_is_default()`"
        )
    }
}

impl Error for UnknownPlan {}

/// An instant too far from its origin to be counted: more than 2^61 ticks of 1/8 ns, about nine years.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeError {
    pub(crate) elapsed: Duration,
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an instant {} s after its origin is later than the last one, {} s: subtract the first instant of the \
             series",
            self.elapsed.as_secs(),
            to_duration(MAX_NOW).as_secs()
        )
    }
}

impl Error for TimeError {}
