//! What the background thread tells as events, by way of `tracing`: each change of state once, whatever comes of it.

use std::collections::BTreeMap;

use super::authority::{AuthorityError, WireName};

/// A trouble that did not show for so long and is there again is a new one, in ticks: between two tries there are 2 s.
const CALM: u64 = crate::ticks::PER_NANO * 10_000_000_000;

/// A shard that was silent for longer does not notice that the authority has lost anything, in ticks.
const ONE_LOSS: u64 = crate::ticks::PER_NANO * 30_000_000_000;

/// What was told so far.
#[derive(Default)]
pub(super) struct Teller {
    /// Which fleet handle of this program tells it.
    node: u64,
    /// What the authority said when it failed a batch last.
    last_error: Option<String>,
    /// Troubles of the authority, and when each was seen last.
    troubles: BTreeMap<&'static str, u64>,
    /// When the loss was told that these shards have noticed.
    loss_at: Option<u64>,
    lossy_shards: Vec<u16>,
    broken: Vec<WireName>,
    mended: Vec<WireName>,
}

impl Teller {
    pub(super) fn new(node: u64) -> Self {
        Self { node, ..Self::default() }
    }

    pub(super) fn answered(&mut self) {
        self.last_error = None;
    }

    /// The authority has failed a batch.
    pub(super) fn failed(&mut self, error: &AuthorityError, now: u64) {
        self.last_error = Some(error.to_string());
        let Some(trouble) = error.trouble() else { return };
        let seen = self.troubles.insert(trouble, now);
        if seen.is_none_or(|seen| now > seen.saturating_add(CALM)) {
            tracing::warn!(target: "tollgate", node = self.node, trouble, %error, "the authority refuses what it is asked");
        }
    }

    pub(super) fn silent(&self) {
        let error = self.last_error.as_deref().unwrap_or("no answer in time");
        tracing::warn!(
            target: "tollgate",
            node = self.node,
            error,
            "the authority does not answer: leases last as long as they live, and then each global quota's `when_away` holds \
             until it is back"
        );
    }

    pub(super) fn back(&mut self) {
        self.troubles.clear();
        tracing::info!(target: "tollgate", node = self.node, "the authority answers again");
    }

    /// All shards that have something to say notice a loss, each once.
    pub(super) fn gap(&mut self, shard: u16, repaired: u64, lost: u64, now: u64) {
        let is_recent = self.loss_at.is_some_and(|at| now < at.saturating_add(ONE_LOSS));
        if is_recent && !self.lossy_shards.contains(&shard) {
            self.lossy_shards.push(shard);
            return;
        }
        (self.loss_at, self.lossy_shards) = (Some(now), vec![shard]);
        tracing::warn!(
            target: "tollgate",
            node = self.node,
            shard,
            repaired,
            lost,
            "the authority has lost what it was told: batches that are known still are told again, of this shard and of others, \
             which the statistics count; see whether it was flushed, restarted or failed over, or evicts"
        );
    }

    pub(super) fn broken(&mut self, name: WireName) {
        self.broken.push(name);
    }

    pub(super) fn mended(&mut self, name: WireName) {
        self.mended.push(name);
    }

    /// Tells of keys, which can be many at once.
    pub(super) fn tell_of_keys(&mut self) {
        if let Some(name) = self.broken.first() {
            tracing::warn!(
                target: "tollgate",
                node = self.node,
                keys = self.broken.len(),
                first = ?name,
                "the authority can't make sense of what it has under a key's name: `when_away` holds for that key, which is asked \
                 about again once a lease would have ended; keep other programs from writing there, by a prefix or a database of \
                 the fleet's own"
            );
            self.broken.clear();
        }
        if let Some(name) = self.mended.first() {
            let keys = self.mended.len();
            tracing::info!(target: "tollgate", node = self.node, keys, first = ?name, "a key that was broken is counted again");
            self.mended.clear();
        }
    }
}
