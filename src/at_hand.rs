//! Copies that a thread has at hand of policies that it went by: the numbers of plans of one quota.
//!
//! A thread that kept a policy would keep it from being dropped for as long as it lives, idle or not. So these are plain copies,
//! of what is the same for all keys: the quota of a plan of a version of a limiter never changes. Nothing of it has to be
//! dropped, so that it is there for destructors of thread-locals too.

use std::cell::Cell;

use crate::plans::Simple;
use crate::policy::PlanId;

/// A plan of a version of a limiter, with the numbers that tell it from all others.
#[derive(Clone, Copy)]
struct Entry {
    limiter: u64,
    version: u64,
    given: Option<PlanId>,
    simple: Simple,
}

/// The number of places. Each plan has one of them, so that few plans that are used in turn share theirs.
const PLACES: usize = 8;

thread_local! {
    static AT_HAND: [Cell<Option<Entry>>; PLACES] = const { [const { Cell::new(None) }; PLACES] };
}

/// Returns the place of the plan `given` of that limiter, or of its default plan.
#[inline]
fn place(limiter: u64, given: Option<PlanId>) -> usize {
    let plan = given.map_or(0, |id| usize::from(id.0) + 1);
    (limiter as usize).wrapping_add(plan) % PLACES
}

/// Returns the plan `given`, or the default plan, of that version of a limiter, if it was put here and is here still.
#[inline]
pub(crate) fn get(limiter: u64, version: u64, given: Option<PlanId>) -> Option<Simple> {
    let entry = AT_HAND.with(|at_hand| at_hand[place(limiter, given)].get())?;
    (entry.limiter == limiter && entry.version == version && entry.given == given).then_some(entry.simple)
}

/// Keeps `simple` for [`get`].
pub(crate) fn put(limiter: u64, version: u64, given: Option<PlanId>, simple: Simple) {
    AT_HAND.with(|at_hand| at_hand[place(limiter, given)].set(Some(Entry { limiter, version, given, simple })));
}
