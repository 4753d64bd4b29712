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

use super::{ANONYMOUS, Gateway, PLANS, limits};

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

/// What a client should get.
struct Expected {
    /// Units.
    least: u64,
    most: u64,
    shown: String,
}

impl Expected {
    /// Of a gateway by itself: the burst, and what came back in `span`.
    fn alone(quota: Quota, span: Duration) -> Self {
        let units = granted(quota, span);
        Self { least: units - 1, most: units + 1, shown: units.to_string() }
    }

    /// Of gateways that share a window which is longer than this takes: the limit, and a unit on each that had not heard of the
    /// client. A lease that lies with one gateway at the end is missing on another.
    fn shared(quota: Quota, gateways: u64) -> Self {
        let (least, most) = (quota.rate() * 9 / 10 - 1, quota.rate() + gateways);
        Self { least, most, shown: format!("{least} to {most}") }
    }
}

/// Runs the demo: true if every client got what it is granted. With a Redis server two gateways share their limits.
pub(crate) async fn run(redis: Option<&str>) -> Result<bool, Box<dyn Error>> {
    let checks = Checks::default();
    let count = if redis.is_some() { 2 } else { 1 };
    let (mut fleets, mut gateways, mut addrs, mut servers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        let log = Arc::clone(&checks);
        // What a run before this has counted is none of ours.
        let fleet = redis.map(|url| limits::connect(url, &format!("gateway-{}", std::process::id()))).transpose()?;
        let gateway = Gateway::new(fleet.as_ref(), move |client| {
            let now = Instant::now();
            let mut checks = log.lock().unwrap_or_else(PoisonError::into_inner);
            checks.entry(client).or_insert((now, now)).1 = now;
        })?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        addrs.push(listener.local_addr()?);
        gateways.push(Arc::clone(&gateway.counts));
        let app = gateway.app.into_make_service_with_connect_info::<SocketAddr>();
        servers.push(tokio::spawn(async move { axum::serve(listener, app).await }));
        fleets.extend(fleet);
    }
    let names: Vec<_> = addrs.iter().map(|addr| format!("http://{addr}")).collect();
    let names = names.join(" and ");
    println!("driving {names} for {} s, each client at {OVERLOAD} times its quota", LENGTH.as_secs());
    let live: Vec<_> = gateways.iter().take(1).map(|counts| tokio::spawn(Arc::clone(counts).live())).collect();

    let plans = PLANS.iter().map(|plan| (plan.name, plan.quota, Some(plan.api_key)));
    let clients: Vec<_> = plans
        .chain([("anonymous", ANONYMOUS, None)])
        .map(|(name, quota, api_key)| {
            let requests = OVERLOAD * if redis.is_some() { quota.rate() } else { granted(quota, LENGTH) };
            (name, quota, tokio::spawn(drive(addrs.clone(), requests, api_key)))
        })
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
        let expected = if redis.is_some() { Expected::shared(quota, count) } else { Expected::alone(quota, span) };
        if seen.admitted < expected.least || seen.admitted > expected.most {
            problems.push(format!("{name}: {} admitted, {} expected in {span:?}", seen.admitted, expected.shown));
        }
        if seen.offered < 3 * (expected.most - 1) {
            problems.push(format!("{name}: {} offered, less than three times {}", seen.offered, expected.most - 1));
        }
        if seen.first_retry_after.as_deref().is_none_or(|wait| !wait.parse::<u64>().is_ok_and(|wait| wait > 0)) {
            problems.push(format!("{name}: the first denial has no Retry-After of a second or more"));
        }
        table.add_row([
            name.to_owned(),
            quota.to_string(),
            seen.offered.to_string(),
            seen.admitted.to_string(),
            expected.shown,
            seen.denied.to_string(),
            seen.first_retry_after.map_or_else(|| "-".to_owned(), |wait| format!("{wait} s")),
        ]);
    }
    servers.iter().for_each(tokio::task::JoinHandle::abort);
    live.iter().for_each(tokio::task::JoinHandle::abort);
    fleets.into_iter().for_each(limits::end);

    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("\n{table}");
    match redis {
        Some(_) => {
            println!("expected = the rate over both gateways, nine tenths of it at least, and one more on each at most")
        }
        None => {
            println!("expected = burst + floor(rate * t), t from the server's first check of the client to its last")
        }
    }
    for problem in &problems {
        right = false;
        eprintln!("wrong: {problem}");
    }
    if right {
        println!("every client got what it is granted");
    }
    Ok(right)
}

/// The burst, and what came back in `span`.
fn granted(quota: Quota, span: Duration) -> u64 {
    let refilled = u128::from(quota.rate()) * span.as_nanos() / quota.period().as_nanos();
    quota.limit() + u64::try_from(refilled).unwrap_or(u64::MAX)
}

/// Sends so many requests, evenly over [`LENGTH`], to each of these in turn.
async fn drive(addrs: Vec<SocketAddr>, requests: u64, api_key: Option<&str>) -> Result<Seen, String> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut pace = tokio::time::interval(LENGTH / u32::try_from(requests).unwrap_or(u32::MAX));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);

    let mut seen = Seen::default();
    for addr in addrs.iter().cycle().take(requests as usize) {
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
