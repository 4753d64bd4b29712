//! A policy that is replaced while threads check against it: what was used stays used, and nobody gets a fresh burst.
//!
//! ```text
//! cargo run --release --example reload
//! ```
//!
//! It fails if any of 50,000 keys has more left after a reload than what it had used allows, or if checks stood still.
#![allow(clippy::print_stdout, reason = "a program talks to the person who runs it")]

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use tollgate::{Limiter, Policy, Quota};

const CLIENTS: usize = 50_000;
const THREADS: usize = 3;

/// They are at rest, so that their numbers can be followed, and have used this much when it starts.
const WATCHED: [(&str, u64); 3] = [("alice", 50), ("bob", 199), ("carol", 1_500)];

fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder().policy(policy(Quota::per_hour(2_000))).build()?;
    let clients: Vec<String> = (0..CLIENTS).map(|n| format!("client-{n}")).collect();
    for (n, client) in (0..).zip(&clients) {
        let _ = limiter.check_cost(client, 1 + n % 400);
    }
    for (client, used) in WATCHED {
        let _ = limiter.check_cost(client, used);
    }
    println!("{} keys known, {THREADS} threads check them\n", limiter.len());

    let (checks, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for n in 0..THREADS {
            let (limiter, clients, checks, stop) = (&limiter, &clients, &checks, &stop);
            scope.spawn(move || {
                let clients = clients.iter().cycle().skip(n * CLIENTS / THREADS);
                for client in clients.take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let _ = limiter.check(client);
                    checks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let outcome = reloads(&limiter, &checks);
        stop.store(true, Ordering::Relaxed);
        outcome
    })
}

fn policy(quota: Quota) -> Policy {
    Policy::new().plan("default", quota)
}

fn reloads(limiter: &Limiter, checks: &AtomicU64) -> Result<(), Box<dyn Error>> {
    let mut before = Snapshot::take(limiter);
    for quota in [
        Quota::per_hour(200),
        Quota::per_hour(1_000),
        Quota::per_hour(200).burst(0),
        Quota::per_hour(400).burst(100),
        Quota::per_hour(2_000),
    ] {
        let (start, checked) = (Instant::now(), checks.load(Ordering::Relaxed));
        let outcome = limiter.reload(policy(quota));
        let (took, checked) = (start.elapsed(), checks.load(Ordering::Relaxed) - checked);
        let after = Snapshot::take(limiter);

        let refused = outcome.err();
        match &refused {
            None => println!("{quota}: in force after {took:.1?}, and {checked} checks meanwhile"),
            Some(error) => println!("refused: {error}"),
        }
        let grown = before.grown(&after);
        if grown > 0 {
            return Err(format!("{grown} of {} keys got more than they should have", after.keys.len()).into());
        }
        for (client, _) in WATCHED {
            let ((was, had), (limit, left)) = (before.of(client)?, after.of(client)?);
            println!("  {client:<6} {:>4} of {was} used before, {left:>4} of {limit} left after", was - had);
        }
        println!("  {} keys compared, none has more than it should have\n", after.keys.len());

        if refused.is_some() != (quota.limit() == 0) {
            return Err(format!("{quota}: {refused:?}").into());
        }
        if refused.is_none() && checked == 0 {
            return Err("no check got through during the reload".into());
        }
        before = after;
    }
    println!("what a key had used stayed used, up to the new burst, for every key in every reload");
    Ok(())
}

/// The burst, and the units left, of every key.
struct Snapshot {
    at: Instant,
    keys: HashMap<String, (u64, u64)>,
}

impl Snapshot {
    fn take(limiter: &Limiter) -> Self {
        let at = Instant::now();
        let keys = limiter.entries().map(|(key, seen)| (key, (seen.limit(), seen.remaining()))).collect();
        Self { at, keys }
    }

    fn of(&self, client: &str) -> Result<(u64, u64), String> {
        self.keys.get(client).copied().ok_or_else(|| format!("{client} is not known"))
    }

    /// How many keys have more left in `after` than what they had used allows. One that is not known any more has all.
    fn grown(&self, after: &Self) -> usize {
        // No quota here gives a unit back in less than a second, and a part of one was there already.
        let refilled = (after.at - self.at).as_secs() + 2;
        let has_grown = |(client, (was, had)): &(&String, &(u64, u64))| {
            let used = (*was - *had).saturating_sub(refilled);
            after.keys.get(*client).map_or(used > 0, |(limit, left)| *left > limit.saturating_sub(used))
        };
        self.keys.iter().filter(has_grown).count()
    }
}
