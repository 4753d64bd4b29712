//! The sharded store under every interleaving: keys that are checked, dropped as idle, and made again.
//!
//! They go in by the limiter's own front door. Under loom its shards are lists behind loom's reader-writer lock;
//! `sync.rs` says what that leaves unchecked.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use loom_tests::Race;
use loom_tests::keyed::{A, B, C, Keyed, at, builder, fast};
use tollgate::{Allow, Decision};

/// A limiter that grants `burst` units, of which one comes back in a nanosecond.
fn limiter(max_keys: u64, burst: u64) -> Keyed {
    builder(max_keys).quota(fast(burst)).build().expect("a quota that makes sense")
}

/// One unit of `key`.
fn check(limiter: &Keyed, key: u64, nanos: u64) -> Option<Allow> {
    match limiter.check_at(&key, at(nanos)) {
        Decision::Allow(allow) => Some(allow),
        Decision::Deny(_) => None,
    }
}

fn count(allow: Option<Allow>) -> u64 {
    u64::from(allow.is_some())
}

#[test]
fn two_that_bring_the_same_new_key_share_its_burst() {
    Race::model(|race| {
        let limiter = limiter(10, 2);
        let (one, two) = race.run(
            &limiter,
            |limiter| count(check(limiter, A, 100)),
            |limiter| count(check(limiter, A, 100)) + count(check(limiter, A, 100)),
        );
        assert_eq!(one + two, 2);
        assert_eq!(limiter.stats().keys, 1);
    });
}

/// `A` is idle at 102. One thread takes it, one drops it for a newcomer; whoever is first, it has one unit at 102.
#[test]
fn a_take_that_races_the_eviction_of_its_key_counts_once() {
    Race::model(|race| {
        let limiter = limiter(10, 1);
        assert!(check(&limiter, A, 100).is_some());
        let (taken, newcomer) =
            race.run(&limiter, |limiter| count(check(limiter, A, 102)), |limiter| count(check(limiter, B, 102)));
        assert_eq!(newcomer, 1);
        assert_eq!(taken + count(check(&limiter, A, 102)), 1);
    });
}

/// The same when the thread that drops it is ahead in time: what it dropped at 105 is no fresh bucket at 102.
#[test]
fn a_key_that_was_dropped_later_is_not_full_earlier() {
    Race::model(|race| {
        let limiter = limiter(10, 1);
        assert!(check(&limiter, A, 100).is_some());
        let (early, newcomer) =
            race.run(&limiter, |limiter| count(check(limiter, A, 102)), |limiter| count(check(limiter, B, 105)));
        assert_eq!(newcomer, 1);
        // One at 102 and one at 105 at most, and in the two nanoseconds after 102 no second one.
        assert!(early + count(check(&limiter, A, 102)) <= 1);
        assert!(check(&limiter, A, 105).is_some());
        assert!(check(&limiter, A, 105).is_none());
    });
}

/// A refund makes `A` idle at once, and a newcomer may drop it before, after, or not at all.
#[test]
fn a_refund_that_races_the_eviction_of_its_key_gives_nothing_to_the_next_life() {
    Race::model(|race| {
        let limiter = limiter(10, 2);
        let allow = check(&limiter, A, 100).expect("a full bucket");
        let give_back = |limiter: &Keyed| limiter.refund_at(&A, allow, at(100));
        let ((), newcomer) = race.run(&limiter, give_back, |limiter| count(check(limiter, B, 100)));
        assert_eq!(newcomer, 1);
        let admitted: u64 = (0..4).map(|_| count(check(&limiter, A, 100))).sum();
        assert_eq!(admitted, 2);
    });
}

/// There is room for one. `A` is idle at 102, two newcomers race for its place, and the other is charged to the
/// overflow. Whatever room there is later, neither has a second unit at 102.
#[test]
fn who_was_charged_to_the_overflow_has_no_second_burst() {
    Race::model(|race| {
        let limiter = limiter(1, 1);
        assert!(check(&limiter, A, 100).is_some());
        let (c, mut b) = race.run(&limiter, |limiter| check(limiter, C, 102), |limiter| count(check(limiter, B, 102)));
        let stats = limiter.stats();
        assert_eq!((stats.keys, stats.evictions, stats.overflow), (1, 1, 1));
        // Whoever has the place lets go of it: `C` gives back, and is idle at once.
        if let Some(allow) = c {
            limiter.refund_at(&C, allow, at(102));
        }
        for _ in 0..3 {
            b += count(check(&limiter, B, 102));
        }
        assert!(b <= 1, "{b}");
    });
}

/// Two newcomers lock a shard each, and there is room for one: they agree on who has it.
#[test]
fn the_cap_holds_across_shards() {
    const OF_ANOTHER_SHARD: u64 = A + 1;
    Race::model(|race| {
        let limiter = limiter(1, 1);
        let admitted = race.run(
            &limiter,
            |limiter| count(check(limiter, A, 100)),
            |limiter| count(check(limiter, OF_ANOTHER_SHARD, 100)),
        );
        // One has a place of its own, the other shares the overflow with nobody.
        assert_eq!((limiter.stats().keys, admitted), (1, (1, 1)));
    });
}
