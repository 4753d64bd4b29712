//! The faults: how each is forced, and what shows that it was.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use redis::cmd;

use super::field::{Field, Seen};
use crate::named::counters;
use crate::proxy::Proxy;
use crate::server::{PATIENT, Server, free_port};

/// How nodes reach the server.
#[derive(Clone, Copy)]
pub(crate) enum Path {
    Straight,
    Proxy,
    /// Every other node by way of the proxy.
    HalfByProxy,
}

/// What the authority loses of what it was told.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Loss {
    Nothing,
    /// No more than all that counts: that may be admitted once more, less what it is told again.
    WhatItLost,
}

/// A fault.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The server's.
    pub(crate) options: &'static [&'static str],
    pub(crate) path: Path,
    /// Whether one of the nodes is a process of its own.
    pub(crate) has_one_apart: bool,
    pub(crate) prepare: fn(&mut Field),
    /// Forces it, and lifts it.
    pub(crate) fault: fn(&mut Field),
    pub(crate) loss: Loss,
    /// Whether nodes decide for themselves although the authority answers.
    pub(crate) is_away: bool,
    /// What shows that it was there, from before it and from the end.
    pub(crate) shows: fn(&Seen, &Seen) -> bool,
}

const PLAIN: Row = Row {
    name: "none",
    options: &[],
    path: Path::Straight,
    has_one_apart: false,
    prepare: |_| {},
    fault: |field| field.last(),
    loss: Loss::Nothing,
    is_away: false,
    shows: |_, _| true,
};

pub(crate) const NONE: Row = Row { shows: |before, after| after.gaps == before.gaps, ..PLAIN };

pub(crate) const STOPPED: Row = Row {
    name: "server stopped (SIGSTOP)",
    fault: |field| {
        field.server.pause();
        field.last_until_silent();
        field.server.resume();
    },
    shows: silent,
    ..PLAIN
};

pub(crate) const PAUSED_FOR_WRITES: Row =
    Row { name: "`CLIENT PAUSE` of writes", fault: |field| client_pause(field, "WRITE"), shows: silent, ..PLAIN };

pub(crate) const PAUSED: Row =
    Row { name: "`CLIENT PAUSE` of all", fault: |field| client_pause(field, "ALL"), shows: silent, ..PLAIN };

pub(crate) const LAG_OF_5: Row = Row {
    name: "answers 5 ms late",
    fault: |field| lag(field, 5),
    path: Path::Proxy,
    shows: |_, after| after.round_trip > Duration::from_millis(2),
    ..PLAIN
};

pub(crate) const LAG_OF_200: Row = Row {
    name: "answers 200 ms late",
    fault: |field| lag(field, 200),
    path: Path::Proxy,
    shows: |before, after| after.timeouts > before.timeouts || after.round_trip > Duration::from_millis(100),
    ..PLAIN
};

pub(crate) const BREAKS: Row = Row {
    name: "20 % of answers end their connection",
    path: Path::Proxy,
    fault: |field| {
        field.proxy.break_answers(200);
        field.last();
        field.proxy.break_answers(0);
    },
    shows: connected_again,
    ..PLAIN
};

pub(crate) const LOST_ANSWERS: Row = Row {
    name: "20 % of answers lost",
    fault: |field| {
        field.loses.store(200, Ordering::SeqCst);
        field.last();
        field.loses.store(0, Ordering::SeqCst);
    },
    shows: |before, after| after.resent > before.resent && after.timeouts > before.timeouts,
    ..PLAIN
};

pub(crate) const DOUBLED: Row = Row {
    name: "requests come twice",
    path: Path::Proxy,
    fault: |field| {
        field.proxy.double(true);
        field.last();
        field.proxy.double(false);
        assert!(field.proxy.doubled() > 0);
    },
    ..PLAIN
};

pub(crate) const CUTS: Row = Row {
    name: "connections cut every 20 ms",
    path: Path::Proxy,
    fault: |field| {
        let begun = Instant::now();
        while begun.elapsed() < field.course.fault {
            field.proxy.cut();
            thread::sleep(Duration::from_millis(20));
        }
    },
    shows: connected_again,
    ..PLAIN
};

pub(crate) const HALF_OPEN: Row = Row {
    name: "half-open connections, nothing carried",
    path: Path::Proxy,
    fault: swallow,
    shows: |before, after| silent(before, after) && connected_again(before, after),
    ..PLAIN
};

pub(crate) const PARTITION: Row = Row {
    name: "half of the nodes cut off",
    path: Path::HalfByProxy,
    fault: swallow,
    shows: |before, after| silent(before, after) && connected_again(before, after),
    ..PLAIN
};

pub(crate) const RESTART: Row = Row {
    name: "server down, back with its data",
    fault: |field| {
        field.server.save_and_end();
        field.last();
        field.server.start_again();
        field.admin = field.server.connection();
    },
    shows: |before, after| silent(before, after) && after.gaps == before.gaps,
    ..PLAIN
};

