//! What a plan and a key have of global quotas. Without the feature `global` that is nothing, and costs nothing.

#[cfg(not(feature = "global"))]
mod off;
#[cfg(feature = "global")]
mod on;

#[cfg(not(feature = "global"))]
pub(crate) use off::*;
#[cfg(feature = "global")]
pub(crate) use on::*;
