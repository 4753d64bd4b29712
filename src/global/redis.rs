//! An authority in Redis, or in a server that speaks like it.
//!
//! | file | its one job |
//! |---|---|
//! | `window.lua` | carries a batch out, on the server |
//! | `packed.rs` | batches and replies as the script takes and gives them |
//! | `slots.rs` | where keys lie in a cluster |
//! | `supervisor.rs` | the connection: made, watched, and made anew |
//! | `tls.rs` | certificates, for a server that is spoken to by TLS (feature `redis-tls`) |
//! | `trouble.rs` | what went wrong, in words, and what becomes of the connection |

mod packed;
mod slots;
mod supervisor;
#[cfg(feature = "redis-tls")]
mod tls;
mod trouble;

use std::fmt;
use std::io;
use std::thread;
use std::time::Duration;

use ::redis::io::tcp::{TcpSettings, socket2};
use ::redis::{ConnectionInfo, IntoConnectionInfo};
use tokio::sync::mpsc::{self, UnboundedSender};

pub use self::packed::{Packed, unpack};
use self::supervisor::{Event, Settings, Supervisor};
use super::authority::{Authority, Call};

/// What the server does with a batch.
pub const SCRIPT: &str = include_str!("window.lua");

/// What is waited for when a connection is made, the greeting included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Longer than any answer takes that is still of use: leases are renewed while they have some time to live.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// As a [`Fleet`](super::Fleet) has by default.
const SHARDS: u16 = 16;

/// After so long without a byte the system asks whether the other end is still there.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// An authority in Redis 6.2 or later, Valkey, or a server that speaks like them.
///
/// Each batch is one call of a script, which does everything or nothing. All keys have a time to live, and those of a shard share
/// a slot. It has a thread and a connection of its own, and connects on the first call.
///
/// - **No answer in time**: the call fails and is made again by the fleet, under the same number, so that it counts once. After
///   two in a row the connection is made anew.
/// - **The connection is lost**: it is made anew at once, and calls that were under way are sent again. Where that fails there is
///   one try at a time, after 50 ms to 2 s.
/// - **The server has become a replica**: the connection is made anew as well, to whatever its name stands for by then.
/// - **Another program has written under a key**: that key [fails](super::Answer::failed), and no other.
///
/// A user of its own has to be allowed `evalsha`, `script|load`, `time`, `get`, `mget`, `set`, `setrange`, `pexpire`, `del`,
/// `zadd`, `zcard` and `zremrangebyscore`, on keys that begin with the [prefix](RedisAuthorityBuilder::key_prefix).
///
/// Time is that of the server. Whatever it forgets before its time, by eviction, a flush or a failover, is told again as far as
/// the fleet knows it: set `maxmemory-policy` to `noeviction` or `volatile-ttl`.
///
/// ```no_run
/// use std::time::Duration;
/// use tollgate::global::{Fleet, GlobalQuota, RedisAuthority};
/// use tollgate::{Limiter, Plan};
///
/// let authority = RedisAuthority::builder("redis://limits:secret@redis.internal:6379").build()?;
/// let fleet = Fleet::builder(authority).start()?;
/// let limit = GlobalQuota::sliding_window(6_000, Duration::from_secs(60));
/// let limiter = Limiter::builder().fleet(&fleet).plan("api", Plan::new([]).global(limit)).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RedisAuthority {
    events: UnboundedSender<Event>,
    address: String,
}

impl RedisAuthority {
    /// Starts the building of an authority in the server at `url`: `redis://user:password@host:6379/0`, of which all but the
    /// host can be left out, or `rediss://` for TLS (feature `redis-tls`), or `unix:///path`.
    pub fn builder(url: impl Into<String>) -> RedisAuthorityBuilder {
        RedisAuthorityBuilder {
            url: url.into(),
            key_prefix: "tg".to_owned(),
            database: None,
            shards: SHARDS,
            connect_timeout: CONNECT_TIMEOUT,
            response_timeout: RESPONSE_TIMEOUT,
            #[cfg(feature = "redis-tls")]
            certificates: tls::Certificates::default(),
        }
    }
}

impl Authority for RedisAuthority {
    /// Answers on the thread of this authority.
    fn call(&self, call: Call) {
        // Without the thread it is dropped, which counts as lost.
        _ = self.events.send(Event::Call(call));
    }
}

impl Drop for RedisAuthority {
    fn drop(&mut self) {
        _ = self.events.send(Event::Stop);
    }
}

impl fmt::Debug for RedisAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisAuthority").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The options of a [`RedisAuthority`].
#[must_use = "a builder does nothing until `build`"]
pub struct RedisAuthorityBuilder {
    url: String,
    key_prefix: String,
    database: Option<u16>,
    shards: u16,
    connect_timeout: Duration,
    response_timeout: Duration,
    #[cfg(feature = "redis-tls")]
    certificates: tls::Certificates,
}

impl RedisAuthorityBuilder {
    /// What all keys begin with, `tg` by default. It is part of every key that is sent and kept, so a short one is best. All
    /// nodes of a fleet must have the same.
    pub fn key_prefix(self, prefix: impl Into<String>) -> Self {
        Self { key_prefix: prefix.into(), ..self }
    }

    /// The number of the database, that of the address by default.
    pub fn database(self, database: u16) -> Self {
        Self { database: Some(database), ..self }
    }

    /// How many shards keys are divided into: as many as the [fleet](super::FleetBuilder::shards) has, 16 by default. They are
    /// spread evenly over the slots of a cluster.
    pub fn shards(self, shards: u16) -> Self {
        Self { shards, ..self }
    }

