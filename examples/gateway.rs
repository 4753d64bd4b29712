//! An API gateway on one limiter: three plans by API key, and a default for everybody else by address.
//!
//! ```text
//! cargo run --release --features http --example gateway              # http://127.0.0.1:3000, Ctrl-C stops it
//! cargo run --release --features http --example gateway -- --demo    # drives itself for five seconds and checks
//!
//! # Limits that all gateways on this server share; a plan's burst does not count then. The demo drives two of them.
//! REDIS_URL=redis://127.0.0.1 cargo run --release --features http,redis --example gateway
//!
//! curl -i -H 'x-api-key: free-key' http://127.0.0.1:3000/
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to the person who runs it")]

#[path = "gateway/demo.rs"]
mod demo;
#[path = "gateway/limits.rs"]
mod limits;

use std::borrow::Cow;
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use clap::Parser;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tollgate::http::{KeyExtractor, PeerAddr, RateLimitLayer};
use tollgate::{Limiter, Quota};

use limits::Fleet;

/// A rate-limited HTTP server: three plans by API key, and a default by address.
#[derive(Parser)]
#[command(after_help = "API keys: free-key, pro-key, enterprise-key, in the header x-api-key")]
struct Args {
    /// The port on 127.0.0.1
    #[arg(long, default_value_t = 3000)]
    port: u16,

    /// Start on a free port, drive the server for five seconds with clients of its own, and check what got through
    #[arg(long, conflicts_with = "port")]
    demo: bool,

    /// A Redis server by way of which gateways share their limits: redis://user:password@host:6379 (feature `redis`)
    #[arg(long, value_name = "URL", env = "REDIS_URL", hide_env_values = true)]
    redis: Option<String>,
}

/// A plan, and the API key that is on it. A real gateway looks keys up where its customers are kept.
struct Plan {
    name: &'static str,
    api_key: &'static str,
    quota: Quota,
}

const PLANS: [Plan; 3] = [
    Plan { name: "free", api_key: "free-key", quota: Quota::per_minute(10).burst(5) },
    Plan { name: "pro", api_key: "pro-key", quota: Quota::per_minute(100).burst(20) },
    Plan { name: "enterprise", api_key: "enterprise-key", quota: Quota::per_minute(1_000).burst(100) },
];

/// What an address without an API key of ours gets.
const ANONYMOUS: Quota = Quota::per_minute(30).burst(10);

fn plan_of<B>(request: &http::Request<B>) -> Option<&'static Plan> {
    let key = request.headers().get("x-api-key")?;
    PLANS.iter().find(|plan| key == plan.api_key)
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = {
        let redis = args.redis.as_deref().filter(|url| !url.is_empty());
        if args.demo { demo::run(redis).await } else { serve(args.port, redis).await.map(|()| true) }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until Ctrl-C, and lets the requests that are in flight finish.
async fn serve(port: u16, redis: Option<&str>) -> Result<(), Box<dyn Error>> {
    let fleet = redis.map(|url| limits::connect(url, "gateway")).transpose()?;
    let gateway = Gateway::new(fleet.as_ref(), |_| ())?;
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = TcpListener::bind(addr)
        .await
        .map_err(|error| format!("can't listen on {addr}: {error}; another port can be given with --port"))?;
    let shared = if fleet.is_some() { ", with limits that are shared by way of Redis" } else { "" };
    println!("listening on http://{}{shared}, Ctrl-C stops", listener.local_addr()?);
    let live = tokio::spawn(Arc::clone(&gateway.counts).live());
    let app = gateway.app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app)
        .with_graceful_shutdown(async {
            // Without a signal to wait for there is no way to be told to stop but the hard one.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        })
        .await?;
    live.abort();
    println!("\nstopped: {}", gateway.counts);
    if let Some(fleet) = fleet {
        limits::end(fleet);
    }
    Ok(())
}

struct Gateway {
    app: Router,
    counts: Arc<Counts>,
}

impl Gateway {
    /// `before_check` is told the name of the client right before each check.
    fn new(
        fleet: Option<&Fleet>,
        before_check: impl Fn(&'static str) + Send + Sync + 'static,
    ) -> Result<Self, Box<dyn Error>> {
        let limiter = limits::limiter(fleet)?;
        let peer = PeerAddr::from_extension(|info: &ConnectInfo<SocketAddr>| Some(info.0));
        let key = move |request: &Request| {
            if request.uri().path() == "/health" {
                return Ok(None);
            }
            let plan = plan_of(request);
            before_check(plan.map_or("anonymous", |plan| plan.name));
            match plan {
                Some(plan) => Ok(Some(Cow::Borrowed(plan.api_key))),
                None => Ok(peer.extract(request)?.map(|address| Cow::Owned(format!("ip:{address}")))),
            }
        };
        let app = Router::new()
            .route("/", get(hello))
            .route("/health", get(|| async { "ok" }))
            .layer(RateLimitLayer::new(limiter.clone(), key));

        let counts = Arc::new(Counts { admitted: AtomicU64::new(0), denied: AtomicU64::new(0), limiter });
        let app = app.layer(middleware::from_fn_with_state(Arc::clone(&counts), count));
        Ok(Self { app, counts })
    }
}

async fn hello(request: Request) -> Json<Value> {
    let plan = plan_of(&request).map_or("anonymous", |plan| plan.name);
    Json(json!({ "message": "hello", "plan": plan }))
}

/// What the live line shows.
struct Counts {
    admitted: AtomicU64,
    denied: AtomicU64,
    limiter: Limiter,
}

async fn count(State(counts): State<Arc<Counts>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let count = if response.status() == StatusCode::TOO_MANY_REQUESTS { &counts.denied } else { &counts.admitted };
    count.fetch_add(1, Ordering::Relaxed);
    response
}

impl Counts {
    /// Writes one line a second: over itself on a terminal, and elsewhere only when something has changed.
    async fn live(self: Arc<Self>) {
        let terminal = io::stdout().is_terminal();
        let mut shown = String::new();
        let mut second = tokio::time::interval(Duration::from_secs(1));
        loop {
            second.tick().await;
            let line = self.to_string();
            if terminal {
                print!("\r\x1b[2K{line}");
                let _ = io::stdout().flush();
            } else if line != shown {
                println!("{line}");
            }
            shown = line;
        }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys = self.limiter.len();
        let (admitted, denied) = (self.admitted.load(Ordering::Relaxed), self.denied.load(Ordering::Relaxed));
        write!(f, "{admitted} admitted, {denied} denied, {keys} keys")
    }
}
