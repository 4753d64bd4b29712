//! What is promised of what was admitted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tollgate::global::{Rule, WhenAway};

use super::scenario::{MICRO, Manner, Scenario, Shared};
use super::world::{Admission, From, Loss, Outcome};

pub(crate) fn all(scenario: &Scenario, outcome: &Outcome) -> Result<(), String> {
    for (key, log) in outcome.log.iter().enumerate() {
        let shared = scenario.quota_of(key);
        let mut log: Vec<_> = log.iter().copied().filter(|admission| admission.units > 0).collect();
        log.sort_by_key(|admission| admission.at);
        let losses: Vec<_> = outcome.losses.iter().copied().filter(|loss| loss.key == key).collect();
        let is_limited = |admission: &&Admission| !matches!(admission.from, From::Away { .. });
        let limited: Vec<_> = log.iter().filter(is_limited).copied().collect();
        match shared.rule {
            Rule::Bucket { .. } if losses.is_empty() => bucket(shared, &limited),
            Rule::Bucket { .. } => Ok(()),
            _ => window(shared, &limited, &losses),
        }
        .and_then(|()| if scenario.keys[key].refunds == 0 { shares(shared, &log) } else { Ok(()) })
        .and_then(|()| does_well(scenario, key, &log, &outcome.arrivals[key]))
        .map_err(|fault| format!("key {key} of {:?}, {}: {fault}", shared.rule, shared.overdraft))?;
    }
    Ok(())
}

/// The most units in any window `(t - length, t]`, and where that was.
pub(crate) fn most_in(log: &[Admission], length: u64) -> (u64, u64) {
    let (mut first, mut sum, mut most) = (0, 0, (0, 0));
    for admission in log {
        sum += admission.units;
        while log[first].at + length <= admission.at {
            sum -= log[first].units;
            first += 1;
        }
        most = most.max((sum, admission.at));
    }
    most
}

/// A window never has more than the limit, what nodes admitted in advance, and what the authority has lost.
fn window(shared: &Shared, log: &[Admission], losses: &[Loss]) -> Result<(), String> {
    // A smooth window counts of the oldest sub-window what is left of it, as if that had been used evenly.
    let length = match shared.rule {
        Rule::Window { sub, smooth: true, .. } => shared.window - sub * MICRO,
        _ => shared.window,
    };
    let (mut first, mut sum) = (0, 0);
    let mut in_advance: BTreeMap<u64, u32> = BTreeMap::new();
    for (last, admission) in log.iter().enumerate() {
        sum += admission.units;
        if admission.from == From::Overdraft {
            *in_advance.entry(admission.node).or_default() += 1;
        }
        while log[first].at + length <= admission.at {
            sum -= log[first].units;
            if log[first].from == From::Overdraft {
                let left = in_advance.get_mut(&log[first].node).unwrap();
                *left -= 1;
                if *left == 0 {
                    in_advance.remove(&log[first].node);
                }
            }
            first += 1;
        }
        let promised = shared.limit + in_advance.len() as u64 * shared.overdraft;
        if sum <= promised {
            continue;
        }
        let begin = (admission.at + 1).saturating_sub(length);
        let lost = lost_in(shared, losses, &log[first..=last], (begin, admission.at));
        if sum > promised + lost {
            return Err(format!(
                "{sum} units in the window that ends at {:.6} s, {} of {promised} and {lost} lost",
                admission.at as f64 / 1e9,
                in_advance.len(),
            ));
        }
    }
    Ok(())
}

/// What losses may add to a window.
fn lost_in(shared: &Shared, losses: &[Loss], admitted: &[Admission], (begin, end): (u64, u64)) -> u64 {
    // Leases whose charge was lost are spent later, and may be extended by taking what is charged for others.
    let touches = |loss: &&Loss| loss.at <= end && loss.at + 3 * shared.life > begin;
    let lost: u64 = losses.iter().filter(touches).map(|loss| loss.units).sum();
    // Where the clock leapt, the window is shorter.
    let leaps: u64 = losses.iter().filter(touches).map(|loss| loss.leap).sum();
    let early = admitted.iter().filter(|admission| leaps > 0 && admission.at < begin + leaps);
    lost + early.map(|admission| admission.units).sum::<u64>()
}

/// A bucket of `burst`, what comes back in two lives of a lease, and what nodes admitted in advance, that is filled all the time
/// is never empty.
fn bucket(shared: &Shared, log: &[Admission]) -> Result<(), String> {
    let Rule::Bucket { burst, units, period, life } = shared.rule else { return Ok(()) };
    // In units by nanoseconds of a period.
    let whole = u128::from(period) * 1_000;
    let early: BTreeSet<_> = log.iter().filter(|one| one.from == From::Overdraft).map(|one| one.node).collect();
    let in_advance = early.len() as u128 * u128::from(shared.overdraft) * whole;
    let lent = u128::from(units) * u128::from(2 * life) * 1_000 + in_advance;
    let full = u128::from(burst) * whole + lent;
    let (mut level, mut at) = (full, 0);
    for admission in log {
        level = (level + u128::from(admission.at - at) * u128::from(units)).min(full);
        at = admission.at;
        let Some(rest) = level.checked_sub(u128::from(admission.units) * whole) else {
            return Err(format!("the bucket is empty at {:.6} s", at as f64 / 1e9));
        };
        level = rest;
    }
    Ok(())
}

