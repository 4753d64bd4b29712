//! What the fixed store does differently from the one that grows, and what only it can get wrong.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper that meets the unexpected stops the test")]

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::{Allow, BuildError, Decision, Fixed, Limiter, Now, Plan, Policy, Quota, RandomState, Reason, Unit};

type Numbered = Limiter<u64, RandomState, Fixed>;

fn secs(seconds: f64) -> Now {
    Now::since_origin(Duration::from_secs_f64(seconds)).unwrap()
}

/// Of one set, with seven ways.
fn one_set(quota: Quota) -> Numbered {
    Limiter::builder().quota(quota).keys::<u64>().fixed(4).build().unwrap()
}

fn allowed(decision: Decision) -> Allow {
    match decision {
        Decision::Allow(allow) => allow,
        Decision::Deny(deny) => panic!("{deny}"),
    }
}

#[test]
fn the_eighth_of_a_set_of_seven_is_in_overflow() {
    let limiter = one_set(Quota::per_second(1).burst(10));
    for key in 0..7 {
        assert!(limiter.check_cost_at(&key, 10, Now::ORIGIN).is_allowed());
    }
    assert_eq!(limiter.peek_at(&7, secs(5.0)).remaining(), 10);
    assert!(limiter.check_cost_at(&7, 6, secs(5.0)).is_allowed());
    // A peek says what a check will, of the ninth as well.
    assert_eq!(limiter.peek_at(&8, secs(5.0)).remaining(), 4);
    let last = allowed(limiter.check_cost_at(&8, 4, secs(5.0)));
    for key in [7, 8, 9] {
        assert!(limiter.peek_at(&key, secs(5.0)).is_denied());
        assert!(limiter.check_at(&key, secs(5.0)).is_denied());
    }
    limiter.refund_at(&8, last, secs(5.0));
    assert_eq!(limiter.peek_at(&9, secs(5.0)).remaining(), 4);
    assert_eq!((limiter.len(), limiter.stats().overflow), (7, 5));
    // Who is known is decided as before.
    assert_eq!(limiter.peek_at(&0, secs(5.0)).remaining(), 5);
}

/// A hash is the number itself: of the byte by which a way is found, callers choose what they like.
#[derive(Clone, Default)]
struct Chosen(u64);

