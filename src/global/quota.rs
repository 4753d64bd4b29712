//! A quota that a whole fleet shares, as the user describes it, and as ledgers and protocol use it.

use std::sync::Arc;
use std::time::Duration;

use super::authority::Rule;
use super::ledger::MAX_OVERDRAFT;
use crate::error::BuildError;
use crate::quota::{Quota, QuotaTicks};
use crate::unit::Unit;

/// A quota that all nodes of a fleet share.
///
/// In any window of its length, a fleet admits at most `limit` units of a key with an [`overdraft`](Self::overdraft) of
/// 0, and at most `limit + nodes × overdraft` otherwise, while the authority answers. What holds when it does not is up to
/// [`when_away`](Self::when_away).
///
/// ```
/// use std::time::Duration;
/// use tollgate::global::{GlobalQuota, WhenAway};
///
/// let quota = GlobalQuota::sliding_window(6_000, Duration::from_secs(60)).nodes(8).when_away(WhenAway::Deny);
/// assert_eq!(quota.limit(), 6_000);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GlobalQuota {
    /// Of a window: as many units as its limit in each of its lengths.
    quota: Quota,
    window: bool,
    smooth: bool,
    subs: Option<u16>,
    overdraft: Option<Overdraft>,
    when_away: WhenAway,
    nodes: Option<u32>,
}

/// What a node admits while the authority does not answer, once its leases are over.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, Debug)]
#[non_exhaustive]
pub enum WhenAway {
    /// Its share: the limit by the number of nodes that there were last, less what it has itself admitted within the
    /// window. A node that has never heard the authority takes itself for the only one, unless it is told how many
    /// [nodes](GlobalQuota::nodes) there are.
    #[default]
    Local,
    /// Everything.
    Allow,
    /// Nothing.
    Deny,
}

/// How much a node may admit of a key without a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Overdraft {
    /// So many units.
    Units(u32),
    /// So many millionths of the limit, rounded down.
    Ppm(u32),
}

impl From<u32> for Overdraft {
    fn from(units: u32) -> Self {
        Self::Units(units)
    }
}

/// A fraction of the limit, to the millionth, from 0 to 1.
impl From<f64> for Overdraft {
    fn from(fraction: f64) -> Self {
        // A cast of a float saturates.
        Self::Ppm((fraction * 1e6).round() as u32)
    }
}

impl Overdraft {
    fn of(self, limit: u32) -> u32 {
        match self {
            Self::Units(units) => units,
            Self::Ppm(ppm) => (u64::from(limit) * u64::from(ppm.min(1_000_000)) / 1_000_000) as u32,
        }
    }
}

impl GlobalQuota {
    /// At most `limit` units in any window of the length `window`.
    ///
    /// The window slides in steps of a sub-window, of which it has one for each 500 ms, and from 10 to 120, unless
    /// [`sub_windows`](Self::sub_windows) says otherwise: a unit is free again after `window` plus one step at the latest.
    /// A sub-window must be no shorter than 2.5 times the [interval](super::FleetBuilder::interval), so with 100 ms the
    /// shortest window is 2.5 s. For less take a [`token_bucket`](Self::token_bucket).
    ///
    /// The limit is from 1 to 2^32 - 1 units.
    pub const fn sliding_window(limit: u64, window: Duration) -> Self {
        Self::new(Quota::new(limit, window), true)
    }

    /// A bucket that the fleet shares: in any time *t* it admits at most `burst + rate × (t + 2 × life)` units, where *life* is
    /// how long a lease lives: a tenth of the time that an empty bucket takes to fill, and from 5 intervals to 2 s.
    ///
    /// A lease of a bucket is not prolonged but replaced, and what is left of it is missing for an interval: with many nodes
    /// that ask for little, up to a third of the rate is not admitted. A sliding window wastes less.
    ///
    /// Unit and name of the quota are those of this one. Its rate must not be 0.
    pub const fn token_bucket(quota: Quota) -> Self {
        Self::new(quota, false)
    }

    const fn new(quota: Quota, window: bool) -> Self {
        Self { quota, window, smooth: false, subs: None, overdraft: None, when_away: WhenAway::Local, nodes: None }
    }

