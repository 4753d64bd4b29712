//! Threads that a test stops in the middle of a call, and processes that a test forks.
//!
//! A promise that checks do not wait for another thread can only be tested with a thread that does
//! not run. This package stops threads by a signal, wherever they are, and lets them go on when the
//! test says so. It is apart from the library's own tests because it needs unsafe code, and a
//! process in which signals are its own.
//!
//! It is empty on other systems than Linux.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "neither a signal to one thread nor `fork` can be had in safe code")]
#![allow(clippy::expect_used, clippy::panic, reason = "a panic is how a test fails")]

mod allocator;
mod forked;
mod stopped;

pub use forked::{Child, fork};
pub use stopped::{Case, play};

use std::time::Duration;

/// The longest time that anything here may take, on a machine that is busy with other things. Only
/// a hang is longer.
pub const PATIENCE: Duration = Duration::from_secs(60);
