//! Where buckets live, keyed.
//!
//! A store finds the state of a key on a plan, makes it if it is new, and hands it to a closure. Nothing that guards it
//! ever leaves the store, and no closure that is handed a state touches the store again: that, and locking one shard at a
//! time, rules out the deadlocks that a sharded map invites.

mod fixed;
mod seam;
mod sharded;
mod state;

pub use fixed::Fixed;
pub use seam::Stores;
pub(crate) use seam::{CLOSED, Newcomer, State, Store, resident};
pub use sharded::Sharded;
pub(crate) use state::{KeyState, Taken, grains};
pub use state::{Slot, Visited};
