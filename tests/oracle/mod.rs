//! A naive judge of one key's limiter: a list of admissions and a scan of all windows, in 128-bit arithmetic.
//!
//! It shares no formula with the library. It is told what was admitted when, and counts.

pub(crate) mod keyed;

use std::time::Duration;

use tollgate::{Allow, Decision, DirectLimiter, Limiter, Now, Quota};

use crate::stores::Kind;

/// One thing to do to a limiter in virtual time.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Move the clock on by so many nanoseconds.
    Forward(u64),
    /// Move the clock back by so many nanoseconds, to the origin at most.
    Back(u64),
    /// Move the clock on to where the last denial said that the request would pass.
    ToRetry,
    /// Take so many units.
    Take(u64),
    /// Give back one of the takes since the clock last went backwards, if there is one.
    Refund(usize),
}

/// An admission that was not given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    at: u64,
    cost: u64,
}

/// The latest instant that a script moves to: about nine years less the longest fill time.
const END: u64 = 150_000_000 * 1_000_000_000;

/// Plays `steps` on a limiter of `quota` and judges every answer. Returns what stayed admitted, or nothing if the
/// quota is refused.
///
/// The same goes to a keyed limiter over a store of kind `T`. Its answers are the same, but that the second refund may be
/// worth less where keys share what their refunds need; then it is judged by itself.
pub(crate) fn play<T: Kind>(quota: Quota, steps: &[Step]) -> Vec<Admission> {
    let Ok(direct) = DirectLimiter::new(quota) else { return Vec::new() };
    let keyed = T::sized(Limiter::builder().quota(quota), 1).expect("what one limiter takes, the other takes");

    let mut now = 0_u64;
    let mut retry_at = None;
    let mut went_back = false;
    let mut alike = true;
    // By each of the two. What was not admitted, or was given back, costs 0.
    let [mut admitted, mut by_keyed] = [const { Vec::<Admission>::new() }; 2];
    // Index into these, and the two allows of it.
    let mut refundable: Vec<(usize, Option<Allow>, Option<Allow>)> = Vec::new();
    let mut refunds = 0;

    for step in steps {
        match *step {
            Step::Forward(nanos) => now = now.saturating_add(nanos).min(END),
            Step::Back(nanos) => {
                now = now.saturating_sub(nanos);
                went_back = true;
                refundable.clear();
            }
            Step::ToRetry => now = retry_at.take().unwrap_or(now).clamp(now, END),
            Step::Take(cost) => {
                let peeked = keyed.peek_cost_at("key", cost, instant(now));
                let decision = direct.check_cost_at(cost, instant(now));
                let again = keyed.check_cost_at("key", cost, instant(now));
                if alike {
                    assert_eq!(decision.to_string(), again.to_string(), "two doors to the same bucket");
                }
                assert_eq!(again.is_allowed(), peeked.is_allowed(), "a peek says what a check will");
                assert_numbers(&direct, quota, now, &decision);
                if let Decision::Deny(deny) = &decision {
                    if let Some(wait) = deny.retry_after() {
                        retry_at = Some(assert_retry_after(&direct, cost, now, wait));
                    }
                    if !went_back && refunds == 0 {
                        assert_denial_was_due(quota, &admitted, cost, now);
                    }
                }
                let [one, other] = [decision, again].map(|decision| match decision {
                    Decision::Allow(allow) if cost > 0 => Some(allow),
                    _ => None,
                });
                for (list, allow) in [(&mut admitted, &one), (&mut by_keyed, &other)] {
                    list.push(Admission { at: now, cost: if allow.is_some() { cost } else { 0 } });
                }
                refundable.push((admitted.len() - 1, one, other));
                refundable.retain(|(_, one, other)| one.is_some() || other.is_some());
            }
            Step::Refund(which) => {
                if !refundable.is_empty() {
                    let (index, one, other) = refundable.swap_remove(which % refundable.len());
                    one.into_iter().for_each(|allow| direct.refund_at(allow, instant(now)));
                    other.into_iter().for_each(|allow| keyed.refund_at("key", allow, instant(now)));
                    (admitted[index].cost, by_keyed[index].cost) = (0, 0);
                    refunds += 1;
                    alike &= T::REFUNDS_APART || refunds < 2;
                }
            }
        }
    }

    for list in [&mut admitted, &mut by_keyed] {
        list.retain(|admission| admission.cost > 0);
        assert_bound(quota, list);
    }
    admitted
}

