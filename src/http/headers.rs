//! The fields that tell a client about its quota, as draft-ietf-httpapi-ratelimit-headers-11 spells them.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use crate::decision::Decision;
use crate::standing::Standing;
use crate::unit::Unit;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// `name` as a string of structured fields (RFC 9651, 3.3.3), which is one of JSON too; `None` if it has characters
/// that the former can't hold.
pub(super) fn quoted(name: &str) -> Option<String> {
    name.bytes().all(|byte| matches!(byte, b' '..=b'~')).then(|| {
        let escaped = name.replace('\\', r"\\").replace('"', r#"\""#);
        format!("\"{escaped}\"")
    })
}

/// What the quota of `standing` is called: as the layer or else the plan is, and with its own name if the plan has others.
pub(super) fn name_of(layer: Option<&str>, standing: &Standing, among: usize) -> String {
    let quoted = |name: &str| quoted(name).unwrap_or_else(|| String::from("\"default\""));
    match (layer, among) {
        (Some(name), 1) => quoted(name),
        (None, 1) => quoted(standing.plan()),
        (name, _) => quoted(&format!("{}:{}", name.unwrap_or_else(|| standing.plan()), standing.name())),
    }
}

/// The item of one quota in `RateLimit-Policy`.
fn policy(quoted_name: &str, standing: &Standing) -> String {
    let q = standing.limit().min(MAX_INTEGER);
    // Requests are what is meant where nothing is said, and for other units there is no name that clients know.
    let qu = if standing.is_in_flight() {
        ";qu=\"concurrent-requests\""
    } else if standing.unit() == Unit::BYTES {
        ";qu=\"content-bytes\""
    } else {
        ""
    };
    match standing.window() {
        Some(window) => format!("{quoted_name};q={q}{qu};w={}", seconds(window)),
        None => format!("{quoted_name};q={q}{qu}"),
    }
}

/// The item of one quota in `RateLimit`.
fn left(quoted_name: &str, standing: &Standing, denied: bool) -> String {
    let r = standing.remaining().min(MAX_INTEGER);
    // In `t` seconds the client can use `r` units for sure: a shorter time would advertise a rate above the quota.
    // Where nothing is left that is no help, and `t` is the wait until something is: after a denial the same
    // number as Retry-After, since two numbers would invite a choice.
    let t = match standing.retry_after() {
        wait if denied && wait != Some(Duration::ZERO) => wait,
        _ if r == 0 => standing.next_after(),
        _ => standing.reset_after(),
    };
    match t.map(seconds) {
        Some(t) => format!("{quoted_name};r={r};t={t}"),
        None => format!("{quoted_name};r={r}"),
    }
}

/// The fields of one decision.
#[derive(Debug)]
pub(super) struct Fields {
    ratelimit: Option<HeaderValue>,
    policy: Option<HeaderValue>,
    retry_after: Option<u64>,
}

impl Fields {
    pub(super) fn new(layer: Option<&str>, decision: &Decision, standings: &[Standing]) -> Self {
        let denied = decision.is_denied();
        let list = |item: &dyn Fn(&str, &Standing) -> String| {
            let items: Vec<_> = standings.iter().map(|one| item(&name_of(layer, one, standings.len()), one)).collect();
            (!items.is_empty()).then(|| HeaderValue::try_from(items.join(", ")).ok()).flatten()
        };
        let ratelimit = list(&|name, standing| left(name, standing, denied));
        let retry_after = if denied { decision.retry_after().map(seconds) } else { None };
        Self { ratelimit, policy: list(&policy), retry_after }
    }

    /// Adds the fields to those of other layers: both are lists, and may come in several lines.
    pub(super) fn append_to(self, headers: &mut HeaderMap) {
        if let Some(policy) = self.policy {
            headers.append(RATELIMIT_POLICY, policy);
        }
        if let Some(ratelimit) = self.ratelimit {
            headers.append(RATELIMIT, ratelimit);
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
    }
}

/// Whole seconds, rounded up and at least 1: a client told 0 comes back at once, and `w` may not be 0.
pub(super) fn seconds(wait: Duration) -> u64 {
    let up = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
    up.clamp(1, MAX_INTEGER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limiter, Quota};

    fn policy_of(quota: Quota) -> String {
        policy("\"default\"", &Limiter::new(quota).unwrap().peek_all("alice")[0])
    }

    #[test]
    fn seconds_round_up_and_are_never_zero() {
        let cases = [(0, 1), (1, 1), (200, 1), (1_000, 1), (1_001, 2), (1_200, 2), (59_999, 60)];
        for (millis, expected) in cases {
            assert_eq!(seconds(Duration::from_millis(millis)), expected, "{millis} ms");
        }
        assert_eq!(seconds(Duration::MAX), MAX_INTEGER);
    }

    #[test]
    fn policies_state_burst_and_fill_time() {
        assert_eq!(policy_of(Quota::per_minute(10)), r#""default";q=10;w=60"#);
        assert_eq!(policy_of(Quota::per_minute(30).burst(16)), r#""default";q=16;w=32"#);
        assert_eq!(policy_of(Quota::per_second(100).burst(20)), r#""default";q=20;w=1"#);
        assert_eq!(policy_of(Quota::per_second(0).burst(7)), r#""default";q=7"#);
        assert_eq!(policy_of(Quota::per_second(u64::MAX)), r#""default";q=999999999999999;w=1"#);
    }

    #[test]
    fn names_are_quoted_or_refused() {
        assert_eq!(quoted("free tier").as_deref(), Some(r#""free tier""#));
        assert_eq!(quoted(r#"a"b\c"#).as_deref(), Some(r#""a\"b\\c""#));
        assert_eq!(quoted("größer"), None);
        assert_eq!(quoted("a\r\nset-cookie: x"), None);
    }
}
