//! The coarse clock: what stale time costs, and for how long a client may be refused for it.
#![allow(clippy::unwrap_used, reason = "a helper that meets the unexpected stops the test")]
#![allow(clippy::expect_used, clippy::panic, reason = "a judge that finds a fault stops the test")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use governor::clock::{Clock as _, QuantaUpkeepClock, Reference};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tollgate::{
    Check, Clock, ClockError, CoarseClock, CoarseStats, Decision, DirectLimiter, Limiter, Now, Plan, Quota, TestClock,
    Unit,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// More denials than there are between one look at the time itself and the next.
const MANY: usize = 10_000;

fn at(elapsed: Duration) -> Now {
    Now::since_origin(elapsed).unwrap()
}

/// A coarse clock of 1 ms that publishes when it is told to, and the clock that it follows.
fn by_hand(max_step: Duration) -> (TestClock, Clock) {
    let time = TestClock::new();
    let clock = CoarseClock::new().of(time.clock()).max_step(max_step).by_hand().unwrap();
    (time, clock)
}

fn keyed(quota: Quota, clock: &Clock) -> Limiter {
    Limiter::builder().quota(quota).clock(clock.clone()).build().unwrap()
}

fn stats(clock: &Clock) -> CoarseStats {
    clock.coarse_stats().unwrap()
}

/// How many of `checks` in a row are allowed.
fn admitted(limiter: &DirectLimiter, checks: usize) -> usize {
    (0..checks).filter(|_| limiter.check().is_allowed()).count()
}

// Which requests are refused.