impl BuildHasher for Chosen {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for Chosen {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers")
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The byte is the same for all, or that of a way that nobody has, or the next one, which a borrow makes look like it.
#[test]
fn keys_of_one_mark_are_told_apart() {
    for marks in [[0; 8], [1; 8], [0xFF; 8], [0, 1, 0, 1, 0, 1, 0, 1], [1, 0, 2, 1, 0, 0x80, 0x81, 0]] {
        let key = |n: u64| n << 32 | marks[n as usize] << 16;
        let builder = Limiter::builder().quota(Quota::per_second(1).burst(10)).keys::<u64>().hasher(Chosen::default());
        let limiter = builder.fixed(4).build().unwrap();
        for n in 0..7 {
            assert!(limiter.check_cost_at(&key(n), n + 1, Now::ORIGIN).is_allowed());
        }
        assert_eq!((limiter.len(), limiter.stats().overflow), (7, 0));
        for n in 0..7 {
            assert_eq!(limiter.peek_at(&key(n), Now::ORIGIN).remaining(), 9 - n, "of {n} with {marks:?}");
        }
        // The first is idle at 1 s, and makes room for one of another mark.
        assert!(limiter.check_cost_at(&key(7), 8, secs(1.5)).is_allowed());
        let left = [10, 9, 8, 7, 6, 5, 4, 2];
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(|n| limiter.peek_at(&key(n), secs(1.5)).remaining()), left);
        assert_eq!((limiter.len(), limiter.stats().evictions), (7, 1));
    }
}

/// Also of a set that has never had anybody in overflow.
#[test]
fn a_peek_says_what_a_check_will_where_there_is_no_way_left() {
    let limiter = Limiter::builder().quota(Quota::per_second(1).burst(10)).keys::<u64>().fixed(16).build().unwrap();
    let mut newcomers = 0..;
    while limiter.stats().overflow < 20 {
        _ = limiter.check_cost_at(&newcomers.next().unwrap(), 10, Now::ORIGIN).is_allowed();
    }
    let mut without = 0;
    for key in newcomers.take(200) {
        let peeked = limiter.peek_at(&key, Now::ORIGIN);
        let before = limiter.stats().overflow;
        let checked = limiter.check_at(&key, Now::ORIGIN);
        assert_eq!(peeked.is_allowed(), checked.is_allowed(), "{key}");
        without += u64::from(limiter.stats().overflow > before);
    }
    assert!(without > 100);
}

#[test]
fn a_way_of_its_own_is_no_second_burst() {
    let limiter = one_set(Quota::per_second(1).burst(10));
    for key in 0..7 {
        assert!(limiter.check_cost_at(&key, 10, Now::ORIGIN).is_allowed());
    }
    assert!(limiter.check_cost_at(&7, 10, secs(9.5)).is_allowed());
    // The others are idle after 10 s and make room. The eighth comes with the debt of what it has used.
    let denied = limiter.check_at(&7, secs(10.25));
    assert_eq!(denied.retry_after(), Some(Duration::from_millis(250)));
    assert_eq!((limiter.len(), limiter.stats().evictions), (7, 1));
    // From when on the debt is paid, newcomers are new.
    assert_eq!(limiter.check_at(&8, secs(19.5)).remaining(), 9);
}

/// A debt of a second becomes one of an hour, and is inherited for that long.
#[test]
fn the_debt_of_the_overflow_is_inherited_for_as_long_as_a_new_policy_makes_it_last() {
    for (from, to) in [("default", "default"), ("old", "new")] {
        let plan = |name, quota| Policy::<u64>::new().plan(name, quota);
        let limiter = Limiter::builder().keys().policy(plan(from, Quota::per_second(1))).fixed(4).build().unwrap();
        for key in 0..8 {
            assert!(limiter.check_at(&key, Now::ORIGIN).is_allowed());
        }
        assert_eq!(limiter.stats().overflow, 1);
        limiter.reload_at(plan(to, Quota::per_hour(1)), Now::ORIGIN).unwrap();
        limiter.reload_at(plan(to, Quota::per_second(1_000).burst(1)), Now::ORIGIN).unwrap();
        limiter.reload_at(plan(to, Quota::per_hour(1)), Now::ORIGIN).unwrap();
        for key in 0..7 {
            assert!(limiter.reset(&key));
        }
        for (key, seconds) in [(7, 10.0), (8, 3_599.0)] {
            assert!(limiter.peek_at(&key, secs(seconds)).is_denied());
            assert!(limiter.check_at(&key, secs(seconds)).is_denied(), "{key}");
        }
        assert!(limiter.check_at(&9, secs(3_600.0)).is_allowed());
    }
}

#[test]
fn a_clock_that_goes_backwards_finds_no_fresh_bucket() {
    let limiter = one_set(Quota::per_second(1).burst(10));
    for key in 0..7 {
        assert!(limiter.check_cost_at(&key, 10, secs(100.0)).is_allowed());
    }
    // The clock leaps, and newcomers drop them all.
    for key in 100..107 {
        assert!(limiter.check_at(&key, secs(1_000.0)).is_allowed());
        assert!(limiter.reset(&key));
    }
    assert_eq!(limiter.stats().evictions, 7);
    // And it goes back to where they had nothing left: they still have not.
    for key in 0..7 {
        assert!(limiter.peek_at(&key, secs(100.0)).is_denied());
        assert!(limiter.check_at(&key, secs(100.0)).is_denied());
        assert_eq!(limiter.peek_at(&key, secs(1_000.0)).remaining(), 10);
    }
}

#[test]
fn a_refund_of_a_key_that_went_is_worth_nothing() {
    let limiter = one_set(Quota::per_second(1).burst(10));
    let old = allowed(limiter.check_cost_at(&0, 10, Now::ORIGIN));
    for key in 1..50 {
        assert!(limiter.check_at(&key, secs(f64::from(key as u32) * 10.0)).is_allowed());
    }
    assert!(limiter.check_cost_at(&0, 10, secs(500.0)).is_allowed());
    limiter.refund_at(&0, old, secs(500.0));
    assert!(limiter.check_at(&0, secs(500.0)).is_denied());
}

/// Otherwise what was reset, or carried over, could be given back once more: a budget that never refills tells.
#[test]
fn a_refund_of_what_was_reset_moved_or_carried_over_is_worth_nothing() {
    let never = |burst| Quota::per_second(0).burst(burst);
    let of_two =
        |quota| Policy::<u64>::new().plan("one", quota).plan("two", never(5).named("other")).default_plan("one");
    for how in 0..4 {
        let limiter = Limiter::builder().keys().policy(of_two(never(10))).fixed(4).build().unwrap();
        let old = allowed(limiter.check_cost(&0, 10));
        match how {
            0 => assert!(limiter.reset(&0)),
            1 => {
                assert!(limiter.move_plan(&0, "one", "two").unwrap());
                // A smaller burst has no room for more, and half of the use is forgotten.
                assert!(limiter.move_plan(&0, "two", "one").unwrap());
                assert_eq!(limiter.peek(&0).remaining(), 5);
            }
            2 => {
                // What was used is on the other plan, and nothing here.
                assert!(limiter.plan("two").unwrap().check(&0).is_allowed());
                assert!(limiter.move_plan(&0, "one", "two").unwrap());
                assert_eq!(limiter.peek(&0).remaining(), 10);
            }
            _ => {
                // There and back: the quota is what it was, and half of the use is forgotten.
                limiter.reload(of_two(never(5))).unwrap();
                limiter.reload(of_two(never(10))).unwrap();
                assert_eq!(limiter.peek(&0).remaining(), 5);
            }
        }
        while limiter.check(&0).is_allowed() {}
        limiter.refund(&0, old);
        assert!(limiter.check(&0).is_denied(), "{how}");
    }
}

/// In the store that grows, both uses would be added up.
#[test]
fn of_two_plans_that_become_one_a_key_keeps_the_use_of_the_one_that_stays() {
    let both =
        || Policy::new().plan("free", Quota::per_hour(10)).plan("pro", Quota::per_hour(100)).default_plan("free");
    let limiter = Limiter::builder().policy(both()).fixed(100).build().unwrap();
    let pro = limiter.plan("pro").unwrap();
    assert!(pro.check_cost("alice", 4).is_allowed() && limiter.check_cost("alice", 3).is_allowed());
    assert!(pro.check_cost("bob", 4).is_allowed());
    limiter.reload(Policy::new().plan("free", Quota::per_hour(10))).unwrap();
    assert_eq!((limiter.peek("alice").remaining(), pro.peek("alice").remaining()), (7, 7));
    // Who was known on the other only takes its use along.
    assert_eq!((limiter.peek("bob").remaining(), pro.peek("bob").remaining()), (6, 6));
    // The name comes back as another plan, which the old handle does not know.
    limiter.reload(both()).unwrap();
    assert_eq!((limiter.plan("pro").unwrap().peek("bob").remaining(), pro.peek("bob").remaining()), (100, 6));
}

/// Whether it comes at once or two policies later.
#[test]
fn the_use_of_a_plan_that_is_gone_waits_for_its_key() {
    let [all, two, one] = [3, 2, 1].map(|count| {
        let quotas = [Quota::per_hour(10), Quota::per_day(20)];
        ["a", "b", "c"][..count].iter().fold(Policy::<u64>::new(), |policy, name| policy.plan(*name, quotas))
    });
    let limiter = Limiter::builder().keys().policy(all.default_plan("a")).fixed(1_000).build().unwrap();
    let last = limiter.plan("c").unwrap();
    for key in 0..100 {
        assert!(last.check_cost_at(&key, 4, Now::ORIGIN).is_allowed());
    }
    limiter.reload_at(two.default_plan("b"), Now::ORIGIN).unwrap();
    assert!((0..30).all(|key| last.check_cost_at(&key, 1, Now::ORIGIN).remaining() == 5));
    limiter.reload_at(one, Now::ORIGIN).unwrap();
    for key in 0..100 {
        assert_eq!(limiter.peek_at(&key, Now::ORIGIN).remaining(), if key < 30 { 5 } else { 6 }, "{key}");
        let left: Vec<_> = limiter.peek_all_at(&key, Now::ORIGIN).iter().map(|one| one.remaining()).collect();
        assert_eq!(left, if key < 30 { [5, 15] } else { [6, 16] });
    }
    assert_eq!(limiter.len(), 100);
}

#[test]
fn a_store_that_can_not_keep_what_is_asked_says_so() {
    let quota = Quota::per_hour(10);
    let refused = |error: BuildError, expected: BuildError, hint: &str| {
        assert_eq!(error, expected);
        assert!(error.to_string().contains(hint), "{error}");
    };
    let none = Limiter::builder().quota(quota).fixed(0).build().unwrap_err();
    refused(none, BuildError::NoRoom, "`.fixed(n)`");
    for keys in [u64::MAX, u64::MAX / 8] {
        let error = Limiter::builder().quota(quota).fixed(keys).build().unwrap_err();
        let BuildError::NoMemory { bytes } = error else { panic!("{error}") };
        assert!(bytes >= keys && error.to_string().contains(&format!("takes {bytes} bytes")), "{error}");
    }

    let limiter = Limiter::builder().plan("free", [quota, Quota::per_day(20)]).fixed(10).build().unwrap();
    assert!(limiter.check("alice").is_allowed());
    let three = [quota, Quota::per_day(20), Quota::per_minute(5)];
    let in_flight = Plan::new([quota]).in_flight(2);
    for _ in 0..2 {
        let error = limiter.reload(Policy::new().plan("free", three)).unwrap_err();
        refused(error, BuildError::TooManyForStore { plan: "free".into(), most: 2 }, "`.room_for(quotas, in_flight)`");
        let error = limiter.reload(Policy::new().plan("free", in_flight.clone())).unwrap_err();
        refused(error, BuildError::NoPlacesInStore { plan: "free".into() }, "`.room_for(quotas, true)`");
        // The old one is in force as before.
        assert_eq!(limiter.peek("alice").remaining(), 9);
        assert!(limiter.check("alice").is_allowed());
        assert!(limiter.reset("alice") && limiter.check("alice").is_allowed());
    }
    let roomy = Limiter::builder().quota(quota).fixed(10).room_for(3, true).build().unwrap();
    assert!(roomy.reload(Policy::new().plan("default", three)).is_ok());
    assert!(roomy.reload(Policy::new().plan("default", in_flight)).is_ok());
    assert!(roomy.enter("alice").is_ok());
    // There are no plans of more than eight.
    assert!(Limiter::builder().quota(quota).fixed(10).room_for(usize::MAX, true).build().is_ok());
}

/// All ways are somebody's who is in flight. Once they leave, the ways are for newcomers again.
#[test]
fn whoever_is_in_flight_keeps_his_way() {
    let plan = Plan::new([Quota::per_second(1)]).in_flight(1);
    let limiter = Limiter::builder().keys::<u64>().plan("default", plan).fixed(4).build().unwrap();
    let request = [(Unit::REQUESTS, 1)];
    let mut guards: Vec<_> = (0..7).map(|key| limiter.enter_costs_at(&key, &request, secs(0.0)).unwrap()).collect();
    for round in 1..100 {
        assert!(limiter.check_at(&(7 + round), secs(10.0 * round as f64)).is_allowed());
    }
    assert_eq!((limiter.stats().overflow, limiter.stats().evictions), (99, 0));
    let deny = limiter.enter_costs_at(&3, &request, secs(2_000.0)).unwrap_err();
    assert_eq!(deny.reason(), Reason::InFlight);
    guards.clear();
    for key in 1_000..1_100 {
        let now = secs(2_000.0 + 2.0 * key as f64);
        drop(limiter.enter_costs_at(&key, &request, now).unwrap());
        // Whatever the way had in flight before.
        drop(limiter.enter_costs_at(&key, &request, secs(2_001.0 + 2.0 * key as f64)).unwrap());
    }
    assert_eq!((limiter.len(), limiter.stats().overflow), (7, 99));
}

/// Every key is idle again an instant after it was used, so that ways change hands all the time, while others take from them and
/// words are what they were a moment ago. With a burst of one, each key has at most one at each instant.
fn one_at_each_instant(expected: u64, keys: u64, quotas: &[Quota], reloads: bool) {
    const INSTANTS: u64 = 30_000;
    let policy = || Policy::<u64>::new().plan("default", quotas.to_vec());
    let limiter = Limiter::builder().keys().policy(policy()).fixed(expected).build().unwrap();
    let counts: Vec<AtomicU64> = (0..INSTANTS * keys).map(|_| AtomicU64::new(0)).collect();
    let clock = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..3 {
            let (limiter, counts, clock) = (&limiter, &counts, &clock);
            scope.spawn(move || {
                for turn in thread.. {
                    let instant = clock.load(Ordering::Relaxed);
                    if instant >= INSTANTS {
                        break;
                    }
                    let now = Now::since_origin(Duration::from_micros(instant)).unwrap();
                    let key = turn * 7 % keys;
                    if limiter.check_at(&key, now).is_allowed() {
                        let before = counts[(instant * keys + key) as usize].fetch_add(1, Ordering::Relaxed);
                        assert_eq!(before, 0, "{key} once more at {instant}");
                    }
                    if turn % (keys / 2) == 0 {
                        _ = clock.compare_exchange(instant, instant + 1, Ordering::Relaxed, Ordering::Relaxed);
                    }
                }
            });
        }
        if reloads {
            scope.spawn(|| {
                while clock.load(Ordering::Relaxed) < INSTANTS {
                    let now = Now::since_origin(Duration::from_micros(clock.load(Ordering::Relaxed))).unwrap();
                    limiter.reload_at(policy(), now).unwrap();
                }
            });
        }
    });
    assert!(limiter.stats().evictions > 0);
}

