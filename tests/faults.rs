//! Faults that other limiters had, each with the right value. The doc comment of a test carries the public report.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a helper that meets the unexpected stops the test")]

mod stores;

use std::cell::Cell;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use stores::{Kind, over_both};
use tollgate::{BuildError, Decision, Deny, DirectLimiter, Limiter, Now, Plan, Policy, Quota, Reason, Unit};

over_both!(
    a_cost_counts_in_full,
    a_new_key_has_its_whole_burst,
    a_quota_is_not_charged_for_what_another_denies,
    a_request_over_the_smaller_quota_takes_nothing_of_the_larger_one,
    a_client_over_its_own_limit_takes_nothing_of_the_limit_of_all,
    a_key_that_was_idle_for_long_has_its_burst_and_no_more,
    takes_after_an_idle_time_are_spread_by_the_rate,
    a_reload_of_the_same_policy_refills_nothing,
    a_reload_of_a_policy_that_hardly_differs_refills_nothing,
    a_raised_limit_is_there_at_once,
    a_lowered_limit_holds_at_once,
    a_reload_frees_no_place_that_is_taken,
);

fn at(elapsed: Duration) -> Now {
    Now::since_origin(elapsed).unwrap()
}

fn secs(seconds: f64) -> Now {
    at(Duration::from_secs_f64(seconds))
}

fn direct(quota: Quota) -> DirectLimiter {
    DirectLimiter::new(quota).unwrap()
}

fn denied(decision: Decision) -> Deny {
    match decision {
        Decision::Deny(deny) => deny,
        Decision::Allow(allow) => unreachable!("{allow}"),
    }
}

fn admitted(limiter: &DirectLimiter, checks: u64, now: Now) -> u64 {
    (0..checks).map(|_| u64::from(limiter.check_at(now).is_allowed())).sum()
}

// Bucket.

/// golang/go#39984: rate 0, burst 1 always allows.
#[test]
fn a_rate_of_zero_admits_the_burst_and_then_never() {
    let limiter = direct(Quota::per_second(0).burst(1));
    let now = |call| at(Duration::from_secs(call));
    assert_eq!((0..1_000).filter(|call| limiter.check_at(now(*call)).is_allowed()).count(), 1);
    let deny = denied(limiter.check_at(Now::MAX));
    assert_eq!((deny.retry_after(), deny.reason()), (None, Reason::NeverRefills));
    assert_eq!((deny.remaining(), deny.reset_after()), (0, None));
}

/// bucket4j/bucket4j#220: a cost above the capacity reports a finite wait.
#[test]
fn a_cost_above_the_burst_can_never_fit_and_takes_nothing() {
    let limiter = direct(Quota::new(3, Duration::from_secs(2)).burst(3));
    let deny = denied(limiter.check_cost_at(4, Now::ORIGIN));
    assert_eq!((deny.retry_after(), deny.reason()), (None, Reason::CostExceedsBurst));
    assert_eq!(deny.remaining(), 3);
    assert_eq!(deny.to_string(), "denied for good: the cost of 4 exceeds the burst of 3");
    assert_eq!(limiter.peek_at(Now::ORIGIN).remaining(), 3);
    assert_eq!(denied(limiter.check_cost_at(u64::MAX, Now::MAX)).reason(), Reason::CostExceedsBurst);
}

/// upstash/ratelimit-py PR#15: a denied request still deducts.
#[test]
fn a_denied_request_takes_nothing() {
    let limiter = direct(Quota::per_second(10));
    assert!(limiter.check_cost_at(8, Now::ORIGIN).is_allowed());
    let deny = denied(limiter.check_cost_at(5, Now::ORIGIN));
    assert_eq!(deny.remaining(), 2);
    assert!(limiter.check_cost_at(2, Now::ORIGIN).is_allowed());
}

