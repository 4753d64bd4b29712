//! What a node has had to do with the authority so far.

/// Counts of one node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(missing_docs, reason = "internal as yet")]
#[expect(clippy::exhaustive_structs, reason = "internal")]
pub struct Counts {
    pub accounts: u64,
    pub batches: u64,
    pub records: u64,
    pub resends: u64,
    pub timeouts: u64,
    pub errors: u64,
    pub silences: u64,
    pub gaps: u64,
    pub lost_batches: u64,
    pub lost_keys: u64,
    pub broken: u64,
    pub granted: u64,
    pub returned: u64,
    pub overdraft: u64,
    pub away_granted: u64,
}
