//! How requests in flight leave.

use super::way::{Way, plan_of};
use super::{COUNT, FixedStore};

impl<S> FixedStore<S> {
    /// Counts one request less in flight on a plan whose index `is_meant`, if there is one.
    pub(super) fn leave_on(&self, hash: u64, is_meant: impl Fn(u16) -> bool) -> bool {
        let of_plan = |way: &Way<'_>| is_meant(plan_of(way.tag));
        self.in_flight.is_some_and(|place| self.of_hash(hash).filter(of_plan).any(|way| leave(way, place)))
    }
}

/// Counts one request less in flight, if there is one.
pub(super) fn leave(way: Way<'_>, place: usize) -> bool {
    way.swap(place, |word| (word & COUNT > 0).then(|| word - 1))
}
