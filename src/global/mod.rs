//! Limits that a whole fleet shares (feature `global`).
//!
//! A [`GlobalQuota`] grants a key so many units in a window over all nodes together. An *authority* holds the truth; each node
//! asks it in the background for *leases*, parts of the quota that it may spend until an instant, and requests spend those:
//! no request waits for the network, and none is admitted that no lease covers, but for an *overdraft* that you can set to 0.
//!
//! # Trade-offs
//!
//! - **A key that a node has not seen is the hard case.** With an overdraft of 0, a plain [`check`](crate::Limiter::check) of
//!   it is denied ([`Reason::NoLease`](crate::Reason::NoLease)) and asks; the same request is admitted one round trip later.
//!   [`acquire_global`](crate::Limiter::acquire_global) waits for that. With an overdraft of *o*, it is admitted at once, and the
//!   fleet may exceed the limit by *o* on each node that did so.
//! - **Small limits on many nodes are a choice between those two.** 10 a minute on 8 nodes is exact with an overdraft of 0 and
//!   callers who wait, and up to 18 with an overdraft of 1 (17 in the simulator).
//! - **A lease that lies with one node is missing on another.** Leases follow demand, are short near the limit, and are given
//!   back when they are not used. The table below says how much of the limit is admitted in the end.
//! - **A unit is free again after the window plus one sub-window** at the latest, not on the dot.
//! - **A refund comes soon or not at all**: once a unit has been told as used, after some 50 ms, it stays used. What other
//!   quotas of the plan took is given back as ever.
//! - **It costs a thread**, some 600 bytes for each key that is used within a window, and for each of 16 shards a batch of up to
//!   128 keys an interval, or up to eight while keys ask for which there is no lease, as on a long tail of keys that are seldom
//!   used. Keys that are not used cost nothing.
//! - For a limit that is low and must be exact on every request, whatever leases are out, ask every time:
//!   [`check_exact`](crate::Limiter::check_exact).
//!
//! ```
//! use std::time::Duration;
//! use tollgate::global::{Fleet, GlobalQuota, MemoryAuthority};
//! use tollgate::{Limiter, Plan, Quota};
//!
//! let fleet = Fleet::builder(MemoryAuthority::new()).start()?;
//! // This node lets no client burst beyond 20; all nodes together admit 6,000 a minute.
//! let plan = Plan::new([Quota::per_second(50).burst(20)])
//!     .global(GlobalQuota::sliding_window(6_000, Duration::from_secs(60)).nodes(8));
//! let limiter = Limiter::builder().fleet(&fleet).plan("api", plan).build()?;
//! assert!(limiter.check("alice").is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The flow
//!
//! ```text
//! request ── spend ──► ledger ──► Decision                      one compare-and-swap, no wait
//!                        │  ▲
//!      spent, needed     ▼  │  lease
//!                dirty queue └─────────── background thread ── batch ──► authority
//! ```
//!
//! | file | its one job |
//! |---|---|
//! | `quota.rs` | a global quota, described and compiled |
//! | `ledger.rs` | what a key may spend and has spent: a word and its terms |
//! | `dirty.rs` | ledgers with something to report, on their way to the thread |
//! | `protocol.rs` | what is said to the authority, and when: no I/O, no clock |
//! | `account.rs`, `breaker.rs`, `redo.rs` | what it knows of a ledger, of the authority's health, and of what it has said |
//! | `authority.rs` | what is said, specified; the trait |
//! | `memory.rs` | an authority in memory; `count.rs`, `window.rs`, `bucket.rs` are what it counts of a key |
//! | `redis.rs`, `redis/`, `window.lua` | an authority in Redis (feature `redis`) |
//! | `link.rs`, `worker.rs`, `waiters.rs`, `fleet.rs` | the thread, those who wait for it, and its owner |
//! | `stats.rs`, `snapshot.rs`, `tell.rs` | what is counted, how it is shown, and what is told as events |
//! | `shares.md`, `faults.md` | what was measured |
//! | `wire.rs` | names of keys that all nodes agree on |
//!
//! # How it goes
//!
//! 1. A request finds no lease for its key. It is admitted on overdraft or denied, notes what it needs, and puts the key on the
//!    dirty queue: it never waits, and the queue never overflows for good, since a ledger that does not fit stays marked.
//! 2. The thread takes the keys of a shard together into a numbered batch: of each, what was used, kept, given up and admitted
//!    on overdraft since the last one, what is needed at least, and what is wanted, which is what demand suggests.
//! 3. The authority charges what was used to the current sub-window, and what it grants to the *head*, the last sub-window in
//!    which that can be spent: at most half of what is left, but no less than what is needed, or nothing.
//! 4. The lease lives as long as its sub-window, counted by the node's own clock from *before* the batch was sent, less a
//!    margin. What is not spent is kept, and moves to the head with the next report, or is given back.
//!
//! # What holds when things break
//!
//! - **Lost, late, doubled and reordered messages, nodes that crash, stop or run slow**: the bound holds as it is. A batch is
//!   resent unchanged under its number until it is answered, and counts once. What a node that crashed had leased is free when
//!   the window has passed.
//! - **An authority that does not answer**: leases last until they end. Then [`WhenAway`] says what this node does, and it tries
//!   again after 50 ms to 2 s. Requests are as fast as ever.
//! - **An authority that has lost its last writes** tells so by not knowing the last number, and is told again what it was
//!   told in the last 10 s. What is older than that may be admitted once more.
//!
//! # Redis
//!
//! With the feature `redis`, `RedisAuthority` is the authority for nodes in many processes: Redis 6.2 and later, Valkey, and
//! what speaks like them.
//!
//! - **When**: a limit has to hold over all nodes, and a round trip for each request is too slow, or too much for the server.
//!   Where each node may have its share for itself, a local quota needs no server.
//! - **What it costs** the server: one script call for up to 128 keys, some 50 bytes out and 9 to 15 back a key; of its CPU for
//!   a key report 1.7 to 1.9 times what an `INCRBY` with an `EXPIRE` takes, 2.5 times for a smooth window and 3.1 for a token
//!   bucket; and 195 bytes a key with 16 sub-windows, 288 with 60, 448 with 120 (Redis 7.0.15, batches of 64). A key that is
//!   hot on a node is reported every interval near its limit, and once in a sub-window far from it.
//! - **How to size it**: 50 nodes with 200 active keys each near their limits at 100 ms are 100,000 key reports a second, a
//!   third of a core. Set `maxmemory-policy` to `noeviction` or `volatile-ttl`.
//! - **When it is away** requests are as fast as ever: leases last until they end, a sub-window or two; then [`WhenAway`]
//!   holds. By default each node admits its share, the limit by the number of nodes: say [`nodes`](GlobalQuota::nodes) where a
//!   node may start before it has heard of the others. Once Redis is back it is told what was admitted.
//! - **What to alert on**, in [`FleetStats`]: `breaker` other than [`Closed`](BreakerState::Closed) for longer than a lease
//!   lives, and `away`, since then [`WhenAway`] holds; `broken_keys`; `lost_batches` and `lost_keys`, which are losses;
//!   `overshoot`; `gaps`, if there was no failover. For tuning: [`lease_hit_ratio`](FleetStats::lease_hit_ratio) and `stranded`
//!   against `granted` say whether leases follow the demand, `round_trip_worst` and `resent` against `batches` what the network
//!   is like, `dirty_full` whether the thread keeps up. Each change of state is also told once by `tracing`, under the target
//!   `tollgate`, with where the server is, what it was asked and what to do.
//! - **TLS** (feature `redis-tls`): `rediss://`. What the system trusts is trusted, or what is given as `root_certificates`.
//! - **What is not there**: Sentinel, and a client for a cluster of several nodes. All keys of a call share a slot.
//!
//! # Bounds
//!
//! In any window, all nodes together:
//!
//! | while | at most |
//! |---|---|
//! | the authority answers, or is away and `WhenAway::Deny` | limit + nodes that knew nothing of the key × overdraft |
//! | the same with a [`smooth`](GlobalQuota::smooth) window | one sub-window's worth more |
//! | it is away and `WhenAway::Local` | the limit, and once the shares of all nodes on top; then the shares |
//! | it is away and `WhenAway::Allow` | anything |
//! | it has lost what it was told | what it has lost more, once, less what it is told again |
//! | its clock leaps ahead by *J* | what was admitted in the oldest *J* of the window more, once |
//! | a token bucket, in a time *t* | burst + rate × (t + twice the life of a lease), and the overdrafts |
//!
//! An admission is dated by an instant between the reading of the clock and the answer.
//!
//! # How much is admitted
//!
#![doc = include_str!("shares.md")]
//!
//! # Faults, forced
//!
//! Four nodes with 1,000 requests a second each share 1,000 in 10 s over a Redis server, with reports every 100 ms, and one thing
//! after the other breaks for 5 s, or once: `scripts/faults` does it. Measured with Redis 7.0.15 on two cores of a virtual
//! machine (Intel Xeon), servers, nodes and network all on it, while others used the machine too at times.
//!
//! Where the server forgets what it was told, it matters when: here it does so 7 s after the start, while all that was admitted
//! is still counted. In another run it did so after 11 s, when the flood had just had the next window's worth, and `Deny` with an
//! overdraft of 0 came to 122 % with a flush, to 167 % with evicted counters and to 180 % with an empty server. A counter that is
//! evicted is the worst of these: only the node that meets it first learns of it, and tells again what it has used; the others do
//! not. So have the server evict none.
//!
#![doc = include_str!("faults.md")]

