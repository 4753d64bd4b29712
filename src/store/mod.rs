//! Where buckets live, keyed.
//!
//! A store finds the state of a key on a plan, makes it if it is new, and hands it to a closure. No guard ever leaves a
//! store, and no closure that is handed a state touches the store again: that, and locking one shard at a time, rules
//! out the deadlocks that a sharded map invites.

mod sharded;
mod state;

pub(crate) use sharded::{Newcomer, Sharded};
pub(crate) use state::{KeyState, Taken};
pub use state::{Slot, Visited};
