//! What a plan and a key have of global quotas. Without the feature `global` that is nothing, and costs nothing.

#[cfg(not(feature = "global"))]
mod off;
#[cfg(feature = "global")]
mod on;

#[cfg(not(feature = "global"))]
pub(crate) use off::*;
#[cfg(feature = "global")]
pub(crate) use on::*;

use crate::decision::{Cause, Source};

/// Whose ledgers these are.
pub(crate) enum Who<'a, K: ?Sized> {
    Key(&'a K, Write<K>),
    /// All keys for which there is no room.
    Overflow,
}

impl<K: ?Sized> Clone for Who<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: ?Sized> Copy for Who<'_, K> {}

/// What a global quota refuses by.
pub(crate) struct Refused {
    /// Which quota of the plan.
    pub(crate) quota: usize,
    pub(crate) cause: Cause,
    pub(crate) source: Source,
}
