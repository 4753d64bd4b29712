//! The hasher that keys are stored by unless the builder is given another.

use std::hash::BuildHasher;
use std::sync::OnceLock;

use foldhash::SharedSeed;
use foldhash::quality::{FoldHasher, SeedableRandomState};

/// The default hasher: foldhash in its `quality` variant, under a seed that each limiter draws from the operating
/// system's randomness.
///
/// **What it resists**: lists of colliding keys made beforehand, whoever made them, since they would have to know the
/// seed. Hashes never leave the limiter, so that an attacker has nothing to compute the seed from but the time that
/// checks take.
///
/// **What it does not resist**: an attacker who can time single checks to a few nanoseconds, many thousands of times,
/// and derive the seed from that. Across a network nobody has shown this; where keys come from code that runs on the
/// same machine, give the builder [`std::hash::RandomState`] (SipHash-1-3), at about 9 ns more for a key of 20 bytes.
///
/// The hash of a key differs from limiter to limiter and from run to run.
#[derive(Clone, Debug)]
pub struct RandomState(SeedableRandomState);

impl RandomState {
    /// A state with a seed of its own.
    pub fn new() -> Self {
        static SHARED: OnceLock<SharedSeed> = OnceLock::new();
        let shared = SHARED.get_or_init(|| SharedSeed::from_u64(random()));
        Self(SeedableRandomState::with_seed(random(), shared))
    }
}

impl Default for RandomState {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for RandomState {
    /// Which hasher it is may change in any version.
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}

/// 64 bits that nobody can guess: std seeds its SipHash from the operating system.
pub(crate) fn random() -> u64 {
    std::hash::RandomState::new().hash_one(0)
}