/// In no window of length t were more than `burst + rate * t / period` units admitted.
pub(crate) fn assert_bound(quota: Quota, admissions: &[Admission]) {
    let mut admissions = admissions.to_vec();
    admissions.sort_by_key(|admission| admission.at);
    let period = quota.period().as_nanos();
    for (first, from) in admissions.iter().enumerate() {
        let mut units = 0_u128;
        for to in &admissions[first..] {
            units += u128::from(to.cost);
            let length = u128::from(to.at - from.at);
            assert!(
                units * period <= u128::from(quota.limit()) * period + u128::from(quota.rate()) * length,
                "{units} units in the {length} ns from {} of {quota}",
                from.at
            );
        }
    }
}

/// A denial of `cost` at `now` was due: there is a window up to `now` in which the cost, on top of what was admitted,
/// would have been too much, if each decision may be charged 1/8 ns or 10 ppm more than its cost.
fn assert_denial_was_due(quota: Quota, admitted: &[Admission], cost: u64, now: u64) {
    if cost > quota.limit() {
        return;
    }
    // Everything in eighths of a nanosecond, times the rate.
    let period = quota.period().as_nanos() * 8;
    let rate = u128::from(quota.rate());
    let mut needed = u128::from(cost) * period + rate;
    for admission in admitted.iter().rev() {
        let exact = u128::from(admission.cost) * period;
        needed += exact + (exact / 100_000).max(rate);
        let length = u128::from(now - admission.at) * 8;
        if needed > u128::from(quota.limit()) * period + rate * length {
            return;
        }
    }
    panic!("{cost} units at {now} ns were denied without need by {quota}, after {admitted:?}");
}

/// As many units as `remaining` says pass, and not one more; the whole burst is there at `reset_after`, and not earlier.
fn assert_numbers(limiter: &DirectLimiter, quota: Quota, now: u64, decision: &Decision) {
    let passes = |cost, nanos| limiter.peek_cost_at(cost, instant(nanos)).is_allowed();
    let remaining = decision.remaining();
    assert_eq!(decision.limit(), quota.limit());
    assert!(remaining <= quota.limit(), "{decision} of {quota}");
    assert!(passes(remaining, now) && !passes(remaining + 1, now), "{decision} of {quota} at {now}");
    match decision.reset_after().map(|wait| u64::try_from(wait.as_nanos()).expect("a fill time at most")) {
        Some(0) => assert_eq!(remaining, quota.limit()),
        Some(wait) => {
            let full = limiter.peek_at(instant(now + wait)).reset_after();
            assert_eq!(full, Some(Duration::ZERO), "{decision} of {quota} at {now}");
            let early = limiter.peek_at(instant(now + wait - 1)).reset_after();
            assert!(early > Some(Duration::ZERO), "{decision} of {quota} at {now}");
        }
        None => assert!(quota.rate() == 0 && remaining < quota.limit(), "{decision} of {quota}"),
    }
}

/// Denied at every earlier instant, admitted exactly then. Peeks, so that nothing is taken. Returns the instant.
fn assert_retry_after(limiter: &DirectLimiter, cost: u64, now: u64, wait: Duration) -> u64 {
    let wait = u64::try_from(wait.as_nanos()).expect("a wait is a fill time at most");
    assert!(wait > 0, "a denial that need not wait");
    for part in [wait / 3, wait / 2, wait - 1] {
        let decision = limiter.peek_cost_at(cost, instant(now + part));
        assert!(decision.is_denied(), "{cost} units passed {part} ns into a wait of {wait}: {decision}");
    }
    let decision = limiter.peek_cost_at(cost, instant(now + wait));
    assert!(decision.is_allowed(), "{cost} units did not pass after a wait of {wait} ns: {decision}");
    now + wait
}

fn instant(nanos: u64) -> Now {
    Now::since_origin(Duration::from_nanos(nanos)).expect("scripts end before the last instant")
}