    /// What a node may admit of a key for which it holds no lease, while it asks for one: a number of units, or a
    /// fraction of the limit.
    ///
    /// With 0 the limit is never exceeded, and the first request of a key is denied by a plain check, or waits one round
    /// trip with [`acquire_global`](crate::Limiter::acquire_global). With more, it is admitted at once, and the fleet may
    /// exceed the limit by as much on each node. By default it is the smaller of 1 % of the limit and 2 % by the number of
    /// nodes, at least one unit, and 0 where one unit on each node would exceed the limit. While the number of nodes is not
    /// known, it is one unit, and 0 for limits under 10.
    #[must_use]
    pub fn overdraft(self, overdraft: impl Into<Overdraft>) -> Self {
        Self { overdraft: Some(overdraft.into()), ..self }
    }

    /// What holds while the authority does not answer, [`WhenAway::Local`] by default.
    #[must_use]
    pub const fn when_away(self, when_away: WhenAway) -> Self {
        Self { when_away, ..self }
    }

    /// How many nodes there are, if that is known: else the authority counts those it has heard of lately.
    #[must_use]
    pub const fn nodes(self, nodes: u32) -> Self {
        Self { nodes: Some(nodes), ..self }
    }

    /// How many sub-windows a sliding window has, at least 10: more of them waste less of a window that is used in bursts, and
    /// cost the authority memory, 4 bytes each for a key.
    #[must_use]
    pub const fn sub_windows(self, subs: u16) -> Self {
        Self { subs: Some(subs), ..self }
    }

    /// Counts of the oldest sub-window only the part that is still in the window. Less is wasted when traffic comes in
    /// bursts; in exchange the limit may be exceeded by what fell into one sub-window.
    #[must_use]
    pub const fn smooth(self) -> Self {
        Self { smooth: true, ..self }
    }

    /// The same quota, of units of another kind: requests unless this says otherwise.
    #[must_use]
    pub const fn unit(self, unit: Unit) -> Self {
        Self { quota: self.quota.unit(unit), ..self }
    }

    /// The same quota under a name of its own. Nodes that have a quota of this name, geometry and secret share it, in
    /// whatever plan they have it. Otherwise it is called after its plan, its unit and its window.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Self {
        Self { quota: self.quota.named(name), ..self }
    }

    /// The most units there can be at once.
    pub const fn limit(&self) -> u64 {
        self.quota.limit()
    }

    /// What is counted.
    pub const fn counted(&self) -> Unit {
        self.quota.counted()
    }

    /// What it is called within its plan.
    pub(crate) fn label(&self) -> String {
        match self.quota.is_named() {
            true => self.quota.name().into_owned(),
            false => format!("fleet {}", self.quota.name()),
        }
    }

    /// What a node may admit without a lease if there are so many nodes.
    fn overdraft_of(&self, limit: u32, nodes: Option<u32>) -> u32 {
        let units = match (self.overdraft, nodes) {
            (Some(overdraft), _) => overdraft.of(limit),
            (None, Some(nodes)) if nodes > limit => 0,
            (None, Some(nodes)) => (limit / 100).min(limit / 50 / nodes.max(1)).max(1),
            (None, None) => u32::from(limit >= 10),
        };
        units.min(MAX_OVERDRAFT)
    }

    /// Compiles it for the plan called `plan` and a fleet of that interval.
    #[doc(hidden)]
    pub fn compile(self, plan: &str, interval: Duration) -> Result<QuotaRef, BuildError> {
        let quota = self.quota;
        let ticks = QuotaTicks::new(quota)?;
        let Ok(limit) = u32::try_from(quota.limit()) else { return Err(BuildError::GlobalLimitTooLarge { quota }) };
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let rule = if self.window {
            let shortest = interval * 5 / 2;
            let most = quota.period().as_nanos() / shortest.as_nanos().max(1);
            if most < u128::from(MIN_SUBS) {
                return Err(BuildError::GlobalWindowTooShort { quota, shortest: shortest * u32::from(MIN_SUBS) });
            }
            let usual = (quota.period().as_millis() / 500).clamp(u128::from(MIN_SUBS), u128::from(MAX_SUBS)).min(most);
            let subs = self.subs.unwrap_or(usual as u16);
            if subs < MIN_SUBS || u128::from(subs) > most {
                let most = u16::try_from(most).unwrap_or(u16::MAX);
                return Err(BuildError::BadSubWindows { quota, subs, most });
            }
            // Rounded up: a window is never shorter than it is said to be.
            let sub = quota.period().as_nanos().div_ceil(1_000 * u128::from(subs)) as u64;
            Rule::Window { limit, sub, subs, smooth: self.smooth }
        } else {
            let Ok(units) = u32::try_from(quota.rate()) else { return Err(BuildError::GlobalLimitTooLarge { quota }) };
            if units == 0 {
                return Err(BuildError::GlobalRateZero { quota });
            }
            let fill = ticks.fill_time().unwrap_or(Duration::MAX);
            let life = (fill / 10).min(Duration::from_secs(2)).max(interval * 5);
            Rule::Bucket { burst: limit, units, period: micros(quota.period()).max(1), life: micros(life) }
        };
        if let (Some(overdraft), Some(nodes)) = (self.overdraft, self.nodes) {
            let overdraft = overdraft.of(limit);
            if u64::from(overdraft) * u64::from(nodes) > u64::from(limit) {
                return Err(BuildError::OverdraftTooLarge { quota, overdraft, nodes });
            }
        }
        // The rule is part of the name: what is counted otherwise is another thing.
        let own = if quota.is_named() { quota.name().into_owned() } else { format!("{plan}/{}", quota.name()) };
        let geometry = match rule {
            Rule::Window { sub, subs, .. } => format!("w{sub}x{subs}"),
            Rule::Bucket { life, .. } => format!("b{life}"),
        };
        let scope = format!("{own}\0{}\0{geometry}", quota.counted());
        Ok(Arc::new(FleetQuota { described: self, label: self.label().into(), scope, rule, ticks }))
    }

    /// What is worth a second thought.
    pub(crate) fn warning(&self, plan: &str) -> Option<Warning> {
        let (limit, nodes) = (u32::try_from(self.limit()).ok()?, self.nodes?);
        let overshoot = u64::from(self.overdraft?.of(limit)) * u64::from(nodes);
        (overshoot * 50 > u64::from(limit)).then(|| Warning {
            plan: plan.to_owned(),
            quota: self.label(),
            overshoot,
            limit: u64::from(limit),
        })
    }
}

