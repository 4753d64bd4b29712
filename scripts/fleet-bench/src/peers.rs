//! What is compared: each a limiter of one node, asked in the quickest way that it has.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use limitador::AsyncRateLimiter;
use limitador::limit::{Limit as LimitadorLimit, Namespace};
use limitador::storage::redis::CachedRedisStorageBuilder;
use redis::aio::MultiplexedConnection;
use tollgate::global::{Fleet, GlobalQuota, RedisAuthority};
use tollgate::{Decision, Limiter, Plan, Reason};
use trypema::hybrid::{HybridRateLimiterProvider, SyncInterval};
use trypema::redis::RedisKey;
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// So many requests of a client in any window of that length.
#[derive(Clone, Copy)]
pub struct Limit {
    pub requests: u32,
    pub window: Duration,
}

/// How long a request of [`Kind::Waiting`] waits for its first lease: longer than a round trip takes.
const PATIENCE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// With that overdraft, or the one by default.
    Tollgate(Option<u32>),
    /// No overdraft, but a request waits a round trip for the first lease of its client.
    Waiting,
    /// Flushes so often; `None` is what it does by default, every 10 ms.
    Trypema(Option<u64>),
    /// Flushes so often; `None` is what it does by default, every second.
    Limitador(Option<u64>),
    /// `INCR` and `EXPIRE` for each request.
    RoundTrip,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tollgate(None) => f.write_str("tollgate"),
            Self::Tollgate(Some(overdraft)) => write!(f, "tollgate, o = {overdraft}"),
            Self::Waiting => f.write_str("tollgate, o = 0, waiting"),
            Self::Trypema(flush) => write!(f, "trypema hybrid, {} ms", flush.unwrap_or(10)),
            Self::Limitador(flush) => write!(f, "limitador cached, {} ms", flush.unwrap_or(1_000)),
            Self::RoundTrip => f.write_str("INCR + EXPIRE"),
        }
    }
}

impl Kind {
    /// Whether it counts windows that begin with the first request after the last window.
    pub const fn has_fixed_windows(self) -> bool {
        matches!(self, Self::Limitador(_) | Self::RoundTrip)
    }
}

/// A client, under every name that a peer wants it to have.
pub struct Client {
    name: String,
    key: RedisKey,
}

/// Clients that live as long as the program.
pub fn clients(number: u32) -> Result<&'static [Client], Failure> {
    let client = |n| -> Result<Client, Failure> {
        let name = format!("client-{n:013}");
        Ok(Client { key: RedisKey::try_from(name.as_str())?, name })
    };
    let all: Vec<Client> = (0..number).map(client).collect::<Result<_, _>>()?;
    Ok(all.leak())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Admit,
    Deny,
    Fail,
}

impl Verdict {
    const fn of(is_allowed: bool) -> Self {
        if is_allowed { Self::Admit } else { Self::Deny }
    }
}

/// A verdict, or the wait for one.
pub enum Check {
    Now(Verdict),
    Later(Pin<Box<dyn Future<Output = Verdict> + Send>>),
}

/// The limiter of a node. To be made on the runtime of that node.
#[derive(Clone)]
pub enum Node {
    /// With the fleet, since its leases end with it.
    Tollgate {
        limiter: Arc<Limiter>,
        is_waiting: bool,
        _fleet: Arc<Fleet>,
    },
    Trypema {
        provider: Arc<HybridRateLimiterProvider>,
        rate: RateLimit,
    },
    Limitador {
        limiter: Arc<AsyncRateLimiter>,
        namespace: Namespace,
    },
    RoundTrip {
        connection: MultiplexedConnection,
        limit: Limit,
    },
}

