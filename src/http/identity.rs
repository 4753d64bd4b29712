//! Whose request it is.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::header::HeaderName;
use http::{Request, StatusCode};

/// Tells the key of a request.
///
/// `Ok(None)` means that this limit does not apply to the request: it goes on uncounted. An error refuses it. Any
/// closure from a request to `Result<Option<K>, KeyError>` is an extractor.
///
/// ```
/// use axum::extract::Request;
/// use axum::{Router, routing::get};
/// use tollgate::http::RateLimitLayer;
/// use tollgate::{Limiter, Quota};
///
/// // One budget per path, and none for health checks.
/// let by_path = |request: &Request| match request.uri().path() {
///     "/health" => Ok(None),
///     path => Ok(Some(path.to_owned())),
/// };
/// let layer = RateLimitLayer::new(Limiter::new(Quota::per_second(50))?, by_path);
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
/// # Ok::<(), tollgate::BuildError>(())
/// ```
pub trait KeyExtractor<B> {
    /// The key as it is looked up, or something that a limiter of another key type can borrow from: `String` for `str`.
    type Key: ToOwned + Hash + Eq + ?Sized;

    /// The key of `request`, borrowed from it where possible: a known key is then looked up without an allocation.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if the key can't be told. The request is then refused.
    fn extract<'r>(&self, request: &'r Request<B>) -> Result<Option<Cow<'r, Self::Key>>, KeyError>;
}

impl<B, F, K> KeyExtractor<B> for F
where
    F: Fn(&Request<B>) -> Result<Option<K>, KeyError>,
    K: Clone + Eq + Hash + 'static,
{
    type Key = K;

    fn extract<'r>(&self, request: &'r Request<B>) -> Result<Option<Cow<'r, K>>, KeyError> {
        Ok(self(request)?.map(Cow::Owned))
    }
}

/// The key is the value of a header, as an API key is.
///
/// A request is refused with 400 if the header is missing or empty, comes more than once (so that a client can't show
/// one value here and another to the application), is longer than [`Header::MAX_LEN`], or holds anything but visible
/// ASCII.
///
/// A client can send any value it likes. Put this behind the check that the key is a real one, or each invented value
/// is a new client with a full bucket.
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
}

impl Header {
    /// The longest value in bytes that is taken for a key.
    pub const MAX_LEN: usize = 1_024;

    /// The header called `name`.
    pub const fn new(name: HeaderName) -> Self {
        Self { name }
    }

    fn refuse(&self, why: &str) -> KeyError {
        KeyError::new(StatusCode::BAD_REQUEST, format!("the header `{}` {why}", self.name))
    }
}

impl<B> KeyExtractor<B> for Header {
    type Key = str;

    fn extract<'r>(&self, request: &'r Request<B>) -> Result<Option<Cow<'r, str>>, KeyError> {
        let mut values = request.headers().get_all(&self.name).iter();
        let value = values.next().ok_or_else(|| self.refuse("is missing"))?;
        if values.next().is_some() {
            return Err(self.refuse("comes more than once"));
        }
        if value.is_empty() {
            return Err(self.refuse("is empty"));
        }
        if value.len() > Self::MAX_LEN {
            return Err(self.refuse(&format!("is longer than {} bytes", Self::MAX_LEN)));
        }
        match value.to_str() {
            Ok(key) => Ok(Some(Cow::Borrowed(key))),
            Err(_) => Err(self.refuse("has characters other than visible ASCII")),
        }
    }
}

/// The key is the address of the peer of the connection, without its port.
///
/// An IPv4 address that comes mapped into IPv6 (`::ffff:192.0.2.1`) is the IPv4 address. Of an IPv6 address the first
/// 64 bits count: a host may use any address of its /64, and would else have as many budgets.
///
/// The address is read from the request's extensions, where the server puts it; without it the request is refused
/// with 500, since the server is at fault. Behind a proxy every request has the proxy's address: then this is the
/// wrong extractor.
///
/// ```
/// use std::net::{IpAddr, SocketAddr};
/// use axum::extract::ConnectInfo;
/// use tollgate::http::{PeerAddr, RateLimitLayer};
/// use tollgate::{Limiter, Quota};
///
/// let limiter = Limiter::builder().quota(Quota::per_second(5)).keys::<IpAddr>().build()?;
/// // axum: serve with `into_make_service_with_connect_info::<SocketAddr>()`.
/// let peer = PeerAddr::from_extension(|info: &ConnectInfo<SocketAddr>| Some(info.0));
/// let layer = RateLimitLayer::new(limiter, peer);
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PeerAddr<T = SocketAddr> {
    read: fn(&T) -> Option<SocketAddr>,
}

impl PeerAddr {
    /// Reads a plain [`SocketAddr`] from the extensions.
    pub const fn new() -> Self {
        Self { read: |addr| Some(*addr) }
    }
}

impl Default for PeerAddr {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send + Sync + 'static> PeerAddr<T> {
    /// Reads what the server's framework puts into the extensions.
    pub const fn from_extension(read: fn(&T) -> Option<SocketAddr>) -> Self {
        Self { read }
    }
}

impl<B, T: Send + Sync + 'static> KeyExtractor<B> for PeerAddr<T> {
    type Key = IpAddr;

    fn extract<'r>(&self, request: &'r Request<B>) -> Result<Option<Cow<'r, IpAddr>>, KeyError> {
        let peer = request.extensions().get().and_then(self.read).ok_or_else(|| {
            KeyError::new(StatusCode::INTERNAL_SERVER_ERROR, "the server does not know the address of its peer")
        })?;
        Ok(Some(Cow::Owned(key_of(peer.ip()))))
    }
}

/// The key that an address stands for.
fn key_of(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => IpAddr::V6(Ipv6Addr::from_bits(addr.to_bits() >> 64 << 64)),
        addr => addr,
    }
}

/// Why the key of a request can't be told, and the status that the request is answered with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyError {
    status: StatusCode,
    reason: Cow<'static, str>,
}

impl KeyError {
    /// Refuses the request with `status` and the text `reason`, which the client gets to see: no secrets in it.
    pub fn new(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { status, reason: reason.into() }
    }

    /// The status of the answer.
    pub const fn status(&self) -> StatusCode {
        self.status
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for KeyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_an_ipv4_address_or_a_64_of_ipv6() {
        let key = |addr: &str| key_of(addr.parse().unwrap()).to_string();
        assert_eq!(key("192.0.2.7"), "192.0.2.7");
        assert_eq!(key("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(key("2001:db8:1:2::b"), "2001:db8:1:2::");
        assert_eq!(key("2001:db8:1:3::1"), "2001:db8:1:3::");
    }
}
