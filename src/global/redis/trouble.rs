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
        let what = format!(
            "asked to open a connection, and there was none within {after:?}: see whether it runs, whether a firewall is in the way, and \
             whether it speaks TLS on that port if the address asks for that"
        );
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
        use Fate::{Keep, Leave, Lost};
        let (word, fate, wait, what) = match code {
            "READONLY" => (
                "READONLY",
                Leave,
                0,
                "it is a replica and takes no writes (READONLY): have the address name the primary".to_owned(),
            ),
            "MASTERDOWN" => (
                "MASTERDOWN",
                Leave,
                100,
                "it is a replica without its primary (MASTERDOWN): have the address name the primary".to_owned(),
            ),
            "LOADING" => {
                ("LOADING", Keep, 250, "it is still reading its data after a start (LOADING): wait".to_owned())
            }
            "BUSY" => (
                "BUSY",
                Keep,
                250,
                "another script keeps it busy (BUSY): end that with SCRIPT KILL, or wait".to_owned(),
            ),
            "OOM" => (
                "OOM",
                Keep,
                1_000,
                "it has no memory left (OOM): raise `maxmemory`, or let it evict (volatile-ttl)".to_owned(),
            ),
            "MISCONF" => (
                "MISCONF",
                Keep,
                1_000,
                "it takes no writes since it can't save its data (MISCONF): see its log and its disk".to_owned(),
            ),
            "NOREPLICAS" => (
                "NOREPLICAS",
                Keep,
                1_000,
                "it takes no writes without enough replicas (NOREPLICAS): see `min-replicas-to-write`".to_owned(),
            ),
            "CLUSTERDOWN" | "TRYAGAIN" => {
                ("CLUSTERDOWN", Keep, 250, format!("its cluster is being rearranged or is incomplete ({code}): wait"))
            }
            "MOVED" | "ASK" | "CROSSSLOT" => (
                "MOVED",
                Keep,
                1_000,
                format!(
                    "it is one of several of a cluster, and keys lie on others ({code}): give it all slots, or another server"
                ),
            ),
            "NOAUTH" | "WRONGPASS" => (
                "log-in",
                Leave,
                1_000,
                format!("it refuses the log-in ({code}): see user and password in the address"),
            ),
            "NOPERM" => (
                "NOPERM",
                Leave,
                1_000,
                "the user may not do that (NOPERM): allow it what the documentation of RedisAuthority lists".to_owned(),
            ),
            _ => match error.kind() {
                ErrorKind::AuthenticationFailed => {
                    ("log-in", Leave, 1_000, "it refuses the log-in: see user and password in the address".to_owned())
                }
                ErrorKind::Io if error.to_string().contains("invalid peer certificate") => (
                    "certificate",
                    Leave,
                    1_000,
                    format!(
                        "its certificate is not accepted: {error}; give whoever has signed it as `root_certificates`, and have the \
                         address say a name that the certificate is for"
                    ),
                ),
                ErrorKind::Io if error.to_string().contains("received fatal alert") => (
                    "certificate",
                    Leave,
                    1_000,
                    format!(
                        "it breaks off: {error}; if it asks clients who they are, give a `client_certificate` that it trusts"
                    ),
                ),
                ErrorKind::Io => ("", Lost, 0, format!("the connection failed: {error}; see whether it runs there")),
                ErrorKind::Server(_) | ErrorKind::Extension => {
                    ("ERR", Keep, 250, format!("it could not: {code} {detail}"))
                }
                _ => ("no Redis", Leave, 250, format!("it does not answer as Redis does: {error}")),
            },
        };
        let mut error = AuthorityError::new(format!("Redis at {address}, asked to {purpose}: {what}"));
        if wait > 0 {
            error = error.retry_after(Duration::from_millis(wait));
        }
        if !word.is_empty() {
            error = error.because_of(word);
        }
        Self { error, fate }
    }
}

/// Codes of errors that a script may run into.
const CODES: [&str; 7] = ["READONLY", "MASTERDOWN", "OOM", "MISCONF", "NOREPLICAS", "NOPERM", "CROSSSLOT"];
