//! The layer, and what all services that it makes share.

use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use http::HeaderValue;
use tower_layer::Layer;

use super::headers;
use super::service::RateLimitService;
use crate::hasher::RandomState;
use crate::limiter::Limiter;

/// Puts a limiter in front of a service. See the [module](super) for what it answers.
///
/// All services that it makes, and all clones of them, share the limiter.
pub struct RateLimitLayer<E, K = String, S = RandomState> {
    shared: Arc<Shared<E, K, S>>,
}

pub(super) struct Shared<E, K, S> {
    pub(super) limiter: Limiter<K, S>,
    pub(super) extractor: Arc<E>,
    /// The policy's name as a quoted string.
    pub(super) name: String,
    /// The value of `RateLimit-Policy`.
    pub(super) policy: HeaderValue,
}

impl<E, K: Eq + Hash, S: BuildHasher + Clone> RateLimitLayer<E, K, S> {
    /// Limits each key that `extractor` finds by `limiter`, under the policy name `default`.
    pub fn new(limiter: Limiter<K, S>, extractor: E) -> Self {
        let name = String::from("\"default\"");
        let policy = policy(&limiter, &name);
        Self { shared: Arc::new(Shared { limiter, extractor: Arc::new(extractor), name, policy }) }
    }

    /// The name of the policy in header fields and answers.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if it holds anything but printable ASCII, which is all that the fields can carry.
    pub fn name(self, name: &str) -> Result<Self, InvalidName> {
        let name = headers::quoted(name).ok_or_else(|| InvalidName { name: name.to_owned() })?;
        let Shared { limiter, extractor, .. } = &*self.shared;
        let policy = policy(limiter, &name);
        let (limiter, extractor) = (limiter.clone(), Arc::clone(extractor));
        Ok(Self { shared: Arc::new(Shared { limiter, extractor, name, policy }) })
    }
}

fn policy<K: Eq + Hash, S: BuildHasher + Clone>(limiter: &Limiter<K, S>, quoted_name: &str) -> HeaderValue {
    // A quoted name is printable ASCII, and so is the rest: the value can't be refused.
    HeaderValue::try_from(headers::policy(quoted_name, limiter.quota())).unwrap_or(HeaderValue::from_static(""))
}

impl<Svc, E, K, S> Layer<Svc> for RateLimitLayer<E, K, S> {
    type Service = RateLimitService<Svc, E, K, S>;

    fn layer(&self, inner: Svc) -> Self::Service {
        RateLimitService::new(inner, Arc::clone(&self.shared))
    }
}

impl<E, K, S> Clone for RateLimitLayer<E, K, S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<E, K, S> fmt::Debug for RateLimitLayer<E, K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

/// A policy name that header fields can't carry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidName {
    name: String,
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy name {:?}: header fields carry printable ASCII only", self.name)
    }
}

impl Error for InvalidName {}
