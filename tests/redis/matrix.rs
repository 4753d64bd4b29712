//! Faults of a server, of the network and of nodes, forced on nodes under load: what is admitted against the limit, and
//! whether all is well afterwards.
//!
//! Each has a short form, with bounds that hold on any machine however busy. [`table`] has the long one.

#[path = "matrix/exactly.rs"]
mod exactly;
#[path = "matrix/field.rs"]
mod field;
#[path = "matrix/judge.rs"]
mod judge;
#[path = "matrix/latency.rs"]
mod latency;
#[path = "matrix/node.rs"]
mod node;
#[path = "matrix/rows.rs"]
mod rows;
#[path = "matrix/table.rs"]
mod table;

use std::time::Duration;

use self::field::{Course, Outcome, play};
use self::node::{KINDS, Load};
use self::rows::Row;

const SHORT: Load = Load {
    limit: 60,
    window: Duration::from_secs(1),
    interval: Duration::from_millis(40),
    nodes: 3,
    rate: 300,
    calm: 20,
    subs: None,
};

const BRIEF: Course = Course {
    before: Duration::from_millis(400),
    fault: Duration::from_millis(900),
    after: Duration::from_millis(1_200),
};

fn short(row: &Row) {
    let outcome = play(row, SHORT, BRIEF);
    holds(row, &outcome);
}

/// What holds of every fault on every machine.
fn holds(row: &Row, outcome: &Outcome) {
    for (kind, of) in KINDS.iter().zip(&outcome.kinds) {
        assert!(of.worst <= of.bound, "{}, {}: {of:?}; {:?}", row.name, kind.plan, outcome.after);
        assert!(of.worst > 0, "{}, {}: nothing was admitted", row.name, kind.plan);
    }
    let (before, after) = (&outcome.before, &outcome.after);
    assert!((row.shows)(before, after), "{}: nothing of it was seen: {before:?}, {after:?}", row.name);
}

macro_rules! short {
    ($($test:ident: $row:ident;)*) => {
        $(
            #[test]
            fn $test() {
                short(&rows::$row);
            }
        )*

        /// All rows, in the order of the table.
        const ROWS: &[&Row] = &[$(&rows::$row),*];
    };
}

short! {
    no_fault: NONE;
    a_server_that_is_stopped: STOPPED;
    a_server_that_holds_writes_back: PAUSED_FOR_WRITES;
    a_server_that_holds_everything_back: PAUSED;
    answers_that_are_a_little_late: LAG_OF_5;
    answers_that_are_very_late: LAG_OF_200;
    answers_that_end_their_connection: BREAKS;
    answers_that_are_lost: LOST_ANSWERS;
    requests_that_come_twice: DOUBLED;
    connections_that_are_cut: CUTS;
    connections_that_are_half_open: HALF_OPEN;
    nodes_that_are_cut_off: PARTITION;
    a_server_that_comes_back: RESTART;
    a_server_that_comes_back_empty: RESTART_EMPTY;
    a_server_that_reads_its_data: LOADING;
    a_password_that_is_changed: PASSWORD;
    a_primary_that_is_demoted: READONLY;
    a_replica_without_its_primary: MASTERDOWN;
    a_primary_without_enough_replicas: NOREPLICAS;
    a_server_without_memory: OOM;
    a_server_that_is_busy: BUSY;
    a_cluster_without_slots: CLUSTERDOWN;
    scripts_that_are_forgotten: SCRIPT_FLUSH;
    data_that_is_flushed: FLUSHALL;
    counters_that_are_evicted: EVICTED;
    counters_that_are_overwritten: OVERWRITTEN;
    a_replica_that_lacks_the_last_writes: PROMOTED;
    a_node_that_is_killed: NODE_CRASH;
    a_node_that_is_stopped: NODE_STOPPED;
    nodes_that_come_later: MORE_NODES;
}

/// What its leases were charged to has left the window by then, and others have had it.
#[test]
fn a_node_that_is_stopped_for_longer_than_a_window() {
    let row = &rows::NODE_STOPPED;
    holds(row, &play(row, SHORT, Course { fault: SHORT.window * 3 / 2, ..BRIEF }));
}
