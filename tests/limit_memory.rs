//! What a key takes does not depend on how large its limit is. A file of its own, since the
//! allocator counts for all.
#![allow(clippy::unwrap_used, reason = "a helper that meets the unexpected stops the test")]

mod counting;
mod stores;

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use counting::in_use;
use stores::Kind;
use tollgate::{Decision, Fixed, Limiter, Now, Policy, Quota, Sharded, Unit};

/// The same shards and sets for the same keys each time, so that the bytes are the same too.
type Hasher = BuildHasherDefault<DefaultHasher>;

const KEYS: u64 = 1_000;

/// Each a minute. The second is the one of the report.
const LIMITS: [u64; 3] = [10, 1_000_000, 1_000_000_000];

/// The test harness may let go of something of its own meanwhile: a byte a key. A bit a unit would
/// be 125 a key.
const SLACK: usize = KEYS as usize;

/// One quota on a plan, and two on another.
fn policy(limit: u64) -> Policy<u64> {
    let tokens = Quota::per_day(limit).unit(Unit::TOKENS);
    Policy::new()
        .plan("one", Quota::per_minute(limit))
        .plan("two", [Quota::per_minute(limit), tokens])
        .default_plan("one")
}

/// Bytes in use with all keys in each of the states that a key can be in, with how each state is
/// called.
fn bytes<T: Kind<u64, Hasher>>(limit: u64) -> Vec<(&'static str, usize)> {
    let at = |seconds| Now::since_origin(Duration::from_secs(seconds)).unwrap();
    let mut all = Vec::with_capacity(16);
    let before = in_use();
    let builder = Limiter::builder().keys().hasher(Hasher::default()).policy(policy(limit));
    let limiter = T::roomy(builder, 4 * KEYS).unwrap();
    let two = limiter.plan("two").unwrap();
    let costs = |cost| [(Unit::REQUESTS, cost), (Unit::TOKENS, cost)];
    let mut note = |state| all.push((state, in_use() - before));
    let each = |work: &dyn Fn(u64)| (0..KEYS).for_each(work);
    let allowed = |decision: Decision| assert!(decision.is_allowed(), "{decision}");

    note("none");
    each(&|key| allowed(limiter.check_at(&key, at(0))));
    note("used once");
    each(&|key| allowed(limiter.check_cost_at(&key, limit / 2, at(0))));
    note("half used");
    each(&|key| allowed(limiter.check_cost_at(&key, limit - limit / 2 - 1, at(0))));
    note("drained");
    each(&|key| (0..20).for_each(|_| assert!(limiter.check_cost_at(&key, limit, at(0)).is_denied())));
    note("denied");
    each(&|key| {
        let Decision::Allow(allow) = limiter.check_cost_at(&key, limit, at(60)) else { unreachable!("it is full") };
        limiter.refund_at(&key, allow, at(60));
        allowed(limiter.check_cost_at(&key, limit, at(60)));
    });
    note("refunded and drained again");
    each(&|key| allowed(two.check_costs_at(&key, &costs(limit), at(60))));
    note("drained on two quotas");
    for _ in 0..3 {
        limiter.reload_at(policy(limit), at(60)).unwrap();
        limiter.reload_at(policy(limit + 1), at(60)).unwrap();
    }
    each(&|key| assert!(limiter.check_cost_at(&key, limit + 1, at(60)).is_denied()));
    note("carried over to other limits");
    each(&|key| _ = limiter.reset(&key));
    each(&|key| allowed(limiter.check_cost_at(&key, limit, at(60))));
    note("reset and used");
    (KEYS..3 * KEYS).for_each(|key| allowed(limiter.check_cost_at(&key, limit, at(3 * 86_400))));
    note("seen off by others");
    all
}

/// Bytes that a key takes after its first take, and how many more after each 100,000 of all that
/// its limit has.
fn bytes_of_single_takes<T: Kind<u64, Hasher>>() {
    let limit = 1_000_000;
    let before = in_use();
    let limiter = T::of(Quota::per_minute(limit));
    let empty = in_use() - before;
    assert!(limiter.check_at(&0, Now::ORIGIN).is_allowed());
    let first = in_use() - before;
    assert!(first - empty < 10_000, "{} bytes for a key", first - empty);
    for taken in 1..limit {
        assert!(limiter.check_at(&0, Now::ORIGIN).is_allowed(), "{taken}");
        if taken % 100_000 == 0 {
            let now = in_use() - before;
            assert!(now.abs_diff(first) < SLACK, "{now} bytes after {taken} takes, {first} after the first");
        }
    }
    assert!(limiter.check_at(&0, Now::ORIGIN).is_denied());
}

fn memory_of_a_store<T: Kind<u64, Hasher>>() {
    // What is made once in a process is made before it counts.
    drop(bytes::<T>(LIMITS[0]));
    let small = bytes::<T>(LIMITS[0]);
    for (state, bytes) in &small {
        // The table of fixed size is made for four times as many keys, with room for nine words
        // each.
        assert!(*bytes < 2_000 * KEYS as usize, "{bytes} bytes for {KEYS} keys, {state}");
    }
    for limit in &LIMITS[1..] {
        for ((state, small), (_, large)) in small.iter().zip(bytes::<T>(*limit)) {
            assert!(large.abs_diff(*small) < SLACK, "{state}: {large} bytes with {limit}/min, {small} with 10/min");
        }
    }
    bytes_of_single_takes::<T>();
}

/// mholt/caddy-ratelimit#44: memory grows with the limit, 4.8 GB for a million a minute and a few
/// clients.
#[test]
fn memory_of_a_key_does_not_depend_on_its_limit() {
    memory_of_a_store::<Sharded>();
    memory_of_a_store::<Fixed>();
}
