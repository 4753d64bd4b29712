//! What went wrong, in words, and what becomes of the connection.

use std::time::Duration;

use ::redis::{ErrorKind, RedisError};

use crate::global::AuthorityError;

/// What becomes of a connection on which something went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// It is as good as before.
    Keep,
    /// No answer came, which may be the server's fault or that of the network.
    Doubt,
    /// It is gone.
    Lost,
    /// It leads to a server that is of no use, and another may be found under the same name.
    Leave,
}

/// Why a call failed.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) error: AuthorityError,
    pub(super) fate: Fate,
}

impl Trouble {
    pub(super) fn new(fate: Fate, address: &str, what: &str) -> Self {
        Self { error: AuthorityError::new(format!("Redis at {address}: {what}")), fate }
    }

    /// No answer to a batch.
    pub(super) fn silence(address: &str, after: Duration) -> Self {
        let what = format!(
            "no answer to a batch (EVALSHA) within {after:?}: see whether the server is overloaded or out of reach, or allow a \
             longer `response_timeout`"
        );
        Self::new(Fate::Doubt, address, &what)
    }

    /// No connection.
    pub(super) fn unreachable(address: &str, after: Duration) -> Self {
        let what = format!("no connection within {after:?}: see whether it runs, and whether a firewall is in the way");
        Self::new(Fate::Lost, address, &what)
    }

    /// `purpose` is what the command was for.
    pub(super) fn of(error: &RedisError, address: &str, purpose: &str) -> Self {
        let detail = error.detail().unwrap_or_default();
        let code = match error.code() {
            // Servers before 7.0 say first where in the script it was.
            Some(place) if place.starts_with('@') => CODES.iter().find(|code| detail.contains(**code)).copied(),
            code => code,
        };
        let code = code.unwrap_or("ERR");
        let (fate, wait, what) = match code {
            "READONLY" => (
                Fate::Leave,
                0,
                "it is a replica and takes no writes (READONLY): have the address name the primary".to_owned(),
            ),
            "MASTERDOWN" => (
                Fate::Leave,
                100,
                "it is a replica without its primary (MASTERDOWN): have the address name the primary".to_owned(),
            ),
            "LOADING" => (Fate::Keep, 250, "it is still reading its data after a start (LOADING): wait".to_owned()),
            "BUSY" => {
                (Fate::Keep, 250, "another script keeps it busy (BUSY): end that with SCRIPT KILL, or wait".to_owned())
            }
            "OOM" => (
                Fate::Keep,
                1_000,
                "it has no memory left (OOM): raise `maxmemory`, or let it evict (volatile-ttl)".to_owned(),
            ),
            "MISCONF" => (
                Fate::Keep,
                1_000,
                "it takes no writes since it can't save its data (MISCONF): see its log and its disk".to_owned(),
            ),
            "NOREPLICAS" => (
                Fate::Keep,
                1_000,
                "it takes no writes without enough replicas (NOREPLICAS): see `min-replicas-to-write`".to_owned(),
            ),
            "CLUSTERDOWN" | "TRYAGAIN" => {
                (Fate::Keep, 250, format!("its cluster is being rearranged or is incomplete ({code}): wait"))
            }
            "MOVED" | "ASK" | "CROSSSLOT" => (
                Fate::Keep,
                1_000,
                format!(
                    "it is one of several of a cluster, and keys lie on others ({code}): give it all slots, or another server"
                ),
            ),
            "NOAUTH" | "WRONGPASS" => {
                (Fate::Leave, 1_000, format!("it refuses the log-in ({code}): see user and password in the address"))
            }
            "NOPERM" => (
                Fate::Leave,
                1_000,
                format!("the user may not {purpose} (NOPERM): allow it what the documentation of RedisAuthority lists"),
            ),
            _ => match error.kind() {
                ErrorKind::AuthenticationFailed => {
                    (Fate::Leave, 1_000, "it refuses the log-in: see user and password in the address".to_owned())
                }
                ErrorKind::Io => (Fate::Lost, 0, format!("the connection failed while it was to {purpose}: {error}")),
                ErrorKind::Server(_) | ErrorKind::Extension => {
                    (Fate::Keep, 250, format!("it could not {purpose}: {code} {detail}"))
                }
                _ => (Fate::Leave, 250, format!("it does not answer as Redis does when it is to {purpose}: {error}")),
            },
        };
        let trouble = Self::new(fate, address, &what);
        match wait {
            0 => trouble,
            wait => Self { error: trouble.error.retry_after(Duration::from_millis(wait)), ..trouble },
        }
    }
}

/// Codes of errors that a script may run into.
const CODES: [&str; 7] = ["READONLY", "MASTERDOWN", "OOM", "MISCONF", "NOREPLICAS", "NOPERM", "CROSSSLOT"];
