//! Five seconds of more requests than anybody is granted, over real HTTP, and a table of what got through.

use std::collections::HashMap;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::header::RETRY_AFTER;
use axum::http::{Request, StatusCode};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::time::MissedTickBehavior;
use tollgate::Quota;

use super::{ANONYMOUS, Gateway, PLANS};

const LENGTH: Duration = Duration::from_secs(5);

/// How many times its quota each client offers; three at least even if it loses time.
const OVERLOAD: u64 = 4;

/// When the server first and last checked each client.
type Checks = Arc<Mutex<HashMap<&'static str, (Instant, Instant)>>>;

/// What one client saw.
#[derive(Default)]
struct Seen {
    offered: u64,
    admitted: u64,
    denied: u64,
    first_retry_after: Option<String>,
}

/// Runs the demo: true if every client got what it is granted.
pub(crate) async fn run() -> Result<bool, Box<dyn Error>> {
    let checks = Checks::default();
    let log = Arc::clone(&checks);
    let gateway = Gateway::new(move |client| {
        let now = Instant::now();
        let mut checks = log.lock().unwrap_or_else(PoisonError::into_inner);
        checks.entry(client).or_insert((now, now)).1 = now;
    })?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let addr = listener.local_addr()?;
    println!("driving http://{addr} for {} s, each client at {OVERLOAD} times its quota", LENGTH.as_secs());
    let live = tokio::spawn(Arc::clone(&gateway.counts).live());
    let app = gateway.app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let plans = PLANS.iter().map(|plan| (plan.name, plan.quota, Some(plan.api_key)));
    let clients: Vec<_> = plans
        .chain([("anonymous", ANONYMOUS, None)])
        .map(|(name, quota, api_key)| (name, quota, tokio::spawn(drive(addr, quota, api_key))))
        .collect();

    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header(["client", "quota", "offered", "admitted", "expected", "denied", "first Retry-After"]);
    let mut right = true;
    let mut problems = Vec::new();
    for (name, quota, client) in clients {
        let seen = client.await??;
        let span = checks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .map_or(Duration::ZERO, |(first, last)| *last - *first);
        let expected = granted(quota, span);
        if seen.admitted.abs_diff(expected) > 1 {
            problems.push(format!("{name}: {} admitted, {expected} expected in {span:?}", seen.admitted));
        }
        if seen.offered < 3 * expected {
            problems.push(format!("{name}: {} offered, less than three times {expected}", seen.offered));
        }
        if seen.first_retry_after.as_deref().is_none_or(|wait| !wait.parse::<u64>().is_ok_and(|wait| wait > 0)) {
            problems.push(format!("{name}: the first denial has no Retry-After of a second or more"));
        }
        table.add_row([
            name.to_owned(),
            quota.to_string(),
            seen.offered.to_string(),
            seen.admitted.to_string(),
            expected.to_string(),
            seen.denied.to_string(),
            seen.first_retry_after.map_or_else(|| "-".to_owned(), |wait| format!("{wait} s")),
        ]);
    }
    server.abort();
    live.abort();

    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("\n{table}");
    println!("expected = burst + floor(rate * t), t from the server's first check of the client to its last");
    for problem in &problems {
        right = false;
        eprintln!("wrong: {problem}");
    }
    if right {
        println!("every client got what it is granted, within one unit");
    }
    Ok(right)
}

/// The burst, and what came back in `span`.
fn granted(quota: Quota, span: Duration) -> u64 {
    let refilled = u128::from(quota.rate()) * span.as_nanos() / quota.period().as_nanos();
    quota.limit() + u64::try_from(refilled).unwrap_or(u64::MAX)
}

/// Sends [`OVERLOAD`] times what `quota` grants, evenly over [`LENGTH`].
async fn drive(addr: SocketAddr, quota: Quota, api_key: Option<&str>) -> Result<Seen, String> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let requests = OVERLOAD * granted(quota, LENGTH);
    let mut pace = tokio::time::interval(LENGTH / u32::try_from(requests).unwrap_or(u32::MAX));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);

    let mut seen = Seen::default();
    for _ in 0..requests {
        pace.tick().await;
        let mut request = Request::builder().uri(format!("http://{addr}/"));
        if let Some(api_key) = api_key {
            request = request.header("x-api-key", api_key);
        }
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let response = client.request(request).await.map_err(|error| format!("no answer from {addr}: {error}"))?;
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        // Read to its end, so that the connection is used again.
        response.into_body().collect().await.map_err(|error| format!("no body from {addr}: {error}"))?;

        seen.offered += 1;
        match status {
            StatusCode::OK => seen.admitted += 1,
            StatusCode::TOO_MANY_REQUESTS => {
                seen.denied += 1;
                if seen.denied == 1 {
                    seen.first_retry_after = retry_after;
                }
            }
            status => return Err(format!("{addr} answered with {status}")),
        }
    }
    Ok(seen)
}