impl Node {
    pub async fn new(kind: Kind, limit: Limit, url: &str) -> Result<Self, Failure> {
        let seconds = limit.window.as_secs();
        match kind {
            Kind::Tollgate(overdraft) => Self::tollgate(overdraft, false, limit, url),
            Kind::Waiting => Self::tollgate(Some(0), true, limit, url),
            Kind::Trypema(flush) => {
                let connection = redis::Client::open(url)?.get_connection_manager().await?;
                let mut builder =
                    HybridRateLimiterProvider::builder(connection).window_size(WindowSize::seconds(seconds)?);
                if let Some(flush) = flush {
                    builder = builder.sync_interval(SyncInterval::milliseconds(flush)?);
                }
                let rate = RateLimit::per_second(f64::from(limit.requests) / limit.window.as_secs_f64())?;
                Ok(Self::Trypema { provider: builder.build()?, rate })
            }
            Kind::Limitador(flush) => {
                let mut builder = CachedRedisStorageBuilder::new(url);
                if let Some(flush) = flush {
                    builder = builder.flushing_period(Duration::from_millis(flush));
                }
                let limiter = AsyncRateLimiter::new_with_storage(Box::new(builder.build().await?));
                let client = "client".try_into().map_err(|error| format!("{error:?}"))?;
                limiter.add_limit(LimitadorLimit::new("api", u64::from(limit.requests), seconds, vec![], vec![client]));
                Ok(Self::Limitador { limiter: Arc::new(limiter), namespace: "api".into() })
            }
            Kind::RoundTrip => {
                let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
                Ok(Self::RoundTrip { connection, limit })
            }
        }
    }

    fn tollgate(overdraft: Option<u32>, is_waiting: bool, limit: Limit, url: &str) -> Result<Self, Failure> {
        let fleet = Fleet::builder(RedisAuthority::builder(url).build()?).start()?;
        let mut quota = GlobalQuota::sliding_window(u64::from(limit.requests), limit.window);
        if let Some(overdraft) = overdraft {
            quota = quota.overdraft(overdraft);
        }
        let limiter = Limiter::builder().fleet(&fleet).plan("api", Plan::new([]).global(quota)).build()?;
        Ok(Self::Tollgate { limiter: Arc::new(limiter), is_waiting, _fleet: Arc::new(fleet) })
    }

    pub fn check(&self, client: &'static Client) -> Check {
        match self {
            Self::Tollgate { limiter, is_waiting: false, .. } => {
                Check::Now(Verdict::of(limiter.check(client.name.as_str()).is_allowed()))
            }
            Self::Tollgate { limiter, .. } => {
                let decision = limiter.check(client.name.as_str());
                if !matches!(&decision, Decision::Deny(deny) if deny.reason() == Reason::NoLease) {
                    return Check::Now(Verdict::of(decision.is_allowed()));
                }
                let limiter = Arc::clone(limiter);
                Check::Later(Box::pin(async move {
                    Verdict::of(limiter.acquire_global(client.name.as_str(), 1, PATIENCE).await.is_allowed())
                }))
            }
            Self::Trypema { provider, rate } => match provider.absolute().try_inc(client.key.as_key_ref(), 1) {
                Ok(Some(decision)) => Check::Now(Verdict::of(matches!(decision, RateLimitDecision::Allowed))),
                Ok(None) => {
                    let (provider, rate) = (Arc::clone(provider), *rate);
                    Check::Later(Box::pin(async move {
                        match provider.absolute().inc(&client.key, &rate, 1).await {
                            Ok(decision) => Verdict::of(matches!(decision, RateLimitDecision::Allowed)),
                            Err(_) => Verdict::Fail,
                        }
                    }))
                }
                Err(_) => Check::Now(Verdict::Fail),
            },
            Self::Limitador { limiter, namespace } => {
                let (limiter, namespace) = (Arc::clone(limiter), namespace.clone());
                Check::Later(Box::pin(async move {
                    let values = HashMap::from([("client".to_owned(), client.name.clone())]).into();
                    match limiter.check_rate_limited_and_update(&namespace, &values, 1).await {
                        Ok(result) => Verdict::of(!result.limited),
                        Err(_) => Verdict::Fail,
                    }
                }))
            }
            Self::RoundTrip { connection, limit } => {
                let (mut connection, limit) = (connection.clone(), *limit);
                Check::Later(Box::pin(async move {
                    let mut pipe = redis::pipe();
                    pipe.incr(&client.name, 1_u32);
                    pipe.cmd("EXPIRE").arg(&client.name).arg(limit.window.as_secs()).arg("NX").ignore();
                    match pipe.query_async::<(u64,)>(&mut connection).await {
                        Ok((count,)) => Verdict::of(count <= u64::from(limit.requests)),
                        Err(_) => Verdict::Fail,
                    }
                }))
            }
        }
    }
}
