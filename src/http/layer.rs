//! The layer, and what all services that it makes share.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use super::headers;
use super::service::RateLimitService;
use crate::hasher::RandomState;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::store::{Sharded, Stores};

/// Puts a limiter in front of a service. See the [module](super) for what it answers.
///
/// All services that it makes, and all clones of them, share the limiter.
pub struct RateLimitLayer<E, K: Key + ?Sized = str, S: 'static = RandomState, T: Stores<K, S> = Sharded> {
    shared: Arc<Shared<E, K, S, T>>,
}

pub(super) struct Shared<E, K: Key + ?Sized, S: 'static, T: Stores<K, S>> {
    pub(super) limiter: Limiter<K, S, T>,
    pub(super) extractor: Arc<E>,
    /// What the policy is called, unless as the plan is.
    pub(super) name: Option<String>,
}

impl<E, K: Key + ?Sized, S: 'static, T: Stores<K, S>> RateLimitLayer<E, K, S, T> {
    /// Limits each key that `extractor` finds by `limiter`.
    pub fn new(limiter: Limiter<K, S, T>, extractor: E) -> Self {
        Self { shared: Arc::new(Shared { limiter, extractor: Arc::new(extractor), name: None }) }
    }

    /// The name of the policy in header fields and answers, instead of that of the plan. With several quotas on the plan
    /// each is called by this name, a colon, and its [own](crate::Quota::name).
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if it holds anything but printable ASCII, which is all that the fields can carry.
    pub fn name(self, name: &str) -> Result<Self, InvalidName> {
        if headers::quoted(name).is_none() {
            return Err(InvalidName { name: name.to_owned() });
        }
        let Shared { limiter, extractor, .. } = &*self.shared;
        let (limiter, extractor, name) = (limiter.clone(), Arc::clone(extractor), Some(name.to_owned()));
        Ok(Self { shared: Arc::new(Shared { limiter, extractor, name }) })
    }
}

impl<Svc, E, K: Key + ?Sized, S: 'static, T: Stores<K, S>> Layer<Svc> for RateLimitLayer<E, K, S, T> {
    type Service = RateLimitService<Svc, E, K, S, T>;

    fn layer(&self, inner: Svc) -> Self::Service {
        RateLimitService::new(inner, Arc::clone(&self.shared))
    }
}

impl<E, K: Key + ?Sized, S: 'static, T: Stores<K, S>> Clone for RateLimitLayer<E, K, S, T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<E, K: Key + ?Sized, S: 'static, T: Stores<K, S>> fmt::Debug for RateLimitLayer<E, K, S, T> {
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
