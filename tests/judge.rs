//! A second judge, which shares no code and no formula with the library and with `tests/oracle`:
//! random scripts of everything that a limiter can be asked for, each answer judged by exact books.
//! `judge/ledger.rs` and `judge/model.rs` derive each rule.
//!
//! Each sequence is drawn from a seed. `TOLLGATE_SEQUENCES` says how many there are of each store,
//! clock and number of quotas, and `TOLLGATE_KEEP_GOING` has those that fail listed, shrunk,
//! instead of stopping at the first one. `TOLLGATE_SEED` changes what they are drawn from, and
//! `TOLLGATE_SEQUENCE` plays one alone.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a judge that finds a fault says so, and stops the test"
)]

mod judge {
    pub(crate) mod chance;
    pub(crate) mod generate;
    pub(crate) mod ledger;
    pub(crate) mod model;
    pub(crate) mod play;
    pub(crate) mod script;
    pub(crate) mod threads;
}

use judge::chance::Chance;
use judge::generate::{Kind, Shape, script};
use judge::ledger::{Ceiling, Ledger, Moment};
use judge::play::{answers, play_safely, shrink};
use judge::script::Time;
use judge::threads::{self, Effort};
use tollgate::Quota;

/// Sequences of each shape in a normal run.
const SEQUENCES: u64 = 4_000;

/// Scenes of a script at most.
const SCENES: u64 = 14;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Plays the sequences of one shape.
fn judge(shape: Shape) {
    let seed = from_environment("TOLLGATE_SEED").unwrap_or(0x7011_6A7E);
    let keep_going = std::env::var_os("TOLLGATE_KEEP_GOING").is_some();
    let sequences = match from_environment("TOLLGATE_SEQUENCE") {
        Some(number) => number..number + 1,
        None => 0..from_environment("TOLLGATE_SEQUENCES").unwrap_or(SEQUENCES),
    };
    let mut faults = 0;
    for number in sequences {
        let script = script(&mut Chance::new(seed, number ^ shape.number() << 56), shape, SCENES);
        let Err(fault) = play_safely(&script) else { continue };
        let (shortest, fault) = shrink(&script, fault);
        let (what, answers) = (fault.what, answers(&shortest));
        let text = format!("{what}\n{shape:?}, sequence {number} of seed {seed}: {shortest}{answers}");
        if !keep_going {
            panic!("{text}");
        }
        faults += 1;
        println!("FAULT {text}");
    }
    assert_eq!(faults, 0, "faults of {shape:?}");
}

macro_rules! shapes {
    ($($name:ident: $kind:ident $time:ident $quotas:literal,)*) => {
        $(#[test]
        fn $name() {
            judge(Shape { kind: Kind::$kind, time: Time::$time, quotas: $quotas });
        })*
    };
}

