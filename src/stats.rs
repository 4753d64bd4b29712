//! What a limiter has done so far, in numbers.

use std::fmt;

use crate::sync::{AtomicU64, Ordering};

/// A snapshot of a limiter's counts, for a gauge or a log line.
///
/// More counts will come.
///
/// ```
/// use tollgate::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_second(5))?;
/// assert!(limiter.check("alice").is_allowed());
/// assert_eq!(limiter.stats().to_string(), "1 keys, 0 evictions, 0 in overflow");
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Keys that are known now.
    pub keys: u64,
    /// Idle keys that were dropped since the limiter was made.
    pub evictions: u64,
    /// Checks since the limiter was made of keys for which there was no room, and which shared the overflow bucket.
    /// If this grows, there is an attack, or [`max_keys`](crate::Builder::max_keys), or what the store was
    /// [expected](crate::Builder::fixed) to hold, is too low.
    pub overflow: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, evictions, overflow } = self;
        write!(f, "{keys} keys, {evictions} evictions, {overflow} in overflow")
    }
}

/// What has happened on one plan so far.
///
/// More counts will come.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PlanStats {
    /// What the plan is called.
    pub plan: String,
    /// Checks of keys for which there was no room, and which shared the overflow bucket of the plan.
    pub overflow: u64,
    /// Checks in shadow mode that were allowed on their own merit.
    pub shadow_allowed: u64,
    /// Checks in shadow mode that would have been denied.
    pub shadow_denied: u64,
}

impl fmt::Display for PlanStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, overflow, shadow_allowed, shadow_denied } = self;
        write!(f, "{plan}: {overflow} in overflow, in shadow mode {shadow_allowed} allowed and {shadow_denied} denied")
    }
}

/// The counters behind [`PlanStats`].
#[derive(Default, Debug)]
pub(crate) struct PlanCounts {
    pub(crate) overflow: AtomicU64,
    pub(crate) shadow_allowed: AtomicU64,
    pub(crate) shadow_denied: AtomicU64,
}

impl PlanCounts {
    pub(crate) fn read(&self, plan: &str) -> PlanStats {
        // Relaxed: each count is for itself.
        let [overflow, shadow_allowed, shadow_denied] =
            [&self.overflow, &self.shadow_allowed, &self.shadow_denied].map(|count| count.load(Ordering::Relaxed));
        PlanStats { plan: plan.to_owned(), overflow, shadow_allowed, shadow_denied }
    }
}

/// One more of something.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