/// mailgun/gubernator PR#87: what leaks back is added to what remains, beyond the limit.
#[test]
fn what_comes_back_never_exceeds_the_burst() {
    let limiter = direct(Quota::per_second(10));
    assert_eq!(limiter.check_at(Now::ORIGIN).remaining(), 9);
    assert_eq!(limiter.peek_at(secs(0.5)).remaining(), 10);
}

/// throttlecrab 0.4.40 with burst 1 never denies.
#[test]
fn a_burst_of_one_admits_one() {
    let limiter = direct(Quota::per_second(1));
    assert_eq!(admitted(&limiter, 100, secs(5.0)), 1);
    assert_eq!(admitted(&limiter, 100, secs(5.999_999_999)), 0);
    assert_eq!(admitted(&limiter, 100, secs(6.0)), 1);
}

/// trypema 2.2.1, local: a cost of 1,000,000 passes a limit of 100.
fn a_cost_counts_in_full<T: Kind>() {
    let limiter = T::of(Quota::new(100, Duration::from_secs(10)));
    assert!(limiter.check_cost_at("key", 1_000_000, Now::ORIGIN).is_denied());
    assert!(limiter.check_cost_at("key", 100, Now::ORIGIN).is_allowed());
    assert!(limiter.check_cost_at("key", 1, Now::ORIGIN).is_denied());
}

/// alisaifee/limits#151: ten a minute; a cost of 100 passes after one of 5.
#[test]
fn a_cost_above_the_burst_is_denied_by_a_used_bucket_too() {
    let limiter = direct(Quota::per_minute(10));
    assert!(limiter.check_cost_at(5, Now::ORIGIN).is_allowed());
    assert!(limiter.check_cost_at(100, Now::ORIGIN).is_denied());
}

// Bad quotas.

/// rclone/rclone#9820: a burst worked out by a multiply that wraps turns the limiter off.
#[test]
fn large_rates_and_bursts_neither_wrap_nor_pass() {
    let rate = 4_398_046_511_104_u64;
    let burst = u64::try_from(u128::from(rate) * 4_194_304 / 268_435_456).unwrap();
    assert_eq!(burst, 68_719_476_736);
    let limiter = direct(Quota::per_second(rate).burst(burst));
    assert_eq!(limiter.peek_at(Now::ORIGIN).remaining(), burst);
    assert!(limiter.check_cost_at(burst, Now::ORIGIN).is_allowed());
    assert!(limiter.check_at(Now::ORIGIN).is_denied());

    let quota = Quota::per_second(1).burst(u64::from(u32::MAX));
    let error = DirectLimiter::new(quota).unwrap_err();
    assert_eq!(error, BuildError::FillTooLong { quota });
    assert!(error.to_string().contains("1/s, burst 4294967295"), "{error}");
}

/// spring-cloud/spring-cloud-gateway#168: a burst of 0 turns the limiter off.
#[test]
fn a_burst_of_zero_is_refused_when_built() {
    let quota = Quota::per_second(1).burst(0);
    assert_eq!(DirectLimiter::new(quota).unwrap_err(), BuildError::ZeroBurst { quota });
    assert_eq!(Limiter::new(quota).unwrap_err(), BuildError::ZeroBurst { quota });
}

// Refill.

/// The instants of bucket4j/bucket4j#51: at 1,000,000 a second, units times elapsed nanoseconds
/// pass 2^63, and 2^64.
const IDLE_NANOS: [u64; 2] = [9_223_372_036_855, 18_446_744_073_710];

/// Drains a bucket of 10 and takes from it at each of these instants, and at the latest that there
/// is.
fn takes_after_a_long_idle_time(check: impl Fn(Now) -> Decision) {
    let drained = (0..11).filter(|_| check(Now::ORIGIN).is_allowed()).count();
    assert_eq!(drained, 10);
    for now in IDLE_NANOS.map(|nanos| at(Duration::from_nanos(nanos))).into_iter().chain([Now::MAX]) {
        for left in (0..10).rev() {
            let decision = check(now);
            assert!(decision.is_allowed(), "{now:?}, {left} to be left: {decision}");
            assert_eq!(decision.remaining(), left, "{now:?}");
        }
        assert!(check(now).is_denied(), "{now:?}");
    }
}

