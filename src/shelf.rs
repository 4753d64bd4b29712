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

    /// Hands the value to `f`, if there is one: the one of `version`, or a later one.
    #[inline]
    pub(crate) fn with<R>(&self, version: u64, f: impl FnOnce(Option<&T>) -> R) -> R {
        let cell = self.at_hand.get_or_default();
        let value = match cell.take() {
            Some(value) if value.0 == version => Some(value),
            _ => self.newest.load_full(),
        };
        let answer = f(value.as_ref().map(|value| &value.1));
        cell.set(value);
        answer
    }

    pub(crate) fn put(&self, value: Arc<(u64, T)>) {
        self.newest.store(Some(value));
    }
}