/// A node that is on its own keeps within its share of the limit.
fn shares(shared: &Shared, log: &[Admission]) -> Result<(), String> {
    if shared.when_away == WhenAway::Allow {
        return Ok(());
    }
    let mut recent: BTreeMap<u64, VecDeque<Admission>> = BTreeMap::new();
    for admission in log {
        let own = recent.entry(admission.node).or_default();
        own.push_back(*admission);
        while own.front().is_some_and(|first| first.at + shared.window <= admission.at) {
            own.pop_front();
        }
        if !matches!(admission.from, From::Away { .. }) {
            continue;
        }
        // What it gave itself when it knew of fewer nodes it may still spend.
        let nodes = own.iter().filter_map(|own| match own.from {
            From::Away { nodes } => Some(nodes),
            _ => None,
        });
        let nodes = nodes.min().unwrap_or(1);
        let admitted: u64 = own.iter().filter(|own| own.from != From::Authority).map(|own| own.units).sum();
        let share = if shared.when_away == WhenAway::Deny { 0 } else { shared.limit / u64::from(nodes) };
        if admitted > share {
            return Err(format!(
                "node {} is away at {:.6} s and has admitted {admitted}, and its share is {share}",
                admission.node,
                admission.at as f64 / 1e9
            ));
        }
    }
    Ok(())
}

/// Once nothing goes wrong any more, those who wait are admitted as a log would that forgets a unit when the window of
/// sub-windows does.
fn does_well(scenario: &Scenario, key: usize, log: &[Admission], arrivals: &[(u64, u32)]) -> Result<(), String> {
    let (shared, about) = (scenario.quota_of(key), &scenario.keys[key]);
    let from = scenario.well_from;
    if from == u64::MAX
        || about.manner != Manner::Waits
        || scenario.network.loss > 0.05
        || about.refunds + about.exact > 0
    {
        return Ok(());
    }
    let arrivals = arrivals.iter().filter(|(at, cost)| *at >= from && u64::from(*cost) <= shared.limit);
    let interval = scenario.interval.as_nanos() as u64;
    let possible = match shared.rule {
        Rule::Window { sub, smooth, .. } => {
            let window = shared.window + interval + if smooth { 0 } else { sub * MICRO };
            let before = log.iter().filter(|admission| admission.at < from && admission.at + window >= from);
            possible_in_window(shared.limit, window, before, arrivals, scenario.end - shared.life)
        }
        _ => possible_in_bucket(shared, from, arrivals, scenario.end - shared.life),
    };
    let admitted: u64 = log
        .iter()
        .filter(|admission| (from..scenario.end).contains(&admission.at))
        .map(|admission| admission.units)
        .sum();
    let slack = 2 * u64::from(*about.costs.iter().max().unwrap());
    // Leases of a bucket are not prolonged but replaced: what is left of them is missing for a while.
    let tenths = if matches!(shared.rule, Rule::Window { .. }) { 9 } else { 6 };
    if admitted + slack < possible * tenths / 10 {
        return Err(format!("{admitted} units from {:.3} s on, where {possible} could have been", from as f64 / 1e9));
    }
    Ok(())
}

/// What a log of that window admits of those who come and wait in a line, up to `end`.
fn possible_in_window<'a>(
    limit: u64,
    window: u64,
    before: impl Iterator<Item = &'a Admission>,
    arrivals: impl Iterator<Item = &'a (u64, u32)>,
    end: u64,
) -> u64 {
    let mut log: VecDeque<(u64, u64)> = before.map(|admission| (admission.at, admission.units)).collect();
    let mut used: u64 = log.iter().map(|(_, units)| units).sum();
    let (mut admitted, mut free_at) = (0, 0_u64);
    for (at, cost) in arrivals {
        let cost = u64::from(*cost);
        // The first in the line waits for the oldest to leave the window.
        let mut now = free_at.max(*at);
        while used + cost > limit || log.front().is_some_and(|(at, _)| at + window <= now) {
            let Some((at, units)) = log.pop_front() else { break };
            now = now.max(at + window);
            used -= units;
        }
        if now >= end {
            break;
        }
        free_at = now;
        log.push_back((now, cost));
        (used, admitted) = (used + cost, admitted + cost);
    }
    admitted
}

/// What a bucket that is empty at `from` admits of those who come and wait in a line, up to `end`.
fn possible_in_bucket<'a>(shared: &Shared, from: u64, arrivals: impl Iterator<Item = &'a (u64, u32)>, end: u64) -> u64 {
    let Rule::Bucket { burst, units, period, .. } = shared.rule else { return 0 };
    let each = u64::from(period as u32) * MICRO / u64::from(units);
    // When it was empty, as a bucket that is filled without a pause: it has what has come back since then.
    let (mut empty_at, mut admitted) = (from, 0);
    for (at, cost) in arrivals {
        empty_at = empty_at.max(at.saturating_sub(u64::from(burst) * each)) + u64::from(*cost) * each;
        if empty_at >= end {
            break;
        }
        admitted += u64::from(*cost);
    }
    admitted
}
