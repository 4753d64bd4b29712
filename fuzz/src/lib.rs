//! What the fuzz targets do with their bytes. `tests/replay.rs` does the same with the committed corpora.

#[allow(dead_code, reason = "a part is for seeds, which the tests draw from")]
#[path = "../../tests/judge"]
mod judge {
    pub(crate) mod chance;
    pub(crate) mod generate;
    pub(crate) mod ledger;
    pub(crate) mod model;
    pub(crate) mod play;
    pub(crate) mod script;
}
#[path = "../../tests/oracle/mod.rs"]
mod oracle;
#[path = "../../tests/oracle/plans.rs"]
mod plans_oracle;
#[path = "../../tests/stores/mod.rs"]
mod stores;

use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use http::header::{HeaderName, HeaderValue};
use http::{Request, StatusCode};
use judge::chance::Chance;
use judge::generate::{Kind, Shape, script as judged_script};
use judge::script::Time;
use oracle::keyed::{Held, KeyedStep, play_fixed, play_keyed};
use oracle::{Step, play};
use plans_oracle::{PlanSpec, PlanStep, PolicySpec, play_plans};
use tollgate::http::{Header, KeyExtractor, RateLimitLayer};
use tollgate::{DirectLimiter, Fixed, Limiter, Now, Quota, Sharded, Unit};

/// Reads the scenes of a script from `data`, of stores of one of these kinds and of so many quotas at most, and has the books
/// judge each answer: of allows that are held, two limiters, and requests in flight over the edge of overflow.
fn judged(data: &[u8], kinds: &[Kind], most_quotas: u64) {
    let mut chance = Chance::Bytes(data);
    let time = chance.pick(&[Time::Given, Time::Clock, Time::Coarse]);
    let (kind, quotas) = (chance.pick(kinds), chance.between(1, most_quotas) as usize);
    let script = judged_script(&mut chance, Shape { kind, time, quotas }, 60);
    if let Err(fault) = judge::play::play(&script) {
        panic!("{}\n{script}{}", fault.what, judge::play::answers(&script));
    }
}

/// Reads a quota and a script from `data` and has the naive judge watch it being played, and the books a script of their own.
pub fn bound(data: &[u8]) {
    judged(data, &[Kind::Direct], 1);
    if let Ok((quota, steps)) = script(&mut Unstructured::new(data)) {
        play::<Sharded>(quota, &steps);
        play::<Fixed>(quota, &steps);
    }
}

/// Reads steps on a keyed limiter, with a cap or without, and compares it with the obvious one; and the books judge a script
/// on plans of one quota.
pub fn keyed(data: &[u8]) {
    judged(data, &[Kind::Fixed, Kind::Fixed, Kind::Sharded], 1);
    if let Ok((quota, max_keys, shared, steps)) = keyed_script(&mut Unstructured::new(data)) {
        play_keyed(quota, max_keys, shared, &steps);
        play_fixed(quota, max_keys.min(24), shared, &steps);
    }
}

/// Reads policies and steps on a limiter with plans, reloads among them, and compares it with the plain model; and the books
/// judge a script on plans of up to three quotas.
pub fn plans(data: &[u8]) {
    judged(data, &[Kind::Fixed, Kind::Sharded], 3);
    if let Ok((first, steps)) = plans_script(&mut Unstructured::new(data)) {
        play_plans(&first, &steps);
    }
}

/// Reads any quota at all, builds a limiter of it or has it refused, and asks that limiter at any instant for any cost.
pub fn quota(data: &[u8]) {
    let data = &mut Unstructured::new(data);
    let Ok((rate, secs, nanos, burst)) = <(u64, u64, u32, u64)>::arbitrary(data) else { return };
    let period = Duration::from_secs(secs).saturating_add(Duration::from_nanos(u64::from(nanos)));
    let quota = Quota::new(rate, period).burst(burst);
    match DirectLimiter::new(quota) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(limiter) => {
            while let Ok((cost, elapsed)) = <(u64, u64)>::arbitrary(data) {
                let now = Now::since_origin(Duration::from_nanos(elapsed)).unwrap_or(Now::MAX);
                let decision = limiter.check_cost_at(cost, now);
                assert!(decision.remaining() <= burst && decision.limit() == burst);
                assert_eq!(decision.is_denied(), decision.retry_after() != Some(Duration::ZERO));
                assert!(!decision.to_string().is_empty() && !format!("{:?}", decision.reset_after()).is_empty());
                if data.is_empty() {
                    break;
                }
            }
        }
    }
}

