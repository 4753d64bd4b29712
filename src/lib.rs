//! In-process rate limiting in nanoseconds: exact under races, without a task to run, without the network.
//!
//! ```
//! use tollgate::{Decision, Limiter, Quota};
//!
//! // Every client: 20 requests at once, 100 a second in the long run.
//! let limiter = Limiter::new(Quota::per_second(100).burst(20))?;
//!
//! match limiter.check("alice") {
//!     Decision::Allow(allow) => println!("go on, {} left", allow.remaining()),
//!     Decision::Deny(deny) => println!("come back in {:?}", deny.retry_after()),
//! }
//! # Ok::<(), tollgate::BuildError>(())
//! ```
//!
//! # Trade-offs
//!
//! - A limiter counts what one process sees. Behind a load balancer each process grants the quota once more. Limits that a
//!   fleet shares are in the module `global`.
//! - State lives in memory: a restart hands every key a full bucket.
//! - A token bucket admits a burst and then the rate, so that up to `burst + rate` units can fall into one second. If
//!   no window may hold more than *n*, the burst and the rate together must be *n*.
//! - In the default store, a check of a known key can wait for a thread that adds another; in the [`Fixed`] one it does not.
//! - There is room for a number of keys, ten million by default. When it is used up by keys that are not idle,
//!   newcomers share the buckets of their plan.
//!
//! # Plans
//!
//! What a key is granted is its plan: one quota, or several that all have to allow a request, requests in flight among
//! them. A [`Policy`] says which plans there are and which key is on which, and is replaced while requests run.
//!
//! ```
//! use tollgate::{Limiter, Plan, Quota, Unit};
//!
//! let limiter = Limiter::builder()
//!     .plan("free", [Quota::per_minute(10)])
//!     .plan("pro", Plan::new([Quota::per_second(20).burst(60), Quota::per_day(100_000)]).in_flight(5))
//!     .plan("chat", [Quota::per_minute(30), Quota::per_minute(60_000).unit(Unit::TOKENS)])
//!     .default_plan("free")
//!     .build()?;
//! assert_eq!(limiter.check("alice").limit(), 10);
//! assert_eq!(limiter.plan("pro")?.check("bob").limit(), 60);
//! let chat = limiter.plan("chat")?;
//! assert!(chat.check_costs("carol", &[(Unit::REQUESTS, 1), (Unit::TOKENS, 1_200)]).is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The flow
//!
//! ```text
//! request ── key ──► plan ──► store ──► buckets ──► Decision      no await, no allocation for a known key
//! ```
//!
//! | file | its one job |
//! |---|---|
//! | `limiter.rs`, `direct.rs` | the front doors, keyed and of one bucket: read the clock once, visit the state, return a decision |
//! | `limiter/` | what else the keyed one does: `look.rs` shows and takes nothing, `enter.rs` has requests in flight, `reload.rs` other limits, `many.rs` batches |
//! | `plan_limiter.rs` | a limiter on a plan that the caller names |
//! | `builder.rs` | options into a limiter, or a [`BuildError`] |
//! | `policy.rs`, `plans.rs` | plans and who is on which, as they are described, and as decisions use them |
//! | `current.rs`, `shelf.rs`, `at_hand.rs` | what is in force now, at the price of a load; what a thread has at hand of it |
//! | `store/` | where the state of keys lives: `sharded.rs` is the map of many shards, `state.rs` what it keeps of a key; `fixed.rs` and `fixed/` are the lock-free store of fixed size; `seam.rs` is what both do |
//! | `bucket.rs` | one 64-bit word and the compare-and-swap that changes it |
//! | `several.rs` | several quotas on one key, all or nothing |
//! | `in_flight.rs` | a request that is under way |
//! | `refunds.rs` | what a refund is worth, and why no more |
//! | `quota.rs`, `unit.rs` | rate and burst of what is counted, and the exact arithmetic of both in ticks |
//! | `stats.rs` | what a limiter has done so far |
//! | `decision.rs`, `standing.rs` | the answer and its numbers, worked out when asked for; the same of every quota |
//! | `clock.rs`, `clock/`, `ticks.rs` | where time comes from: the processor's counter, the time that a thread publishes, clocks of the user's, and how each goes on after a step back; how time is counted |
//! | `hasher.rs` | how keys are hashed, and against whom |
//! | `shared.rs`, `shared/` | what plans and keys have of global quotas, or nothing |
//! | `global/` | limits that a fleet shares (feature `global`); `limiter/global.rs` is their part of the front door |
//! | `http/` | the tower layer (feature `http`) |
//!
//! # Features
//!
//! All are off by default, and without them neither tokio nor tower is built.
//!
//! - `global`: limits that a whole fleet shares, see the module `global`.
//! - `redis`, `redis-tls`: an authority for them in a Redis server, by TLS if need be.
//! - `http`: a tower layer for servers of `http` 1 (axum, hyper), see the module `http`.
//! - `test-util`: `TestClock`, to test your own code without waiting.

#![allow(clippy::result_large_err, reason = "a denial has its numbers in it, and no decision allocates")]

#[cfg(feature = "global")]
pub mod global;
#[cfg(feature = "http")]
pub mod http;

#[cfg(not(loom))]
mod at_hand;
mod bucket;
mod builder;
mod clock;
mod current;
mod decision;
mod direct;
mod error;
mod hasher;
mod in_flight;
mod key;
mod limiter;
mod plan_limiter;
mod plans;
mod policy;
mod quota;
mod refunds;
mod several;
mod shared;
#[cfg(not(loom))]
mod shelf;
mod standing;
mod stats;
mod store;
mod sync;
mod ticks;
mod unit;

#[cfg(feature = "test-util")]
pub use crate::clock::TestClock;
#[cfg(not(loom))]
pub use crate::clock::{ClockError, CoarseClock, CoarseStats};
pub use crate::{
    builder::Builder,
    clock::{Clock, ClockSteps},
    decision::{Allow, Decision, Deny, Reason, Source},
    direct::DirectLimiter,
    error::{BuildError, TimeError, UnknownPlan},
    hasher::{KeyHasher, RandomState},
    in_flight::InFlight,
    key::Key,
    limiter::{Check, Limiter},
    plan_limiter::PlanLimiter,
    policy::{Plan, PlanId, PlanNames, Policy},
    quota::Quota,
    standing::Standing,
    stats::{PlanStats, Stats},
    store::{Fixed, Sharded, Stores},
    ticks::Now,
    unit::Unit,
};

/// What the models and tests look into. Not part of the public interface: anything here may change or
/// go in any version.
#[doc(hidden)]
pub mod internal {
    #[cfg(feature = "global")]
    pub use crate::global::internal::*;

    pub use crate::bucket::Bucket;
    pub use crate::quota::QuotaTicks;
    pub use crate::refunds::Refunds;
    pub use crate::store::{Slot, Visited};
}

/// The README's examples have to compile. One of them is about a feature.
#[cfg(all(doctest, feature = "global"))]
#[doc = include_str!("../README.md")]
struct Readme;
