//! What quotas count.

use std::fmt;

/// A kind of unit: what a quota counts, and what a cost is given in.
///
/// Two units are the same if their names are. Each check says what it costs of each kind that it uses, with
/// [`check_costs`](crate::Limiter::check_costs); a plain [`check`](crate::Limiter::check) costs one request.
///
/// ```
/// use tollgate::Unit;
///
/// const ROWS: Unit = Unit::new("rows");
/// assert_eq!((ROWS.name(), ROWS), ("rows", Unit::new("rows")));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Unit {
    /// Of the name: a check compares this alone.
    id: u64,
    name: &'static str,
}

impl Unit {
    /// Requests, of which a plain check costs one.
    pub const REQUESTS: Self = Self::new("requests");

    /// Tokens of a language model.
    pub const TOKENS: Self = Self::new("tokens");

    /// Bytes.
    pub const BYTES: Self = Self::new("bytes");

    /// The unit called `name`.
    pub const fn new(name: &'static str) -> Self {
        // FNV-1a, which the compiler can work out.
        let (bytes, mut id, mut index) = (name.as_bytes(), 0xCBF2_9CE4_8422_2325, 0);
        while index < bytes.len() {
            id = (id ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01B3);
            index += 1;
        }
        Self { id, name }
    }

    /// What it is called.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Sixty-four bits that stand for the name.
    pub(crate) const fn id(self) -> u64 {
        self.id
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unit").field(&self.name).finish()
    }
}
