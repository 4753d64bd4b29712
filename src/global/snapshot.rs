//! What a node has had to do with the authority, as a user sees it.

use std::time::Duration;

use super::protocol::Protocol;
use crate::ticks::to_duration;

/// What a node has had to do with the authority, for a gauge or a log line: a snapshot of [`Fleet::stats`](super::Fleet::stats).
///
/// All values are of one instant, at most an [interval](super::FleetBuilder::interval) ago as long as the fleet's thread runs.
/// Those that count do so since the fleet was started and never go down by more than what is given back; the others say so.
/// Units are those that global quotas count, all of them together. What [`check_exact`](crate::Limiter::check_exact) spends is in
/// `batches` and `records` only.
///
/// ```
/// use tollgate::global::{BreakerState, Fleet, MemoryAuthority};
///
/// let fleet = Fleet::builder(MemoryAuthority::new()).start()?;
/// let stats = fleet.stats();
/// if stats.breaker != BreakerState::Closed {
///     println!("on its own for {:?} so far", stats.away);
/// }
/// if let Some(ratio) = stats.lease_hit_ratio() {
///     println!("{:.1} % of what was asked for found a lease", 100.0 * ratio);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct FleetStats {
    /// Keys with which something is going on, now.
    pub active_keys: u64,
    /// Keys of which the authority can't make sense, now: another program has written under their names. For each of them this
    /// node does what [`WhenAway`](super::WhenAway) says.
    pub broken_keys: u64,
    /// Keys that wait for the thread to look at them, now: no more than `dirty_bound`.
    pub dirty: u64,
    /// Keys that may wait, half of them in each of two queues: of those that are urgent and of the others. Those for which
    /// there is no room are not lost: the thread looks through all keys for them.
    pub dirty_bound: u64,
    /// How often the thread looked through all keys, since there was no room in a queue.
    pub dirty_full: u64,
    /// Nodes that the authority has heard of lately, this one among them, as of its last answer; 0 before the first.
    pub nodes: u32,

    /// The round trip to the authority, smoothed as TCP does it; zero before the first answer. Batches that were sent again are
    /// left out, since nobody knows which try was answered.
    pub round_trip: Duration,
    /// The longest that a batch took from when it was first sent until it was answered, resends and silences included, in the
    /// last one to two minutes.
    pub round_trip_worst: Duration,
    /// Whether batches are sent, now.
    pub breaker: BreakerState,
    /// Whether the authority does not answer, now: whether the breaker is other than closed.
    pub is_silent: bool,
    /// How often the authority fell silent: two tries in a row failed, or were not answered in time.
    pub silences: u64,
    /// For how long it has been silent, all of that together and the present silence included: from when the first batch was
    /// sent that was not answered, until there was an answer.
    pub away: Duration,

    /// Batches sent, those that were sent again among them.
    pub batches: u64,
    /// Batches that were sent again. Each counts once at the authority, however often it comes.
    pub resent: u64,
    /// Reports and questions sent, each about one key; those that were sent again count once.
    pub records: u64,
    /// Batches that were not answered in time.
    pub timeouts: u64,
    /// Batches that the authority failed.
    pub errors: u64,

    /// How often the authority had lost what it was told, by shard: one flush is seen by each shard that had something to say
    /// in the last 30 s.
    pub gaps: u64,
    /// Batches that were told again after a gap, in the form of the records below.
    pub replayed_batches: u64,
    /// Records that tell again what the authority had lost, after a gap or of a key alone.
    pub replayed_records: u64,
    /// Batches that it had lost and that were not known any more, since they were more than 10 s old: what those admitted may be
    /// admitted once more while it is in the window. Batches that are in no window any more are counted as well.
    pub lost_batches: u64,
    /// Keys that the authority had lost alone, by eviction for example.
    pub lost_keys: u64,

    /// Units granted by the authority.
    pub granted: u64,
    /// Units that were given back unspent, as far as the authority has answered.
    pub returned: u64,
    /// Units of leases that ended with the units unspent: nobody could spend them meanwhile. Those of a window are given back
    /// right after, and in `returned` then; those of a bucket come back with its rate.
    pub stranded: u64,
    /// Units that leases admitted.
    pub leased: u64,
    /// Units that were admitted without a lease, on overdraft.
    pub overdraft: u64,
    /// Units that this node admitted on its own authority while the authority was silent, or broken for the key.
    pub admitted_away: u64,
    /// Units that were refused for want of a lease. Counted when the thread looks at the key, and without a lock: of those that
    /// several threads are refused at once, some may be missing.
    pub missed: u64,
    /// Units that were refused without asking, since the window was known to be full. Counted as `missed` is, but the thread may
    /// look at the key only when its window has room again.
    pub full: u64,
    /// Units that this node told as admitted without a lease when the authority had nothing left: the most by which it has gone
    /// beyond limits. What is admitted again after a loss of the authority's is not in here, and neither is what other nodes add.
    pub overshoot: u64,
}

impl FleetStats {
    /// Of the units that were asked for while there was room as far as was known, the share that a lease admitted at once:
    /// `leased / (leased + overdraft + missed)`, since the fleet was started. `None` if there were none. For the time between two
    /// snapshots, work it out from the differences.
    pub fn lease_hit_ratio(&self) -> Option<f64> {
        let all = self.leased + self.overdraft + self.missed;
        (all > 0).then(|| self.leased as f64 / all as f64)
    }
}

/// Whether batches are sent to the authority.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum BreakerState {
    /// They are: it answers, as far as is known.
    #[default]
    Closed,
    /// It does not answer, and none is sent before the next try, which is made after 50 ms to 2 s.
    Open,
    /// It does not answer, and one is under way to find out whether it does.
    HalfOpen,
}

/// What the queues of ledgers are like.
#[derive(Clone, Copy, Default, Debug)]
#[expect(clippy::exhaustive_structs, reason = "internal")]
pub struct Depths {
    /// Ledgers in them.
    pub dirty: u64,
    /// The most that they can hold.
    pub bound: u64,
    /// How often one was found to have been full.
    pub full: u64,
}

/// What `protocol` shows at `now`.
pub fn snapshot(protocol: &Protocol, depths: Depths, now: u64) -> FleetStats {
    let counts = &protocol.counts;
    let breaker = match (protocol.is_silent(), protocol.is_probing()) {
        (false, _) => BreakerState::Closed,
        (true, false) => BreakerState::Open,
        (true, true) => BreakerState::HalfOpen,
    };
    FleetStats {
        active_keys: counts.accounts,
        broken_keys: counts.broken_keys,
        dirty: depths.dirty,
        dirty_bound: depths.bound,
        dirty_full: depths.full,
        nodes: protocol.nodes().unwrap_or(0),
        round_trip: to_duration(protocol.round_trip()),
        round_trip_worst: to_duration(protocol.slowest(now)),
        breaker,
        is_silent: protocol.is_silent(),
        silences: counts.silences,
        away: to_duration(protocol.away(now)),
        batches: counts.batches,
        resent: counts.resends,
        records: counts.records,
        timeouts: counts.timeouts,
        errors: counts.errors,
        gaps: counts.gaps,
        replayed_batches: counts.replayed_batches,
        replayed_records: counts.replayed_records,
        lost_batches: counts.lost_batches,
        lost_keys: counts.lost_keys,
        granted: counts.granted,
        returned: counts.returned,
        stranded: counts.stranded,
        leased: counts.leased,
        overdraft: counts.overdraft,
        admitted_away: counts.admitted_away,
        missed: counts.missed,
        full: counts.full,
        overshoot: counts.overshoot,
    }
}
