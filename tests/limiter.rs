//! What a limiter promises beyond the arithmetic of one bucket.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper that meets the unexpected stops the test"
)]

mod stores;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use stores::{Kind, over_both};
use tollgate::internal::{Bucket, QuotaTicks};
use tollgate::{Allow, BuildError, Clock, Decision, Deny, DirectLimiter, Limiter, Now, Quota};

over_both!(
    limiters_cross_threads_and_clones_share,
    keys_are_apart_and_found_in_borrowed_form,
    any_hasher_serves,
    a_check_that_can_take_nothing_leaves_no_key_behind,
    a_cost_of_zero_and_a_peek_take_nothing,
    the_numbers_of_a_decision_are_those_of_its_instant,
    a_refund_gives_back_its_own_take_and_no_more,
    a_refund_that_comes_too_late_is_worth_nothing,
    a_refund_after_a_refund_is_worth_what_it_was,
    a_refund_knows_of_the_refunds_before_it,
    refunds_at_one_instant_lose_nothing,
    a_refund_of_what_was_not_taken_here_is_worth_nothing,
    a_reset_key_is_new,
);

fn secs(seconds: f64) -> Now {
    Now::since_origin(Duration::from_secs_f64(seconds)).unwrap()
}

fn allowed(decision: Decision) -> Allow {
    match decision {
        Decision::Allow(allow) => allow,
        Decision::Deny(deny) => unreachable!("{deny}"),
    }
}

fn denied(decision: Decision) -> Deny {
    match decision {
        Decision::Deny(deny) => deny,
        Decision::Allow(allow) => unreachable!("{allow}"),
    }
}

fn limiters_cross_threads_and_clones_share<T: Kind>() {
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    let direct = DirectLimiter::new(Quota::per_hour(2)).unwrap();
    let keyed = T::of(Quota::per_hour(2));
    shared(&direct);
    shared(&keyed);
    shared(&Clock::std());
    assert!(direct.clone().check().is_allowed() && direct.clone().check().is_allowed());
    assert!(direct.check().is_denied());
    assert!(keyed.clone().check("a").is_allowed() && keyed.clone().check("a").is_allowed());
    assert!(keyed.check("a").is_denied());
}

fn keys_are_apart_and_found_in_borrowed_form<T: Kind + Kind<u64> + Kind<[u8]> + Kind<(IpAddr, Arc<str>)>>() {
    let limiter = T::of(Quota::per_hour(1));
    assert!(limiter.check("a").is_allowed());
    assert!(limiter.check(&String::from("a")).is_denied());
    assert!(limiter.check("b").is_allowed());
    assert_eq!(limiter.len(), 2);

    let numbers = T::make(Limiter::builder().quota(Quota::per_hour(1)).keys::<u64>()).unwrap();
    assert!(numbers.check(&7).is_allowed() && numbers.check(&8).is_allowed() && numbers.check(&7).is_denied());
    let bytes = T::make(Limiter::builder().quota(Quota::per_hour(1)).keys::<[u8]>()).unwrap();
    assert!(bytes.check(&[1, 2][..]).is_allowed() && bytes.check(&[1, 2][..]).is_denied());
    let pairs = Limiter::builder().quota(Quota::per_hour(1)).keys::<(IpAddr, Arc<str>)>().build().unwrap();
    assert!(pairs.check(&(IpAddr::from([0; 4]), Arc::from("x"))).is_allowed());
}

fn any_hasher_serves<T: Kind<str, std::hash::RandomState>>() {
    let sip = T::make(Limiter::builder().quota(Quota::per_hour(1)).hasher(std::hash::RandomState::new())).unwrap();
    for key in 0..1_000 {
        assert!(sip.check(&key.to_string()).is_allowed());
    }
    assert_eq!(sip.len(), 1_000);
    assert!((0..1_000).all(|key: u32| sip.check(&key.to_string()).is_denied()));
}

#[test]
fn seeds_differ_from_limiter_to_limiter() {
    use std::hash::BuildHasher;
    let hashes: HashSet<u64> = (0..100).map(|_| tollgate::RandomState::new().hash_one("key")).collect();
    assert_eq!(hashes.len(), 100);
}

