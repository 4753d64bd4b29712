//! Years in virtual time: never above the quota, and below it by no more than the documented formula.
#![allow(clippy::unwrap_used, reason = "a helper that meets the unexpected stops the test")]

use std::time::Duration;

use tollgate::{Decision, DirectLimiter, Now, Quota};

fn at(nanos: u64) -> Now {
    Now::since_origin(Duration::from_nanos(nanos)).unwrap()
}

/// Drains the bucket at time 0, and then takes `cost` every `step` nanoseconds as often as it is admitted, until `end`
/// inclusive. Returns the units admitted after the drain.
fn drained_then_polled(quota: Quota, cost: u64, step: u64, end: Duration) -> u64 {
    let limiter = DirectLimiter::new(quota).unwrap();
    assert!(limiter.check_cost_at(quota.limit(), at(0)).is_allowed());
    let mut units = 0;
    let mut now = 0;
    while Duration::from_nanos(now) <= end {
        while limiter.check_cost_at(cost, at(now)).is_allowed() {
            units += cost;
        }
        now += step;
    }
    units
}

/// The same, but hopping from one promised instant to the next.
fn drained_then_prompt(quota: Quota, end: Duration) -> u64 {
    let limiter = DirectLimiter::new(quota).unwrap();
    assert!(limiter.check_cost_at(quota.limit(), at(0)).is_allowed());
    let mut units = 0;
    let mut now = Duration::ZERO;
    while now <= end {
        match limiter.check_at(Now::since_origin(now).unwrap()) {
            Decision::Allow(_) => units += 1,
            Decision::Deny(deny) => now += deny.retry_after().unwrap(),
        }
    }
    units
}

const DAY: Duration = Duration::from_secs(86_400);

/// iopsystems/ratelimit 2.0: the part of a unit that one poll refills is thrown away, 15 units instead of 30.
#[test]
fn ten_a_day_polled_every_17_ms_loses_no_unit() {
    // The 30th unit is due at the very end of the third day, and the next poll finds it.
    let poll = 17_000_000;
    assert_eq!(drained_then_polled(Quota::per_day(10), 1, poll, 3 * DAY + Duration::from_nanos(poll)), 30);
}

#[test]
fn three_a_second_loses_under_one_in_a_billion() {
    // A third of a tick each: after 2,592,000 units the last comes 108 µs late.
    let late = Duration::from_micros(108);
    assert_eq!(drained_then_prompt(Quota::per_second(3), 10 * DAY + late), 2_592_000);
    assert_eq!(drained_then_prompt(Quota::per_second(3), 10 * DAY + late - Duration::from_nanos(1)), 2_591_999);
}

/// Govcraft/acton-service#141 (b): an interval in whole milliseconds admits 705 in a minute.
#[test]
fn seven_hundred_a_minute_are_seven_hundred() {
    let quota = Quota::per_minute(700).burst(1);
    let limiter = DirectLimiter::new(quota).unwrap();
    let minute = 60_000_000_000_u64;
    let admitted = (0..minute).step_by(10_000).filter(|now| limiter.check_at(at(*now)).is_allowed()).count();
    assert_eq!(admitted, 700);
    // 700 a minute and 3,600 minutes: nothing is lost by the hour either.
    assert_eq!(drained_then_prompt(Quota::per_minute(700), Duration::from_secs(3_601)), 42_011);
}

#[test]
fn one_in_365_days_comes_on_the_day() {
    let quota = Quota::new(1, 365 * DAY);
    assert_eq!(drained_then_prompt(quota, 365 * DAY - Duration::from_nanos(1)), 0);
    assert_eq!(drained_then_prompt(quota, 3 * 365 * DAY), 3);
}

#[test]
fn a_billion_a_second_are_a_billion() {
    assert_eq!(drained_then_polled(Quota::per_second(1_000_000_000), 1, 1_000, Duration::from_millis(10)), 10_000_000);
}

/// governor 0.10 keeps whole nanoseconds a unit: 30 M/s run 1 % fast.
#[test]
fn thirty_million_a_second_lose_at_most_a_tick_a_decision() {
    let admitted = drained_then_polled(Quota::per_second(30_000_000), 1, 1_000, Duration::from_millis(200));
    // A unit is 266 2/3 ticks, and a decision is charged 267.
    let exact = 6_000_000.0;
    let lower = exact * (1.0 - 30e6 / 8e9);
    assert!((lower..=exact).contains(&(admitted as f64)), "{admitted} of {exact}");
}

/// governor 0.10 keeps whole nanoseconds a unit: 600 M/s run 67 % fast.
#[test]
fn six_hundred_million_bytes_a_second_in_packets_come_out_within_1_ppm() {
    let admitted = drained_then_polled(Quota::per_second(600_000_000), 1_500, 2_500, Duration::from_secs(3));
    let exact = 1_800_000_000.0;
    let within = exact * (1.0 - 1e-6)..=exact;
    assert!(within.contains(&(admitted as f64)), "{admitted} of {exact}");
}

/// The formula in the documentation of `Quota`, for rates that divide nothing.
#[test]
fn no_rate_loses_more_than_the_documented_formula() {
    for (rate, cost) in [(7, 1), (99_991, 1), (99_991, 13), (1_048_576, 1), (7_654_321, 64), (733_333_337, 1_500)] {
        let seconds = 2;
        let admitted = drained_then_polled(Quota::per_second(rate), cost, 1_000, Duration::from_secs(seconds));
        let exact = (rate * seconds) as f64;
        let lost = f64::max(10e-6, rate as f64 / (cost as f64 * 8e9));
        let lower = exact * (1.0 - lost) - cost as f64;
        assert!((lower..=exact).contains(&(admitted as f64)), "{admitted} of {exact} at {rate}/s, cost {cost}");
    }
}

/// From a full bucket the whole burst is taken at one instant, also where a unit is no whole number of ticks.
#[test]
fn a_burst_is_admitted_at_one_instant_to_its_last_unit() {
    for rate in [3, 7, 9, 11, 13, 700, 1_023, 30_000, 79_999] {
        for quota in [Quota::per_second(rate), Quota::per_minute(rate), Quota::per_second(rate).burst(10 * rate + 1)] {
            let limiter = DirectLimiter::new(quota).unwrap();
            let start = at(123_456_789);
            for _ in 0..quota.limit() {
                assert!(limiter.check_at(start).is_allowed(), "{quota}");
            }
            assert!(limiter.check_at(start).is_denied(), "{quota}");
        }
    }
}
