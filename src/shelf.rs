//! The only place that names `arc-swap`.

use std::cell::Cell;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use thread_local::ThreadLocal;

/// One value with its version, which each thread keeps a reference to.
pub(crate) struct Shelf<T: Send + Sync> {
    newest: ArcSwapOption<(u64, T)>,
    at_hand: ThreadLocal<AtHand<T>>,
}

/// Empty while its thread uses the value, which may lead it here again.
type AtHand<T> = Cell<Option<Arc<(u64, T)>>>;

impl<T: Send + Sync> Shelf<T> {
    pub(crate) fn new() -> Self {
        Self { newest: ArcSwapOption::const_empty(), at_hand: ThreadLocal::new() }
    }

    /// The value, if there is one: the one of `version`, or a later one.
    // Out of line: most limiters are never reloaded.
    #[cold]
    pub(crate) fn get(&self, version: u64) -> Option<Held<'_, T>> {
        let cell = self.at_hand.get_or_default();
        let at_hand = cell.take().filter(|value| value.0 == version);
        let value = at_hand.or_else(|| self.newest.load_full())?;
        Some(Held { cell, value: Some(value) })
    }

    pub(crate) fn put(&self, value: Arc<(u64, T)>) {
        self.newest.store(Some(value));
    }
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