/// Whatever a string's hash leaves out, of the kinds of key that have it among others.
#[test]
fn keys_that_run_into_each_other_have_hashes_of_their_own() {
    use std::hash::{BuildHasher, Hash};

    fn distinct<K: Hash>(keys: impl IntoIterator<Item = K>) {
        let state = tollgate::RandomState::new();
        let mut hashes = HashSet::new();
        assert!(keys.into_iter().all(|key| hashes.insert(state.hash_one(key))));
    }

    let texts = ["", "a", "ab", "b", "c", "bc", "abc"];
    let numbers = [0_u8, 1, 5, 0xFE, 0xFF];
    let with = |text: &'static str| numbers.map(|number| (text, number));
    let state = tollgate::RandomState::new();
    assert!(texts.iter().all(|text| state.hash_one(text) == state.hash_one(text.to_string())));
    distinct(texts);
    distinct(texts.iter().flat_map(|text| texts.map(|other| (text, other))));
    distinct(texts.iter().flat_map(|text| with(text)));
    distinct(texts.iter().flat_map(|text| with(text)).map(|(text, number)| (number, text)));
    let pairs = numbers.iter().flat_map(|one| numbers.map(|other| (*one, other)));
    distinct(pairs.clone().flat_map(|(one, other)| texts.map(|text| (text, one, other))));
    distinct(pairs.clone().flat_map(|(one, other)| texts.map(|text| (text.as_bytes().to_vec(), one, other))));
    distinct(pairs.flat_map(|(one, other)| [[1_u8, 2], [2, 0xFF]].map(|bytes| (bytes, one, other))));
    distinct((0..=0xFF_u8).flat_map(|number| [vec![number], vec![number, 0xFF], vec![0xFF, 0xFF, number]]));
}

fn a_check_that_can_take_nothing_leaves_no_key_behind<T: Kind>() {
    let limiter = T::of(Quota::per_hour(3));
    assert!(limiter.check_cost("a", 0).is_allowed());
    assert!(limiter.check_cost("a", 4).is_denied());
    assert!(limiter.peek("a").is_allowed());
    assert!(limiter.peek_cost("a", 3).is_allowed());
    assert!(limiter.peek_cost("a", 4).is_denied());
    assert!(limiter.is_empty());
}

fn a_cost_of_zero_and_a_peek_take_nothing<T: Kind>() {
    let limiter = T::of(Quota::per_hour(2));
    assert!(limiter.check("a").is_allowed());
    for _ in 0..10 {
        assert_eq!(limiter.check_cost("a", 0).remaining(), 1);
        assert_eq!(limiter.peek("a").remaining(), 1);
    }
    assert!(limiter.check("a").is_allowed());
    assert!(limiter.peek("a").is_denied());
    // A cost of 0 asks for nothing, and is not denied it, whatever the time.
    assert!(limiter.check_cost("a", 0).is_allowed());
    assert!(limiter.check_cost_at("a", 0, Now::ORIGIN).is_allowed());
}

#[test]
fn a_denial_writes_nothing() {
    let quota = QuotaTicks::new(Quota::per_second(3).burst(2)).unwrap();
    let bucket = Bucket::full_at(0);
    assert!(bucket.take(&quota, 2, || 1_000).0.is_ok());
    let word = bucket.tat();
    for (cost, now) in [(1, 1_000), (2, 500), (1, 0), (3, 5_000_000_000), (u64::MAX, 0)] {
        assert_eq!(bucket.take(&quota, cost, || now), (Err(word), now));
        assert_eq!(bucket.peek(&quota, cost, now), Err(word));
        assert_eq!(bucket.tat(), word);
    }
    assert_eq!(bucket.take(&quota, 0, || 1_000), (Ok(word), 1_000));
    assert_eq!(bucket.tat(), word);
}

/// At `burst == 1`, at `cost == burst`, in between, and after a refund: denied a nanosecond earlier, admitted then.
#[test]
fn retry_after_is_the_first_instant_that_admits() {
    for rate in [1, 3, 7, 1_000, 600_000_000] {
        for (burst, cost) in [(1, 1), (5, 5), (5, 2), (1_000, 999)] {
            let limiter = DirectLimiter::new(Quota::per_second(rate).burst(burst)).unwrap();
            let mut now = Duration::from_secs(7);
            for turn in 0..20 {
                let here = Now::since_origin(now).unwrap();
                match limiter.check_cost_at(cost, here) {
                    Decision::Allow(allow) if turn % 3 == 0 => limiter.refund_at(allow, here),
                    Decision::Allow(_) => {}
                    Decision::Deny(deny) => {
                        let wait = deny.retry_after().unwrap();
                        let early = Now::since_origin(now + wait - Duration::from_nanos(1)).unwrap();
                        assert!(limiter.check_cost_at(cost, early).is_denied(), "{rate}/s, {cost} of {burst}");
                        now += wait;
                        assert!(limiter.peek_cost_at(cost, Now::since_origin(now).unwrap()).is_allowed());
                    }
                }
            }
        }
    }
}

