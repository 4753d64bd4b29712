//! How long a check takes while the server is well, stands still, is far away, or answers rubbish: nothing that a request
//! notices.

use std::hint::black_box;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tollgate::global::{Fleet, GlobalQuota, RedisAuthority};
use tollgate::{Limiter, Plan, Quota, Source};

use crate::proxy::Proxy;
use crate::server::Server;

const CHECKS: usize = 2_000_000;

/// What a thread sees that does nothing but check a hundred keys.
pub(crate) struct Latency {
    pub(crate) state: &'static str,
    /// A quota of the node beside one of the fleet.
    pub(crate) shared: Histogram<u64>,
    /// The quota of the node alone, at the same time.
    pub(crate) alone: Histogram<u64>,
    /// Percent of the checks that a lease or the node's own share admitted.
    pub(crate) admitted: f64,
}

pub(crate) fn measure() -> Vec<Latency> {
    let names: Vec<_> = (0..100).map(|key| format!("client-{key:013}")).collect();
    let own = Quota::per_hour(1_000_000).burst(4_000_000_000);
    let alone = Limiter::builder().plan("api", own).build().unwrap();
    let in_state = |state: &'static str, set: fn(&Server, &Proxy, bool)| {
        let server = Server::new();
        let proxy = Proxy::to(server.port);
        let fleet = Fleet::builder(RedisAuthority::builder(proxy.url()).build().unwrap()).start().unwrap();
        let global = GlobalQuota::sliding_window(4_000_000_000, Duration::from_secs(60)).nodes(1);
        let shared = Limiter::builder().fleet(&fleet).plan("api", Plan::new([own]).global(global)).build().unwrap();
        // Leases follow demand, and are over once nobody renews them.
        let warm_up = || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(3) {
                histogram(&alone, &names, 1_000);
                histogram(&shared, &names, 1_000);
            }
        };
        warm_up();
        set(&server, &proxy, true);
        warm_up();
        let (shared, admitted) = histogram(&shared, &names, CHECKS);
        let (alone, _) = histogram(&alone, &names, CHECKS);
        set(&server, &proxy, false);
        Latency { state, shared, alone, admitted }
    };
    vec![
        in_state("well", |_, _, _| {}),
        in_state("stopped", |server, _, is_so| if is_so { server.pause() } else { server.resume() }),
        in_state("5 ms away", |_, proxy, is_so| proxy.lag(Duration::from_millis(if is_so { 5 } else { 0 }))),
        in_state("answers rubbish", |_, proxy, is_so| proxy.garble(is_so)),
    ]
}

fn histogram(limiter: &Limiter, names: &[String], checks: usize) -> (Histogram<u64>, f64) {
    let clock = quanta::Clock::new();
    let (mut histogram, mut admitted) = (Histogram::new(3).unwrap(), 0);
    for name in names.iter().cycle().take(checks) {
        let start = clock.raw();
        let decision = black_box(limiter.check(name));
        histogram.record(clock.delta_as_nanos(start, clock.raw())).unwrap();
        admitted += usize::from(decision.is_allowed() && decision.source() != Source::Local);
    }
    (histogram, admitted as f64 * 100.0 / checks as f64)
}
