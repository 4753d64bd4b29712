//! A check of a known key allocates nothing.
#![allow(clippy::expect_used, reason = "a test that can't be set up stops")]

mod counting;
mod stores;

use std::hint::black_box;

use stores::{Kind, over_both};
use tollgate::{Decision, DirectLimiter, Limiter, Policy, Quota, Unit};

over_both!(a_check_of_a_known_key_allocates_nothing,);

fn allocations(work: impl FnOnce()) -> u64 {
    let before = counting::calls();
    work();
    counting::calls() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1);
    let limiter = Limiter::new(Quota::per_hour(10)).expect("a quota that makes sense");
    assert!(allocations(|| assert!(limiter.check("a new key").is_allowed())) > 0);
}

fn a_check_of_a_known_key_allocates_nothing<T: Kind + Kind<u64>>() {
    let quota = Quota::per_hour(1_000);
    let direct = DirectLimiter::new(quota).expect("a quota that makes sense");
    let keyed = <T as Kind>::of(quota);
    let numbers = <T as Kind<u64>>::of(quota);
    let owned = String::from("known");
    assert!(keyed.check("known").is_allowed() && numbers.check(&7).is_allowed());
    let chat = [quota, Quota::per_day(1 << 40), Quota::per_minute(1 << 40).unit(Unit::TOKENS)];
    let plans = Limiter::builder().plan("chat", chat).plan("trial", quota).default_plan("trial");
    let plans = T::make(plans).expect("plans that make sense");
    let chat = plans.plan("chat").expect("it is there");
    let costs = [(Unit::REQUESTS, 1), (Unit::TOKENS, 300)];
    assert!(chat.check("known").is_allowed() && plans.check("known").is_allowed());
    // From the second policy on, each thread has what it needs of it at hand from its first check on.
    keyed.reload(Policy::new().plan("default", quota)).expect("a quota that makes sense");
    assert!(keyed.check("known").is_allowed());

    let count = allocations(|| {
        for _ in 0..2_000 {
            for decision in [direct.check(), keyed.check("known"), keyed.check(&owned), numbers.check(&7)] {
                black_box((decision.remaining(), decision.retry_after(), decision.reset_after()));
            }
            for decision in [chat.check_costs("known", &costs), chat.check("known"), plans.check("known")] {
                black_box((decision.remaining(), decision.retry_after(), decision.reset_after()));
            }
            black_box((keyed.peek("known").is_allowed(), keyed.peek("unknown").is_allowed()));
            if let Decision::Allow(allow) = keyed.check("known") {
                keyed.refund("known", allow);
            }
        }
    });
    assert_eq!(count, 0);
    assert!(keyed.check("known").is_denied());
}

#[cfg(feature = "global")]
#[test]
fn a_check_on_a_lease_allocates_nothing() {
    use std::time::Duration;
    use tollgate::global::{Fleet, GlobalQuota, MemoryAuthority};
    use tollgate::{Plan, Source};

    let fleet = Fleet::builder(MemoryAuthority::new()).start().expect("there are threads");
    let plan = Plan::new([Quota::per_hour(1_000_000)])
        .global(GlobalQuota::sliding_window(1_000_000, Duration::from_secs(60)).overdraft(0));
    let limiter = Limiter::builder().fleet(&fleet).plan("api", plan).build().expect("a quota that makes sense");
    // Until a lease is there that lasts for a while.
    while limiter.check_cost("known", 2_000).is_denied() {
        std::thread::yield_now();
    }
    let count = allocations(|| {
        let mut leased = 0;
        while leased < 2_000 {
            // The thread takes some time to find out that more is wanted.
            let decision = black_box(limiter.check("known"));
            leased += u32::from(decision.source() == Source::Lease && decision.is_allowed());
        }
    });
    assert_eq!(count, 0);
}