fn the_numbers_of_a_decision_are_those_of_its_instant<T: Kind>() {
    let limiter = T::of(Quota::per_minute(30).burst(16));
    let first = limiter.check_at("a", Now::ORIGIN);
    assert_eq!((first.limit(), first.remaining()), (16, 15));
    assert_eq!((first.reset_after(), first.retry_after()), (Some(Duration::from_secs(2)), Some(Duration::ZERO)));
    assert_eq!(first.to_string(), "allowed: 15 of 16 left, all of them again in 2s");
    assert!(limiter.check_cost_at("a", 14, Now::ORIGIN).is_allowed());

    let deny = denied(limiter.check_cost_at("a", 2, secs(0.5)));
    assert_eq!((deny.limit(), deny.remaining()), (16, 1));
    assert_eq!(deny.retry_after(), Some(Duration::from_millis(1_500)));
    assert_eq!(deny.reset_after(), Some(Duration::from_millis(29_500)));
    assert_eq!(deny.to_string(), "denied: 1 of 16 left, retry in 1.5s");
    assert_eq!(limiter.peek_at("nobody", Now::ORIGIN).to_string(), "allowed: 16 of 16 left");
}

fn a_refund_gives_back_its_own_take_and_no_more<T: Kind>() {
    let limiter = T::of(Quota::per_second(1).burst(10));
    let three = allowed(limiter.check_cost_at("a", 3, Now::ORIGIN));
    let seven = allowed(limiter.check_cost_at("a", 7, Now::ORIGIN));
    limiter.refund_at("a", three, Now::ORIGIN);
    assert_eq!(limiter.peek_at("a", Now::ORIGIN).remaining(), 3);
    // Five of the seven have come back by themselves, and with the three the bucket is two short of full.
    assert_eq!(limiter.peek_at("a", secs(5.0)).remaining(), 8);
    limiter.refund_at("a", seven, secs(5.0));
    assert_eq!(limiter.peek_at("a", secs(5.0)).remaining(), 10);
}

#[test]
fn a_refund_stops_where_the_bucket_is_full() {
    let quota = QuotaTicks::new(Quota::per_second(1)).unwrap();
    let bucket = Bucket::full_at(0);
    assert!(bucket.take(&quota, 1, || 1_000).0.is_ok());
    assert_eq!(bucket.lower(|| (8, 900)), 8);
    assert!(bucket.lower(|| (u64::MAX, 900)) > 8);
    assert_eq!(bucket.tat(), 900);
    assert_eq!(bucket.lower(|| (u64::MAX, 1_000)), 0);
    assert_eq!(bucket.tat(), 900);
}

/// Without that, ten old refunds would open a drained bucket once more.
fn a_refund_that_comes_too_late_is_worth_nothing<T: Kind>() {
    let limiter = T::of(Quota::per_second(1).burst(10));
    let old = allowed(limiter.check_cost_at("a", 10, Now::ORIGIN));
    assert!(limiter.check_cost_at("a", 10, secs(100.0)).is_allowed());
    limiter.refund_at("a", old, secs(100.0));
    assert!(limiter.check_at("a", secs(100.0)).is_denied());
}

/// The bucket was in debt all the while, so that nothing of the take has come back.
fn a_refund_after_a_refund_is_worth_what_it_was<T: Kind>() {
    let limiter = T::of(Quota::per_second(1).burst(10));
    let first = allowed(limiter.check_at("a", Now::ORIGIN));
    limiter.refund_at("a", first, Now::ORIGIN);
    assert!(limiter.check_cost_at("a", 9, Now::ORIGIN).is_allowed());
    let last = allowed(limiter.check_at("a", Now::ORIGIN));
    assert_eq!(limiter.peek_at("a", secs(5.0)).remaining(), 5);
    limiter.refund_at("a", last, secs(5.0));
    assert_eq!(limiter.peek_at("a", secs(5.0)).remaining(), 6);
}

