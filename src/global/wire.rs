//! Names of keys that all nodes agree on.

use std::fmt;
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::WireName;

/// Part of every name, so that nodes that name keys otherwise never share one by chance.
const VERSION: &[u8] = b"tollgate 1";

/// A key that has the same bytes on every node and in every version of a program.
///
/// [`Hash`](std::hash::Hash) does not promise that: what it writes may change with the type's layout, the platform and the
/// compiler. Give what tells keys apart to the hasher, each part with the method of its type.
///
/// ```
/// use tollgate::global::{WireHasher, WireKey};
///
/// #[derive(Clone, PartialEq, Eq, Hash)]
/// struct Tenant { region: u16, name: String }
///
/// impl WireKey for Tenant {
///     fn write(&self, to: &mut WireHasher) {
///         self.region.write(to);
///         self.name.write(to);
///     }
/// }
/// ```
pub trait WireKey {
    /// Gives what tells this key from others to `to`.
    fn write(&self, to: &mut WireHasher);
}

/// Takes the bytes of a key.
pub struct WireHasher(SipHasher24);

impl WireHasher {
    /// Takes a string of bytes, with its length, so that two that follow one another can't be taken for two others.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.write(&(bytes.len() as u64).to_le_bytes());
        self.0.write(bytes);
    }

    /// Takes bytes of a length that is always the same.
    pub fn fixed<const N: usize>(&mut self, bytes: [u8; N]) {
        self.0.write(&bytes);
    }
}

impl fmt::Debug for WireHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WireHasher").finish_non_exhaustive()
    }
}

/// What the name of a key is worked out for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named<'a, K: ?Sized> {
    /// A key.
    Key(&'a K),
    /// All keys of a plan for which there is no room, on all nodes.
    Overflow(&'a str),
}

/// The name within `scope`, under the secret of the fleet.
pub(crate) fn name<K: ?Sized>(
    secret: &[u8; 16],
    scope: &str,
    named: Named<'_, K>,
    write: impl FnOnce(&K, &mut WireHasher),
) -> WireName {
    let mut hasher = WireHasher(SipHasher24::new_with_key(secret));
    hasher.bytes(VERSION);
    hasher.bytes(scope.as_bytes());
    match named {
        Named::Key(key) => {
            hasher.fixed([0]);
            write(key, &mut hasher);
        }
        Named::Overflow(plan) => {
            hasher.fixed([1]);
            hasher.bytes(plan.as_bytes());
        }
    }
    WireName(hasher.0.finish128().as_u128())
}

impl WireKey for str {
    fn write(&self, to: &mut WireHasher) {
        to.bytes(self.as_bytes());
    }
}

impl WireKey for String {
    fn write(&self, to: &mut WireHasher) {
        self.as_str().write(to);
    }
}

impl WireKey for [u8] {
    fn write(&self, to: &mut WireHasher) {
        to.bytes(self);
    }
}

impl WireKey for Vec<u8> {
    fn write(&self, to: &mut WireHasher) {
        to.bytes(self);
    }
}

impl<const N: usize> WireKey for [u8; N] {
    fn write(&self, to: &mut WireHasher) {
        to.fixed(*self);
    }
}

impl<T: WireKey + ?Sized> WireKey for &T {
    fn write(&self, to: &mut WireHasher) {
        (**self).write(to);
    }
}

impl<T: WireKey + ?Sized> WireKey for Arc<T> {
    fn write(&self, to: &mut WireHasher) {
        (**self).write(to);
    }
}

impl<T: WireKey + ?Sized> WireKey for Box<T> {
    fn write(&self, to: &mut WireHasher) {
        (**self).write(to);
    }
}

macro_rules! of_numbers {
    ($($number:ty)*) => {$(
        impl WireKey for $number {
            fn write(&self, to: &mut WireHasher) {
                to.fixed(self.to_le_bytes());
            }
        }
    )*};
}

of_numbers!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);

impl WireKey for Ipv4Addr {
    fn write(&self, to: &mut WireHasher) {
        to.fixed(self.octets());
    }
}

impl WireKey for Ipv6Addr {
    fn write(&self, to: &mut WireHasher) {
        to.fixed(self.octets());
    }
}

/// The two kinds are told apart by their lengths.
impl WireKey for IpAddr {
    fn write(&self, to: &mut WireHasher) {
        match self {
            Self::V4(address) => to.bytes(&address.octets()),
            Self::V6(address) => to.bytes(&address.octets()),
        }
    }
}

impl<A: WireKey, B: WireKey> WireKey for (A, B) {
    fn write(&self, to: &mut WireHasher) {
        self.0.write(to);
        self.1.write(to);
    }
}

impl<A: WireKey, B: WireKey, C: WireKey> WireKey for (A, B, C) {
    fn write(&self, to: &mut WireHasher) {
        self.0.write(to);
        self.1.write(to);
        self.2.write(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of<K: WireKey + ?Sized>(scope: &str, key: &K) -> WireName {
        name(&[7; 16], scope, Named::Key(key), |key, to| key.write(to))
    }

    #[test]
    fn a_name_is_the_same_in_every_form_of_a_key_and_never_changes() {
        assert_eq!(name_of("free", "alice"), name_of("free", &"alice".to_owned()));
        assert_eq!(name_of("free", "alice"), name_of("free", &Arc::<str>::from("alice")));
        // It is a part of the wire format: nodes of two versions have to agree on it.
        assert_eq!(format!("{:?}", name_of("free", "alice")), "c783ceae3f3556f684d23703cd723bd9");
    }

    #[test]
    fn names_differ_by_all_that_tells_keys_apart() {
        let names = [
            name_of("free", "alice"),
            name_of("free", "alicf"),
            name_of("pro", "alice"),
            name_of("fre", "ealice"),
            name_of("free", &("ali", "ce")),
            name_of("free", &("alic", "e")),
            name(&[8; 16], "free", Named::Key("alice"), |key, to| key.write(to)),
            name::<str>(&[7; 16], "free", Named::Overflow("alice"), |key, to| key.write(to)),
            name_of("free", &IpAddr::from([0; 4])),
            name_of("free", &IpAddr::from([0; 16])),
            name_of("free", &0_u32),
            name_of("free", &0_u64),
        ];
        for (n, name) in names.iter().enumerate() {
            assert!(!names[..n].contains(name), "{n}");
        }
    }
}
