//! What can be a key.

use std::hash::Hash;

/// What usage is counted by: anything that can be hashed and compared, and kept in an owned form for as long as it is
/// known.
///
/// Every type that fits has it: `str` (kept as `String`), `[u8]`, `u64`, `IpAddr`, `Arc<str>`, tuples of such, and each
/// `Clone` type of your own that derives `Eq` and `Hash`.
pub trait Key: Hash + Eq + ToOwned<Owned: Hash + Eq + Send + Sync> + Send + Sync + 'static {}

impl<T: Hash + Eq + ToOwned<Owned: Hash + Eq + Send + Sync> + Send + Sync + ?Sized + 'static> Key for T {}
