//! What the models run on: the model checker under `--cfg loom`, and else the standard library, once.
//!
//! `cargo test` in this folder sets the flag (`.cargo/config.toml`) and explores every interleaving up to the bound
//! in `LOOM_MAX_PREEMPTIONS`. `cargo test --workspace` at the top compiles every model and runs it once on plain
//! threads, so that no change to the library leaves a model behind.

pub mod keyed;

#[cfg(loom)]
pub use loom::{model, sync, thread};

#[cfg(not(loom))]
pub use std::{sync, thread};

/// Runs the model once.
#[cfg(not(loom))]
pub fn model(body: impl Fn() + Send + Sync + 'static) {
    body();
}

/// Runs a model that is too large for the bound that all others run under, with at most `preemptions`.
#[cfg(loom)]
pub fn model_within(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.map_or(preemptions, |bound| bound.min(preemptions)));
    builder.check(body);
}

/// Runs the model once.
#[cfg(not(loom))]
pub fn model_within(_: usize, body: impl Fn() + Send + Sync + 'static) {
    model(body);
}
