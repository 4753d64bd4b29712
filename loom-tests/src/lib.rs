//! What the models run on: the model checker under `--cfg loom`, and else the standard library, once.
//!
//! `cargo test` in this folder sets the flag (`.cargo/config.toml`) and explores every interleaving up to the bound
//! in `LOOM_MAX_PREEMPTIONS`. `cargo test --workspace` at the top compiles every model and runs it once on plain
//! threads, so that no change to the library leaves a model behind.

#[cfg(loom)]
pub use loom::{model, sync, thread};

#[cfg(not(loom))]
pub use std::{sync, thread};

/// Runs the model once.
#[cfg(not(loom))]
pub fn model(body: impl Fn() + Send + Sync + 'static) {
    body();
}
