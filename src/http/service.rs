//! The service: one decision a request, then the inner service or a refusal.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::ResponseBody;
use super::headers::{Fields, name_of, seconds};
use super::identity::{KeyError, KeyExtractor};
use super::layer::Shared;
use crate::decision::{Decision, Deny, Reason};
use crate::hasher::RandomState;
use crate::in_flight::InFlight;
use crate::key::Key;
use crate::standing::Standing;
use crate::store::{Sharded, Stores};

/// A service behind a limiter. Clones share the limiter.
pub struct RateLimitService<Svc, E, K: Key + ?Sized = str, S: 'static = RandomState, T: Stores<K, S> = Sharded> {
    inner: Svc,
    shared: Arc<Shared<E, K, S, T>>,
}

impl<Svc, E, K: Key + ?Sized, S: 'static, T: Stores<K, S>> RateLimitService<Svc, E, K, S, T> {
    pub(super) const fn new(inner: Svc, shared: Arc<Shared<E, K, S, T>>) -> Self {
        Self { inner, shared }
    }
}

impl<Svc, E, K, S, T, ReqB, ResB> Service<Request<ReqB>> for RateLimitService<Svc, E, K, S, T>
where
    Svc: Service<Request<ReqB>, Response = Response<ResB>>,
    E: KeyExtractor<ReqB, Key: Borrow<K>>,
    K: Key + ?Sized,
    S: 'static,
    T: Stores<K, S>,
{
    type Response = Response<ResponseBody<ResB>>;
    type Error = Svc::Error;
    type Future = ResponseFuture<Svc::Future, ResB>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let Shared { limiter, extractor, name } = &*self.shared;
        let key = match extractor.extract(&request) {
            Ok(Some(key)) => key,
            // This limit does not apply.
            Ok(None) => return ResponseFuture::inner(self.inner.call(request), None, None),
            Err(error) => return ResponseFuture::refusal(keyless(&error)),
        };
        let key: &K = (*key).borrow();
        let mut in_flight = None;
        let decision = if limiter.limits_in_flight() {
            match limiter.enter(key) {
                Ok(entered) => Decision::Allow(in_flight.insert(entered).take_allow()),
                Err(deny) => Decision::Deny(deny),
            }
        } else {
            limiter.check(key)
        };
        let standings = limiter.standings(&decision);
        let fields = Fields::new(name.as_deref(), &decision, &standings);
        match decision {
            Decision::Allow(_) => ResponseFuture::inner(self.inner.call(request), Some(fields), in_flight),
            Decision::Deny(deny) => {
                let mut response = denial(name.as_deref(), &deny, &standings);
                fields.append_to(response.headers_mut());
                ResponseFuture::refusal(response)
            }
        }
    }
}

impl<Svc: Clone, E, K: Key + ?Sized, S: 'static, T: Stores<K, S>> Clone for RateLimitService<Svc, E, K, S, T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<Svc: fmt::Debug, E, K: Key + ?Sized, S: 'static, T: Stores<K, S>> fmt::Debug
    for RateLimitService<Svc, E, K, S, T>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// 429 with the problem type that the draft registers (section 5.1), as RFC 9457 writes it.
fn denial<B>(layer: Option<&str>, deny: &Deny, standings: &[Standing]) -> Response<ResponseBody<B>> {
    let detail = match (deny.reason(), deny.retry_after().map(seconds)) {
        (Reason::InFlight, _) => format!("{} requests are in flight already", deny.limit()),
        (_, Some(wait)) => format!("retry in {wait} s"),
        (_, None) => String::from("this request can never be admitted"),
    };
    let violated = standings.iter().filter(|standing| standing.retry_after() != Some(Duration::ZERO));
    let violated: Vec<_> = violated.map(|standing| name_of(layer, standing, standings.len())).collect();
    let problem = format!(
        concat!(
            r#"{{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Too Many Requests","status":429,"detail":"{}","violated-policies":[{}]}}"#
        ),
        detail,
        violated.join(",")
    );
    refusal(StatusCode::TOO_MANY_REQUESTS, "application/problem+json", problem)
}

fn keyless<B>(error: &KeyError) -> Response<ResponseBody<B>> {
    refusal(error.status(), "text/plain; charset=utf-8", error.to_string())
}

fn refusal<B>(status: StatusCode, content_type: &'static str, text: String) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::text(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pin_project! {
    /// The inner service's response with the fields of the decision, or a refusal, which is ready at once.
    pub struct ResponseFuture<F, B> {
        #[pin]
        state: State<F, B>,
    }
}

pin_project! {
    #[project = StateProject]
    enum State<F, B> {
        Inner { #[pin] future: F, fields: Option<Fields>, in_flight: Option<InFlight> },
        Refusal { response: Option<Response<ResponseBody<B>>> },
    }
}

impl<F, B> ResponseFuture<F, B> {
    const fn inner(future: F, fields: Option<Fields>, in_flight: Option<InFlight>) -> Self {
        Self { state: State::Inner { future, fields, in_flight } }
    }

    const fn refusal(response: Response<ResponseBody<B>>) -> Self {
        Self { state: State::Refusal { response: Some(response) } }
    }
}

impl<F, B, E> Future for ResponseFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProject::Inner { future, fields, in_flight } => {
                let mut response = ready!(future.poll(cx))?.map(|body| ResponseBody::inner(body, in_flight.take()));
                if let Some(fields) = fields.take() {
                    fields.append_to(response.headers_mut());
                }
                Poll::Ready(Ok(response))
            }
            StateProject::Refusal { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                // A future that is polled after it was ready may do anything but misbehave: this one never ends.
                None => Poll::Pending,
            },
        }
    }
}

impl<F, B> fmt::Debug for ResponseFuture<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
