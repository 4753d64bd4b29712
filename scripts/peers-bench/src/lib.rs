//! What the programs of this package share.

pub mod peers;
/// What the library's own benches share.
#[path = "../../../benches/peers/mod.rs"]
pub mod shared;