shapes! {
    sharded_at_given_instants_with_one_quota: Sharded Given 1,
    sharded_at_given_instants_with_two_quotas: Sharded Given 2,
    sharded_at_given_instants_with_three_quotas: Sharded Given 3,
    sharded_on_a_clock_with_one_quota: Sharded Clock 1,
    sharded_on_a_clock_with_two_quotas: Sharded Clock 2,
    sharded_on_a_clock_with_three_quotas: Sharded Clock 3,
    sharded_on_a_coarse_clock_with_one_quota: Sharded Coarse 1,
    sharded_on_a_coarse_clock_with_two_quotas: Sharded Coarse 2,
    sharded_on_a_coarse_clock_with_three_quotas: Sharded Coarse 3,
    fixed_at_given_instants_with_one_quota: Fixed Given 1,
    fixed_at_given_instants_with_two_quotas: Fixed Given 2,
    fixed_at_given_instants_with_three_quotas: Fixed Given 3,
    fixed_on_a_clock_with_one_quota: Fixed Clock 1,
    fixed_on_a_clock_with_two_quotas: Fixed Clock 2,
    fixed_on_a_clock_with_three_quotas: Fixed Clock 3,
    fixed_on_a_coarse_clock_with_one_quota: Fixed Coarse 1,
    fixed_on_a_coarse_clock_with_two_quotas: Fixed Coarse 2,
    fixed_on_a_coarse_clock_with_three_quotas: Fixed Coarse 3,
    direct_at_given_instants: Direct Given 1,
    direct_on_a_clock: Direct Clock 1,
    direct_on_a_coarse_clock: Direct Coarse 1,
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn the_books_see_one_unit_too_many_in_any_window() {
    let quota = Quota::per_second(2).burst(3);
    let admit = |ledger: &mut Ledger, tag, cost, at| ledger.admit(tag, cost, Moment::exact(at)).is_ok();
    let mut ledger = Ledger::new(quota);
    assert!(admit(&mut ledger, 1, 1, 0) && admit(&mut ledger, 2, 2, 0) && admit(&mut ledger, 3, 2, SECOND));
    assert!(admit(&mut ledger.clone(), 4, 1, SECOND * 3 / 2));
    assert!(!admit(&mut ledger.clone(), 4, 1, SECOND * 3 / 2 - 1));
    // What was given back makes room for itself, and what has come back by itself does not make
    // room once more.
    ledger.give_back(3);
    assert!(admit(&mut ledger.clone(), 4, 2, SECOND) && !admit(&mut ledger.clone(), 4, 3, SECOND));
    assert!(admit(&mut ledger, 5, 3, SECOND * 3));
    ledger.give_back(2);
    assert!(!admit(&mut ledger, 6, 1, SECOND * 3));
}

#[test]
fn the_books_keep_what_was_used_up_to_the_new_burst() {
    let used = |of: u64, burst: u64, at: u64| {
        let mut ledger = Ledger::new(Quota::per_second(2).burst(of));
        assert!(ledger.admit(1, of, Moment::exact(0)).is_ok());
        let new = ledger.carried(Quota::per_minute(60).burst(burst), at);
        (0..=burst).rev().find(|cost| new.clone().admit(2, *cost, Moment::exact(at)).is_ok())
    };
    assert_eq!(used(10, 100, 0), Some(90));
    assert_eq!(used(10, 100, SECOND * 2), Some(94));
    assert_eq!(used(10, 100, SECOND * 2 + 1), Some(94));
    assert_eq!(used(10, 4, SECOND), Some(0));
    assert_eq!(used(10, 10, SECOND * 5), Some(10));
}

#[test]
fn a_denial_is_due_when_the_burst_is_used_up_and_not_before() {
    for quota in [Quota::per_second(2).burst(3), Quota::per_second(0).burst(3), Quota::per_second(3).burst(3)] {
        let mut ceiling = Ceiling::new(quota);
        assert!(!ceiling.may_deny(3, 0) && ceiling.may_deny(4, 0) && !ceiling.may_deny(0, 0));
        ceiling.admit(2, 0);
        assert!(!ceiling.may_deny(1, 0) && ceiling.may_deny(2, 0), "{quota}");
        ceiling.admit(1, 0);
        assert!(ceiling.may_deny(1, 0) && ceiling.may_deny(1, SECOND / 4), "{quota}");
        assert_eq!(ceiling.may_deny(1, SECOND / 2), quota.rate() == 0, "{quota}");
    }
}

#[test]
fn bytes_and_seeds_draw_scripts() {
    let shape = Shape { kind: Kind::Fixed, time: Time::Given, quotas: 2 };
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    let scripts = [0, 1].map(|_| script(&mut Chance::Bytes(&bytes), shape, SCENES).to_string());
    assert_eq!(scripts[0], scripts[1]);
    assert!(script(&mut Chance::Bytes(&[]), shape, SCENES).steps.is_empty());
    assert_ne!(scripts[0], script(&mut Chance::new(1, 1), shape, SCENES).to_string());
}

/// The effort of the threaded tests, as a multiple of a normal run.
fn effort() -> Effort {
    Effort(from_environment("TOLLGATE_SEQUENCES").map_or(1, |sequences| sequences.div_ceil(SEQUENCES)))
}

macro_rules! threads {
    ($($name:ident: $run:ident,)*) => {
        $(#[test]
        fn $name() {
            threads::$run(effort());
        })*
    };
}

threads! {
    a_reset_that_races_a_take_or_a_refund_gives_one_burst: resets,
    newcomers_in_a_sweep_give_nothing_away: sweeps,
    a_refund_that_races_an_eviction_gives_nothing_to_the_newcomer: evictions,
    threads_keep_the_bound_in_each_window_of_phases: windows,
    no_place_is_counted_twice_where_keys_come_out_of_overflow: places,
}
