//! What a fleet tells of a server that is in trouble: once, with where it is, what it was asked, and what to do.

use std::thread;
use std::time::{Duration, Instant};

use redis::cmd;
use tollgate::global::{Fleet, GlobalQuota, RedisAuthority};
use tollgate::{Limiter, Plan};

use crate::capture::{self, told};
use crate::server::{PATIENT, Server};

struct World {
    node: u64,
    fleet: Fleet,
    limiter: Limiter,
}

impl World {
    fn new(node: u64, url: String) -> Self {
        capture::start();
        let fleet = Fleet::builder(RedisAuthority::builder(url).build().unwrap());
        let fleet = fleet.node(node).interval(Duration::from_millis(20)).start().unwrap();
        let quota = GlobalQuota::sliding_window(1_000_000, Duration::from_secs(10)).overdraft(0);
        let limiter = Limiter::builder().fleet(&fleet).plan("api", Plan::new([]).global(quota)).build().unwrap();
        Self { node, fleet, limiter }
    }

    /// Lets requests of many clients come until `done`.
    fn until(&self, done: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        for client in 0_u64.. {
            if done(self) {
                return;
            }
            assert!(begun.elapsed() < PATIENT, "{:?} {:#?}", self.fleet.stats(), told(self.node));
            _ = self.limiter.check(&format!("client {}", client % 20));
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn for_tries(&self, tries: u64) {
        let errors = self.fleet.stats().errors;
        self.until(|world| world.fleet.stats().errors >= errors + tries);
    }

    fn is_well(&self) -> bool {
        !self.fleet.stats().is_silent && self.limiter.check("client 0").is_allowed()
    }

    /// That exactly one event tells of that trouble, with all of these words and without a secret.
    fn assert_told_once(&self, words: &[&str]) {
        let told = told(self.node);
        let refusals: Vec<_> = told.iter().filter(|line| line.contains("refuses what")).collect();
        assert_eq!(refusals.len(), 1, "{told:#?}");
        assert!(words.iter().all(|word| refusals[0].contains(word)), "{}", refusals[0]);
        assert!(told.iter().all(|line| !line.contains("staple") && !line.contains("redis://")), "{told:#?}");
        assert_eq!(told.iter().filter(|line| line.contains("does not answer")).count(), 1, "{told:#?}");
    }
}

#[test]
fn a_refused_log_in_is_told_once() {
    let server = Server::with(&["--requirepass", "correct-horse"]);
    let world = World::new(201, format!("redis://:wrong-staple@127.0.0.1:{}", server.port));
    world.for_tries(4);
    let address = format!("Redis at 127.0.0.1:{}", server.port);
    world.assert_told_once(&[&address, "open a connection", "refuses the log-in", "see user and password"]);
}

#[test]
fn a_replica_is_told_once() {
    let server = Server::new();
    cmd("REPLICAOF").arg("127.0.0.1").arg("1").exec(&mut server.connection()).unwrap();
    let world = World::new(202, server.url());
    world.for_tries(4);
    let address = format!("Redis at 127.0.0.1:{}", server.port);
    world.assert_told_once(&[&address, "(READONLY)", "(EVALSHA)", "have the address name the primary"]);
    cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut server.connection()).unwrap();
    world.until(World::is_well);
    assert_eq!(told(202).iter().filter(|line| line.contains("answers again")).count(), 1);
}

#[test]
fn a_server_without_memory_is_told_once() {
    let server = Server::with(&["--maxmemory", "1"]);
    let world = World::new(203, server.url());
    world.for_tries(4);
    let address = format!("Redis at 127.0.0.1:{}", server.port);
    world.assert_told_once(&[&address, "(OOM)", "(EVALSHA)", "raise `maxmemory`"]);
}

#[test]
fn a_server_that_is_not_there_is_told_once() {
    let mut server = Server::new();
    let world = World::new(204, server.url());
    world.until(World::is_well);
    server.crash();
    world.for_tries(4);
    let told = told(204);
    assert_eq!(told.len(), 1, "{told:#?}");
    let address = format!("Redis at 127.0.0.1:{}", server.port);
    for words in ["does not answer", &address, "the connection failed", "see whether it runs"] {
        assert!(told[0].contains(words), "{told:#?}");
    }
}
