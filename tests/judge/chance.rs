//! Draws for scripts, from a seed or from the bytes of a fuzzer.

/// A source of draws. The same seed, or the same bytes, draw the same.
#[derive(Clone, Debug)]
pub(crate) enum Chance<'a> {
    /// A SplitMix64 generator.
    Seed(u64),
    /// Bytes, each of which is used once. When all are used, each draw is 0.
    Bytes(&'a [u8]),
}

impl Chance<'_> {
    /// The draws of the sequence `number` of `seed`.
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        Self::Seed(mix(seed ^ mix(number)))
    }

    /// Whether the bytes are used up; never, for a seed.
    pub(crate) const fn is_used_up(&self) -> bool {
        matches!(self, Self::Bytes([]))
    }

    /// A number below `end`, which is at least 1.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        match self {
            Self::Seed(state) => {
                *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                mix(*state) % end
            }
            Self::Bytes(bytes) => {
                let wanted = if end <= 1 << 8 { 1 } else { 8 };
                let (used, rest) = bytes.split_at(wanted.min(bytes.len()));
                *bytes = rest;
                used.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)) % end
            }
        }
    }

    /// A number from `first` to `last`.
    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }

    /// One of `options`.
    pub(crate) fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.index(options.len())]
    }

    /// An index below `len`.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
}

/// Spreads each bit of `n` over all bits, as SplitMix64 does.
pub(crate) const fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ n >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ n >> 31
}
