//! The hasher that keys are stored by unless the builder is given another.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
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
/// same machine, give the builder [`std::hash::RandomState`] (SipHash-1-3); for a key of 20 bytes it takes four times
/// as long, 10 ns instead of 2.4 on a 2-core virtual machine.
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
    type Hasher = KeyHasher;

    #[inline]
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher { of: self.0.build_hasher(), last: Last::Other }
    }
}

/// The hasher of a [`RandomState`].
///
/// A string is hashed as its bytes and then a byte that no string has, to show where it ends. foldhash goes by the length of
/// what is written too, so that the last of a key need not show that: 5 of 160 instructions of a check.
#[derive(Clone)]
pub struct KeyHasher {
    of: FoldHasher<'static>,
    last: Last,
}

/// What was written last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Bytes,
    /// The byte that ends a string, after bytes. It is not passed on yet, and never if nothing follows.
    End,
    Other,
}

impl KeyHasher {
    /// Where to write what is not the end of a string.
    #[inline]
    fn go_on(&mut self) -> &mut FoldHasher<'static> {
        if self.last == Last::End {
            self.of.write_u8(END);
        }
        self.last = Last::Other;
        &mut self.of
    }
}

/// What [`str`] writes after its bytes.
const END: u8 = 0xFF;

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.go_on().write(bytes);
        self.last = Last::Bytes;
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        if n == END && self.last == Last::Bytes {
            self.last = Last::End;
        } else {
            self.go_on().write_u8(n);
        }
    }

    #[inline]
    fn write_u16(&mut self, n: u16) {
        self.go_on().write_u16(n);
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.go_on().write_u32(n);
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.go_on().write_u64(n);
    }

    #[inline]
    fn write_u128(&mut self, n: u128) {
        self.go_on().write_u128(n);
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.go_on().write_usize(n);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.of.finish()
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyHasher").finish_non_exhaustive()
    }
}

/// 64 bits that nobody can guess: std seeds its SipHash from the operating system.
pub(crate) fn random() -> u64 {
    std::hash::RandomState::new().hash_one(0)
}
