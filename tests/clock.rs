//! Clocks that step back, and instants that differ: nothing waits for the size of a step, and no step is worth more than that.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what is not as it should be stops the test"
)]

mod stores;

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use stores::Kind;
use tollgate::{
    Check, Clock, ClockSteps, CoarseClock, Decision, DirectLimiter, Fixed, Limiter, Now, Plan, PlanLimiter, Quota,
    Sharded, TestClock, Unit,
};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// What every test starts from.
const FIVE: Quota = Quota::per_second(1).burst(5);

fn at(elapsed: Duration) -> Now {
    Now::since_origin(elapsed).unwrap()
}

/// A clock that steps as it is told, by itself or below a coarse one.
struct Steps {
    name: &'static str,
    time: TestClock,
    clock: Clock,
}

impl Steps {
    fn both() -> [Self; 2] {
        let (time, below) = (TestClock::new(), TestClock::new());
        let coarse = CoarseClock::new().of(below.clock()).max_step(Duration::MAX).by_hand().unwrap();
        [Self { name: "plain", clock: time.clock(), time }, Self { name: "coarse", clock: coarse, time: below }]
    }

    /// Sets the clock, and lets a coarse one see it.
    fn set(&self, elapsed: Duration) {
        self.time.set(elapsed);
        self.clock.publish();
    }
}

/// One bucket, whatever it is kept in.
struct Door {
    name: &'static str,
    take: Box<dyn Fn(u64) -> Decision>,
    peek: Box<dyn Fn(u64) -> Decision>,
}

fn doors(quota: Quota, clock: &Clock) -> [Door; 3] {
    let direct = DirectLimiter::with_clock(quota, clock.clone()).unwrap();
    let sharded = Limiter::builder().quota(quota).clock(clock.clone()).build().unwrap();
    let fixed = Limiter::builder().quota(quota).clock(clock.clone()).fixed(100).build().unwrap();
    let (direct_too, sharded_too, fixed_too) = (direct.clone(), sharded.clone(), fixed.clone());
    [
        Door {
            name: "direct",
            take: Box::new(move |cost| direct.check_cost(cost)),
            peek: Box::new(move |cost| direct_too.peek_cost(cost)),
        },
        Door {
            name: "sharded",
            take: Box::new(move |cost| sharded.check_cost("alice", cost)),
            peek: Box::new(move |cost| sharded_too.peek_cost("alice", cost)),
        },
        Door {
            name: "fixed",
            take: Box::new(move |cost| fixed.check_cost("alice", cost)),
            peek: Box::new(move |cost| fixed_too.peek_cost("alice", cost)),
        },
    ]
}

// Steps back.

/// ProfessionalWiki/MediaWiki-MCP-Server#557: a clock that steps back locks callers out for the step.
#[test]
fn what_was_left_before_a_step_back_is_left_after_it() {
    for by_take in [false, true] {
        for which in 0..3 {
            for steps in Steps::both() {
                let door = &doors(FIVE, &steps.clock)[which];
                let case = format!("{} on a {} clock", door.name, steps.name);
                steps.set(100 * SECOND);
                assert!((door.take)(3).is_allowed(), "{case}");
                steps.set(89 * SECOND);
                if by_take {
                    let taken = (door.take)(2);
                    assert!(taken.is_allowed() && taken.remaining() == 0, "{case}: {taken:?}");
                    assert_eq!((door.take)(1).retry_after(), Some(SECOND), "{case}");
                } else {
                    assert_eq!((door.peek)(0).remaining(), 2, "{case}");
                    assert_eq!((door.peek)(3).retry_after(), Some(SECOND), "{case}");
                    assert!((door.take)(2).is_allowed(), "{case}");
                }
                assert_eq!(steps.clock.steps().to_string(), "1 steps back followed, 0 not", "{case}");
                assert_eq!(steps.clock.now(), at(100 * SECOND), "{case}");
            }
        }
    }
}

/// projectacrn/acrn-hypervisor#3697, romange/helio PR#184: a counter starts over at 0.
#[test]
fn an_empty_bucket_waits_no_longer_than_it_fills_after_a_clock_starts_over() {
    for which in 0..3 {
        for steps in Steps::both() {
            let door = &doors(FIVE, &steps.clock)[which];
            steps.set(3 * DAY);
            assert!((door.take)(5).is_allowed());
            let mut admitted = 0;
            for second in 0..=6 {
                steps.set(second * SECOND);
                admitted += u32::from((door.take)(1).is_allowed());
            }
            // Before the first denial the clock has not been found out.
            assert!((5..=6).contains(&admitted), "{} on a {} clock: {admitted}", door.name, steps.name);
        }
    }
}