/// Refunds of other takes made room long ago, and the bucket was full since.
fn a_refund_knows_of_the_refunds_before_it<T: Kind>() {
    let limiter = T::of(Quota::per_second(1).burst(8));
    let four: Vec<_> = (0..4).map(|_| allowed(limiter.check_at("a", Now::ORIGIN))).collect();
    for (turn, allow) in four.into_iter().enumerate() {
        if turn == 3 {
            assert_eq!(limiter.peek_at("a", secs(2.0)).remaining(), 8);
            assert!(limiter.check_cost_at("a", 8, secs(2.0)).is_allowed());
            limiter.refund_at("a", allow, secs(2.0));
            assert!(limiter.check_at("a", secs(2.0)).is_denied());
        } else {
            limiter.refund_at("a", allow, Now::ORIGIN);
        }
    }
}

/// Also at rates whose unit is no whole number of ticks, where every take and every refund is rounded.
#[test]
fn refunds_of_many_small_takes_add_up_to_no_more_than_they_took() {
    for (rate, burst) in [(3, 30), (600_000_000, 31), (7_654_321, 5_000), (733_333_337, 20_000), (u64::MAX, 20_000)] {
        let limiter = DirectLimiter::new(Quota::per_second(rate).burst(burst)).unwrap();
        let take = || match limiter.check_at(Now::ORIGIN) {
            Decision::Allow(allow) => Some(allow),
            Decision::Deny(_) => None,
        };
        let mut takes: Vec<_> = (0..burst / 2).map_while(|_| take()).collect();
        for allow in takes.drain(..takes.len() * 9 / 10) {
            limiter.refund_at(allow, Now::ORIGIN);
        }
        let full = Now::since_origin(limiter.peek_at(Now::ORIGIN).reset_after().unwrap()).unwrap();
        assert!(limiter.check_cost_at(burst, full).is_allowed());
        for allow in takes {
            limiter.refund_at(allow, full);
        }
        assert!(limiter.check_at(full).is_denied(), "{rate}/s, burst {burst}");
    }
}

/// A budget that never refills loses nothing to takes that were given back.
#[test]
fn refunds_of_a_budget_are_complete_in_any_order() {
    let limiter = DirectLimiter::new(Quota::per_second(0).burst(10)).unwrap();
    let first = allowed(limiter.check());
    for _ in 0..100 {
        limiter.refund(allowed(limiter.check_cost(9)));
    }
    limiter.refund(first);
    assert_eq!(limiter.peek().remaining(), 10);
}

/// The documented price of a caller's time that goes backwards between a take and its refund.
#[test]
fn a_refund_at_an_earlier_time_gives_back_at_most_its_take() {
    let limiter = DirectLimiter::new(Quota::per_second(1).burst(10)).unwrap();
    let old = allowed(limiter.check_at(secs(100.0)));
    assert!(limiter.check_cost_at(10, secs(200.0)).is_allowed());
    limiter.refund_at(old, secs(100.0));
    assert!(limiter.check_at(secs(200.0)).is_allowed());
    assert!(limiter.check_at(secs(200.0)).is_denied());
}

/// Whatever the order, what is given back at once is given back in full.
fn refunds_at_one_instant_lose_nothing<T: Kind>() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let limiter = T::of(Quota::per_second(3_000).burst(1 << 35));
        let mut takes: Vec<_> =
            [1, 1 << 34, 5, 1 << 20].map(|cost| Some(allowed(limiter.check_cost_at("a", cost, secs(9.0))))).into();
        for which in order {
            limiter.refund_at("a", takes[which].take().unwrap(), secs(9.0));
        }
        assert_eq!(limiter.peek_at("a", secs(9.0)).remaining(), 1 << 35);
    }
}

fn a_refund_of_what_was_not_taken_here_is_worth_nothing<T: Kind>() {
    let limiter = T::of(Quota::per_hour(2));
    let other = T::of(Quota::per_hour(2));
    let drain = |key| {
        assert!(limiter.check_cost_at(key, 2, Now::ORIGIN).is_allowed());
        limiter.peek_at(key, Now::ORIGIN)
    };
    let before_reset = allowed(limiter.check_at("reset", Now::ORIGIN));
    let known = allowed(limiter.check_at("peeked", Now::ORIGIN));
    let peeked = allowed(limiter.peek_at("peeked", Now::ORIGIN));
    limiter.refund_at("peeked", known, Now::ORIGIN);
    let of_b = allowed(limiter.check_at("b", Now::ORIGIN));
    let of_other = allowed(other.check_at("other", Now::ORIGIN));
    assert!(limiter.reset("reset"));

    for (key, allow) in [("reset", before_reset), ("peeked", peeked), ("a", of_b), ("other", of_other)] {
        assert!(drain(key).is_denied());
        limiter.refund_at(key, allow, Now::ORIGIN);
        assert!(limiter.check_at(key, Now::ORIGIN).is_denied(), "{key}");
    }
    // A key that nobody knows is not made by a refund.
    let keys = limiter.len();
    limiter.refund_at("unknown", allowed(limiter.check_at("b", Now::ORIGIN)), Now::ORIGIN);
    assert_eq!(limiter.len(), keys);
}

