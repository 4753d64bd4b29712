//! Keys that come and go: idle ones are dropped as others arrive, and no unit is gained by it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a helper that meets the unexpected stops the test")]

mod stores;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use stores::{Kind, over_both};
use tollgate::{Decision, Limiter, Now, Quota};

over_both!(a_key_that_is_not_idle_stays_however_many_come, totals_are_exact_while_other_keys_come_and_go,);

fn secs(seconds: f64) -> Now {
    Now::since_origin(Duration::from_secs_f64(seconds)).unwrap()
}

fn numbered(quota: Quota) -> Limiter<u64> {
    Limiter::builder().quota(quota).keys().build().unwrap()
}

/// traefik/traefik#13704: 30 in 10 s, burst 10; dead buckets stay until the map is full, and a drained key that comes
/// back after 2 s has its whole burst.
#[test]
fn a_million_one_shot_keys_go_as_a_second_million_comes() {
    let limiter = numbered(Quota::new(30, Duration::from_secs(10)).burst(10));
    assert!(limiter.check_cost_at(&u64::MAX, 10, Now::ORIGIN).is_allowed());
    for key in 0..1_000_000 {
        assert!(limiter.check_at(&key, Now::ORIGIN).is_allowed());
    }
    assert_eq!(limiter.len(), 1_000_001);

    // Before it is idle: 6 units of 10 are back, and no newcomer has made it forget the other four. A third of a second
    // is no whole number of ticks: at 2 s sharp the sixth is some 10^-9 s late, which is the documented rounding.
    for key in 1_000_000..1_010_000 {
        assert!(limiter.check_at(&key, secs(2.0)).is_allowed());
    }
    assert_eq!(limiter.peek_at(&u64::MAX, secs(2.000_000_001)).remaining(), 6);

    // All are idle, and twice as many go as come.
    for key in 2_000_000..3_000_000 {
        assert!(limiter.check_at(&key, secs(3.34)).is_allowed());
    }
    assert!(limiter.entries().all(|(key, _)| (2_000_000..3_000_000).contains(&key)));
    let stats = limiter.stats();
    assert_eq!((stats.keys, stats.evictions, stats.overflow), (1_000_000, 1_010_001, 0));
}

fn a_key_that_is_not_idle_stays_however_many_come<T: Kind<u64>>() {
    let limiter = T::sized(Limiter::builder().quota(Quota::per_hour(2)).keys(), 40_000).unwrap();
    assert!(limiter.check_cost_at(&0, 2, Now::ORIGIN).is_allowed());
    for round in 1..20_u32 {
        let now = secs(f64::from(round) * 60.0);
        for key in 0..2_000 {
            assert!(limiter.check_at(&(u64::from(round) * 10_000 + key), now).is_allowed());
        }
        assert!(limiter.check_cost_at(&0, 2, now).is_denied());
    }
}

#[test]
fn a_clock_that_goes_backwards_finds_no_fresh_bucket() {
    let limiter = Limiter::builder().quota(Quota::per_second(1).burst(10)).keys::<u64>().shards(2).build().unwrap();
    for key in 0..10 {
        assert!(limiter.check_cost_at(&key, 10, secs(100.0)).is_allowed());
    }
    // The clock leaps, and newcomers drop them all.
    for key in 100..200 {
        assert!(limiter.check_at(&key, secs(1_000.0)).is_allowed());
    }
    assert!(limiter.entries().all(|(key, _)| key >= 100));
    // And it goes back to where they had nothing left: they still have not.
    for key in 0..10 {
        assert!(limiter.peek_at(&key, secs(100.0)).is_denied());
        assert!(limiter.check_at(&key, secs(100.0)).is_denied());
        assert_eq!(limiter.peek_at(&key, secs(1_000.0)).remaining(), 10);
    }
}

#[test]
fn a_refund_of_a_key_that_went_is_worth_nothing() {
    let limiter = Limiter::builder().quota(Quota::per_second(1).burst(10)).keys::<u64>().shards(2).build().unwrap();
    let Decision::Allow(old) = limiter.check_cost_at(&0, 10, Now::ORIGIN) else { unreachable!() };
    for key in 1..100 {
        assert!(limiter.check_at(&key, secs(10.0)).is_allowed());
    }
    assert!(limiter.entries().all(|(key, _)| key != 0));
    assert!(limiter.check_cost_at(&0, 10, secs(10.0)).is_allowed());
    limiter.refund_at(&0, old, secs(10.0));
    assert!(limiter.check_at(&0, secs(10.0)).is_denied());
}

