//! The limiter of a gateway: its own, or one of a fleet whose limits are kept in Redis.

use std::error::Error;

use tollgate::{Limiter, Policy};

use super::{ANONYMOUS, PLANS};

#[cfg(feature = "redis")]
#[path = "../fleet/ask.rs"]
mod ask;

#[cfg(feature = "redis")]
pub(crate) use tollgate::global::Fleet;

/// There is none in this build.
#[cfg(not(feature = "redis"))]
pub(crate) enum Fleet {}

/// Keys begin with `prefix` at the server.
#[cfg(feature = "redis")]
pub(crate) fn connect(url: &str, prefix: &str) -> Result<Fleet, Box<dyn Error>> {
    use tollgate::global::RedisAuthority;

    // Without it a gateway would go by its share. That is fine later on, but not while somebody is there who can mend it.
    ask::ask(url, prefix).map_err(|error| error.to_string())?;
    Ok(Fleet::builder(RedisAuthority::builder(url).key_prefix(prefix).build()?).start()?)
}

#[cfg(not(feature = "redis"))]
pub(crate) fn connect(_: &str, _: &str) -> Result<Fleet, Box<dyn Error>> {
    Err("limits that gateways share by way of Redis are not in this build: run with `--features http,redis`, or without --redis \
         and REDIS_URL"
        .into())
}

/// Tells the authority what was used, so that what was not is free for others at once.
#[cfg(feature = "redis")]
pub(crate) fn end(fleet: Fleet) {
    let end = fleet.shutdown(std::time::Duration::from_secs(5));
    if !end.is_settled {
        eprintln!("gateway: {} keys could not be reported to Redis", end.unreported);
    }
}

#[cfg(not(feature = "redis"))]
pub(crate) fn end(fleet: Fleet) {
    match fleet {}
}

#[cfg(feature = "redis")]
pub(crate) fn limiter(fleet: Option<&Fleet>) -> Result<Limiter, Box<dyn Error>> {
    use tollgate::Plan;
    use tollgate::global::GlobalQuota;

    let Some(fleet) = fleet else { return own() };
    let shared =
        |quota: tollgate::Quota| Plan::new([]).global(GlobalQuota::sliding_window(quota.rate(), quota.period()));
    let policy = PLANS.iter().fold(Policy::new(), |policy, plan| policy.plan(plan.name, shared(plan.quota)));
    let policy = resolved(policy.plan("anonymous", shared(ANONYMOUS)));
    Ok(Limiter::builder().fleet(fleet).policy(policy).build()?)
}

#[cfg(not(feature = "redis"))]
pub(crate) fn limiter(_: Option<&Fleet>) -> Result<Limiter, Box<dyn Error>> {
    own()
}

fn own() -> Result<Limiter, Box<dyn Error>> {
    let policy = PLANS.iter().fold(Policy::new(), |policy, plan| policy.plan(plan.name, plan.quota));
    Ok(Limiter::builder().policy(resolved(policy.plan("anonymous", ANONYMOUS))).build()?)
}

/// A key is an API key of ours, or an address as `ip:192.0.2.1`.
fn resolved(policy: Policy) -> Policy {
    policy.default_plan("anonymous").resolver(|key: &str, plans| {
        let plan = PLANS.iter().find(|plan| plan.api_key == key)?;
        plans.id(plan.name)
    })
}
