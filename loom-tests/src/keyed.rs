//! A limiter as the models use it: its keys are numbers that share a shard, and all instants are given.
//!
//! Its clock is the system's, which no model reads: what `Clock::std` tells differs from one execution of a model to
//! the next, and the model checker needs them alike.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tollgate::{Allow, Builder, Clock, Decision, Limiter, Now, Quota};

/// The limiter of the models.
pub type Keyed = Limiter<u64, Identity>;

/// A key.
pub const A: u64 = 2;
/// Another key.
pub const B: u64 = 4;
/// A third key.
pub const C: u64 = 6;

/// A key is its own hash, so that small even ones share a shard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Identity;

/// The last number that was hashed.
#[derive(Debug)]
pub struct Last(u64);

impl BuildHasher for Identity {
    type Hasher = Last;

    fn build_hasher(&self) -> Last {
        Last(0)
    }
}

impl Hasher for Last {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A limiter with room for `max_keys`, but for its plans.
pub fn builder(max_keys: u64) -> Builder<u64, Identity> {
    Limiter::builder().keys().hasher(Identity).shards(2).max_keys(max_keys).clock(Clock::std())
}

/// A quota of which a unit comes back in a nanosecond.
pub const fn fast(burst: u64) -> Quota {
    Quota::per_second(1_000_000_000).burst(burst)
}

/// A quota of which nothing comes back while a model runs.
pub const fn slow(burst: u64) -> Quota {
    Quota::per_day(1).burst(burst)
}

/// The instant `nanos` after the origin.
pub fn at(nanos: u64) -> Now {
    Now::since_origin(Duration::from_nanos(nanos)).expect("an early instant")
}

/// How many were admitted.
pub fn count(decision: &Decision) -> u64 {
    u64::from(decision.is_allowed())
}

/// The allow of what has to be allowed.
pub fn allow(decision: Decision) -> Allow {
    match decision {
        Decision::Allow(allow) => Some(allow),
        Decision::Deny(_) => None,
    }
    .expect("it is allowed")
}

/// What is left of each quota of the plan of `key`.
pub fn left(limiter: &Keyed, key: u64, now: Now) -> Vec<u64> {
    limiter.peek_all_at(&key, now).iter().map(tollgate::Standing::remaining).collect()
}