    /// How long a connection may take to be made, the log-in included, 1 s by default.
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        Self { connect_timeout: timeout, ..self }
    }

    /// How long an answer may take, 500 ms by default.
    pub fn response_timeout(self, timeout: Duration) -> Self {
        Self { response_timeout: timeout, ..self }
    }

    /// Whom to trust to tell that a server at `rediss://` is who it says: certificates in PEM, one or more. They take the place
    /// of those that the system trusts, which are the default (from where OpenSSL keeps them, or `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR` name).
    #[cfg(feature = "redis-tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.roots = Some(pem.into());
        self
    }

    /// Who this client is, for a server that asks (`tls-auth-clients yes`, which is the default of Redis): a certificate with
    /// those that lead to one that the server trusts, and its private key, both in PEM.
    #[cfg(feature = "redis-tls")]
    pub fn client_certificate(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificates.client = Some((chain.into(), key.into()));
        self
    }

    /// Starts the thread. Nothing is connected to yet.
    ///
    /// # Errors
    ///
    /// [`RedisBuildError`] if the address is none, the prefix has a brace, there are no shards, a certificate makes no sense,
    /// or the system has no thread left.
    pub fn build(self) -> Result<RedisAuthority, RedisBuildError> {
        let info = self.connection_info()?;
        if self.key_prefix.contains(['{', '}']) {
            return Err(RedisBuildError::BraceInPrefix { prefix: self.key_prefix });
        }
        if self.shards == 0 {
            return Err(RedisBuildError::NoShards);
        }
        let address = info.addr().to_string();
        #[cfg(feature = "redis-tls")]
        let client = self.certificates.client(info)?;
        #[cfg(not(feature = "redis-tls"))]
        let client = ::redis::Client::open(info).map_err(|_| RedisBuildError::BadAddress)?;
        let prefix = &self.key_prefix;
        let settings = Settings {
            client,
            address: address.clone(),
            starts: slots::tags(self.shards).iter().map(|tag| format!("{prefix}{{{tag}}}")).collect(),
            connect_timeout: self.connect_timeout,
            response_timeout: self.response_timeout,
        };
        let (events, inbox) = mpsc::unbounded_channel();
        let supervisor = Supervisor::new(settings, events.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(RedisBuildError::NoThread)?;
        let thread = thread::Builder::new().name("tollgate-redis".to_owned());
        let run = move || {
            runtime.block_on(supervisor.run(inbox));
            // A look-up of a name may still be under way, and is not waited for.
            runtime.shutdown_background();
        };
        thread.spawn(run).map_err(RedisBuildError::NoThread)?;
        Ok(RedisAuthority { events, address })
    }

    fn connection_info(&self) -> Result<ConnectionInfo, RedisBuildError> {
        let is_tls = ["rediss:", "valkeys:"].iter().any(|scheme| self.url.trim_start().starts_with(scheme));
        if is_tls && !cfg!(feature = "redis-tls") {
            return Err(RedisBuildError::NoTls);
        }
        let info = self.url.as_str().into_connection_info().map_err(|_| RedisBuildError::BadAddress)?;
        let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        let info = info.set_tcp_settings(tcp);
        Ok(match self.database {
            Some(database) => {
                let settings = info.redis_settings().clone().set_db(database.into());
                info.set_redis_settings(settings)
            }
            None => info,
        })
    }
}

impl fmt::Debug for RedisAuthorityBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may hold a password.
        f.debug_struct("RedisAuthorityBuilder")
            .field("key_prefix", &self.key_prefix)
            .field("database", &self.database)
            .field("shards", &self.shards)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}

/// Why a [`RedisAuthority`] was not built. The address is not repeated, since it may hold a password.
#[derive(Debug)]
#[non_exhaustive]
pub enum RedisBuildError {
    /// The address could not be understood.
    BadAddress,
    /// The address asks for TLS, and this program was built without the feature `redis-tls`.
    NoTls,
    /// The prefix of keys has a brace: what is in braces decides where a key lies.
    BraceInPrefix {
        /// The prefix that was refused.
        prefix: String,
    },
    /// Certificates are given, and the address asks for no TLS.
    CertificatesUnused,
    /// A certificate or a key is not in PEM, or can't be used.
    BadCertificate {
        /// Why, without what is in it.
        reason: String,
    },
    /// There are no shards.
    NoShards,
    /// The system did not give a thread.
    NoThread(io::Error),
}

impl fmt::Display for RedisBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadAddress => f.write_str(
                "the address of the Redis server could not be understood: write redis://user:password@host:6379/0, of which \
                 all but the host can be left out, or unix:///path; in a password, / is %2F, @ is %40 and # is %23",
            ),
            Self::NoTls => f.write_str(
                "the address of the Redis server asks for TLS: build with the feature `redis-tls`, or write redis:// to go without",
            ),
            Self::BraceInPrefix { prefix } => {
                write!(f, "{prefix:?} can't begin keys: what is in braces decides where a key lies; leave them out")
            }
            Self::CertificatesUnused => f.write_str(
                "certificates are given, and the address of the Redis server asks for no TLS: write rediss://, or leave them out",
            ),
            Self::BadCertificate { reason } => {
                write!(f, "certificates for the Redis server can't be used: {reason}; give them in PEM, each with BEGIN and END")
            }
            Self::NoShards => f.write_str("an authority of 0 shards: give as many as the fleet has"),
            Self::NoThread(error) => write!(f, "the thread of the Redis authority could not be started: {error}"),
        }
    }
}

impl std::error::Error for RedisBuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoThread(error) => Some(error),
            _ => None,
        }
    }
}
