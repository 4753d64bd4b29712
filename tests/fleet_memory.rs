//! Memory of a node with many active keys, and what its thread does about them.

mod counting;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use counting::in_use;
use tollgate::global::{Answer, Authority, Batch, Body, Call, Fleet, GlobalQuota, Reply, Report};
use tollgate::{Limiter, Plan, Source, TestClock};

/// Grants whatever is wanted and remembers nothing, so that all memory is the node's.
#[derive(Clone, Default)]
struct Generous {
    largest: Arc<AtomicUsize>,
}

impl Authority for Generous {
    fn call(&self, call: Call) {
        let Batch { records, .. } = &**call.batch();
        self.largest.fetch_max(records.len(), Ordering::Relaxed);
        let answers = records.iter().map(|record| match &record.body {
            Body::Report(Report { kept, want, .. }) => {
                Answer { kept: *kept, granted: *want, room: 10_000, ..Answer::default() }
            }
            _ => Answer::default(),
        });
        let reply = Reply::Done { time: 0, nodes: 1, answers: answers.collect() };
        call.answer(Ok(reply));
    }
}

/// One test, so that nothing else allocates meanwhile.
#[test]
fn memory_follows_the_keys_that_are_active() {
    const KEYS: u64 = 1_000_000;
    let before = in_use();
    let clock = TestClock::new();
    let authority = Generous::default();
    let fleet = Fleet::builder(authority.clone()).clock(clock.clock()).start().expect("there are threads");
    let quota = GlobalQuota::sliding_window(10_000, Duration::from_secs(10)).overdraft(1).nodes(1);
    let limiter = Limiter::builder().fleet(&fleet).plan("api", Plan::new([]).global(quota)).build();
    let limiter = limiter.expect("a quota that makes sense");
    let name = |key| format!("key-{key:016}");
    let pass = || {
        clock.advance(Duration::from_millis(20));
        thread::yield_now();
    };

    for key in 0..KEYS {
        let decision = limiter.check(&name(key));
        assert_eq!(decision.source(), Source::Overdraft, "{key}: {decision}");
    }
    // All of them are told, however many did not fit the queue, in batches that are bounded. Time stands still until most
    // are known, so that none is forgotten meanwhile.
    while fleet.stats().active_keys < KEYS {
        thread::yield_now();
    }
    let active = in_use() - before;
    assert!(active < 720 * KEYS as usize, "{active} bytes for a million active keys");
    while fleet.stats().records < KEYS {
        pass();
    }
    assert!(authority.largest.load(Ordering::Relaxed) <= 128);
    let active = in_use() - before;
    println!("{} bytes a key", active / KEYS as usize);
    assert!(active < 720 * KEYS as usize, "{active} bytes for a million active keys");

    // When the window has passed the thread knows nothing of them any more.
    while fleet.stats().active_keys > 0 {
        clock.advance(Duration::from_secs(1));
        thread::sleep(Duration::from_millis(1));
    }
    drop(limiter);
    drop(fleet);
    let left = in_use().saturating_sub(before);
    assert!(left < 100_000, "{left} bytes left behind");
}
