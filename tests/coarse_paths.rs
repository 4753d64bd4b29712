//! A coarse clock on the paths beside plain checks of known keys: no client is refused on time that has passed there either.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "what is not as it should be stops the test")]

use std::time::Duration;

use tollgate::{Check, Clock, CoarseClock, Limiter, Policy, Quota, TestClock};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// One unit, and another a millisecond and a half later.
const ONE: Quota = Quota::new(1, Duration::from_micros(1_500)).burst(1);

/// A coarse clock of 1 ms that publishes when it is told to, and the clock that it follows.
fn by_hand() -> (TestClock, Clock) {
    let time = TestClock::new();
    let clock = CoarseClock::new().of(time.clock()).by_hand().unwrap();
    (time, clock)
}

#[test]
fn who_shares_the_overflow_is_not_refused_on_time_that_has_passed() {
    let (time, clock) = by_hand();
    let limiter = Limiter::builder().quota(ONE).max_keys(1).clock(clock).build().unwrap();
    assert!(limiter.check("resident").is_allowed());
    assert!(limiter.check("bob").is_allowed());
    assert!(limiter.check("carol").is_denied());
    time.advance(Duration::from_micros(1_500));
    assert!(limiter.check("dave").is_allowed());
    assert!(limiter.check("erin").is_denied());
}

#[test]
fn nor_is_who_is_in_a_store_of_fixed_size() {
    let (time, clock) = by_hand();
    let limiter = Limiter::builder().quota(ONE).clock(clock).fixed(1_000).build().unwrap();
    for _ in 0..3 {
        assert!(limiter.check("alice").is_allowed() && limiter.check("alice").is_denied());
        time.advance(Duration::from_micros(1_500) - Duration::from_nanos(1));
        assert!(limiter.check("alice").is_denied());
        time.advance(Duration::from_nanos(1));
    }
}

#[test]
fn nor_is_one_of_many() {
    let (time, clock) = by_hand();
    let limiter = Limiter::builder().quota(ONE).clock(clock).build().unwrap();
    let mut checks = [Check::new("alice"), Check::new("alice"), Check::new("bob")];
    limiter.check_many(&mut checks);
    assert_eq!(checks.each_ref().map(Check::is_allowed), [true, false, true]);
    time.advance(Duration::from_micros(1_500));
    limiter.check_many(&mut checks);
    assert_eq!(checks.each_ref().map(Check::is_allowed), [true, false, true]);
}

/// Of several quotas that deny, the one with the longest wait says whether the denial stands: the other is over in truth.
#[test]
fn a_denial_stands_if_the_longest_of_its_waits_does() {
    let (time, clock) = by_hand();
    let plan = [ONE.named("short"), Quota::per_hour(1).named("long")];
    let limiter = Limiter::builder().plan("one", plan).clock(clock.clone()).build().unwrap();
    assert!(limiter.check("alice").is_allowed());
    time.advance(MS);
    // Seven of the first 64 are taken again, and then every 64th, and tell the time itself.
    let stale = (0..640).filter(|_| limiter.check("alice").retry_after() == Some(HOUR)).count();
    assert_eq!(stale, 640 - 7 - 9);
}

#[test]
fn a_reload_works_out_what_was_used_by_the_time_itself() {
    let (time, clock) = by_hand();
    let limiter = Limiter::builder().quota(Quota::per_second(1_000).burst(10)).clock(clock.clone()).build().unwrap();
    assert!(limiter.check_cost("alice", 10).is_allowed());
    time.advance(MS);
    limiter.reload(Policy::new().plan("default", [Quota::per_second(1).burst(10)])).unwrap();
    assert_eq!(limiter.peek_cost("alice", 0).remaining(), 1);
}

#[cfg(feature = "global")]
mod with_fleets {
    use super::*;
    use tollgate::BuildError;
    use tollgate::global::{Fleet, MemoryAuthority, StartError};

    /// What asks a fleet is a plain check where there is none.
    #[tokio::test]
    async fn nor_is_who_would_ask_a_fleet() {
        let (time, clock) = by_hand();
        let limiter = Limiter::builder().quota(ONE).clock(clock).build().unwrap();
        let plan = limiter.plan("default").unwrap();
        assert!(limiter.acquire_global("alice", 1, HOUR).await.is_allowed());
        assert!(limiter.check_exact("alice").await.is_denied());
        time.advance(Duration::from_micros(1_500));
        assert!(limiter.acquire_global("alice", 1, HOUR).await.is_allowed());
        time.advance(Duration::from_micros(1_500));
        assert!(limiter.check_exact("alice").await.is_allowed());
        time.advance(Duration::from_micros(1_500));
        assert!(plan.check_exact("alice").await.is_allowed());
        assert!(plan.check_exact("alice").await.is_denied());
    }

    /// A lease would be spent after its end for as long as the thread is late.
    #[test]
    fn a_fleet_takes_no_coarse_clock() {
        let (_, clock) = by_hand();
        let error = Fleet::builder(MemoryAuthority::new()).clock(clock.clone()).start().expect_err("it is coarse");
        assert!(matches!(error, StartError::CoarseClock), "{error:?}");
        assert!(error.to_string().contains("Clock::precise()"), "{error}");

        let fleet = Fleet::builder(MemoryAuthority::new()).start().unwrap();
        let refused = Limiter::builder().fleet(&fleet).quota(ONE).clock(clock).build();
        assert_eq!(refused.map(|_| ()), Err(BuildError::ClockOfFleet));
    }
}
