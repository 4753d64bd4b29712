//! The only place that names atomics: the standard library's, or the model checker's.

#[cfg(loom)]
pub(crate) use self::stand_in::Backoff;
#[cfg(not(loom))]
pub(crate) use crossbeam_utils::Backoff;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// What loom can't see into.
#[cfg(loom)]
mod stand_in {
    /// Lets another thread run: a loop that waits for one would else never end.
    pub(crate) struct Backoff;

    impl Backoff {
        pub(crate) fn new() -> Self {
            Self
        }

        pub(crate) fn snooze(&self) {
            loom::thread::yield_now();
        }
    }
}
