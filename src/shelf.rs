//! The only place that names `arc-swap`.

use std::cell::Cell;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use thread_local::ThreadLocal;

/// One value with its version, which each thread keeps a reference to.
pub(crate) struct Shelf<T: Send + Sync> {
    /// By the parity of the version: one that is put here and not in force yet leaves the one in force where it is.
    newest: [ArcSwapOption<(u64, T)>; 2],
    at_hand: ThreadLocal<AtHand<T>>,
}

/// Empty while its thread uses the value, which may lead it here again.
type AtHand<T> = Cell<Option<Arc<(u64, T)>>>;

impl<T: Send + Sync> Shelf<T> {
    pub(crate) fn new() -> Self {
        Self { newest: [const { ArcSwapOption::const_empty() }; 2], at_hand: ThreadLocal::new() }
    }

    /// The value of `version`, or a later one if that is not in force any more.
    // Out of line: most limiters are never reloaded.
    #[cold]
    pub(crate) fn get(&self, version: u64) -> Option<Held<'_, T>> {
        let cell = self.at_hand.get_or_default();
        let at_hand = cell.take().filter(|value| value.0 == version);
        let value = at_hand.or_else(|| self.newest[parity(version)].load_full())?;
        Some(Held { cell, value: Some(value) })
    }

    pub(crate) fn put(&self, value: Arc<(u64, T)>) {
        self.newest[parity(value.0)].store(Some(value));
    }
}

const fn parity(version: u64) -> usize {
    (version % 2) as usize
}

/// The value, in the hands of one thread.
pub(crate) struct Held<'a, T> {
    cell: &'a AtHand<T>,
    /// `None` in the end only.
    value: Option<Arc<(u64, T)>>,
}

impl<T> Held<'_, T> {
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_deref().map(|(_, value)| value)
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.cell.set(self.value.take());
    }
}