/// Reads values of a header, and a name for a policy: a key is what one clean value says, and nothing is taken for more.
pub fn headers(data: &[u8]) {
    const NAME: HeaderName = HeaderName::from_static("x-api-key");
    let mut parts = data.split(|byte| *byte == b'\n');
    let name = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let limiter = Limiter::new(Quota::per_second(1)).expect("a quota that makes sense");
    let printable = name.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    assert_eq!(RateLimitLayer::new(limiter, Header::new(NAME)).name(&name).is_ok(), printable);

    let mut request = Request::new(());
    let values: Vec<_> = parts.filter_map(|value| HeaderValue::from_bytes(value).ok()).collect();
    for value in &values {
        request.headers_mut().append(NAME, value.clone());
    }
    match Header::new(NAME).extract(&request) {
        Ok(key) => {
            let key = key.expect("this extractor exempts nobody");
            assert!(values.len() == 1 && values[0] == *key && (1..=Header::MAX_LEN).contains(&key.len()));
        }
        Err(error) => assert_eq!(error.status(), StatusCode::BAD_REQUEST),
    }
}

fn keyed_script(data: &mut Unstructured<'_>) -> Result<(Quota, u64, bool, Vec<KeyedStep>)> {
    let quota = Quota::per_second(data.int_in_range(0..=20)?).burst(data.int_in_range(1..=6)?);
    let max_keys = data.int_in_range(1..=12)?;
    let max_keys = if max_keys == 12 { u64::MAX } else { max_keys };
    let shared = bool::arbitrary(data)?;
    let mut steps = Vec::new();
    while !data.is_empty() && steps.len() < 512 {
        let key = data.int_in_range(0..=23)?;
        steps.push(match data.int_in_range(0..=9)? {
            0 | 1 => KeyedStep::Forward(data.int_in_range(0..=4_000_000_000)?),
            2 => KeyedStep::Back(data.int_in_range(0..=4_000_000_000)?),
            3 => KeyedStep::Reset(key),
            4 => KeyedStep::Refund(usize::from(u8::arbitrary(data)?)),
            5 => KeyedStep::RefundOf(key, if u8::arbitrary(data)? % 2 == 0 { Held::Latest } else { Held::Oldest }),
            _ => KeyedStep::Take(key, data.int_in_range(0..=7)?),
        });
    }
    Ok((quota, max_keys, shared, steps))
}