/// bucket4j/bucket4j#51: units times elapsed nanoseconds overflow after a long idle time.
#[test]
fn a_long_idle_time_fills_the_bucket_and_no_more() {
    let limiter = direct(Quota::per_second(1_000_000).burst(10));
    takes_after_a_long_idle_time(|now| limiter.check_at(now));
    // By each of them alone, the bucket not having been used at the other.
    for nanos in IDLE_NANOS {
        let limiter = direct(Quota::per_second(1_000_000).burst(10));
        assert_eq!(admitted(&limiter, 11, Now::ORIGIN), 10);
        let first = limiter.check_at(at(Duration::from_nanos(nanos)));
        assert!(first.is_allowed(), "{first}");
        assert_eq!(first.remaining(), 9);
        assert_eq!(admitted(&limiter, 100, at(Duration::from_nanos(nanos))), 9);
    }
}

/// bucket4j/bucket4j#51, of a key.
fn a_key_that_was_idle_for_long_has_its_burst_and_no_more<T: Kind>() {
    let quota = Quota::per_second(1_000_000).burst(10);
    let limiter = T::of(quota);
    takes_after_a_long_idle_time(|now| limiter.check_at("alice", now));
    let several = T::make(Limiter::builder().plan("default", [quota, Quota::per_day(1_000_000)])).unwrap();
    takes_after_a_long_idle_time(|now| several.check_at("alice", now));
}

/// Takes one unit at 0 s and, from 2 s on, 24 as soon as each is admitted; the rate is 1/s, the
/// burst 2.
fn takes_24_after_two_idle_seconds(check: impl Fn(Now) -> Decision) {
    assert!(check(Now::ORIGIN).is_allowed());
    let mut elapsed = Duration::from_secs(2);
    let mut taken = Vec::new();
    while taken.len() < 24 {
        match check(at(elapsed)) {
            Decision::Allow(_) => taken.push(elapsed.as_secs_f64()),
            Decision::Deny(deny) => elapsed += deny.retry_after().unwrap(),
        }
    }
    // Both units of the burst at 2 s, and then one a second.
    let due: Vec<_> = [2].into_iter().chain(2..=24).map(f64::from).collect();
    assert_eq!(taken, due);
}

/// uber-go/ratelimit#119: one a second with a slack of one; after a take and two idle seconds 24
/// pass at once.
#[test]
fn takes_of_one_bucket_after_an_idle_time_are_spread_by_the_rate() {
    let limiter = direct(Quota::per_second(1).burst(2));
    takes_24_after_two_idle_seconds(|now| limiter.check_at(now));
}

/// uber-go/ratelimit#119, of a key: with one quota, with two, and on a plan that the caller names.
fn takes_after_an_idle_time_are_spread_by_the_rate<T: Kind>() {
    let quota = Quota::per_second(1).burst(2);
    let one = T::of(quota);
    takes_24_after_two_idle_seconds(|now| one.check_at("alice", now));
    let two = T::make(Limiter::builder().plan("default", [Quota::per_hour(1_000), quota])).unwrap();
    takes_24_after_two_idle_seconds(|now| two.check_at("alice", now));
    let plans = Limiter::builder().plan("free", Quota::per_hour(1)).plan("pro", quota).default_plan("free");
    let plans = T::make(plans).unwrap();
    let pro = plans.plan("pro").unwrap();
    takes_24_after_two_idle_seconds(|now| pro.check_at("alice", now));
}

/// Govcraft/acton-service#141: an interval kept in whole milliseconds panics above 60,000 a minute.
#[test]
fn more_than_one_a_millisecond_works() {
    let limiter = direct(Quota::per_minute(120_000).burst(2));
    assert_eq!(admitted(&limiter, 10, Now::ORIGIN), 2);
    assert_eq!(admitted(&limiter, 10, secs(0.001)), 2);
    let second = |millis| at(Duration::from_millis(millis));
    assert_eq!((2..1_002).map(|millis| admitted(&limiter, 10, second(millis))).sum::<u64>(), 2_000);
}