/// The least number of sub-windows: a unit comes back late by a tenth of the window at most.
const MIN_SUBS: u16 = 10;

/// The most that a window has unless told otherwise.
const MAX_SUBS: u16 = 120;

/// Something about a policy that is legal and may not be meant.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Warning {
    /// Which plan.
    pub plan: String,
    /// Which of its quotas.
    pub quota: String,
    /// By how many units the fleet may exceed the limit, all nodes together.
    pub overshoot: u64,
    /// The limit in units.
    pub limit: u64,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { plan, quota, overshoot, limit } = self;
        write!(
            f,
            "the nodes together may exceed {quota} of plan {plan} by {overshoot} units, over 2 % of its limit of {limit}: \
             give it a smaller overdraft, or 0 and let callers wait with acquire_global"
        )
    }
}

/// A global quota of a plan.
pub type QuotaRef = Arc<FleetQuota>;

/// A global quota as ledgers and protocol use it.
#[derive(PartialEq, Eq, Debug)]
pub struct FleetQuota {
    described: GlobalQuota,
    label: Arc<str>,
    /// What keys of it are named within.
    scope: String,
    rule: Rule,
    /// As a bucket, for the numbers of decisions.
    ticks: QuotaTicks,
}

impl FleetQuota {
    pub(crate) const fn label(&self) -> &Arc<str> {
        &self.label
    }

    pub(crate) fn scope(&self) -> &str {
        &self.scope
    }

    pub(crate) const fn rule(&self) -> Rule {
        self.rule
    }

    pub(crate) const fn ticks(&self) -> &QuotaTicks {
        &self.ticks
    }

    pub(crate) const fn counted(&self) -> Unit {
        self.described.counted()
    }

    pub(crate) const fn limit(&self) -> u32 {
        self.rule.limit()
    }

    pub(crate) const fn when_away(&self) -> WhenAway {
        self.described.when_away
    }

    /// The number of nodes, where it is given.
    pub(crate) const fn nodes(&self) -> Option<u32> {
        self.described.nodes
    }

    /// What a node may admit without a lease, given how many nodes the authority knows of.
    pub(crate) fn overdraft(&self, heard: Option<u32>) -> u32 {
        self.described.overdraft_of(self.limit(), self.nodes().or(heard))
    }

    pub(crate) fn overdraft_at_first(&self) -> u32 {
        self.overdraft(None)
    }

    /// The time in which what was admitted counts, in microseconds.
    pub(crate) fn window(&self) -> u64 {
        match self.rule {
            Rule::Window { sub, subs, .. } => sub * u64::from(subs),
            Rule::Bucket { .. } => self.rule.memory(),
        }
    }
}
