//! The peers that keep keys, each asked in the quickest way that it has.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use limitador::limit::{Limit, Namespace};
use pingora_limits::rate::Rate;
use throttlecrab::PeriodicStore;
use trypema::local::LocalRateLimiterProvider;
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use crate::shared::{Maker, Subject, Terms};

/// What is no token bucket counts requests in windows of an hour, as many as the burst: no run lasts that long.
const HOUR: u64 = 3_600;

/// A sliding window.
pub struct Trypema {
    provider: Arc<LocalRateLimiterProvider>,
    rate: RateLimit,
}

impl Trypema {
    pub fn new(terms: Terms) -> Self {
        let window = WindowSize::seconds(HOUR).expect("an hour is a window");
        // Its own benches run without the thread that removes idle keys, too.
        let provider = LocalRateLimiterProvider::builder().window_size(window).disable_cleanup().build();
        // It multiplies this by the window and rounds down.
        let rate = RateLimit::per_hour(f64::from(terms.burst) + 0.5);
        Self { provider: provider.expect("a window of an hour"), rate: rate.expect("a positive rate") }
    }
}

impl Subject<String> for Trypema {
    fn name(&self) -> &'static str {
        "trypema"
    }

    fn check(&self, key: &String) -> bool {
        matches!(self.provider.absolute().inc(key, &self.rate, 1), RateLimitDecision::Allowed)
    }
}

/// It wants `&mut self`, and the time from whoever calls. With the store that it calls its default.
pub struct Throttlecrab {
    limiter: Mutex<throttlecrab::RateLimiter<PeriodicStore>>,
    terms: Terms,
}

impl Throttlecrab {
    pub fn new(terms: Terms, keys: usize) -> Self {
        let store = PeriodicStore::builder().capacity(keys).build();
        Self { limiter: Mutex::new(throttlecrab::RateLimiter::new(store)), terms }
    }

    fn lock(&self) -> MutexGuard<'_, throttlecrab::RateLimiter<PeriodicStore>> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, limiter: &mut throttlecrab::RateLimiter<PeriodicStore>, key: &str) -> bool {
        // With a burst of 1 it denies nothing.
        let burst = i64::from(self.terms.burst).max(2);
        let answer =
            limiter.rate_limit(key, burst, i64::from(self.terms.rate_per_hour), HOUR as i64, 1, SystemTime::now());
        answer.expect("terms make sense").0
    }
}

impl Subject<String> for Throttlecrab {
    fn name(&self) -> &'static str {
        "throttlecrab"
    }

    fn check(&self, key: &String) -> bool {
        self.ask(&mut self.lock(), key)
    }
}

/// The same for a thread that has it to itself.
pub struct Alone(pub Throttlecrab);

impl Subject<String> for Alone {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn check(&self, key: &String) -> bool {
        self.0.check(key)
    }

    fn check_all(&self, keys: &[String], order: &[u32]) {
        let mut limiter = self.0.lock();
        for index in order {
            black_box(self.0.ask(&mut limiter, black_box(&keys[*index as usize])));
        }
    }
}

/// An estimate, too high rather than too low, of how often a key was asked for in a window; it keeps no keys.
pub struct Pingora {
    rate: Rate,
    limit: isize,
}

impl Pingora {
    pub fn new(terms: Terms) -> Self {
        Self { rate: Rate::new(Duration::from_secs(HOUR)), limit: terms.burst as isize }
    }
}

impl Subject<String> for Pingora {
    fn name(&self) -> &'static str {
        "pingora-limits"
    }

    fn check(&self, key: &String) -> bool {
        self.rate.observe(key, 1) <= self.limit
    }
}

/// A window that begins with its first request, in the storage in memory, with room for more keys than there are.
pub struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: Namespace,
}

impl Limitador {
    pub fn new(terms: Terms, keys: usize) -> Self {
        let limiter = limitador::RateLimiter::new(2 * keys.max(1_000) as u64);
        let client = "client".try_into().expect("an expression");
        limiter.add_limit(Limit::new("api", u64::from(terms.burst), HOUR, vec![], vec![client]));
        Self { limiter, namespace: "api".into() }
    }
}

impl Subject<String> for Limitador {
    fn name(&self) -> &'static str {
        "limitador"
    }

    fn check(&self, key: &String) -> bool {
        // Made for each request: it holds the request's key.
        let context = HashMap::from([("client".to_owned(), key.clone())]).into();
        let answer = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1);
        !answer.expect("a storage that is there").limited
    }

    fn share(&self) -> usize {
        8
    }
}

/// Whoever keeps keys, exact or not, but tollgate and governor. On more than one thread, throttlecrab is in a mutex.
pub fn keyed<'a>(terms: Terms, keys: usize, threads: usize) -> Vec<Maker<'a, String>> {
    let throttlecrab = if threads == 1 {
        Maker::new("throttlecrab", move || Alone(Throttlecrab::new(terms, keys)))
    } else {
        Maker::new("throttlecrab, in a mutex", move || Throttlecrab::new(terms, keys))
    };
    vec![
        Maker::new("limitador", move || Limitador::new(terms, keys)),
        throttlecrab,
        Maker::new("trypema", move || Trypema::new(terms)),
        Maker::new("pingora-limits (estimates)", move || Pingora::new(terms)),
    ]
}
