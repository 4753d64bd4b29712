//! The only place that names `arc-swap`.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

/// The newest values with their versions, by the parity of the version: one that is put here and not in force yet leaves the one
/// in force where it is.
pub(crate) struct Shelf<T>([ArcSwap<(u64, T)>; 2]);

impl<T> Shelf<T> {
    pub(crate) fn new(first: &Arc<(u64, T)>) -> Self {
        Self([(); 2].map(|()| ArcSwap::new(Arc::clone(first))))
    }

    /// The value that was put in the place of `version`. It costs no write to anything that threads share, and works while the
    /// thread-locals of a thread are destroyed.
    #[inline]
    pub(crate) fn get(&self, version: u64) -> Held<T> {
        Held(self.0[parity(version)].load())
    }

    /// Puts `value` in the place of `version`.
    pub(crate) fn put(&self, version: u64, value: Arc<(u64, T)>) {
        self.0[parity(version)].store(value);
    }
}

const fn parity(version: u64) -> usize {
    (version % 2) as usize
}

/// A value that is there for as long as this is.
pub(crate) struct Held<T>(Guard<Arc<(u64, T)>>);

impl<T> Held<T> {
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.0.0
    }

    #[inline]
    pub(crate) fn get(&self) -> &T {
        &self.0.1
    }
}