/// Newcomers inherit the instants at which the places of others were taken, those of each set.
#[test]
fn keys_that_are_new_after_a_step_back_are_served() {
    for steps in Steps::both() {
        let limiter = Limiter::builder().quota(FIVE).clock(steps.clock.clone()).fixed(200).build().unwrap();
        for key in 0..2_000 {
            steps.set(DAY + key * SECOND);
            assert!(limiter.check(&format!("old {key}")).is_allowed());
        }
        assert!(limiter.stats().evictions > 1_000);
        let mut waiting: Vec<String> = (0..200).map(|key| format!("new {key}")).collect();
        for second in 0..=6 {
            steps.set(second * SECOND);
            waiting.retain(|key| limiter.check(key).is_denied());
        }
        assert!(waiting.is_empty(), "{} on a {} clock, {}", waiting.len(), steps.name, limiter.stats());
    }
}

type Way = (&'static str, fn(&Limiter, &PlanLimiter) -> bool);

/// Every way to ask for one request of `alice` now.
const WAYS: [Way; 14] = [
    ("check", |limiter, _| limiter.check("alice").is_allowed()),
    ("check_cost", |limiter, _| limiter.check_cost("alice", 1).is_allowed()),
    ("check_costs", |limiter, _| limiter.check_costs("alice", &[(Unit::REQUESTS, 1)]).is_allowed()),
    ("check_many", |limiter, _| {
        let mut checks = [Check::new("alice")];
        limiter.check_many(&mut checks);
        checks[0].is_allowed()
    }),
    ("enter", |limiter, _| limiter.enter("alice").is_ok()),
    ("peek", |limiter, _| limiter.peek("alice").is_allowed()),
    ("peek_costs", |limiter, _| limiter.peek_costs("alice", &[(Unit::REQUESTS, 1)]).is_allowed()),
    ("peek_all", |limiter, _| limiter.peek_all("alice")[0].remaining() >= 1),
    ("entries", |limiter, _| limiter.entries().all(|(_, decision)| decision.is_allowed())),
    ("plan check", |_, plan| plan.check("alice").is_allowed()),
    ("plan check_costs", |_, plan| plan.check_costs("alice", &[(Unit::REQUESTS, 1)]).is_allowed()),
    ("plan enter", |_, plan| plan.enter("alice").is_ok()),
    ("plan peek", |_, plan| plan.peek("alice").is_allowed()),
    ("plan peek_all", |_, plan| plan.peek_all("alice")[0].remaining() >= 1),
];

#[test]
fn every_way_to_ask_settles_a_step_back() {
    let plans = [
        ("one quota", Plan::from(FIVE)),
        ("several", Plan::new([FIVE, Quota::per_hour(1_000)])),
        ("in flight", Plan::new([FIVE]).in_flight(5)),
    ];
    for (what, plan) in plans {
        for (way, ask) in WAYS {
            for steps in Steps::both() {
                let builder = Limiter::builder().plan("one", plan.clone()).clock(steps.clock.clone());
                let limiter = builder.build().unwrap();
                let handle = limiter.plan("one").unwrap();
                steps.set(100 * SECOND);
                assert!(limiter.check_cost("alice", 4).is_allowed());
                steps.time.set(50 * SECOND);
                assert!(ask(&limiter, &handle), "{way} of {what} on a {} clock", steps.name);
            }
        }
    }
}

#[test]
fn limiters_that_share_a_clock_go_on_together() {
    let time = TestClock::new();
    let [one, other] = [time.clock(), time.clock()].map(|clock| DirectLimiter::with_clock(FIVE, clock).unwrap());
    time.set(DAY);
    assert!(one.check_cost(5).is_allowed() && other.check_cost(3).is_allowed());
    time.set(Duration::ZERO);
    assert!(one.check().is_denied());
    assert_eq!((other.now(), time.now()), (at(DAY), Now::ORIGIN));
    assert_eq!(other.peek_cost(0).remaining(), 2);
}

/// A wait that the quota itself can ask for is none that a step explains, and to a second nothing is followed.
#[test]
fn a_step_that_waits_cannot_tell_from_use_is_waited_for() {
    for (back, followed) in [(1, 0), (2, 1)] {
        let time = TestClock::new();
        let limiter = DirectLimiter::with_clock(FIVE, time.clock()).unwrap();
        time.set(100 * SECOND);
        assert!(limiter.check_cost(5).is_allowed());
        time.set((100 - back) * SECOND);
        assert!(limiter.check().is_denied());
        assert_eq!(time.clock().steps().followed, followed, "{back} s back");
    }
}

/// The first step is followed, and no other one before it has passed.
#[test]
fn a_clock_that_goes_back_and_forth_gains_one_step() {
    for which in 0..3 {
        for steps in Steps::both() {
            let door = &doors(FIVE, &steps.clock)[which];
            let mut admitted = 0;
            for _ in 0..1_000 {
                for second in [100, 89] {
                    steps.set(second * SECOND);
                    admitted += (0..10).filter(|_| (door.take)(1).is_allowed()).count();
                }
            }
            // A burst, and what comes back in the eleven seconds of the step.
            assert!((5..=5 + 11).contains(&admitted), "{} on a {} clock: {admitted}", door.name, steps.name);
            let ClockSteps { followed, refused, .. } = steps.clock.steps();
            assert_eq!((followed, refused > 0), (1, true), "{} on a {} clock", door.name, steps.name);
        }
    }
}

#[test]
fn an_instant_that_a_caller_brings_moves_no_clock() {
    for steps in Steps::both() {
        let limiter = Limiter::builder().quota(FIVE).clock(steps.clock.clone()).build().unwrap();
        steps.set(100 * SECOND);
        assert!(limiter.check_cost_at("alice", 5, at(DAY)).is_allowed());
        assert!(limiter.check("alice").is_denied() && limiter.peek("alice").is_denied());
        assert_eq!((limiter.now(), steps.clock.steps()), (at(100 * SECOND), ClockSteps::default()));
        // And is taken at its word.
        assert!(limiter.check_at("alice", Now::ORIGIN).is_denied());
    }
}

/// The coarse clock left the leap out, and the clock below it comes back from there. That one has followed a step just before,
/// and follows no other.
#[test]
fn a_leap_that_a_coarse_clock_left_out_may_come_back() {
    let time = TestClock::new();
    let clock = CoarseClock::new().of(time.clock()).by_hand().unwrap();
    let limiter = DirectLimiter::with_clock(FIVE, clock.clone()).unwrap();
    for second in [1, 2, 3, 4, 1] {
        time.set(second * SECOND);
        clock.publish();
    }
    assert_eq!((clock.now(), clock.steps().followed), (at(4 * SECOND), 1));
    assert!(limiter.check_cost(5).is_allowed());
    time.set(DAY);
    clock.publish();
    assert_eq!(clock.now(), at(5 * SECOND));
    let mut admitted = 0;
    for second in 20..=24 {
        time.set(second * SECOND);
        clock.publish();
        admitted += u32::from(limiter.check().is_allowed());
    }
    assert_eq!((admitted, clock.now(), clock.steps().refused), (5, at(9 * SECOND), 1));
}

#[test]
fn the_system_clock_never_steps_back() {
    let clock = Clock::std();
    let limiter = DirectLimiter::with_clock(FIVE, clock.clone()).unwrap();
    assert!(limiter.check_cost_at(5, at(DAY)).is_allowed());
    assert!(limiter.check().is_denied());
    assert_eq!(clock.steps(), ClockSteps::default());
}

// One origin.

#[test]
fn the_instants_of_one_limiter_are_good_for_another() {
    let first = DirectLimiter::with_clock(FIVE, Clock::std()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let second = DirectLimiter::with_clock(FIVE, Clock::std()).unwrap();
    let third = DirectLimiter::with_clock(FIVE, CoarseClock::new().of(Clock::std()).start().unwrap()).unwrap();
    let readings = [first.now(), second.now(), first.now()];
    assert!(readings.is_sorted(), "{readings:?}");
    for limiter in [&second, &third] {
        assert!(limiter.check_cost_at(5, first.now()).is_allowed());
        let wait = limiter.peek().retry_after();
        assert!(wait.is_none_or(|wait| wait <= SECOND + Duration::from_millis(20)), "{wait:?}");
    }
}

// Two event loops.

/// Two callers whose instants differ by `apart`, in the order in which they come: how long after the one before, and whether it
/// is the late one.
fn turns() -> impl Strategy<Value = (Duration, Vec<(u64, bool, u64)>)> {
    let apart = prop_oneof![1_u64..1_000_000_000, 1_000_000_u64..10_000_000_000, 1_000_000_u64..=86_400_000_000_000,];
    apart.prop_flat_map(|apart| {
        let pass = prop_oneof![
            2 => Just(0),
            3 => 0_u64..2_000_000_000,
            1 => 0..=apart,
        ];
        let turn = (pass, any::<bool>(), 1_u64..=3);
        (Just(Duration::from_nanos(apart)), prop::collection::vec(turn, 1..100))
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        rng_seed: RngSeed::Fixed(0xC10C_0000),
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    })]

    /// One that is late grants what comes back in the time between the two, once, and nothing for each turn.
    #[test]
    fn two_callers_in_turn_get_no_more_than_their_distance((apart, turns) in turns()) {
        let direct = DirectLimiter::new(FIVE).unwrap();
        let sharded = Limiter::new(FIVE).unwrap();
        let fixed = Limiter::builder().quota(FIVE).fixed(100).build().unwrap();
        let doors: [&dyn Fn(u64, Now) -> bool; 3] = [
            &|cost, now| direct.check_cost_at(cost, now).is_allowed(),
            &|cost, now| sharded.check_cost_at("alice", cost, now).is_allowed(),
            &|cost, now| fixed.check_cost_at("alice", cost, now).is_allowed(),
        ];
        for door in doors {
            let mut time = apart;
            let mut admitted: Vec<(Duration, u64)> = Vec::new();
            for &(pass, is_late, cost) in &turns {
                time += Duration::from_nanos(pass);
                let now = if is_late { time - apart } else { time };
                if door(cost, at(now)) {
                    admitted.push((time, cost));
                }
            }
            for (first, (from, _)) in admitted.iter().enumerate() {
                let mut units = 0;
                for (to, cost) in &admitted[first..] {
                    units += cost;
                    let most = 5 * SECOND + (*to - *from) + apart;
                    prop_assert!(u128::from(units) * SECOND.as_nanos() <= most.as_nanos(), "{units} from {from:?} to {to:?}");
                }
            }
        }
    }
}

/// The caller's own instants: nothing is lowered before it says so, and then nothing waits for longer than it takes to fill.
fn time_went_back<T: Kind>() {
    let limiter = T::of(FIVE);
    let key = |n: u64| format!("key {n}");
    for n in 0..200 {
        assert!(limiter.check_cost_at(&key(n), 3, at(DAY)).is_allowed());
    }
    // One instant that is wrong by far evicts, and raises what new keys start from.
    assert!(limiter.check_at("wild", Now::MAX).is_allowed());
    let Decision::Allow(before) = limiter.check_at(&key(0), at(DAY)) else { panic!("two are left") };
    assert!(limiter.check_at(&key(1), at(SECOND)).is_denied());

    limiter.time_went_back(at(SECOND));
    limiter.refund_at(&key(0), before, at(SECOND));
    for n in 0..200 {
        // Emptied where it is known still, as new where it was idle and is gone.
        let left = limiter.peek_at(&key(n), at(SECOND)).remaining();
        assert!(left == 0 || left == 5, "{left} of key {n}");
        assert!(limiter.check_cost_at(&key(n), 5, at(6 * SECOND)).is_allowed(), "key {n}");
        assert!(limiter.check_at(&key(n), at(6 * SECOND)).is_denied(), "key {n}");
    }
    for n in 200..400 {
        assert!(limiter.check_cost_at(&key(n), 5, at(6 * SECOND)).is_allowed(), "new key {n}");
    }
    assert!(limiter.check_at("wild", at(6 * SECOND)).is_allowed());
}

#[test]
fn a_caller_that_says_that_time_went_back_waits_for_no_step() {
    time_went_back::<Sharded>();
    time_went_back::<Fixed>();

    let direct = DirectLimiter::new(FIVE).unwrap();
    let Decision::Allow(before) = direct.check_cost_at(5, at(DAY)) else { panic!("it is full") };
    direct.time_went_back(at(SECOND));
    direct.refund_at(before, at(SECOND));
    assert_eq!(direct.check_at(at(SECOND)).retry_after(), Some(SECOND));
    assert!(direct.check_cost_at(5, at(6 * SECOND)).is_allowed());
}