pub(crate) const RESTART_EMPTY: Row = Row {
    name: "server down, back empty",
    fault: |field| {
        field.server.crash();
        field.last();
        field.server.start_again();
        field.admin = field.server.connection();
    },
    loss: Loss::WhatItLost,
    shows: |before, after| silent(before, after) && gaps(before, after),
    ..PLAIN
};

pub(crate) const LOADING: Row = Row {
    name: "server restarted, LOADING",
    // Half a millisecond for each key that is read, and events looked at after each.
    options: &["--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024"],
    prepare: |field| {
        let count = field.course.fault.as_micros() / 500;
        let fill = "for i = 1, ARGV[1] do redis.call('SET', 'filler' .. i, string.rep('x', 1000), 'EX', 3600) end";
        field.command(&["EVAL", fill, "0", &count.to_string()]);
    },
    fault: |field| {
        field.server.save_and_end();
        field.server.begin_again();
        let (begun, mut was_loading) = (Instant::now(), false);
        let is_up = |field: &Field, was_loading: &mut bool| {
            let client = redis::Client::open(field.server.url()).unwrap();
            let Ok(mut connection) = client.get_connection_with_timeout(PATIENT) else { return false };
            let pong = cmd("PING").query::<String>(&mut connection);
            *was_loading |= pong.as_ref().is_err_and(|error| error.code() == Some("LOADING"));
            pong.is_ok()
        };
        while !is_up(field, &mut was_loading) {
            assert!(begun.elapsed() < PATIENT);
            thread::sleep(Duration::from_millis(5));
        }
        assert!(was_loading);
        field.admin = field.server.connection();
    },
    shows: |before, after| silent(before, after) && after.gaps == before.gaps,
    ..PLAIN
};

pub(crate) const PASSWORD: Row = Row {
    name: "another password",
    fault: |field| {
        field.config("requirepass", "other");
        field.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        field.last();
        field.config("requirepass", "");
    },
    shows: |before, after| silent(before, after) && failed(before, after),
    ..PLAIN
};

pub(crate) const READONLY: Row = Row {
    name: "demoted to a replica (READONLY)",
    fault: |field| {
        field.command(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
        field.last();
        field.command(&["REPLICAOF", "NO", "ONE"]);
    },
    shows: |before, after| silent(before, after) && failed(before, after),
    ..PLAIN
};

pub(crate) const MASTERDOWN: Row = Row {
    name: "a replica without its primary (MASTERDOWN)",
    options: &["--replica-serve-stale-data", "no"],
    fault: READONLY.fault,
    shows: READONLY.shows,
    ..PLAIN
};

pub(crate) const NOREPLICAS: Row = Row {
    name: "too few replicas (NOREPLICAS)",
    fault: |field| {
        field.config("min-replicas-to-write", "1");
        field.last();
        field.config("min-replicas-to-write", "0");
    },
    shows: READONLY.shows,
    ..PLAIN
};

pub(crate) const OOM: Row = Row {
    name: "no memory (OOM)",
    fault: |field| {
        field.config("maxmemory", "1");
        field.last();
        field.config("maxmemory", "0");
    },
    shows: READONLY.shows,
    ..PLAIN
};

pub(crate) const BUSY: Row = Row {
    name: "a script that does not end (BUSY)",
    options: &["--lua-time-limit", "20"],
    fault: |field| {
        let mut connection = field.server.connection();
        let script = thread::spawn(move || cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection));
        field.last();
        field.command(&["SCRIPT", "KILL"]);
        script.join().unwrap().unwrap_err();
    },
    shows: READONLY.shows,
    ..PLAIN
};

pub(crate) const CLUSTERDOWN: Row = Row {
    name: "slots without a server (CLUSTERDOWN)",
    options: &["--cluster-enabled", "yes"],
    prepare: |field| all_slots(field, "ADDSLOTS"),
    fault: |field| {
        all_slots(field, "DELSLOTS");
        field.last();
        all_slots(field, "ADDSLOTS");
    },
    shows: |before, after| failed(before, after) && after.gaps == before.gaps,
    ..PLAIN
};

pub(crate) const SCRIPT_FLUSH: Row = Row {
    name: "`SCRIPT FLUSH`",
    fault: |field| {
        let hash = redis::Script::new(tollgate::internal::SCRIPT).get_hash().to_owned();
        field.command(&["SCRIPT", "FLUSH"]);
        // It is there again.
        let begun = Instant::now();
        let mut exists = cmd("SCRIPT");
        exists.arg("EXISTS").arg(&hash);
        while exists.query::<[u8; 1]>(&mut field.admin).unwrap() == [0] {
            assert!(begun.elapsed() < PATIENT);
            thread::sleep(Duration::from_millis(1));
        }
    },
    shows: |before, after| after.gaps == before.gaps,
    ..PLAIN
};

pub(crate) const FLUSHALL: Row = Row {
    name: "`FLUSHALL`",
    fault: |field| field.command(&["FLUSHALL"]),
    loss: Loss::WhatItLost,
    shows: gaps,
    ..PLAIN
};