#[test]
fn nobody_takes_twice_while_ways_change_hands() {
    let quotas = [Quota::per_second(1_000_000).burst(1), Quota::per_second(2_000_000).burst(2).named("more")];
    for quotas in [&quotas[..1], &quotas[..]] {
        for reloads in [false, true] {
            // One set, of fewer ways than keys; and several.
            one_at_each_instant(4, 12, quotas, reloads);
            one_at_each_instant(12, 40, quotas, reloads);
        }
    }
}

/// At the documented load, so many keys that are all active find no way: at most ten of a million.
#[test]
fn few_are_in_overflow_at_the_documented_load() {
    let keys = 1_000_000;
    let total: u64 = (0..4)
        .map(|seed| {
            let limiter = Limiter::builder().quota(Quota::per_hour(1)).keys::<u64>().fixed(keys).build().unwrap();
            for key in 0..keys {
                let decision = limiter.check_at(&(seed << 32 | key), Now::ORIGIN);
                // Where somebody was in overflow, whoever comes to his sets inherits his debt.
                assert!(decision.is_allowed() || limiter.stats().overflow > 0, "{key} of {seed}: {decision}");
            }
            assert_eq!(limiter.stats().keys + limiter.stats().overflow, keys);
            limiter.stats().overflow
        })
        .sum();
    assert!(total <= 40, "{total} of four million");
}

/// The overflow of the plan that they come to is owed once, however often the policy changes after that.
#[test]
fn the_keys_of_a_plan_that_went_owe_no_more_with_each_reload() {
    let hundred = || [Quota::per_hour(100)];
    let policy = || Policy::new().plan("b", hundred());
    let limiter: Limiter<u64, RandomState, Fixed> =
        Limiter::builder().keys().policy(policy().plan("a", hundred()).default_plan("b")).fixed(1).build().unwrap();
    let a = limiter.plan("a").unwrap();
    for key in 1..=7 {
        assert!(a.check_at(&key, Now::ORIGIN).is_allowed());
    }
    for key in 20..40 {
        assert!(limiter.check_at(&key, Now::ORIGIN).is_allowed());
    }
    for _ in 0..5 {
        limiter.reload_at(policy(), Now::ORIGIN).unwrap();
    }
    assert_eq!(limiter.peek_at(&1, Now::ORIGIN).remaining(), 79);
}
