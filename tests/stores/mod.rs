//! Both kinds of store behind one name, so that a test is written once and runs over each.
#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    clippy::expect_used,
    reason = "each user needs a part of it, and stops at what is wrong"
)]

use std::hash::BuildHasher;

use tollgate::{BuildError, Builder, Fixed, Key, Limiter, Quota, RandomState, Sharded, Stores};

/// A kind of store, and how a limiter over it is made.
pub(crate) trait Kind<K: Key + ?Sized = str, S: 'static = RandomState>: Stores<K, S> {
    /// Whether what refunds need is kept for each key by itself, so that the second refund is worth what it would be to a
    /// limiter of one bucket.
    const REFUNDS_APART: bool;

    /// Whether a take is never lost where its thread sleeps through two new policies.
    const NEVER_PASSES_OVER: bool;

    /// A limiter with room for some thousand keys on the plans that `builder` has.
    fn make(builder: Builder<K, S>) -> Result<Limiter<K, S, Self>, BuildError> {
        Self::sized(builder, 2_000)
    }

    /// The same, for that many keys that are active at once.
    fn sized(builder: Builder<K, S>, keys: u64) -> Result<Limiter<K, S, Self>, BuildError>;

    /// With room for whatever plans come later.
    fn roomy(builder: Builder<K, S>, keys: u64) -> Result<Limiter<K, S, Self>, BuildError>;

    /// A limiter of one quota.
    fn of(quota: Quota) -> Limiter<K, S, Self>
    where
        S: Default + BuildHasher + Clone,
    {
        let builder = Limiter::builder().keys().hasher(S::default()).quota(quota);
        Self::make(builder).expect("a quota that makes sense")
    }
}

impl<K: Key + ?Sized, S: BuildHasher + Clone + Send + Sync + 'static> Kind<K, S> for Sharded {
    const REFUNDS_APART: bool = true;
    const NEVER_PASSES_OVER: bool = true;

    fn sized(builder: Builder<K, S>, _: u64) -> Result<Limiter<K, S, Self>, BuildError> {
        builder.build()
    }

    fn roomy(builder: Builder<K, S>, _: u64) -> Result<Limiter<K, S, Self>, BuildError> {
        builder.build()
    }
}

impl<K: Key + ?Sized, S: BuildHasher + Clone + Send + Sync + 'static> Kind<K, S> for Fixed {
    const REFUNDS_APART: bool = false;
    const NEVER_PASSES_OVER: bool = false;

    fn sized(builder: Builder<K, S>, keys: u64) -> Result<Limiter<K, S, Self>, BuildError> {
        builder.fixed(keys).build()
    }

    fn roomy(builder: Builder<K, S>, keys: u64) -> Result<Limiter<K, S, Self>, BuildError> {
        builder.fixed(keys).room_for(8, true).build()
    }
}

/// Runs each of these functions of a kind of store as a test over each kind.
macro_rules! over_both {
    ($($test:ident,)*) => {
        mod sharded {
            $(#[test] fn $test() { super::$test::<tollgate::Sharded>(); })*
        }
        mod fixed {
            $(#[test] fn $test() { super::$test::<tollgate::Fixed>(); })*
        }
    };
}
pub(crate) use over_both;
