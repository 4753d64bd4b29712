//! Four plans on one limiter, with several quotas on a plan, and an upgrade that takes along what was used.
//!
//! ```text
//! cargo run --release --example plans
//! ```
//!
//! Time is virtual: it ends at once, and prints the same each time. It fails if an answer is not what it says here.
#![allow(clippy::print_stdout, reason = "a program talks to the person who runs it")]

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tollgate::{Limiter, Now, Plan, Policy, Quota, Reason, Standing, TimeError, Unit};

/// Who is on which plan: what a real service has in its database, and here at hand.
type Customers = Arc<RwLock<HashMap<&'static str, &'static str>>>;

fn policy(customers: Customers) -> Policy {
    let enterprise = [Quota::per_second(100), Quota::per_minute(60_000).unit(Unit::TOKENS)];
    Policy::new()
        .plan("free", [Quota::per_minute(10), Quota::per_day(100)])
        .plan("pro", [Quota::per_second(20), Quota::per_day(10_000)])
        .plan("enterprise", Plan::new(enterprise).in_flight(3))
        .plan("unlimited", Plan::unlimited())
        .default_plan("free")
        .override_key("health-checker", "unlimited")
        .resolver(move |key: &str, plans| {
            let customers = customers.read().unwrap_or_else(PoisonError::into_inner);
            customers.get(key).and_then(|plan| plans.id(plan))
        })
}

fn main() -> Result<(), Box<dyn Error>> {
    let customers = Customers::new(RwLock::new(HashMap::from([("paula", "pro"), ("emil", "enterprise")])));
    let limiter = Limiter::builder().policy(policy(Arc::clone(&customers))).build()?;
    an_hour(&limiter)?;
    tokens_and_places(&limiter)?;
    upgrade(&limiter, &customers)?;
    Ok(())
}

/// Everybody asks for the same and gets what the plan grants.
fn an_hour(limiter: &Limiter) -> Result<(), Box<dyn Error>> {
    println!("Each client sends 30 requests at once, and then one a second for an hour:\n");
    // `walter` is nobody we know, and so on the default plan. His day has 100 requests, and 4 more come in the hour.
    for (client, at_once, in_the_hour) in
        [("walter", 10, 94), ("paula", 20, 3_600), ("emil", 30, 3_600), ("health-checker", 30, 3_600)]
    {
        let admitted = |now| limiter.check_at(client, now).is_allowed();
        let burst = (0..30).filter(|_| admitted(Now::ORIGIN)).count();
        let mut hour = 0;
        for second in 1..=3_600 {
            hour += usize::from(admitted(seconds(second)?));
        }
        println!("  {client:<14} {burst:>2} of 30, then {hour:>4} of 3600; now {}", left(limiter, client, 3_600)?);
        expect(client, (burst, hour), (at_once, in_the_hour))?;
    }
    Ok(())
}

/// A request takes of several kinds of unit, all or nothing, and a place among those in flight until it is done.
fn tokens_and_places(limiter: &Limiter) -> Result<(), Box<dyn Error>> {
    println!("\nemil calls a language model, at most three calls at a time:\n");
    // Whoever knows the plan anyway can name it, and no resolver is asked.
    let enterprise = limiter.plan("enterprise")?;
    let call = |tokens, second| {
        let answer =
            enterprise.enter_costs_at("emil", &[(Unit::REQUESTS, 1), (Unit::TOKENS, tokens)], seconds(second)?);
        match &answer {
            Ok(entered) => println!("  {tokens} tokens: {}", entered.allow()),
            Err(deny) => println!("  {tokens} tokens: {deny}"),
        }
        Ok::<_, TimeError>(answer)
    };
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(call(15_000, 7_200)?.map_err(|deny| deny.to_string())?);
    }
    let refused = call(15_000, 7_200)?.err().map(|deny| deny.reason());
    expect("the fourth call", refused, Some(Reason::InFlight))?;

    println!("  one call is done");
    calls.pop();
    let wait = call(25_000, 7_200)?.err().and_then(|deny| deny.retry_after());
    expect("too many tokens", wait, Some(Duration::from_secs(10)))?;

    println!("  ten seconds later");
    expect("the same call, ten seconds later", call(25_000, 7_210)?.is_ok(), true)?;
    Ok(())
}

/// A key changes its plan while it is in use, and its day goes on where it was.
fn upgrade(limiter: &Limiter, customers: &Customers) -> Result<(), Box<dyn Error>> {
    println!("\ndora sends ten requests a minute on the free plan, and upgrades in the ninth minute:\n");
    for request in 0..90 {
        expect("a request of dora", limiter.check_at("dora", seconds(request / 10 * 60)?).is_allowed(), true)?;
    }
    let now = seconds(8 * 60)?;
    let before = limiter.peek_all_at("dora", now);
    println!("  before: {}\n          {}", left(limiter, "dora", 480)?, limiter.check_at("dora", now));

    // First the plan, then the use: what is taken in between is on the new plan, and the rest is added to it.
    customers.write().unwrap_or_else(PoisonError::into_inner).insert("dora", "pro");
    expect("dora had used something", limiter.move_plan_at("dora", "free", "pro", now)?, true)?;

    let after = limiter.peek_all_at("dora", now);
    println!("  after:  {}\n          {}", left(limiter, "dora", 480)?, limiter.check_at("dora", now));
    let day = |all: &[Standing]| {
        all.iter().find(|one| one.name() == "requests/day").map(|day| (day.limit(), day.limit() - day.remaining()))
    };
    expect("dora's day before", day(&before), Some((100, 90)))?;
    expect("dora's day after", day(&after), Some((10_000, 90)))?;
    println!("\nThe 90 requests of the day stay used.");
    Ok(())
}

/// The plan of `client` and the numbers of each of its quotas.
fn left(limiter: &Limiter, client: &str, second: u64) -> Result<String, TimeError> {
    let all = limiter.peek_all_at(client, seconds(second)?);
    let Some(first) = all.first() else { return Ok("no limit".to_owned()) };
    let quotas: Vec<String> = all.iter().map(ToString::to_string).collect();
    Ok(format!("{} ({})", first.plan(), quotas.join(", ")))
}

const fn seconds(second: u64) -> Result<Now, TimeError> {
    Now::since_origin(Duration::from_secs(second))
}

fn expect<T: PartialEq + Debug>(what: &str, got: T, expected: T) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{what}: {got:?}, expected {expected:?}")) }
}