type Door = (&'static str, fn(&Limiter) -> bool);

/// Every way to ask for one request of `alice`, on a plan of one quota or of several.
const DOORS: [Door; 9] = [
    ("check", |limiter| limiter.check("alice").is_allowed()),
    ("check_cost", |limiter| limiter.check_cost("alice", 1).is_allowed()),
    ("check_costs", |limiter| limiter.check_costs("alice", &[(Unit::REQUESTS, 1)]).is_allowed()),
    ("check_many", |limiter| {
        let mut checks = [Check::new("alice")];
        limiter.check_many(&mut checks);
        checks[0].is_allowed()
    }),
    ("enter", |limiter| limiter.enter("alice").is_ok()),
    ("plan check", |limiter| limiter.plan("one").unwrap().check("alice").is_allowed()),
    ("plan check_cost", |limiter| limiter.plan("one").unwrap().check_cost("alice", 1).is_allowed()),
    ("plan check_costs", |limiter| {
        limiter.plan("one").unwrap().check_costs("alice", &[(Unit::REQUESTS, 1)]).is_allowed()
    }),
    ("plan enter", |limiter| limiter.plan("one").unwrap().enter("alice").is_ok()),
];

fn plans() -> [(&'static str, Plan); 3] {
    let quota = Quota::per_second(1).burst(1);
    [
        ("one quota", Plan::from(quota)),
        ("several", Plan::new([quota, Quota::per_hour(100)])),
        ("in flight", Plan::new([quota]).in_flight(5)),
    ]
}

#[test]
fn no_client_is_refused_for_time_that_is_two_resolutions_old() {
    for (what, plan) in plans() {
        for (door, ask) in DOORS {
            let (time, clock) = by_hand(HOUR);
            let limiter = Limiter::builder().plan("one", plan.clone()).clock(clock.clone()).build().unwrap();
            assert!(ask(&limiter), "{door} of {what}: a new key");
            time.set(SECOND - 2 * MS);
            clock.publish();
            time.set(SECOND - Duration::from_nanos(1));
            assert!(!ask(&limiter), "{door} of {what}: too soon in truth");
            time.set(SECOND);
            assert!(ask(&limiter), "{door} of {what}: due in truth");
        }
    }
    let (time, clock) = by_hand(HOUR);
    let direct = DirectLimiter::with_clock(Quota::per_second(1), clock.clone()).unwrap();
    for _ in 0..3 {
        assert!(direct.check().is_allowed());
        time.advance(SECOND - 2 * MS);
        clock.publish();
        time.advance(2 * MS);
    }
}

#[test]
fn what_only_looks_sees_the_time_itself() {
    for (what, plan) in plans() {
        let (time, clock) = by_hand(HOUR);
        let limiter = Limiter::builder().plan("one", plan).clock(clock.clone()).build().unwrap();
        let handle = limiter.plan("one").unwrap();
        assert!(limiter.check("alice").is_allowed());
        time.set(SECOND / 2);
        assert_eq!(limiter.peek("alice").retry_after(), Some(SECOND / 2), "{what}");
        time.set(SECOND);
        assert!(limiter.peek("alice").is_allowed() && limiter.peek_cost("alice", 1).is_allowed(), "{what}");
        assert!(handle.peek("alice").is_allowed() && handle.peek_cost("alice", 1).is_allowed(), "{what}");
        assert_eq!(limiter.peek_all("alice")[0].remaining(), 1, "{what}");
        assert_eq!(handle.peek_all("alice")[0].remaining(), 1, "{what}");
        assert!(limiter.entries().all(|(_, decision)| decision.is_allowed()), "{what}");
    }
    let (time, clock) = by_hand(HOUR);
    let direct = DirectLimiter::with_clock(Quota::per_second(1), clock).unwrap();
    assert!(direct.check().is_allowed());
    time.set(SECOND);
    assert!(direct.peek().is_allowed() && direct.peek_cost(1).is_allowed());
}

/// Of so many denials by one published instant, those that look at the time itself: the first, the second, the fourth and so on,
/// and from the 64th every 64th.
const fn looks(denials: usize) -> usize {
    7 + denials / 64 - 1
}

/// The published time is one resolution behind, so that a look publishes nothing, and each denial tells by its `retry_after`
/// which time it was decided on.
#[test]
fn a_denial_that_stands_for_long_is_looked_at_again_at_a_known_count() {
    for (n, (what, plan)) in plans().into_iter().enumerate() {
        let (time, clock) = by_hand(HOUR);
        // Instants of its own, so that a clock of the same count before it is no part of this.
        let begun = SECOND * (10 * n as u32 + 10);
        time.set(begun);
        clock.publish();
        let limiter = Limiter::builder().plan("one", plan).clock(clock.clone()).build().unwrap();
        assert!(limiter.check("alice").is_allowed());
        time.set(begun + MS);
        let waits =
            |ask: &dyn Fn() -> Decision| (0..6_400).filter(|_| ask().retry_after() == Some(SECOND - MS)).count();
        let one = waits(&|| limiter.check("alice"));
        let all = waits(&|| limiter.check_costs("alice", &[(Unit::REQUESTS, 1)]));
        assert_eq!((one, all), (looks(6_400), 100), "{what}");
        assert_eq!(clock.now(), at(begun));
        assert_eq!(
            limiter.check_at("alice", at(begun)).retry_after(),
            Some(SECOND),
            "a given instant is taken at its word"
        );
    }
}

/// Two clocks whose instants differ do not begin each other's count anew.
#[test]
fn a_thread_that_asks_limiters_of_two_clocks_in_turn_looks_no_more_often() {
    let limiters = [10, 20].map(|begun| {
        let (time, clock) = by_hand(HOUR);
        time.set(SECOND * begun);
        clock.publish();
        let limiter = DirectLimiter::with_clock(Quota::per_second(1), clock).unwrap();
        assert!(limiter.check().is_allowed());
        time.advance(MS);
        limiter
    });
    let mut looked = [0; 2];
    for _ in 0..6_400 {
        for (limiter, looked) in limiters.iter().zip(&mut looked) {
            *looked += usize::from(limiter.check().retry_after() == Some(SECOND - MS));
        }
    }
    assert_eq!(looked, [looks(6_400); 2]);
}

/// Nothing is published, and one denial comes after the other at a steady rate. Once a client is full again, it is served within
/// two resolutions and the next denial.
#[test]
fn a_stall_refuses_for_two_resolutions_and_a_denial() {
    let quota = Quota::per_second(10).burst(1);
    for micros in [1, 20, 300, 999, 1_000, 1_500, 7_000, 40_000] {
        for with_others in [false, true] {
            let (time, clock) = by_hand(HOUR);
            let (limiter, full) = (keyed(quota, &clock), keyed(Quota::per_hour(1), &clock));
            assert!(limiter.check("alice").is_allowed() && full.check("bob").is_allowed());
            let (step, mut taken) = (Duration::from_micros(micros), Duration::ZERO);
            for _ in 0..20 {
                while {
                    time.advance(step);
                    // The looks may all be of a client that is refused in truth.
                    assert!(!with_others || full.check("bob").is_denied());
                    limiter.check("alice").is_denied()
                } {}
                let now = Duration::from_nanos(nanos(time.now()) as u64);
                let late = now - taken - SECOND / 10;
                assert!(late <= 2 * MS + step, "{late:?} late, a denial each {step:?}");
                taken = now;
            }
        }
    }
}

/// 1,961 of 2,000 were denied where one denial in 64 looked by chance, and the published time stood still for 200 ms.
#[test]
fn a_stall_refuses_no_more_than_64_times() {
    for denied_before in (0..70).chain([100, 127, 128, 129, 1_000, 4_096]) {
        let (time, clock) = by_hand(HOUR);
        let limiter = DirectLimiter::with_clock(Quota::per_second(10).burst(1), clock.clone()).unwrap();
        time.set(MS * (denied_before as u32 + 1));
        clock.publish();
        assert!(limiter.check().is_allowed());
        assert_eq!(admitted(&limiter, denied_before), 0);
        time.advance(MS * 200);
        let refused = (0..2_000).take_while(|_| limiter.check().is_denied()).count();
        assert!(refused < denied_before.clamp(1, 64), "{refused} after {denied_before}");
        assert_eq!(clock.now(), time.now(), "what one saw is published for all");
    }
}

#[test]
fn retry_after_is_too_long_by_no_more_than_the_time_is_old() {
    let (time, clock) = by_hand(HOUR);
    let limiter = DirectLimiter::with_clock(Quota::per_second(1), clock.clone()).unwrap();
    assert!(limiter.check().is_allowed());
    for elapsed in [0, 1, 250, 500, 750, 997, 998, 999] {
        time.set(MS * elapsed);
        clock.publish();
        time.advance(MS);
        let (wait, exact) = (limiter.check().retry_after().unwrap(), SECOND - MS * (elapsed + 1));
        assert!((exact..=exact + MS).contains(&wait), "{wait:?} at {elapsed} ms and one later");
    }
}

#[test]
fn shadow_mode_counts_what_the_time_itself_says() {
    let (time, clock) = by_hand(HOUR);
    let plan = Plan::new([Quota::per_second(1).burst(1)]).shadow();
    let limiter = Limiter::builder().plan("one", plan).clock(clock.clone()).build().unwrap();
    for _ in 0..3 {
        let Decision::Allow(allow) = limiter.check("alice") else { panic!("shadow mode denies") };
        assert!(allow.would_deny().is_none());
        time.advance(SECOND - 2 * MS);
        clock.publish();
        time.advance(MS);
        let Decision::Allow(allow) = limiter.check("alice") else { panic!("shadow mode denies") };
        assert_eq!(allow.would_deny().and_then(|deny| deny.retry_after()), Some(MS));
        time.advance(MS);
    }
    let stats = &limiter.plan_stats()[0];
    assert_eq!((stats.shadow_allowed, stats.shadow_denied), (3, 3));
}

/// Neither a rate of 0 nor a cost above the burst is a matter of time.
#[test]
fn what_no_time_ends_is_not_looked_at() {
    let (time, clock) = by_hand(HOUR);
    let (never, one) = (keyed(Quota::per_second(0).burst(1), &clock), keyed(Quota::per_second(1), &clock));
    assert!(never.check("alice").is_allowed());
    time.set(2 * MS);
    assert!((0..MANY).all(|_| never.check("alice").is_denied() && one.check_cost("alice", 2).is_denied()));
    // Looked at again, it would be published: it is two resolutions old.
    assert_eq!(clock.now(), Now::ORIGIN);
}

// What is admitted.

#[test]
fn a_resolution_of_staleness_is_worth_rate_times_resolution() {
    let (time, clock) = by_hand(HOUR);
    // A unit comes back in a resolution.
    let limiter = DirectLimiter::with_clock(Quota::per_second(1_000).burst(10), clock.clone()).unwrap();
    time.set(SECOND - MS);
    clock.publish();
    time.set(SECOND);
    assert_eq!(admitted(&limiter, 20), 10 + 1, "at one instant");
    clock.publish();
    assert_eq!(admitted(&limiter, 20), 0);
    time.advance(3 * MS);
    assert_eq!(admitted(&limiter, 20), 3, "and the rate from there on");
}

#[test]
fn a_stall_is_worth_rate_times_its_length_and_a_burst_at_most() {
    for (stalled, extra) in [(0, 0), (1, 1), (5, 5), (10, 10), (3_000, 10)] {
        let (time, clock) = by_hand(HOUR);
        let limiter = DirectLimiter::with_clock(Quota::per_second(1).burst(10), clock.clone()).unwrap();
        time.set(SECOND * stalled);
        assert_eq!(admitted(&limiter, MANY), 10 + extra, "at one instant, {stalled} s behind");
        assert_eq!(stats(&clock).stalls, u64::from(stalled > 0));
        assert_eq!(clock.now(), at(SECOND * stalled), "the second look is published for all");
    }
}

/// One thing to do.
#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Publish,
    Take(u64),
    Refund(usize),
}

#[derive(Clone, Copy, Debug)]
struct Admission {
    /// When it was, in truth.
    at: u128,
    /// What was published then.
    published: u128,
    cost: u128,
}

fn scripts() -> impl Strategy<Value = (Quota, Vec<Step>)> {
    let quotas = (prop_oneof![1_u64..30, 500_u64..3_000, 100_000_u64..10_000_000], 1_u64..8);
    quotas.prop_map(|(rate, burst)| Quota::per_second(rate).burst(burst)).prop_flat_map(|quota| {
        let unit = 1_000_000_000 / quota.rate();
        let step = prop_oneof![
            4 => (0..=unit).prop_map(Step::Pass),
            3 => (0_u64..1_500_000).prop_map(Step::Pass),
            1 => (0..unit * 20).prop_map(Step::Pass),
            4 => Just(Step::Publish),
            8 => Just(Step::Take(1)),
            4 => (1..=quota.limit()).prop_map(Step::Take),
            3 => any::<usize>().prop_map(Step::Refund),
        ];
        (Just(quota), prop::collection::vec(step, 1..150))
    })
}

/// Plays `steps` through two front doors, and judges them: in no window is more kept than the bound, with the age of the time
/// when the window begins; and no request is denied that the time itself would admit, while what is published is no more
/// than two resolutions old.
fn play(quota: Quota, steps: &[Step]) {
    let ample = Quota::per_second(1_000_000).burst(1 << 30).named("ample");
    for plan in [Plan::from(quota), Plan::new([quota, ample])] {
        let (time, clock) = by_hand(HOUR);
        let limiter = Limiter::builder().plan("one", plan).clock(clock.clone()).build().unwrap();
        let mut now = 0_u128;
        let mut admitted: Vec<Admission> = Vec::new();
        let mut refundable = Vec::new();
        for step in steps {
            match *step {
                Step::Pass(nanos) => {
                    now += u128::from(nanos);
                    time.set(Duration::from_nanos(now as u64));
                }
                Step::Publish => {
                    clock.publish();
                    assert_eq!(nanos(clock.now()), now);
                }
                Step::Take(cost) => {
                    let published = nanos(clock.now());
                    match limiter.check_cost("alice", cost) {
                        Decision::Allow(allow) => {
                            refundable.push((admitted.len(), allow));
                            admitted.push(Admission { at: now, published, cost: u128::from(cost) });
                        }
                        Decision::Deny(deny) => {
                            let due = limiter.peek_cost_at("alice", cost, time.now()).is_allowed();
                            let old = now - published;
                            assert!(!due || old > 2 * MS.as_nanos(), "{deny} though due, {old} ns old");
                        }
                    }
                }
                Step::Refund(which) if !refundable.is_empty() => {
                    let (index, allow) = refundable.swap_remove(which % refundable.len());
                    limiter.refund("alice", allow);
                    admitted[index].cost = 0;
                }
                Step::Refund(_) => {}
            }
        }
        let (burst, rate, period) = (u128::from(quota.limit()), u128::from(quota.rate()), quota.period().as_nanos());
        for (first, from) in admitted.iter().enumerate() {
            let mut units = 0;
            for to in &admitted[first..] {
                units += to.cost;
                let length = to.at - from.published;
                assert!(
                    units * period <= burst * period + rate * length,
                    "{units} units of {quota} in the {} ns from {}, {} ns behind",
                    to.at - from.at,
                    from.at,
                    from.at - from.published
                );
            }
        }
    }
}

fn nanos(now: Now) -> u128 {
    // The least instant that is not before.
    // 2^61 ticks of 1/8 ns are the last there is.
    let (mut low, mut high) = (0_u64, 1 << 58);
    while low < high {
        let middle = low + (high - low) / 2;
        if at(Duration::from_nanos(middle)) < now { low = middle + 1 } else { high = middle }
    }
    u128::from(low)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        rng_seed: RngSeed::Fixed(0xC0A5_E000),
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_window_holds_more_than_the_bound_with_the_age_of_its_first_instant((quota, steps) in scripts()) {
        play(quota, &steps);
    }
}

/// The unit came back by itself: at the published time, which is a resolution behind, it would be given back once more.
#[test]
fn a_refund_is_worth_what_the_time_itself_leaves_of_it() {
    let (time, clock) = by_hand(HOUR);
    let direct = DirectLimiter::with_clock(Quota::per_second(1_000).burst(1), clock.clone()).unwrap();
    let keyed = keyed(Quota::per_second(1_000).burst(1), &clock);
    let (Decision::Allow(one), Decision::Allow(other)) = (direct.check(), keyed.check("alice")) else {
        panic!("a new key is denied")
    };
    time.set(MS);
    assert!(direct.check().is_allowed() && keyed.check("alice").is_allowed(), "on a second look");
    assert_eq!(clock.now(), Now::ORIGIN);
    direct.refund(one);
    keyed.refund("alice", other);
    assert!(direct.peek().is_denied() && keyed.peek("alice").is_denied());
}

// Leaps and stalls.

#[test]
fn a_step_over_the_longest_counts_as_that_for_good() {
    let (time, clock) = by_hand(SECOND);
    let limiter = DirectLimiter::with_clock(Quota::per_second(10).burst(1_000), clock.clone()).unwrap();
    assert_eq!(admitted(&limiter, 1_000), 1_000);
    time.set(SECOND);
    clock.publish();
    assert_eq!((clock.now(), stats(&clock).leaps), (at(SECOND), 0), "the longest step is none too long");
    time.set(HOUR);
    clock.publish();
    assert_eq!(clock.now(), at(2 * SECOND));
    let seen = stats(&clock);
    assert_eq!((seen.stalls, seen.leaps), (2, 1));
    assert_eq!((seen.lost, seen.longest), (HOUR - 2 * SECOND, HOUR - SECOND));
    assert_eq!(seen.to_string(), "2 stalls of at most 3599s, 1 leaps of which 3598s do not count");
    for second in 3..10 {
        time.advance(SECOND);
        clock.publish();
        assert_eq!(clock.now(), at(SECOND * second), "it goes on from there");
    }
    assert_eq!(stats(&clock).lost, HOUR - 2 * SECOND);
    assert_eq!(admitted(&limiter, 1_000), 90, "no bucket has gained by it");
}

#[test]
fn a_second_look_that_comes_before_the_thread_bounds_a_leap_as_well() {
    let (time, clock) = by_hand(SECOND);
    let limiter = DirectLimiter::with_clock(Quota::per_second(1_000).burst(1_000_000), clock.clone()).unwrap();
    assert!(limiter.check_cost(1_000_000).is_allowed());
    time.set(HOUR);
    assert!(limiter.check_cost(1_000).is_allowed() || admitted(&limiter, MANY) > 0);
    assert_eq!((clock.now(), stats(&clock).leaps), (at(SECOND), 1));
    clock.publish();
    assert_eq!(clock.now(), at(SECOND));
}

/// Three threads look and publish all the time, while the clock goes on by microseconds, and by an hour now and then.
#[test]
fn whatever_threads_meet_at_a_leap_no_time_is_made() {
    const LEAPS: u32 = 500;
    let (time, clock) = by_hand(SECOND);
    let limiter = keyed(Quota::per_second(1_000_000).burst(1), &clock);
    let (ready, is_over) = (Barrier::new(4), AtomicBool::new(false));
    thread::scope(|scope| {
        for key in ["a", "b", "c"] {
            let (limiter, clock, ready, is_over) = (&limiter, &clock, &ready, &is_over);
            scope.spawn(move || {
                ready.wait();
                let mut last = Now::ORIGIN;
                while !is_over.load(Relaxed) {
                    _ = limiter.check(key).is_allowed();
                    clock.publish();
                    let now = clock.now();
                    assert!(last <= now, "it went back from {last:?} to {now:?}");
                    last = now;
                }
            });
        }
        ready.wait();
        for _ in 0..LEAPS {
            for _ in 0..200 {
                time.advance(Duration::from_micros(1));
                std::hint::spin_loop();
            }
            time.advance(HOUR);
            clock.publish();
        }
        is_over.store(true, Relaxed);
    });
    clock.publish();
    let (after, true_time) = (nanos(clock.now()), nanos(time.now()));
    assert_eq!(after + stats(&clock).lost.as_nanos(), true_time, "nothing is lost twice");
    let steps = u128::from(LEAPS) * SECOND.as_nanos();
    assert!((steps..=4 * steps).contains(&after), "{after} ns");
    assert!(stats(&clock).leaps >= u64::from(LEAPS));
}

/// metrics-rs/quanta#61: the clock reads 1000 and then 900, and the elapsed time wraps.
#[test]
fn a_clock_below_that_steps_back_goes_on_from_where_it_was() {
    let (time, clock) = by_hand(HOUR);
    let limiter = DirectLimiter::with_clock(Quota::per_second(1).burst(10), clock.clone()).unwrap();
    time.set(100 * SECOND);
    clock.publish();
    assert_eq!(admitted(&limiter, 20), 10);
    time.set(50 * SECOND);
    clock.publish();
    assert_eq!((clock.now(), admitted(&limiter, 100)), (at(100 * SECOND), 0));
    assert_eq!(limiter.peek().retry_after(), Some(SECOND));
    time.set(51 * SECOND);
    assert_eq!(admitted(&limiter, MANY), 1);
    assert_eq!((clock.steps().followed, stats(&clock).lost), (1, Duration::ZERO));
}

/// golang/go#71360, golang/time PR#25: a late older timestamp rewinds the bucket and the interval counts twice. Here it is
/// every published instant that follows a second look.
#[test]
fn older_time_after_a_second_look_gives_nothing_back() {
    let (time, clock) = by_hand(HOUR);
    let limiter = DirectLimiter::with_clock(Quota::per_second(1_000).burst(10), clock.clone()).unwrap();
    assert_eq!(admitted(&limiter, 10), 10);
    time.set(MS);
    assert_eq!((admitted(&limiter, 100), clock.now()), (1, Now::ORIGIN));
    assert_eq!(admitted(&limiter, 100), 0);
}

#[test]
fn the_clock_ends_at_the_last_instant_there_is() {
    let (time, clock) = by_hand(Duration::MAX);
    time.set(Duration::MAX);
    clock.publish();
    assert_eq!((clock.now(), stats(&clock).leaps), (Now::MAX, 0));
    let limiter = DirectLimiter::with_clock(Quota::per_second(1), clock.clone()).unwrap();
    assert_eq!(admitted(&limiter, MANY), 1);
}

// Options, and the thread.

#[test]
fn options_out_of_range_are_errors_that_say_what_to_do() {
    for resolution in [Duration::ZERO, Duration::from_nanos(99_999), Duration::from_nanos(100_000_001), Duration::MAX] {
        let error = CoarseClock::new().resolution(resolution).start().unwrap_err();
        assert!(matches!(error, ClockError::BadResolution { resolution: refused } if refused == resolution));
        assert!(error.to_string().contains("from 100µs to 100ms"), "{error}");
    }
    for resolution in [Duration::from_micros(100), 100 * MS] {
        let clock = CoarseClock::new().resolution(resolution);
        assert!(clock.clone().start().is_ok());
        let error = clock.clone().max_step(10 * resolution - Duration::from_nanos(1)).start().unwrap_err();
        assert!(
            matches!(error, ClockError::MaxStepTooShort { shortest, .. } if shortest == 10 * resolution),
            "{error}"
        );
        assert!(clock.max_step(10 * resolution).start().is_ok());
    }
    let coarse = Clock::coarse().unwrap();
    let error = CoarseClock::new().of(coarse).start().unwrap_err();
    assert!(matches!(error, ClockError::CoarseOfCoarse) && error.to_string().contains("Clock::precise()"), "{error}");
    assert!(Clock::precise().coarse_stats().is_none() && Clock::std().coarse_stats().is_none());
}

fn wait_for(what: impl Fn() -> bool) {
    while !what() {
        thread::sleep(MS);
    }
}

#[test]
fn the_thread_publishes_while_any_clone_is_left() {
    for clock in [Clock::coarse().unwrap(), CoarseClock::new().of(Clock::std()).start().unwrap()] {
        let limiter = keyed(Quota::per_second(1_000).burst(5), &clock);
        drop(clock);
        let begun = limiter.now();
        wait_for(|| limiter.now() > begun);
        for _ in 0..20 {
            wait_for(|| limiter.check("alice").is_allowed());
        }
    }
}

/// On the thread's own time: what is published is never ahead of the clock that it follows, before or after it is read.
#[test]
fn what_is_published_is_never_early() {
    let std = Clock::std();
    let clock = CoarseClock::new().of(std.clone()).resolution(Duration::from_micros(100)).start().unwrap();
    let mut last = Now::ORIGIN;
    for _ in 0..200_000 {
        let published = clock.now();
        assert!(last <= published && published <= std.now());
        last = published;
    }
}

/// Eight threads take all there is for a while. By the clock that is published the count is within the bound, however late the
/// thread was.
#[test]
fn threads_on_a_coarse_clock_stay_within_the_bound() {
    let std = Clock::std();
    let clock = CoarseClock::new().of(std.clone()).start().unwrap();
    let limiter = keyed(Quota::per_second(100_000).burst(100), &clock);
    let from = clock.now();
    let taken: usize = thread::scope(|scope| {
        let threads =
            [(); 8].map(|()| scope.spawn(|| (0..50_000).filter(|_| limiter.check("alice").is_allowed()).count()));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let nanos = nanos(std.now()) - nanos(from);
    assert!(taken as u128 * 1_000_000_000 <= 100 * 1_000_000_000 + 100_000 * nanos, "{taken} in {nanos} ns");
    assert!(taken >= 100);
}

/// governor's upkeep is that of quanta, of which there is one in a process. Ours is beside it, before it and after it.
#[test]
fn other_clocks_of_the_process_go_on() {
    let before = Clock::coarse().unwrap();
    let theirs = QuantaUpkeepClock::from_interval(MS).unwrap();
    let after = Clock::coarse().unwrap();
    assert!(QuantaUpkeepClock::from_interval(MS).is_err(), "quanta's is taken");
    let run = |clock: &Clock| {
        let (own, their) = (clock.now(), theirs.now());
        wait_for(|| clock.now() > own && theirs.now().duration_since(their).as_u64() > 0);
    };
    run(&before);
    run(&after);
    drop(before);
    run(&after);
    drop(theirs);
    let now = after.now();
    wait_for(|| after.now() > now);
}
