//! What the fuzz targets do with their bytes. `tests/replay.rs` does the same with the committed corpora.

#[path = "../../tests/oracle/mod.rs"]
mod oracle;

use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use oracle::{Step, play};
use tollgate::Quota;

/// Reads a quota and a script from `data` and has the naive judge watch it being played.
pub fn bound(data: &[u8]) {
    if let Ok((quota, steps)) = script(&mut Unstructured::new(data)) {
        play(quota, &steps);
    }
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
