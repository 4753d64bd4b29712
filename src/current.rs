//! What is in force now, and changes seldom.
//!
//! `ArcSwap::load` costs 17 ns, half of a decision. So what a limiter was made with is found by one load until something takes
//! its place, if it may be kept for as long as the limiter. From then on it takes the swap, but for checks that need no more than
//! their thread has [at hand](crate::sync::at_hand).

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::sync::{AtomicU64, Held, Ordering, Shelf};

/// A value that is replaced while others use it. One that is not in force any more is dropped by its last user.
pub(crate) struct Current<T> {
    /// 0 until the first replacement, and one more with each.
    version: AtomicU64,
    /// The first value, where it is kept.
    first: Option<Arc<(u64, T)>>,
    newest: Shelf<T>,
    /// A random number that tells these values from those of others.
    id: u64,
}

impl<T> Current<T> {
    /// The first value is kept for as long as this is if `is_kept` says so, in force or not.
    pub(crate) fn new(first: T, is_kept: bool) -> Self {
        let first = Arc::new((0, first));
        let newest = Shelf::new(&first);
        Self { version: AtomicU64::new(0), first: is_kept.then_some(first), newest, id: crate::hasher::random() }
    }

    /// The value in force.
    #[inline]
    pub(crate) fn get(&self) -> InForce<'_, T> {
        match self.only() {
            Some(first) => InForce::First(first),
            None => self.get_newest(),
        }
    }

    // Out of line: most limiters are never reloaded.
    #[cold]
    fn get_newest(&self) -> InForce<'_, T> {
        loop {
            let version = self.version();
            let held = self.newest.get(version);
            // Another one only where the version has changed in between.
            if held.version() == version {
                return InForce::Newest(held);
            }
        }
    }

    /// The first value, while it is the only one, if it is kept. Nothing is held then that would have to be let go of: 20
    /// instructions.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<&T> {
        match &self.first {
            Some(first) if self.version() == 0 => Some(&first.1),
            _ => None,
        }
    }

    /// How often the value has been replaced.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        // Acquire: pairs with the store in `replace`. A reader of the version also finds the value.
        self.version.load(Ordering::Acquire)
    }

    /// Whether `version` is the current one.
    #[inline]
    pub(crate) fn is(&self, version: u64) -> bool {
        self.version() == version
    }

    /// Returns the number that tells this from all others.
    #[inline]
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// Puts `value` in force as `version`, which is one more than the last. Callers take turns.
    pub(crate) fn replace(&self, version: u64, value: T) {
        let value = Arc::new((version, value));
        self.newest.put(version, Arc::clone(&value));
        // Release: pairs with the load in `version`.
        self.version.store(version, Ordering::Release);
        // In the place of the last one, which nothing else keeps from here on.
        self.newest.put(version - 1, value);
    }
}

/// The value that was in force a moment ago, and is there for as long as this is.
pub(crate) enum InForce<'a, T> {
    First(&'a T),
    Newest(Held<T>),
}

impl<T> Deref for InForce<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match self {
            Self::First(first) => first,
            Self::Newest(held) => held.get(),
        }
    }
}

impl<T> fmt::Debug for Current<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").field("version", &self.version()).finish_non_exhaustive()
    }
}