/// zendesk/prop PR#34: 10 in 60 s, 30 s elapsed, and an integer division leaks nothing.
#[test]
fn half_a_period_gives_half_of_the_units_back() {
    let limiter = direct(Quota::per_minute(10));
    assert_eq!(admitted(&limiter, 11, Now::ORIGIN), 10);
    assert_eq!(limiter.peek_at(secs(30.0)).remaining(), 5);
}

/// udoprog/leaky-bucket PR#30: max 10, one in 100 ms, idle for an hour, and 36,000 come back.
#[test]
fn an_idle_hour_gives_back_the_burst_only() {
    let limiter = direct(Quota::per_second(10));
    assert_eq!(admitted(&limiter, 11, Now::ORIGIN), 10);
    assert_eq!(admitted(&limiter, 100, secs(3_600.0)), 10);
}

/// throttlecrab 0.4.40: burst 10 at 1/s, one request at 0, and 17 pass at one instant 8.9 s later.
#[test]
fn an_idle_key_does_not_overfill() {
    let limiter = direct(Quota::per_second(1).burst(10));
    assert_eq!(admitted(&limiter, 1, Now::ORIGIN), 1);
    assert_eq!(admitted(&limiter, 100, secs(8.9)), 10);
}

/// google/guava#5290: 12.5 µs cut to 12, 80,000 a second become 83,300.
#[test]
fn eighty_thousand_a_second_are_eighty_thousand() {
    let limiter = direct(Quota::per_second(80_000).burst(1));
    let halves = (0..2_000_000).map(|halves| at(Duration::from_nanos(halves * 500)));
    assert_eq!(halves.filter(|now| limiter.check_at(*now).is_allowed()).count(), 80_000);
}

// Clock.

/// golang/go#71360, golang/time PR#25: a late older timestamp rewinds the bucket and the interval counts twice.
#[test]
fn an_older_timestamp_gives_nothing_back() {
    let limiter = direct(Quota::per_second(10));
    assert_eq!(admitted(&limiter, 10, secs(100.0)), 10);
    assert!(limiter.check_at(secs(99.0)).is_denied());
    assert_eq!(admitted(&limiter, 20, secs(100.0)), 0);
    for older in [0.0, 50.0, 99.999_999_999] {
        assert_eq!(admitted(&limiter, 20, secs(older)), 0);
    }
    assert_eq!(admitted(&limiter, 20, secs(100.1)), 1);
}

/// metrics-rs/quanta#61: the clock reads 1000 and then 900, and the elapsed time wraps.
#[test]
fn a_clock_that_steps_back_refills_nothing() {
    let limiter = direct(Quota::per_second(1_000_000).burst(1));
    assert!(limiter.check_at(at(Duration::from_nanos(1_000))).is_allowed());
    let deny = denied(limiter.check_at(at(Duration::from_nanos(900))));
    assert_eq!(deny.retry_after(), Some(Duration::from_nanos(1_100)));
    assert_eq!(deny.remaining(), 0);
}

// Registry.

/// jhurliman/node-rate-limiter PR#41: the bucket of a new client starts empty.
fn a_new_key_has_its_whole_burst<T: Kind>() {
    let limiter = T::of(Quota::per_second(1).burst(5));
    let decisions: Vec<_> = (0..6).map(|_| limiter.check_at("new", Now::ORIGIN)).collect();
    assert_eq!(decisions[0].remaining(), 4);
    assert!(decisions[..5].iter().all(Decision::is_allowed));
    assert!(decisions[5].is_denied());
}

