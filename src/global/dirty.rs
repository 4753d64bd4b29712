//! Ledgers with something to report, on their way from requests to the background thread.

use std::sync::Arc;

use super::ledger::Ledger;
use crate::sync::{ArrayQueue, AtomicU32, Ordering};

/// A bounded queue of ledgers. It never waits and never allocates, and what does not fit is not lost: the ledger stays
/// dirty, and the thread is told to look for those.
pub struct Dirty {
    queue: ArrayQueue<Arc<Ledger>>,
    /// Whether a ledger did not fit.
    was_full: AtomicU32,
}

impl Dirty {
    /// A queue of `capacity` ledgers, at least 1.
    pub fn new(capacity: usize) -> Self {
        Self { queue: ArrayQueue::new(capacity.max(1)), was_full: AtomicU32::new(0) }
    }

    /// Puts a ledger in whose dirty or urgent bit this caller has set.
    pub fn push(&self, ledger: &Arc<Ledger>) {
        if self.queue.push(Arc::clone(ledger)).is_err() {
            // Release: pairs with the swap in `take_was_full`. Whoever sees it also sees the dirty bit. A swap and not a store,
            // which would hide the dirty bit of whoever has set the flag before.
            self.was_full.swap(1, Ordering::Release);
        }
    }

    /// The ledger that has waited for longest.
    pub fn pop(&self) -> Option<Arc<Ledger>> {
        self.queue.pop()
    }

    /// Whether any ledger did not fit since this was asked last: then all that are dirty have to be looked for.
    pub fn take_was_full(&self) -> bool {
        // Acquire: see `push`.
        self.was_full.load(Ordering::Relaxed) != 0 && self.was_full.swap(0, Ordering::Acquire) != 0
    }

    /// How many ledgers wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl std::fmt::Debug for Dirty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dirty").field("len", &self.len()).finish_non_exhaustive()
    }
}
