//! How requests in flight leave.

use super::way::{Way, plan_of};
use super::{COUNT, FixedStore};
use crate::plans::Plans;

impl<S> FixedStore<S> {
    /// Counts one request less in flight on the plan of that index, if there is one.
    pub(super) fn leave_on(&self, hash: u64, plan: u16) -> bool {
        let on_plan = |way: &Way<'_>| plan_of(way.tag) == plan;
        self.in_flight.is_some_and(|place| self.of_hash(hash).filter(on_plan).any(|way| leave(way, place)))
    }

    /// The same on whatever plan the key is by now: where that of the index went, or where the key was moved. Callers have the
    /// latch.
    pub(super) fn leave_any(&self, hash: u64, plans: &Plans, plan: u16) -> bool {
        self.leave_on(hash, plan)
            || self.leave_on(hash, plans.get(plan).index)
            || self.in_flight.is_some_and(|place| self.of_hash(hash).any(|way| leave(way, place)))
    }
}

/// Counts one request less in flight, if there is one.
pub(super) fn leave(way: Way<'_>, place: usize) -> bool {
    way.swap(place, |word| (word & COUNT > 0).then(|| word - 1))
}