/// xacrimon/dashmap#369: a guard held while another key is inserted, and two threads wait for each other.
#[test]
fn two_threads_that_cross_over_two_keys_come_to_an_end() {
    let limiter = Limiter::builder().quota(Quota::per_second(0).burst(1 << 40)).shards(2).build().unwrap();
    let (done, finished) = mpsc::channel();
    for (one, other) in [("A", "B"), ("B", "A")] {
        let (limiter, done) = (limiter.clone(), done.clone());
        thread::spawn(move || {
            for turn in 0..100_000_u64 {
                let Decision::Allow(held) = limiter.check(one) else { unreachable!("2^40 units") };
                assert!(limiter.check(other).is_allowed());
                limiter.refund(one, held);
                if turn % 64 == 0 {
                    limiter.reset(other);
                    assert!(limiter.entries().count() <= 2);
                }
            }
            done.send(()).unwrap();
        });
    }
    // The report's own limit is 5 s; a deadlock lasts for ever, and a busy machine may take a while.
    for _ in 0..2 {
        finished.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}

/// pubky/pubky-homeserver PR#573: the first limit is charged though the second denies.
fn a_quota_is_not_charged_for_what_another_denies<T: Kind>() {
    let quotas = [Quota::per_minute(2), Quota::per_second(1)];
    let limiter = T::make(Limiter::builder().plan("default", quotas)).unwrap();
    assert!(limiter.check_at("alice", secs(0.0)).is_allowed());
    let deny = denied(limiter.check_at("alice", secs(0.0)));
    assert_eq!((deny.limit(), deny.retry_after()), (1, Some(Duration::from_secs(1))));
    assert!(limiter.check_at("alice", secs(1.0)).is_allowed());
}

/// symfony/symfony PR#65796: a client over its own limit uses up the limit of all.
///
/// A check has one key, so a limit of a client and a limit of all clients are two limiters. Both
/// limits here are of the same key: this is the product's own way to take from two limits or from
/// none. Below, two limiters do it with a refund.
fn a_request_over_the_smaller_quota_takes_nothing_of_the_larger_one<T: Kind>() {
    let (own, all) = (Quota::per_hour(1).named("own"), Quota::per_hour(10).named("all"));
    // In either order of the quotas, and with the smaller one not hit by the first request.
    for (quotas, cost, served) in [([own, all], 1, 1), ([all, own], 1, 1), ([all.burst(30), own.burst(7)], 3, 2)] {
        let limiter = T::make(Limiter::builder().plan("default", quotas)).unwrap();
        let allowed = (0..20).filter(|_| limiter.check_cost_at("alice", cost, secs(0.0)).is_allowed()).count();
        assert_eq!(allowed, served, "{quotas:?}");
        let used = |name| {
            let standings = limiter.peek_all_at("alice", secs(0.0));
            let standing = standings.iter().find(|standing| standing.name() == name).unwrap();
            standing.limit() - standing.remaining()
        };
        let taken = served as u64 * cost;
        assert_eq!((used("own"), used("all")), (taken, taken), "{quotas:?}");
        // The decision that counts: what is left of the larger one is there once the smaller one is
        // out of the way.
        limiter.reload_at(policy(quotas.into_iter().find(|quota| quota.name() == "all").unwrap()), secs(0.0)).unwrap();
        let left = (0..40).filter(|_| limiter.check_at("alice", secs(0.0)).is_allowed()).count() as u64;
        assert_eq!(left, quotas.iter().map(Quota::limit).max().unwrap() - taken, "{quotas:?}");
    }
}

/// symfony/symfony PR#65796, with the limit of all in a limiter of its own.
fn a_client_over_its_own_limit_takes_nothing_of_the_limit_of_all<T: Kind>() {
    // The order in which a denial by the client's own limit comes last, and has to be made up for.
    for own_first in [true, false] {
        let (users, all) = (T::of(Quota::per_hour(1)), T::of(Quota::per_hour(10)));
        let ((first, of_first), (second, of_second)) =
            if own_first { ((&users, "alice"), (&all, "all")) } else { ((&all, "all"), (&users, "alice")) };
        let served = (0..20).filter(|_| match first.check_at(of_first, secs(0.0)) {
            Decision::Deny(_) => false,
            Decision::Allow(allow) => {
                let served = second.check_at(of_second, secs(0.0)).is_allowed();
                if !served {
                    first.refund_at(of_first, allow, secs(0.0));
                }
                served
            }
        });
        assert_eq!(served.count(), 1);
        let left = (0..20).filter(|_| all.check_at("all", secs(0.0)).is_allowed()).count();
        assert_eq!(left, 9, "own first: {own_first}");
    }
}

fn policy(plan: impl Into<Plan>) -> Policy {
    Policy::new().plan("default", plan)
}

/// nuetzliches/hookaido PR#239: each reload refills each bucket.
fn a_reload_of_the_same_policy_refills_nothing<T: Kind>() {
    let same = || policy(Quota::per_second(1).burst(10));
    let limiter = T::make(Limiter::builder().policy(same())).unwrap();
    assert!(limiter.check_cost_at("drained", 10, secs(0.0)).is_allowed());
    assert!(limiter.check_cost_at("used", 4, secs(0.0)).is_allowed());
    // A word that is carried over twice comes from a version that looks like the one that it goes
    // to.
    for reloads in 1..=5 {
        limiter.reload_at(same(), secs(0.0)).unwrap();
        assert!(limiter.check_at("drained", secs(0.0)).is_denied(), "{reloads} reloads");
        assert!(limiter.check_cost_at("used", 7, secs(0.0)).is_denied(), "{reloads} reloads");
    }
    assert!(limiter.check_cost_at("used", 6, secs(0.0)).is_allowed());
}

/// nuetzliches/hookaido PR#239: the same, where the use of each key has to be worked out anew.
fn a_reload_of_a_policy_that_hardly_differs_refills_nothing<T: Kind>() {
    let quota = Quota::per_second(1).burst(10);
    // With the units that the key has left which has used 4 of 10.
    let alike: [(Plan, u64); 7] = [
        (Plan::new([Quota::per_second(2).burst(10)]), 6),
        (Plan::new([Quota::per_second(1).burst(9)]), 5),
        (Plan::new([Quota::new(1_001, Duration::from_secs(1_000)).burst(10)]), 6),
        (Plan::new([Quota::per_minute(60).burst(10)]), 6),
        (Plan::new([quota, Quota::per_day(1_000)]), 6),
        (Plan::new([Quota::per_day(1_000), quota]), 6),
        (Plan::new([Quota::per_second(3).burst(10)]).in_flight(5), 6),
    ];
    for (plan, left) in alike {
        let limiter = T::roomy(Limiter::builder().quota(quota), 2_000).unwrap();
        assert!(limiter.check_cost_at("drained", 10, secs(0.0)).is_allowed());
        assert!(limiter.check_cost_at("used", 4, secs(0.0)).is_allowed());
        limiter.reload_at(policy(plan.clone()), secs(0.0)).unwrap();
        assert!(limiter.check_at("drained", secs(0.0)).is_denied(), "{plan:?}");
        assert_eq!(limiter.peek_at("used", secs(0.0)).remaining(), left, "{plan:?}");
        // And back again.
        limiter.reload_at(policy(quota), secs(0.0)).unwrap();
        assert!(limiter.check_at("drained", secs(0.0)).is_denied() || left < 6, "{plan:?}");
        assert!(limiter.check_cost_at("used", 7, secs(0.0)).is_denied(), "{plan:?}");
        assert!(limiter.check_cost_at("used", 6, secs(0.0)).is_allowed(), "{plan:?}");
    }
}

/// envoyproxy/ratelimit#185: denials are counted, so that a raised limit does not help.
fn a_raised_limit_is_there_at_once<T: Kind>() {
    let limiter = T::of(Quota::per_hour(10));
    assert_eq!((0..50).filter(|_| limiter.check_at("alice", secs(0.0)).is_allowed()).count(), 10);
    limiter.reload_at(policy(Quota::per_hour(20)), secs(0.0)).unwrap();
    assert_eq!((0..50).filter(|_| limiter.check_at("alice", secs(0.0)).is_allowed()).count(), 10);
}

/// symfony/symfony#44850: after the limit was lowered, the old one is still available.
fn a_lowered_limit_holds_at_once<T: Kind>() {
    let limiter = T::of(Quota::per_hour(20));
    // Keys with a history: what they have is carried over. The first has its whole burst again when
    // the limit changes.
    let used = [("idle", 1, 3_600.0 - 180.0), ("one", 1, 3_600.0), ("five", 5, 3_600.0), ("all", 20, 3_600.0)];
    for (key, cost, seconds) in used {
        assert!(limiter.check_cost_at(key, cost, secs(seconds)).is_allowed(), "{key}");
    }
    let now = secs(3_600.0);
    limiter.reload_at(policy(Quota::per_hour(10)), now).unwrap();
    for (key, left) in [("never seen", 10), ("idle", 10), ("one", 9), ("five", 5), ("all", 0)] {
        let deny = denied(limiter.check_cost_at(key, 12, now));
        assert_eq!((deny.limit(), deny.remaining(), deny.retry_after()), (10, left, None), "{key}");
        assert_eq!(deny.reason(), Reason::CostExceedsBurst, "{key}");
        assert_eq!((0..30).filter(|_| limiter.check_at(key, now).is_allowed()).count() as u64, left, "{key}");
    }
    // Nor is it later, however long the key waits.
    let later = secs(100.0 * 3_600.0);
    assert!(limiter.check_cost_at("five", 11, later).is_denied());
    assert_eq!((0..30).filter(|_| limiter.check_at("five", later).is_allowed()).count(), 10);
}

// Requests in flight.

/// mcp-hangar/mcp-hangar#1432: a reload frees places that are taken.
fn a_reload_frees_no_place_that_is_taken<T: Kind>() {
    // With the quota beside it as it was, and with another one each time, so that the key's use is
    // worked out anew.
    for steps in [0, 1] {
        let rate = Cell::new(1_000_000);
        let quota = || {
            rate.set(rate.get() + steps);
            Quota::per_hour(rate.get())
        };
        let of = |limit| policy(Plan::new([quota()]).in_flight(limit));
        let limiter = T::roomy(Limiter::builder().policy(of(5)), 2_000).unwrap();
        let one = [(Unit::REQUESTS, 1)];
        let enter = || limiter.enter_costs_at("alice", &one, secs(0.0)).unwrap();
        let denied = || limiter.enter_costs_at("alice", &one, secs(0.0)).err();
        let reload = |policy| limiter.reload_at(policy, secs(0.0)).unwrap();
        let is_full = || denied().is_some_and(|deny| deny.reason() == Reason::InFlight);
        let mut running: Vec<_> = (0..5).map(|_| enter()).collect();
        assert!(is_full(), "5 of 5");

        // The same limit, more than once.
        for _ in 0..4 {
            reload(of(5));
            assert!(is_full(), "5 of 5");
        }

        // Lowered: those that run go on, and none comes before fewer run than may.
        reload(of(2));
        while running.len() > 1 {
            assert!(is_full(), "{} of 2", running.len());
            running.pop();
        }
        running.push(enter());
        assert!(is_full(), "2 of 2");

        // Off and on again: those that came meanwhile count too.
        reload(policy(quota()));
        running.extend((0..4).map(|_| enter()));
        reload(of(5));
        while running.len() > 4 {
            assert!(is_full(), "{} of 5", running.len());
            drop(running.remove(0));
        }
        running.push(enter());
        assert!(is_full(), "5 of 5");

        // A place of any policy is given back to this one.
        running.clear();
        running.extend((0..5).map(|_| enter()));
        assert!(is_full(), "5 of 5");
    }
}