fn a_reset_key_is_new<T: Kind>() {
    let limiter = T::of(Quota::per_hour(1));
    assert!(!limiter.reset("a"));
    assert!(limiter.check("a").is_allowed() && limiter.check("b").is_allowed());
    assert!(limiter.reset("a"));
    assert!(limiter.check("a").is_allowed());
    assert!(limiter.check("b").is_denied());
}

#[test]
fn entries_show_every_key_as_a_peek_would() {
    let limiter = Limiter::new(Quota::per_hour(3)).unwrap();
    for key in 0..500_u64 {
        assert!(limiter.check_cost(&key.to_string(), key % 3 + 1).is_allowed());
    }
    let mut entries: Vec<(u64, u64)> =
        limiter.entries().map(|(key, decision)| (key.parse().unwrap(), decision.remaining())).collect();
    entries.sort_unstable();
    assert_eq!(entries, (0..500).map(|key| (key, 2 - key % 3)).collect::<Vec<_>>());
    // Nothing is held while the caller looks: it may use the limiter.
    assert!(limiter.entries().all(|(key, _)| limiter.reset(&key)));
    assert!(limiter.entries().all(|(_, decision)| decision.remaining() == 3));
}

#[test]
fn builders_say_what_is_wrong() {
    assert_eq!(Limiter::builder().build().unwrap_err(), BuildError::NoQuota);
    let no_room = Limiter::builder().quota(Quota::per_second(1)).max_keys(0).build();
    assert_eq!(no_room.unwrap_err(), BuildError::NoRoom);
    for shards in [0, 1, 3, 100, 1 << 17] {
        let error = Limiter::builder().quota(Quota::per_second(1)).shards(shards).build().unwrap_err();
        assert_eq!(error, BuildError::BadShards { shards });
        assert!(error.to_string().contains("power of two"), "{error}");
    }
    for shards in [2, 65_536] {
        assert!(Limiter::builder().quota(Quota::per_second(1)).shards(shards).build().is_ok());
    }
    let zero = Quota::new(5, Duration::ZERO);
    assert_eq!(
        Limiter::new(zero).unwrap_err().to_string(),
        "quota `5 per 0ns, burst 5`: the period is 0: give at least 1 ns"
    );
}

#[test]
fn clocks_run_forwards() {
    for clock in [Clock::precise(), Clock::std(), Clock::default()] {
        let first = clock.now();
        let copy = clock.clone();
        // A clock has to be seen moving: no virtual time here.
        while clock.now() <= first {}
        assert!(copy.now() > first);
        assert!(clock.now() < secs(3_600.0));
    }
    assert!(Clock::precise().drift_ppm().is_some());
    assert!(Clock::std().drift_ppm().is_none());
}

/// Longer than what was given back can be counted.
#[test]
fn of_a_quota_that_never_refills_all_comes_back_that_is_given_back() {
    let quota = Quota::per_second(0).burst(3);
    let take = |decision: Decision| match decision {
        Decision::Allow(allow) => allow,
        Decision::Deny(deny) => panic!("{deny}"),
    };
    let sharded = Limiter::builder().keys::<u64>().quota(quota).build().unwrap();
    let fixed = Limiter::builder().keys::<u64>().quota(quota).fixed(8).build().unwrap();
    for _ in 0..2 {
        let held = [take(sharded.check_at(&1, Now::ORIGIN)), take(fixed.check_at(&1, Now::ORIGIN))];
        for _ in 0..33_000 {
            sharded.refund_at(&1, take(sharded.check_at(&1, Now::ORIGIN)), Now::ORIGIN);
            fixed.refund_at(&1, take(fixed.check_at(&1, Now::ORIGIN)), Now::ORIGIN);
        }
        let [one, other] = held;
        sharded.refund_at(&1, one, Now::ORIGIN);
        fixed.refund_at(&1, other, Now::ORIGIN);
        let left = [sharded.peek_at(&1, Now::ORIGIN), fixed.peek_at(&1, Now::ORIGIN)].map(|peek| peek.remaining());
        assert_eq!(left, [3, 3]);
    }
}
