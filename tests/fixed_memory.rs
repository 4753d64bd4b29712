//! What a fixed store takes, and that no key that comes changes it. A file of its own, since the allocator counts for all.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a helper that meets the unexpected stops the test")]

mod counting;

use counting::in_use;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::{Fixed, Limiter, Now, Quota, RandomState};

type Numbered = Limiter<u64, RandomState, Fixed>;

/// One at a time, so that nothing else allocates meanwhile.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fixed(keys: u64, quotas: &[Quota]) -> Numbered {
    Limiter::builder().keys().plan("default", quotas.to_vec()).fixed(keys).build().unwrap()
}

/// Bytes for each key of `keys` that are active at once, the limiter and all.
fn bytes_a_key(keys: u64, quotas: &[Quota]) -> f64 {
    let before = in_use();
    let limiter = fixed(keys, quotas);
    for key in 0..keys {
        _ = limiter.check_at(&key, Now::ORIGIN).is_allowed();
    }
    assert!(limiter.stats().keys >= keys - keys / 100_000, "{:?}", limiter.stats());
    (in_use() - before) as f64 / keys as f64
}

const THREE: [Quota; 3] = [Quota::per_hour(3), Quota::per_day(10), Quota::per_minute(2)];

fn assert_bytes(keys: u64) {
    for (quotas, most) in [(&THREE[..1], 48.0), (&THREE[..], 80.0)] {
        let bytes = bytes_a_key(keys, quotas);
        println!("{bytes:.1} bytes a key, {keys} keys, {} quotas", quotas.len());
        assert!(bytes <= most, "{bytes} with {} quotas", quotas.len());
    }
}

#[test]
fn a_key_takes_48_bytes_with_one_quota_and_80_with_three() {
    let _alone = alone();
    assert_bytes(1_000_000);
}

#[test]
#[ignore = "it takes 700 MB"]
fn so_it_does_with_ten_million_keys() {
    let _alone = alone();
    assert_bytes(10_000_000);
}

/// `count` keys that nobody knows come to a store that is full of keys in use.
fn invented(count: u64) {
    const RESIDENT: u64 = 100_000;
    let limiter = fixed(RESIDENT, &[Quota::per_hour(3)]);
    let empty = in_use();
    let mut known = Vec::with_capacity(RESIDENT as usize);
    for key in 0..RESIDENT {
        let overflow = limiter.stats().overflow;
        assert!(limiter.check_at(&key, Now::ORIGIN).is_allowed());
        if limiter.stats().overflow == overflow {
            known.push(key);
        }
    }
    assert!(known.len() as u64 > RESIDENT - 10);
    let before = in_use() - known.capacity() * size_of::<u64>();
    assert!(before < empty + 10_000, "only the overflow is new");
    for key in RESIDENT..RESIDENT + count {
        _ = limiter.check_at(&key, Now::ORIGIN).is_allowed();
    }
    // What runs the tests may have let go of something of its own meanwhile.
    let more = (in_use() - known.capacity() * size_of::<u64>()).saturating_sub(empty);
    assert!(more < 10_000, "{more} bytes more");
    for key in &known {
        assert_eq!(limiter.check_cost_at(key, 2, Now::ORIGIN).remaining(), 0, "{key}");
        assert!(limiter.check_at(key, Now::ORIGIN).is_denied(), "{key}");
    }
    let stats = limiter.stats();
    assert_eq!(stats.evictions, 0);
    assert_eq!(stats.keys + stats.overflow, RESIDENT + count);
    println!("{count} keys invented: {stats:?}, {more} bytes more");
}

#[test]
fn ten_million_invented_keys_leave_the_known_ones_and_the_memory_alone() {
    let _alone = alone();
    invented(10_000_000);
}

#[test]
#[ignore = "it takes a minute"]
fn a_hundred_million_invented_keys_do_as_well() {
    let _alone = alone();
    invented(100_000_000);
}
