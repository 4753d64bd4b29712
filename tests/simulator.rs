//! A fleet in virtual time: nodes, a network and an authority that go wrong in every way, and what holds all the same.
//!
//! Each run is drawn from a seed. `TOLLGATE_SEEDS` says how many runs there are, and with `TOLLGATE_KEEP_GOING` those that
//! fail are listed. `TOLLGATE_SEED` replays one, and `TOLLGATE_TRACE` has it tell what happens.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a simulator that fails says so, and panics"
)]

mod simulator {
    pub(crate) mod chance;
    pub(crate) mod check;
    pub(crate) mod named;
    pub(crate) mod node;
    pub(crate) mod scenario;
    pub(crate) mod shares;
    pub(crate) mod store;
    pub(crate) mod world;
}

use simulator::scenario::Scenario;
use simulator::{named, shares, world};

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn replay(seed: u64) {
    let scenario = Scenario::drawn(seed);
    if let Err(fault) = world::run(&scenario) {
        panic!("{fault}\n\n{scenario:#?}\n\nTOLLGATE_SEED={seed} runs this again");
    }
}

#[test]
fn what_is_promised_holds_whatever_goes_wrong() {
    if let Some(seed) = from_environment("TOLLGATE_SEED") {
        return replay(seed);
    }
    let mut faults = 0;
    for seed in 0..from_environment("TOLLGATE_SEEDS").unwrap_or(2_000) {
        if std::env::var_os("TOLLGATE_KEEP_GOING").is_some() {
            if let Err(fault) = world::run(&Scenario::drawn(seed)) {
                faults += 1;
                let fault: String = fault.chars().take(200).collect();
                println!("seed {seed}: {fault}");
            }
            continue;
        }
        replay(seed);
    }
    assert_eq!(faults, 0);
}

macro_rules! tests {
    ($module:ident: $($name:ident)*) => {
        $(#[test]
        fn $name() {
            $module::$name();
        })*
    };
}

tests! { named:
    faults_of_nodes_and_network_add_nothing
    an_overdraft_adds_its_units_once_on_each_node
    losses_of_the_authority_add_what_was_lost
    a_share_comes_on_top_of_what_the_others_have_admitted
    whoever_waits_is_admitted
    a_lease_ends_before_the_sub_window_that_it_is_charged_to
    what_was_kept_and_is_not_charged_any_more_is_void
    ten_requests_with_a_report_between_each_count_ten
    three_hundred_that_fail_together_leave_one_try_pending
}

tests! { shares:
    a_fleet_admits_what_it_may
    a_flood_costs_few_messages_and_adds_a_unit_a_node_at_most
}

fn numbers<T: std::str::FromStr + Copy>(name: &str, otherwise: &[T]) -> Vec<T> {
    match std::env::var(name) {
        Ok(list) => list.split(',').filter_map(|number| number.parse().ok()).collect(),
        Err(_) => otherwise.to_vec(),
    }
}

/// Prints the table for the documentation.
#[test]
#[ignore = "takes minutes"]
fn shares() {
    let limits = numbers("TOLLGATE_LIMITS", &[10, 60, 600, 6_000, 100_000]);
    let nodes = numbers("TOLLGATE_NODES", &[1, 8, 32]);
    println!("\n{}", shares::table(&limits, &nodes));
}