fn script(data: &mut Unstructured<'_>) -> Result<(Quota, Vec<Step>)> {
    let rate = match data.int_in_range(0..=3)? {
        0 => data.int_in_range(0..=20)?,
        1 => data.int_in_range(0..=1_000_000)?,
        2 => data.int_in_range(0..=10_000_000_000)?,
        _ => u64::arbitrary(data)?,
    };
    let period = match data.int_in_range(0..=4)? {
        0 => Duration::from_secs(1),
        1 => Duration::from_secs(60),
        2 => Duration::from_secs(86_400),
        3 => Duration::from_nanos(data.int_in_range(0..=1_000_000_000_000)?),
        _ => Duration::from_secs(data.int_in_range(0..=150_000_000)?),
    };
    let burst = match data.int_in_range(0..=2)? {
        0 => data.int_in_range(0..=12)?,
        1 => data.int_in_range(0..=1_000)?,
        _ => data.int_in_range(0..=1 << 40)?,
    };
    let quota = Quota::new(rate, period).burst(burst);

    // Of the size that matters to the quota, or any.
    let unit = u64::try_from(period.as_nanos() / u128::from(rate.max(1))).unwrap_or(u64::MAX).max(2);
    let fill = unit.saturating_mul(burst);
    let mut steps = Vec::new();
    while !data.is_empty() && steps.len() < 256 {
        steps.push(match data.int_in_range(0..=9)? {
            0 => Step::Forward(data.int_in_range(0..=unit)?),
            1 => Step::Forward(data.int_in_range(0..=fill.saturating_mul(2))?),
            2 => Step::Forward(u64::arbitrary(data)?),
            3 => Step::Back(data.int_in_range(0..=fill)?),
            4 => Step::ToRetry,
            5 | 6 => Step::Take(1),
            7 => Step::Take(data.int_in_range(0..=burst.saturating_add(2))?),
            8 => Step::Take(u64::arbitrary(data)?),
            _ => Step::Refund(usize::from(u8::arbitrary(data)?)),
        });
    }
    Ok((quota, steps))
}

fn plans_script(data: &mut Unstructured<'_>) -> Result<(PolicySpec, Vec<PlanStep>)> {
    let first = policy(data)?;
    let mut steps = Vec::new();
    while !data.is_empty() && steps.len() < 256 {
        let key = data.int_in_range(0..=3)?;
        let plan = |data: &mut Unstructured<'_>| data.int_in_range(0..=3_usize);
        let some = |data: &mut Unstructured<'_>| if bool::arbitrary(data)? { plan(data).map(Some) } else { Ok(None) };
        let cost = |data: &mut Unstructured<'_>| data.int_in_range(0..=8_u64);
        steps.push(match data.int_in_range(0..=11)? {
            0 | 1 => PlanStep::Forward(data.int_in_range(0..=20)?),
            2 | 3 => PlanStep::Enter(key, some(data)?, cost(data)?, cost(data)?),
            4 => PlanStep::Leave(usize::from(u8::arbitrary(data)?)),
            5 => PlanStep::Refund(usize::from(u8::arbitrary(data)?)),
            6 => PlanStep::Reset(key),
            7 => PlanStep::Move(key, plan(data)?, plan(data)?),
            8 => PlanStep::Reload(policy(data)?),
            _ => PlanStep::Check(key, some(data)?, cost(data)?, cost(data)?),
        });
    }
    Ok((first, steps))
}

fn policy(data: &mut Unstructured<'_>) -> Result<PolicySpec> {
    let mut plans = [const { None }; 4];
    for plan in &mut plans {
        if data.ratio(3, 4)? {
            let quotas = (0..data.int_in_range(0..=3)?).map(|_| small_quota(data)).collect::<Result<_>>()?;
            let in_flight = if data.ratio(1, 4)? { Some(data.int_in_range(1..=2)?) } else { None };
            *plan = Some(PlanSpec { quotas, in_flight, shadow: data.ratio(1, 8)? });
        }
    }
    let some = |data: &mut Unstructured<'_>| -> Result<_> {
        Ok(if data.ratio(1, 4)? { Some(data.int_in_range(0..=3_usize)?) } else { None })
    };
    let (override_of_0, resolves_1_to) = (some(data)?, some(data)?);
    Ok(PolicySpec { plans, default: data.int_in_range(0..=3)?, override_of_0, resolves_1_to })
}

/// A quota whose unit is whole ticks, or never comes back.
fn small_quota(data: &mut Unstructured<'_>) -> Result<Quota> {
    let rate = data.int_in_range(0..=3)?;
    let period = rate.max(1) * data.int_in_range(1..=8)?;
    let quota = Quota::new(rate, Duration::from_nanos(period)).burst(data.int_in_range(1..=6)?);
    Ok(match data.int_in_range(0..=3)? {
        0 => quota.unit(Unit::TOKENS),
        1 => quota.named("a"),
        2 => quota.named("b"),
        _ => quota,
    })
}
