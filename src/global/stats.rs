//! What a node has had to do with the authority so far.

/// Counts of one node, since it was started unless a line says otherwise. What they mean to a user is told in `snapshot.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(missing_docs, reason = "told in `FleetStats`")]
#[expect(clippy::exhaustive_structs, reason = "internal")]
pub struct Counts {
    /// Now.
    pub accounts: u64,
    pub batches: u64,
    pub records: u64,
    pub resends: u64,
    pub timeouts: u64,
    pub errors: u64,
    pub silences: u64,
    /// Ticks of the silences that are over.
    pub away: u64,
    pub gaps: u64,
    pub replayed_batches: u64,
    pub replayed_records: u64,
    pub lost_batches: u64,
    pub lost_keys: u64,
    /// Now.
    pub broken_keys: u64,
    pub granted: u64,
    pub returned: u64,
    pub stranded: u64,
    pub leased: u64,
    pub overdraft: u64,
    pub admitted_away: u64,
    pub missed: u64,
    pub full: u64,
    pub overshoot: u64,
}