pub(crate) const EVICTED: Row = Row {
    name: "counters evicted",
    fault: |field| {
        let keys = counters(&mut field.admin);
        let keys: Vec<_> = keys.into_iter().map(|(key, _)| key).collect();
        assert!(!keys.is_empty());
        cmd("DEL").arg(keys).exec(&mut field.admin).unwrap();
    },
    loss: Loss::WhatItLost,
    ..PLAIN
};

pub(crate) const OVERWRITTEN: Row = Row {
    name: "counters overwritten",
    fault: |field| {
        let keys: Vec<_> = counters(&mut field.admin).into_iter().map(|(key, _)| key).collect();
        let mut overwrite = redis::pipe();
        overwrite.atomic();
        for (number, key) in keys.iter().enumerate() {
            match number % 3 {
                0 => overwrite.del(key).hset(key, "a", "b"),
                1 => overwrite.set(key, "3"),
                _ => overwrite.set(key, [1_u8; 30].as_slice()),
            };
        }
        overwrite.exec(&mut field.admin).unwrap();
        field.last();
        cmd("DEL").arg(keys).exec(&mut field.admin).unwrap();
    },
    loss: Loss::WhatItLost,
    is_away: true,
    shows: |before, after| after.away > before.away,
    ..PLAIN
};

pub(crate) const PROMOTED: Row = Row {
    name: "a promoted replica that lacks the last writes",
    options: &["--repl-diskless-sync-delay", "0"],
    path: Path::Proxy,
    prepare: |field| {
        let link = Proxy::raw(field.server.port);
        let replica = Server::with(&["--replicaof", "127.0.0.1", &link.port.to_string()]);
        let (mut connection, begun) = (replica.connection(), Instant::now());
        let mut info = cmd("INFO");
        info.arg("replication");
        while !info.query::<String>(&mut connection).unwrap().contains("master_link_status:up") {
            assert!(begun.elapsed() < PATIENT);
            thread::sleep(Duration::from_millis(5));
        }
        field.replica = Some((replica, link));
    },
    fault: |field| {
        let (replica, link) = field.replica.take().unwrap();
        link.hold(true);
        link.cut();
        thread::sleep(field.course.fault / 2);
        field.server.crash();
        field.admin = replica.connection();
        field.command(&["REPLICAOF", "NO", "ONE"]);
        field.proxy.point_to(replica.port);
        field.proxy.cut();
        field.replica = Some((replica, link));
    },
    loss: Loss::WhatItLost,
    shows: gaps,
    ..PLAIN
};

pub(crate) const NODE_CRASH: Row = Row {
    name: "a node killed with leases out",
    has_one_apart: true,
    fault: |field| {
        let mut node = field.apart.take().unwrap();
        node.kill();
        field.buried = node.admitted();
        assert!(!field.buried.is_empty());
    },
    ..PLAIN
};

pub(crate) const NODE_STOPPED: Row = Row {
    name: "a node stopped and continued",
    has_one_apart: true,
    fault: |field| {
        let node = field.apart.as_ref().unwrap();
        node.pause();
        // The signal takes a moment.
        thread::sleep(field.course.fault / 4);
        let admitted = node.admitted().len();
        field.last();
        assert_eq!(node.admitted().len(), admitted);
        node.resume();
    },
    ..PLAIN
};

pub(crate) const MORE_NODES: Row = Row {
    name: "two nodes more",
    fault: |field| {
        field.add_node();
        field.add_node();
    },
    ..PLAIN
};

fn client_pause(field: &mut Field, what: &str) {
    let (millis, before, begun) = (field.course.fault.as_millis().to_string(), field.seen(), Instant::now());
    // Once more where nodes are used to a server that takes long.
    while !silent(&before, &field.seen()) {
        assert!(begun.elapsed() < PATIENT);
        field.command(&["CLIENT", "PAUSE", &millis, what]);
        field.last();
        // Answered when the pause is over.
        field.command(&["CLIENT", "UNPAUSE"]);
    }
}

fn lag(field: &mut Field, millis: u64) {
    field.proxy.lag(Duration::from_millis(millis));
    field.last();
    field.proxy.lag(Duration::ZERO);
}

fn swallow(field: &mut Field) {
    field.proxy.swallow(true);
    field.last_until_silent();
    field.proxy.swallow(false);
}

/// Adds or takes off all slots, and waits until the cluster has seen that.
fn all_slots(field: &mut Field, command: &str) {
    cmd("CLUSTER").arg(command).arg((0..16_384).collect::<Vec<_>>()).exec(&mut field.admin).unwrap();
    let state = if command == "ADDSLOTS" { "cluster_state:ok" } else { "cluster_state:fail" };
    let begun = Instant::now();
    while !cmd("CLUSTER").arg("INFO").query::<String>(&mut field.admin).unwrap().contains(state) {
        assert!(begun.elapsed() < PATIENT);
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn silent(before: &Seen, after: &Seen) -> bool {
    after.silences > before.silences
}

fn failed(before: &Seen, after: &Seen) -> bool {
    after.errors > before.errors
}

fn gaps(before: &Seen, after: &Seen) -> bool {
    after.gaps > before.gaps
}

fn connected_again(before: &Seen, after: &Seen) -> bool {
    after.accepted > before.accepted
}
