//! What a limiter has done so far, in numbers.

use std::fmt;

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
    /// If this grows, there is an attack, or [`max_keys`](crate::Builder::max_keys) is too low.
    pub overflow: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, evictions, overflow } = self;
        write!(f, "{keys} keys, {evictions} evictions, {overflow} in overflow")
    }
}
