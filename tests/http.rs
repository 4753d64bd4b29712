//! The tower layer, on services called directly and on a real server.
#![cfg(all(feature = "http", feature = "test-util"))]
#![allow(clippy::unwrap_used, reason = "a helper that meets the unexpected stops the test")]

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::header::ACCESS_CONTROL_ALLOW_ORIGIN;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tollgate::http::{Header, KeyError, PeerAddr, RateLimitLayer};
use tollgate::{Limiter, Plan, Policy, Quota, TestClock};
use tower::limit::ConcurrencyLimit;
use tower::util::MapResponseLayer;
use tower::{Layer, Service, ServiceExt};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

fn limiter(quota: Quota) -> (TestClock, Limiter) {
    let clock = TestClock::new();
    let limiter = Limiter::builder().quota(quota).clock(clock.clock()).build().unwrap();
    (clock, limiter)
}

fn request(key: &str) -> Request<Full<Bytes>> {
    Request::builder().header(API_KEY, key).body(Full::default()).unwrap()
}

async fn hello<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

fn field<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().unwrap();
    assert!(values.next().is_none(), "{name} comes twice");
    Some(value)
}

async fn text<B: http_body::Body<Data = Bytes>>(response: Response<B>) -> String
where
    B::Error: std::fmt::Debug,
{
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// dragonflydb/dragonfly#1008: 16 at once, 30 in 60 s; after the first request the reset is a second too high.
#[tokio::test]
async fn an_allowed_request_passes_with_its_numbers() {
    let (_, limiter) = limiter(Quota::per_minute(30).burst(16));
    let mut service = RateLimitLayer::new(limiter, Header::new(API_KEY)).layer(tower::service_fn(hello));
    let response = service.ready().await.unwrap().call(request("user123")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(field(response.headers(), "ratelimit-policy"), Some(r#""default";q=16;w=32"#));
    assert_eq!(field(response.headers(), "ratelimit"), Some(r#""default";r=15;t=2"#));
    assert_eq!(field(response.headers(), "retry-after"), None);
    assert_eq!(text(response).await, "hello");
    for left in (0..15).rev() {
        let response = service.call(request("user123")).await.unwrap();
        let t = if left == 0 { 2 } else { 2 * (16 - left) };
        assert_eq!(field(response.headers(), "ratelimit"), Some(&*format!(r#""default";r={left};t={t}"#)));
    }
}

/// benwis/tower-governor#65: a wait of less than a second is truncated to 0.
#[tokio::test]
async fn retry_after_is_rounded_up_and_right() {
    let (clock, limiter) = limiter(Quota::per_second(5).burst(1));
    let layer = RateLimitLayer::new(limiter, Header::new(API_KEY)).name("five").unwrap();
    let mut service = layer.layer(tower::service_fn(hello));
    assert_eq!(service.call(request("a")).await.unwrap().status(), StatusCode::OK);
    let denied = service.call(request("a")).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(field(denied.headers(), "retry-after"), Some("1"));
    assert_eq!(field(denied.headers(), "ratelimit"), Some(r#""five";r=0;t=1"#));
    assert_eq!(field(denied.headers(), "ratelimit-policy"), Some(r#""five";q=1;w=1"#));
    assert_eq!(field(denied.headers(), "content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_str(&text(denied).await).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&problem["status"], &problem["violated-policies"][0]), (&429.into(), &"five".into()));

    clock.advance(Duration::from_secs(1));
    assert_eq!(service.call(request("a")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_wait_of_1200_ms_is_two_seconds() {
    let (clock, limiter) = limiter(Quota::new(1, Duration::from_millis(1_200)));
    let mut service = RateLimitLayer::new(limiter, Header::new(API_KEY)).layer(tower::service_fn(hello));
    assert_eq!(service.call(request("a")).await.unwrap().status(), StatusCode::OK);
    assert_eq!(field(service.call(request("a")).await.unwrap().headers(), "retry-after"), Some("2"));
    clock.advance(Duration::from_millis(200));
    assert_eq!(field(service.call(request("a")).await.unwrap().headers(), "retry-after"), Some("1"));
}

/// bucket4j/bucket4j#220, at the edge: what can never pass is given no time to come back at.
#[tokio::test]
async fn a_request_that_can_never_pass_is_told_no_time() {
    let (_, limiter) = limiter(Quota::per_second(0).burst(1));
    let mut service = RateLimitLayer::new(limiter, Header::new(API_KEY)).layer(tower::service_fn(hello));
    let allowed = service.call(request("a")).await.unwrap();
    assert_eq!(field(allowed.headers(), "ratelimit"), Some(r#""default";r=0"#));
    let denied = service.call(request("a")).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(field(denied.headers(), "retry-after"), None);
    assert_eq!(field(denied.headers(), "ratelimit"), Some(r#""default";r=0"#));
    assert!(text(denied).await.contains("never"));
}

/// joshrotenberg/tower-resilience#286: `call` runs a clone that was never polled ready, and the inner service panics.
#[tokio::test]
async fn the_service_that_was_ready_is_the_one_called() {
    let (_, limiter) = limiter(Quota::per_hour(10));
    let layer = RateLimitLayer::new(limiter, Header::new(API_KEY));
    let mut one_at_a_time = layer.layer(ConcurrencyLimit::new(tower::service_fn(hello), 1));
    let mut buffered = layer.layer(tower::buffer::Buffer::new(tower::service_fn(hello), 1));
    for _ in 0..2 {
        let response = one_at_a_time.ready().await.unwrap().call(request("a")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(buffered.ready().await.unwrap().call(request("b")).await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn readiness_is_the_inner_services() {
    let (_, limiter) = limiter(Quota::per_hour(1));
    let layer = RateLimitLayer::new(limiter, Header::new(API_KEY));
    let mut one = layer.layer(ConcurrencyLimit::new(tower::service_fn(hello), 1));
    let mut other = one.clone();
    let in_flight = one.ready().await.unwrap().call(request("a"));
    let mut waiting = poll_once(other.ready());
    assert!(waiting.is_none(), "the only permit is out");
    drop(in_flight);
    waiting = poll_once(other.ready());
    assert!(waiting.is_some());
    // A denied request leaves the inner service ready for the next one, and dropping the service lets go of it.
    assert_eq!(other.call(request("a")).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(other.ready().await.unwrap().call(request("b")).await.unwrap().status(), StatusCode::OK);
    assert!(poll_once(other.ready()).is_some());
    assert!(poll_once(one.ready()).is_none());
    drop(other);
    assert!(poll_once(one.ready()).is_some());
}

/// Polls `future` once.
fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

/// tokio-rs/axum#2634, numbers from tokio-rs/axum PR#3682: the state sits in each clone, and 1,500 of 1,500 pass.
#[tokio::test]
async fn clones_share_one_limit() {
    let (_, limiter) = limiter(Quota::per_second(5));
    let layer = RateLimitLayer::new(limiter, Header::new(API_KEY));
    let service = layer.layer(tower::service_fn(hello));
    let mut passed = 0;
    for turn in 0..1_500 {
        // Clones of the service, and services of clones of the layer.
        let mut clone = if turn % 2 == 0 { service.clone() } else { layer.clone().layer(tower::service_fn(hello)) };
        let response = clone.ready().await.unwrap().call(request("a")).await.unwrap();
        passed += u32::from(response.status().is_success());
    }
    assert_eq!(passed, 5);
}

#[tokio::test]
async fn bodies_pass_untouched_frame_by_frame() {
    async fn echo(request: Request<Body>) -> Result<Response<Body>, Infallible> {
        Ok(Response::new(request.into_body()))
    }
    let (_, limiter) = limiter(Quota::per_hour(1));
    let mut service = RateLimitLayer::new(limiter, Header::new(API_KEY)).layer(tower::service_fn(echo));
    let trailers = HeaderMap::from_iter([(HeaderName::from_static("x-sum"), "7".parse().unwrap())]);
    let sent = trailers.clone();
    let body = Body::new(Full::new(Bytes::from_static(b"data")).with_trailers(async { Some(Ok(sent)) }));
    let request = Request::builder().header(API_KEY, "a").body(body).unwrap();
    let mut body = service.ready().await.unwrap().call(request).await.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "data");
    assert_eq!(body.frame().await.unwrap().unwrap().into_trailers().unwrap(), trailers);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn a_key_that_cannot_be_told_is_refused_and_says_why() {
    let (_, limiter) = limiter(Quota::per_hour(1_000));
    let called = Arc::new(AtomicU64::new(0));
    let inner = {
        let called = Arc::clone(&called);
        tower::service_fn(move |request: Request<Full<Bytes>>| {
            called.fetch_add(1, Ordering::Relaxed);
            hello(request)
        })
    };
    let mut service = RateLimitLayer::new(limiter.clone(), Header::new(API_KEY)).layer(inner.clone());
    let with = |values: &[&[u8]]| {
        let mut request = Request::new(Full::default());
        for value in values {
            request.headers_mut().append(API_KEY, http::HeaderValue::from_bytes(value).unwrap());
        }
        request
    };
    let cases: [(&[&[u8]], &str); 6] = [
        (&[], "the header `x-api-key` is missing"),
        (&[b""], "the header `x-api-key` is empty"),
        (&[b"a", b"b"], "the header `x-api-key` comes more than once"),
        (&[b"a", b"a"], "the header `x-api-key` comes more than once"),
        (&["größer".as_bytes()], "the header `x-api-key` has characters other than visible ASCII"),
        (&[&[b'x'; 1_025]], "the header `x-api-key` is longer than 1024 bytes"),
    ];
    for (values, why) in cases {
        let response = service.call(with(values)).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert_eq!(text(response).await, why);
    }
    assert_eq!((called.load(Ordering::Relaxed), limiter.len()), (0, 0));
    assert_eq!(service.call(with(&[&[b'x'; 1_024]])).await.unwrap().status(), StatusCode::OK);

    let by_peer = Limiter::builder().quota(Quota::per_hour(1)).keys::<IpAddr>().build().unwrap();
    let mut service = RateLimitLayer::new(by_peer, PeerAddr::new()).layer(inner);
    let response = service.call(request("a")).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(text(response).await, "the server does not know the address of its peer");
}

/// sozu-proxy/sozu#1270: a full IPv6 address as the key, and rotating in a /64 gets past the limit.
#[tokio::test]
async fn a_peer_is_an_ipv4_address_or_a_64_of_ipv6() {
    let limiter = Limiter::builder().quota(Quota::per_hour(10)).keys::<IpAddr>().build().unwrap();
    let mut service = RateLimitLayer::new(limiter, PeerAddr::new()).layer(tower::service_fn(hello));
    let mut statuses = Vec::new();
    for host in (1..=11).map(|host| format!("[2001:db8:1:2::{host:x}]:{}", 1_000 + host)) {
        let mut request = request("");
        request.extensions_mut().insert(host.parse::<SocketAddr>().unwrap());
        statuses.push(service.call(request).await.unwrap().status());
    }
    assert!(statuses[..10].iter().all(|status| *status == StatusCode::OK));
    assert_eq!(statuses[10], StatusCode::TOO_MANY_REQUESTS);
    let mut neighbour = request("");
    neighbour.extensions_mut().insert("[2001:db8:1:3::1]:80".parse::<SocketAddr>().unwrap());
    assert_eq!(service.call(neighbour).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn extractors_can_be_closures_and_can_pass() {
    let (_, limiter) = limiter(Quota::per_hour(1));
    let by_path = |request: &Request<Full<Bytes>>| match request.uri().path() {
        "/health" => Ok(None),
        "/broken" => Err(KeyError::new(StatusCode::FORBIDDEN, "not you")),
        path => Ok(Some(path.to_owned())),
    };
    let mut service = RateLimitLayer::new(limiter, by_path).layer(tower::service_fn(hello));
    let get = |path: &str| Request::builder().uri(path).body(Full::default()).unwrap();
    for _ in 0..3 {
        let response = service.call(get("/health")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(field(response.headers(), "ratelimit"), None);
    }
    assert_eq!(service.call(get("/a")).await.unwrap().status(), StatusCode::OK);
    assert_eq!(service.call(get("/a")).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(service.call(get("/broken")).await.unwrap().status(), StatusCode::FORBIDDEN);
}

/// GIScience/openrouteservice#164: CORS preflights use up the quota, and a 429 without CORS fields
/// is hidden from the client.
#[tokio::test]
async fn preflights_take_nothing_and_a_denial_carries_the_fields_of_an_outer_layer() {
    let (clock, limiter) = limiter(Quota::per_minute(40));
    let by_key = |request: &Request<Full<Bytes>>| match *request.method() {
        Method::OPTIONS => Ok(None),
        _ => Ok(request.headers().get(&API_KEY).and_then(|key| key.to_str().ok()).map(str::to_owned)),
    };
    let app = async |request: Request<Full<Bytes>>| match *request.method() {
        Method::OPTIONS => Ok(Response::builder().status(StatusCode::NO_CONTENT).body(Full::default()).unwrap()),
        _ => hello(request).await,
    };
    // What a CORS layer outside of the limit does to each response.
    let cors = MapResponseLayer::new(|mut response: Response<_>| {
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        response
    });
    let mut service = cors.layer(RateLimitLayer::new(limiter.clone(), by_key).layer(tower::service_fn(app)));
    let mut call = async |method: &Method| {
        let request = Request::builder().method(method).header(API_KEY, "a").body(Full::default()).unwrap();
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(field(response.headers(), "access-control-allow-origin"), Some("*"), "{}", response.status());
        (response.status(), field(response.headers(), "ratelimit").map(str::to_owned))
    };
    for left in (0..40).rev() {
        assert_eq!(call(&Method::OPTIONS).await, (StatusCode::NO_CONTENT, None), "{left}");
        let (status, numbers) = call(&Method::GET).await;
        assert_eq!(status, StatusCode::OK, "{left}");
        assert!(numbers.unwrap().starts_with(&format!(r#""default";r={left};t="#)), "{left}");
        clock.advance(Duration::from_millis(1));
    }
    assert_eq!(call(&Method::GET).await.0, StatusCode::TOO_MANY_REQUESTS);
    // A client over its limit can still ask what it may ask.
    assert_eq!(call(&Method::OPTIONS).await, (StatusCode::NO_CONTENT, None));
    assert_eq!(limiter.len(), 1);
}

#[tokio::test]
async fn stacked_layers_each_add_their_fields() {
    let (_, wide) = limiter(Quota::per_minute(10));
    let (_, narrow) = limiter(Quota::per_minute(2));
    let inner = RateLimitLayer::new(narrow, Header::new(API_KEY)).name("narrow").unwrap();
    let outer = RateLimitLayer::new(wide, Header::new(API_KEY)).name("wide").unwrap();
    let mut service = outer.layer(inner.layer(tower::service_fn(hello)));
    let response = service.call(request("a")).await.unwrap();
    let fields: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
    assert_eq!(fields, [r#""narrow";r=1;t=30"#, r#""wide";r=9;t=6"#]);
    assert_eq!(response.headers().get_all("ratelimit-policy").iter().count(), 2);
}

#[test]
fn policy_names_that_fields_cannot_carry_are_refused() {
    let (_, limiter) = limiter(Quota::per_minute(1));
    let layer = RateLimitLayer::new(limiter, Header::new(API_KEY));
    let error = layer.name("naïve\r\n").unwrap_err();
    assert_eq!(error.to_string(), r#"policy name "naïve\r\n": header fields carry printable ASCII only"#);
}

/// Real requests to a real server: a keyed limit and one per peer, on loopback.
#[tokio::test]
async fn a_real_server_is_limited() {
    let (_, by_key) = limiter(Quota::per_hour(2));
    let by_peer = Limiter::builder().quota(Quota::per_hour(5)).keys::<IpAddr>().build().unwrap();
    let peer = PeerAddr::from_extension(|info: &ConnectInfo<SocketAddr>| Some(info.0));
    let app = axum::Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(RateLimitLayer::new(by_key, Header::new(API_KEY)).name("key").unwrap())
        .layer(RateLimitLayer::new(by_peer.clone(), peer).name("peer").unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await.unwrap();
    });

    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let mut statuses = Vec::new();
    for key in ["a", "a", "a", "b", "b", "b"] {
        let request = Request::builder().uri(&uri).header(API_KEY, key).body(Full::default()).unwrap();
        let response = client.request(request).await.unwrap();
        statuses.push(response.status().as_u16());
        let _ = response.into_body().collect().await.unwrap();
    }
    // The third `a` is denied by its key, and the sixth request by its peer, whose five are used up.
    assert_eq!(statuses, [200, 200, 429, 200, 200, 429]);
    assert_eq!(by_peer.len(), 1);
    server.abort();
}

/// Each quota of a plan has its item, and a denial names those that deny.
#[tokio::test]
async fn every_quota_of_a_plan_is_told() {
    let plan = Plan::new([Quota::per_second(2), Quota::per_hour(3)]);
    let limiter = Limiter::builder().plan("pro", plan).clock(TestClock::new().clock()).build().unwrap();
    let mut service = RateLimitLayer::new(limiter.clone(), Header::new(API_KEY)).layer(tower::service_fn(hello));
    let mut call = async || service.ready().await.unwrap().call(request("a")).await.unwrap();
    let allowed = call().await;
    let policy = r#""pro:requests/s";q=2;w=1, "pro:requests/h";q=3;w=3600"#;
    assert_eq!(field(allowed.headers(), "ratelimit-policy"), Some(policy));
    let left = r#""pro:requests/s";r=1;t=1, "pro:requests/h";r=2;t=1200"#;
    assert_eq!(field(allowed.headers(), "ratelimit"), Some(left));
    call().await;
    let denied = call().await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(field(denied.headers(), "retry-after"), Some("1"));
    let left = r#""pro:requests/s";r=0;t=1, "pro:requests/h";r=1;t=2400"#;
    assert_eq!(field(denied.headers(), "ratelimit"), Some(left));
    let problem: serde_json::Value = serde_json::from_str(&text(denied).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["pro:requests/s"]));

    // A reload is in the next answer, and a plan without limits in none.
    limiter.reload(Policy::new().plan("pro", Quota::per_hour(30))).unwrap();
    assert_eq!(field(call().await.headers(), "ratelimit-policy"), Some(r#""pro";q=30;w=3600"#));
    limiter.reload(Policy::new().plan("pro", Plan::unlimited())).unwrap();
    let free = call().await;
    assert_eq!((field(free.headers(), "ratelimit-policy"), field(free.headers(), "ratelimit")), (None, None));
    // In shadow mode the fields say what there is, and the request passes.
    limiter.reload(Policy::new().plan("pro", Quota::per_hour(1)).shadow()).unwrap();
    call().await;
    let passed = call().await;
    assert_eq!((passed.status(), field(passed.headers(), "retry-after")), (StatusCode::OK, None));
    assert_eq!(field(passed.headers(), "ratelimit"), Some(r#""pro";r=0;t=3600"#));
}

/// A request is in flight until the body of its response is dropped, or its own future is.
#[tokio::test]
async fn a_request_is_in_flight_until_its_body_is_gone() {
    let plan = Plan::new([Quota::per_hour(100)]).in_flight(1);
    let limiter = Limiter::builder().plan("chat", plan).build().unwrap();
    let mut service = RateLimitLayer::new(limiter.clone(), Header::new(API_KEY)).layer(tower::service_fn(hello));
    let first = service.ready().await.unwrap().call(request("a")).await.unwrap();
    let left = r#""chat:requests/h";r=99;t=36, "chat:in flight";r=0"#;
    assert_eq!(field(first.headers(), "ratelimit"), Some(left));
    let policy = r#""chat:requests/h";q=100;w=3600, "chat:in flight";q=1;qu="concurrent-requests""#;
    assert_eq!(field(first.headers(), "ratelimit-policy"), Some(policy));

    let denied = service.ready().await.unwrap().call(request("a")).await.unwrap();
    assert_eq!((denied.status(), field(denied.headers(), "retry-after")), (StatusCode::TOO_MANY_REQUESTS, None));
    let problem: serde_json::Value = serde_json::from_str(&text(denied).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["chat:in flight"]));
    assert_eq!(problem["detail"], "1 requests are in flight already");
    assert_eq!(limiter.peek("a").remaining(), 99);

    assert_eq!(text(first).await, "hello");
    drop(service.ready().await.unwrap().call(request("a")));
    let last = service.ready().await.unwrap().call(request("a")).await.unwrap();
    assert_eq!(last.status(), StatusCode::OK);
}
