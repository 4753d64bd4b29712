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
    // A thread that waits for another looks again and again: some orders are longer than the default lets them be.
    builder.max_branches = builder.max_branches.max(20_000);
    builder.check(body);
}

/// Runs the model once.
#[cfg(not(loom))]
pub fn model_within(_: usize, body: impl Fn() + Send + Sync + 'static) {
    model(body);
}

/// Who of two runs on a thread of its own.
///
/// Loom starts from the order in which the main thread goes on for as long as it can, and looks for others where two
/// accesses conflict. But of each atomic and lock it remembers the last access only: who reads, and then writes, hides
/// that write from whoever has read before, and orders are passed by. So a model has to start from both.
#[derive(Clone, Copy, Debug)]
pub struct Race {
    swapped: bool,
}

impl Race {
    /// Runs the model from both orders.
    pub fn model(body: impl Fn(Self) + Copy + Send + Sync + 'static) {
        for swapped in [false, true] {
            model(move || body(Self { swapped }));
        }
    }

    /// Runs the model from both orders, with at most `preemptions`.
    pub fn model_within(preemptions: usize, body: impl Fn(Self) + Copy + Send + Sync + 'static) {
        for swapped in [false, true] {
            model_within(preemptions, move || body(Self { swapped }));
        }
    }

    /// Runs both at once.
    #[allow(clippy::expect_used, reason = "a panic is passed on")]
    pub fn run<T: Clone + Send + 'static, A: Send + 'static, B: Send + 'static>(
        self,
        with: &T,
        a: impl FnOnce(&T) -> A + Send + 'static,
        b: impl FnOnce(&T) -> B + Send + 'static,
    ) -> (A, B) {
        let other = with.clone();
        if self.swapped {
            let thread = thread::spawn(move || a(&other));
            let b = b(with);
            (thread.join().expect("no model panics"), b)
        } else {
            let thread = thread::spawn(move || b(&other));
            (a(with), thread.join().expect("no model panics"))
        }
    }

    /// Runs two on threads of their own, and the third here: first, or when the others have come as far as they can.
    #[allow(clippy::expect_used, reason = "a panic is passed on")]
    pub fn run_three<T: Clone + Send + 'static, A: Send + 'static, B: Send + 'static, C>(
        self,
        with: &T,
        a: impl FnOnce(&T) -> A + Send + 'static,
        b: impl FnOnce(&T) -> B + Send + 'static,
        here: impl FnOnce(&T) -> C,
    ) -> (A, B, C) {
        let (for_a, for_b) = (with.clone(), with.clone());
        let (a, b) = (thread::spawn(move || a(&for_a)), thread::spawn(move || b(&for_b)));
        if self.swapped {
            thread::yield_now();
        }
        let here = here(with);
        (a.join().expect("no model panics"), b.join().expect("no model panics"), here)
    }
}
