//! The sharded store under every interleaving: keys that are checked, dropped as idle, and made again.
//!
//! The store is the library's own. Under loom its shards are lists behind loom's reader-writer lock; `sync.rs` says what
//! that leaves unchecked.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use loom_tests::sync::Arc;
use loom_tests::{model, thread};
use tollgate::internal::{QuotaTicks, Sharded};
use tollgate::{Allow, Decision, Now, Quota};

/// A key is its own hash, so that small even ones share a shard.
#[derive(Clone)]
struct Identity;

struct Last(u64);

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

type Store = Sharded<u64, Identity>;

const A: u64 = 2;
const B: u64 = 4;
const C: u64 = 6;

fn store(max_keys: u64) -> Arc<Store> {
    Arc::new(Sharded::new(Identity, 2, max_keys))
}

/// A unit comes back in a nanosecond.
fn quota(burst: u64) -> QuotaTicks {
    QuotaTicks::new(Quota::per_second(1_000_000_000).burst(burst)).expect("a quota that makes sense")
}

fn at(nanos: u64) -> Now {
    Now::since_origin(Duration::from_nanos(nanos)).expect("an early instant")
}

/// One unit of `key`, as the limiter takes it.
fn check(store: &Store, key: u64, burst: u64, nanos: u64) -> Option<Allow> {
    let quota = quota(burst);
    let known = store.visit(&key, |visited| visited.take(&quota, 1, || at(nanos)));
    let decision = match known {
        Some(decision) => decision,
        None => store.insert(&key, &quota, || at(nanos), |visited, now| visited.take(&quota, 1, || now)),
    };
    match decision {
        Decision::Allow(allow) => Some(allow),
        Decision::Deny(_) => None,
    }
}

fn count(allow: Option<Allow>) -> u64 {
    u64::from(allow.is_some())
}

#[test]
fn two_that_bring_the_same_new_key_share_its_burst() {
    model(|| {
        let store = store(10);
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || count(check(&other, A, 2, 100)) + count(check(&other, A, 2, 100)));
        let admitted = count(check(&store, A, 2, 100)) + thread.join().expect("no model panics");
        assert_eq!(admitted, 2);
        assert_eq!(store.stats().keys, 1);
    });
}

/// `A` is idle at 102. One thread takes it, one drops it for a newcomer; whoever is first, it has one unit at 102.
#[test]
fn a_take_that_races_the_eviction_of_its_key_counts_once() {
    model(|| {
        let store = store(10);
        assert!(check(&store, A, 1, 100).is_some());
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || count(check(&other, B, 1, 102)));
        let taken = count(check(&store, A, 1, 102));
        assert_eq!(thread.join().expect("no model panics"), 1);
        assert_eq!(taken + count(check(&store, A, 1, 102)), 1);
    });
}

/// The same when the thread that drops it is ahead in time: what it dropped at 105 is no fresh bucket at 102.
#[test]
fn a_key_that_was_dropped_later_is_not_full_earlier() {
    model(|| {
        let store = store(10);
        assert!(check(&store, A, 1, 100).is_some());
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || count(check(&other, B, 1, 105)));
        let early = count(check(&store, A, 1, 102));
        assert_eq!(thread.join().expect("no model panics"), 1);
        // One at 102 and one at 105 at most, and in the two nanoseconds after 102 no second one.
        assert!(early + count(check(&store, A, 1, 102)) <= 1);
        assert!(check(&store, A, 1, 105).is_some());
        assert!(check(&store, A, 1, 105).is_none());
    });
}

/// A refund makes `A` idle at once, and a newcomer may drop it before, after, or not at all.
#[test]
fn a_refund_that_races_the_eviction_of_its_key_gives_nothing_to_the_next_life() {
    model(|| {
        let store = store(10);
        let allow = check(&store, A, 2, 100).expect("a full bucket");
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || count(check(&other, B, 2, 100)));
        store.refund(&A, &quota(2), &allow, || at(100));
        assert_eq!(thread.join().expect("no model panics"), 1);
        let admitted: u64 = (0..4).map(|_| count(check(&store, A, 2, 100))).sum();
        assert_eq!(admitted, 2);
    });
}

/// There is room for one. `A` is idle at 102, two newcomers race for its place, and the other is charged to the
/// overflow. Whatever room there is later, neither has a second unit at 102.
#[test]
fn who_was_charged_to_the_overflow_has_no_second_burst() {
    model(|| {
        let store = store(1);
        assert!(check(&store, A, 1, 100).is_some());
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || count(check(&other, B, 1, 102)));
        let c = check(&store, C, 1, 102);
        let mut b = thread.join().expect("no model panics");
        let stats = store.stats();
        assert_eq!((stats.keys, stats.evictions, stats.overflow), (1, 1, 1));
        // Whoever has the place lets go of it: `C` gives back, and is idle at once.
        if let Some(allow) = c {
            store.refund(&C, &quota(1), &allow, || at(102));
        }
        for _ in 0..3 {
            b += count(check(&store, B, 1, 102));
        }
        assert!(b <= 1, "{b}");
    });
}