mod account;
mod authority;
mod breaker;
mod bucket;
mod count;
mod dirty;
#[cfg(not(loom))]
mod fleet;
mod ledger;
mod link;
mod memory;
mod protocol;
mod quota;
#[cfg(all(feature = "redis", not(loom)))]
mod redis;
mod redo;
#[cfg(not(loom))]
mod snapshot;
mod stats;
#[cfg(not(loom))]
mod tell;
#[cfg(not(loom))]
mod waiters;
mod window;
mod wire;
#[cfg(not(loom))]
mod worker;

pub use self::authority::{
    Answer, Authority, AuthorityError, Batch, Body, Call, Record, Reply, Report, Rule, WireName,
};
#[cfg(not(loom))]
pub use self::fleet::{Fleet, FleetBuilder, Shutdown, StartError};
pub(crate) use self::link::{Holder, Link, Request};
pub use self::memory::{Books, MemoryAuthority};
pub(crate) use self::protocol::MICRO;
pub(crate) use self::quota::QuotaRef;
pub use self::quota::{GlobalQuota, Overdraft, Warning, WhenAway};
#[cfg(all(feature = "redis", not(loom)))]
pub use self::redis::{RedisAuthority, RedisAuthorityBuilder, RedisBuildError};
#[cfg(not(loom))]
pub use self::snapshot::{BreakerState, FleetStats};
pub(crate) use self::wire::{Named, name};
pub use self::wire::{WireHasher, WireKey};
#[cfg(not(loom))]
pub use crate::limiter::{GlobalStatus, NoAnswer};

/// What models and tests look into.
pub(crate) mod internal {
    pub use super::dirty::Dirty;
    pub use super::ledger::{Answered, Found, Ledger, Renewed, Spent, Terms, Wanted};
    pub use super::protocol::{Event, Protocol, Settings};
    pub use super::quota::{FleetQuota, QuotaRef};
    #[cfg(all(feature = "redis", not(loom)))]
    pub use super::redis::{Packed, SCRIPT, unpack};
    #[cfg(not(loom))]
    pub use super::snapshot::{Depths, snapshot};
    pub use super::stats::Counts;
}
