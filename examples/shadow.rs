//! A limit is tried in shadow mode, where it decides and counts but denies nobody, and is then enforced.
//!
//! ```text
//! cargo run --release --example shadow
//! ```
//!
//! Time is virtual, and the requests are seeded. It fails if shadow mode foretold anything but what a limit in force
//! does. Where a limit is in force already, the one on trial goes into a second limiter beside it.
#![allow(clippy::print_stdout, reason = "a program talks to the person who runs it")]

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tollgate::{Decision, Limiter, Now, Policy, Quota, TimeError};

/// The clients, and how many requests each sends in a minute.
const CLIENTS: [(&str, u32); 4] = [("website", 20), ("app", 50), ("partner", 70), ("scraper", 300)];

/// In tenths of a second.
const TEN_MINUTES: u64 = 6_000;

fn main() -> Result<(), Box<dyn Error>> {
    let policy = Policy::new().plan("default", Quota::per_minute(60).burst(20));
    let trial = Limiter::builder().policy(policy.clone().shadow()).build()?;
    // For comparison: the same limit, in force from the start.
    let in_force = Limiter::builder().policy(policy.clone()).build()?;

    let requests = requests();
    let (first, second) = requests.split_at(requests.partition_point(|(tenth, _)| *tenth < TEN_MINUTES));

    println!("ten minutes in shadow mode: nobody is denied\n");
    let foretold = send(&trial, first)?;
    print(&foretold);
    println!();
    let stats = trial.plan_stats();
    for plan in &stats {
        println!("  {plan}");
    }
    let would_deny = foretold.values().map(|count| count.would_deny).sum();
    if stats.iter().map(|plan| plan.shadow_denied).sum::<u64>() != would_deny {
        return Err("the limiter has counted something else".into());
    }
    for (client, actual) in send(&in_force, first)? {
        let foretold = &foretold[client];
        if foretold.denied != 0 || foretold.would_deny != actual.denied {
            return Err(format!("{client}: {foretold:?}, but {actual:?} in force").into());
        }
    }

    trial.reload_at(policy, tenth(TEN_MINUTES)?)?;
    println!("\nthe same limit is in force, by a reload, for ten more minutes\n");
    let enforced = send(&trial, second)?;
    print(&enforced);
    if enforced != send(&in_force, second)? {
        return Err("who was in shadow mode before is treated otherwise".into());
    }
    if trial.plan_stats() != stats {
        return Err("something was in shadow mode still".into());
    }
    println!("\nit denied what it would have denied had it been in force all the time");
    Ok(())
}

/// What was sent by a client, and how it was answered.
#[derive(Default, PartialEq, Debug)]
struct Count {
    sent: u64,
    denied: u64,
    would_deny: u64,
}

fn send(limiter: &Limiter, requests: &[(u64, &'static str)]) -> Result<BTreeMap<&'static str, Count>, TimeError> {
    let mut counts = BTreeMap::<_, Count>::new();
    for (at, client) in requests {
        let count = counts.entry(*client).or_default();
        count.sent += 1;
        match limiter.check_at(client, tenth(*at)?) {
            Decision::Allow(allow) => count.would_deny += u64::from(allow.would_deny().is_some()),
            Decision::Deny(_) => count.denied += 1,
        }
    }
    Ok(counts)
}

fn print(counts: &BTreeMap<&'static str, Count>) {
    for (client, Count { sent, denied, would_deny }) in counts {
        println!("  {client:<8} {sent:>4} sent, {denied:>4} denied, {would_deny:>4} would be denied");
    }
}

/// Twenty minutes of requests, the same each time: when in tenths of a second, and whose.
fn requests() -> Vec<(u64, &'static str)> {
    let mut random = SmallRng::seed_from_u64(1);
    let mut requests = Vec::new();
    for tenth in 0..2 * TEN_MINUTES {
        for (client, per_minute) in CLIENTS {
            if random.random_ratio(per_minute, 600) {
                requests.push((tenth, client));
            }
        }
    }
    requests
}

const fn tenth(tenths: u64) -> Result<Now, TimeError> {
    Now::since_origin(Duration::from_millis(100 * tenths))
}
