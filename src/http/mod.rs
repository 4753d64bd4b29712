//! The tower layer: a limiter in front of any service of `http` 1 whose bodies are `Bytes` (axum, hyper).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, routing::get};
//! use http::HeaderName;
//! use tollgate::http::{Header, RateLimitLayer};
//! use tollgate::{Limiter, Quota};
//!
//! let limiter = Limiter::new(Quota::per_minute(100).burst(20))?;
//! let layer = RateLimitLayer::new(limiter, Header::new(HeaderName::from_static("x-api-key")));
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! # Ok(()) }
//! ```
//!
//! A request that is allowed goes on to the inner service, and its response gets the `RateLimit` and
//! `RateLimit-Policy` fields (draft-ietf-httpapi-ratelimit-headers-11); its body is not touched. One that is denied is
//! answered with 429, `Retry-After` and the same fields, and never reaches the inner service. One whose key can't be
//! told is answered with what the [`KeyError`] says, 400 or 500: a limit that can't be applied is not skipped.
//!
//! | field | value |
//! |---|---|
//! | `Retry-After` | on a denial: the wait in seconds, rounded up and at least 1; absent if the request can never pass |
//! | `RateLimit` | `r`: units left; `t`: the seconds until the key has its whole burst again, rounded up, in which it can use `r` units for sure; with none left, the seconds until there is one, and on a denial the same number as `Retry-After` |
//! | `RateLimit-Policy` | `q`: the burst; `w`: the seconds in which an empty bucket fills, rounded up; absent if it never does; `qu`: the unit of bytes and of requests in flight |
//!
//! Each quota of the plan has its item in both lists, called as the plan is, or `plan:quota` where there are several; a
//! denial names those that deny. Where nothing is limited there are no fields. A request is in flight until its response's
//! body is dropped.
//!
//! # Where it goes
//!
//! Decisions are taken in `call`, since `poll_ready` knows no request; readiness is the inner service's own. So a
//! request waits for an inner `Buffer` or `ConcurrencyLimit` to have room before it is denied, and a service that was
//! ready and then denied keeps the room until it is called again or dropped. Put a `LoadShed` right inside of this
//! layer where that matters.
//!
//! Layers stack. Each adds its fields, and an extractor that answers `None` leaves a request to the others. What an
//! outer layer took is not given back when an inner one denies: put the one that denies more often outside.

mod body;
mod headers;
mod identity;
mod layer;
mod service;

pub use body::ResponseBody;
pub use identity::{Header, KeyError, KeyExtractor, PeerAddr};
pub use layer::{InvalidName, RateLimitLayer};
pub use service::{RateLimitService, ResponseFuture};