#[test]
fn ten_million_invented_keys_leave_the_known_ones_alone() {
    let limiter = Limiter::builder().quota(Quota::per_hour(3)).keys::<u64>().max_keys(100_000).build().unwrap();
    for key in 0..100_000 {
        assert!(limiter.check_at(&key, Now::ORIGIN).is_allowed());
    }
    let mut admitted = 0;
    for key in 100_000..10_100_000 {
        admitted += u64::from(limiter.check_at(&key, Now::ORIGIN).is_allowed());
    }
    // All of them together had one burst.
    assert_eq!(admitted, 3);
    let stats = limiter.stats();
    assert_eq!((stats.keys, stats.evictions, stats.overflow), (100_000, 0, 10_000_000));
    for key in 0..100_000 {
        assert_eq!(limiter.check_cost_at(&key, 2, Now::ORIGIN).remaining(), 0);
        assert!(limiter.check_at(&key, Now::ORIGIN).is_denied());
    }
}

#[test]
fn newcomers_beyond_the_cap_share_one_bucket() {
    let limiter = Limiter::builder().quota(Quota::per_second(1).burst(10)).keys::<u64>().max_keys(1).build().unwrap();
    assert!(limiter.check_cost_at(&1, 10, Now::ORIGIN).is_allowed());
    // No room for a second one: it shares the overflow bucket, and with a third one.
    assert_eq!(limiter.peek_at(&2, secs(5.0)).remaining(), 10);
    assert!(limiter.check_cost_at(&2, 6, secs(5.0)).is_allowed());
    assert_eq!(limiter.peek_at(&3, secs(5.0)).remaining(), 4);
    let Decision::Allow(given_back) = limiter.check_cost_at(&2, 4, secs(5.0)) else { unreachable!() };
    assert!(limiter.check_at(&3, secs(5.0)).is_denied());
    limiter.refund_at(&2, given_back, secs(5.0));
    assert_eq!(limiter.peek_at(&3, secs(5.0)).remaining(), 4);
    assert_eq!((limiter.len(), limiter.stats().overflow), (1, 3));
}

/// Of two shards, the key is looked for in one: a try or two, and it meets the one whose place it gets.
#[test]
fn a_place_of_its_own_is_no_second_burst() {
    for _ in 0..100 {
        let limiter =
            Limiter::builder().quota(Quota::per_second(1).burst(10)).keys::<u64>().shards(2).max_keys(1).build();
        let limiter = limiter.unwrap();
        assert!(limiter.check_cost_at(&1, 10, Now::ORIGIN).is_allowed());
        assert!(limiter.check_cost_at(&2, 10, secs(9.5)).is_allowed());
        // The first is idle at 10 s and makes room. The second comes with half a unit of what it has used.
        let denied = limiter.check_at(&2, secs(10.0));
        assert!(denied.is_denied());
        if limiter.stats().evictions == 1 {
            assert_eq!(limiter.entries().next().unwrap().0, 2);
            assert_eq!(denied.retry_after(), Some(Duration::from_millis(500)));
            return;
        }
    }
    unreachable!("a hundred limiters put two keys into different shards");
}

/// Rate 0 is never idle while units are used; a key whose take was given back is.
fn totals_are_exact_while_other_keys_come_and_go<T: Kind<u64>>() {
    const BURST: u64 = 10_000;
    let builder = Limiter::builder().quota(Quota::per_second(0).burst(BURST)).keys::<u64>().shards(4);
    let limiter = T::sized(builder, 40).unwrap();
    let admitted = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for newcomers in 1..=4_u64 {
            let (limiter, done) = (&limiter, &done);
            scope.spawn(move || {
                let mut key = newcomers << 40;
                while !done.load(Ordering::Relaxed) {
                    key += 1;
                    let Decision::Allow(allow) = limiter.check(&key) else { unreachable!("a new key") };
                    limiter.refund(&key, allow);
                }
            });
        }
        let checkers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for turn in 0..500_000 {
                        // Ten hot keys; each has its own burst.
                        admitted.fetch_add(u64::from(limiter.check(&(turn % 10)).is_allowed()), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        checkers.into_iter().for_each(|checker| checker.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(admitted.into_inner(), 10 * BURST);
    assert!(limiter.stats().evictions > 0);
}
