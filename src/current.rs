//! What is in force now, and changes seldom, at the price of one load.
//!
//! `ArcSwap::load` costs 17 ns, half of a decision. So what a limiter was made with stays where it is, and is used without
//! further ado until something takes its place. From then on each thread keeps a reference to what it used last, and goes
//! to the swap only when the version has changed.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::sync::{AtomicU64, Held, Ordering, Shelf};

/// A value that is replaced while others use it.
pub(crate) struct Current<T: Send + Sync> {
    /// 0 until the first replacement, and one more with each.
    version: AtomicU64,
    first: T,
    later: Shelf<T>,
}

impl<T: Send + Sync> Current<T> {
    pub(crate) fn new(first: T) -> Self {
        Self { version: AtomicU64::new(0), first, later: Shelf::new() }
    }

    /// The value of [`version`](Self::version), or a later one if that has changed meanwhile.
    #[inline]
    pub(crate) fn get(&self) -> InForce<'_, T> {
        let version = self.version();
        let later = if version == 0 { None } else { self.later.get(version) };
        InForce { first: &self.first, later }
    }

    /// The first value, while it is the only one. Nothing is held then that would have to be let go of: 20 instructions.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<&T> {
        (self.version() == 0).then_some(&self.first)
    }

    /// How often the value has been replaced.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        // Acquire: pairs with the store in `replace`. Who sees the version also finds the value.
        self.version.load(Ordering::Acquire)
    }

    /// Whether `version` is the current one.
    #[inline]
    pub(crate) fn is(&self, version: u64) -> bool {
        self.version() == version
    }

    /// Puts `value` in force as `version`, which is one more than the last. Callers take turns.
    pub(crate) fn replace(&self, version: u64, value: T) {
        self.later.put(Arc::new((version, value)));
        // Release: pairs with the load in `version`.
        self.version.store(version, Ordering::Release);
    }
}

/// The value that was in force a moment ago, and is there for as long as this is.
pub(crate) struct InForce<'a, T: Send + Sync> {
    first: &'a T,
    later: Option<Held<'a, T>>,
}

impl<T: Send + Sync> Deref for InForce<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.later.as_ref().and_then(Held::get).unwrap_or(self.first)
    }
}

impl<T: Send + Sync> fmt::Debug for Current<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").field("version", &self.version()).finish_non_exhaustive()
    }
}
