//! What is measured side by side, and the keys that it is measured with.
#![allow(dead_code, reason = "each bench uses its part")]

pub mod figures;
pub mod report;

use std::hash::Hash;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use governor::clock::{DefaultClock, QuantaUpkeepClock};
use governor::state::keyed::DashMapStateStore;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::Zipf;
use tollgate::{Check, Clock, Fixed, Key, Limiter, RandomState, Stores};

/// A quota that both limiters are given.
#[derive(Clone, Copy)]
pub struct Terms {
    pub rate_per_hour: u32,
    pub burst: u32,
}

/// Never used up by three million checks of a key, and no key idle before half a minute has passed since its last check.
pub const PLENTY: Terms = Terms { rate_per_hour: 100, burst: 3_000_000 };

/// The same for a key that is checked all the time: more than any run checks it.
pub const HOT: Terms = Terms { rate_per_hour: 3_600, burst: 100_000_000 };

/// Used up for an hour by the first check.
pub const HOURLY: Terms = Terms { rate_per_hour: 1, burst: 1 };

impl Terms {
    pub fn tollgate(self) -> tollgate::Quota {
        tollgate::Quota::per_hour(u64::from(self.rate_per_hour)).burst(u64::from(self.burst))
    }

    pub fn governor(self) -> governor::Quota {
        let some = |n| NonZeroU32::new(n).expect("terms are not zero");
        governor::Quota::per_hour(some(self.rate_per_hour)).allow_burst(some(self.burst))
    }
}

/// A limiter of owned keys, as a server would hold it.
pub trait Subject<K>: Sync {
    fn name(&self) -> &'static str;
    fn check(&self, key: &K) -> bool;

    /// One in how many checks is made: all, but where a check takes microseconds.
    fn share(&self) -> usize {
        1
    }

    /// Checks the keys at `order`, in a loop that is compiled for each limiter.
    fn check_all(&self, keys: &[K], order: &[u32]) {
        for index in order {
            black_box(self.check(black_box(&keys[*index as usize])));
        }
    }
}

pub type Governor<K> = governor::RateLimiter<K, DashMapStateStore<K>, DefaultClock>;
pub type FastGovernor<K> = governor::RateLimiter<K, DashMapStateStore<K, RandomState>, QuantaUpkeepClock>;

impl<K: Key + Clone, T: Stores<K, RandomState, Of: Sync>> Subject<K> for Limiter<K, RandomState, T> {
    fn name(&self) -> &'static str {
        "tollgate"
    }

    fn check(&self, key: &K) -> bool {
        Limiter::check(self, key).is_allowed()
    }
}

impl<K: Eq + Hash + Clone + Send + Sync> Subject<K> for Governor<K> {
    fn name(&self) -> &'static str {
        "governor"
    }

    fn check(&self, key: &K) -> bool {
        self.check_key(key).is_ok()
    }
}

impl<K: Eq + Hash + Clone + Send + Sync> Subject<K> for FastGovernor<K> {
    fn name(&self) -> &'static str {
        "governor, fast"
    }

    fn check(&self, key: &K) -> bool {
        self.check_key(key).is_ok()
    }
}

pub fn tollgate<K: Key + Clone>(terms: Terms) -> Limiter<K> {
    Limiter::builder().quota(terms.tollgate()).keys::<K>().build().expect("terms make sense")
}

pub fn coarsely() -> Clock {
    Clock::coarse().expect("there is a thread to be had")
}

/// On the clock that a thread keeps up to a millisecond.
pub fn coarse<K: Key + Clone>(terms: Terms) -> Limiter<K> {
    Limiter::builder().quota(terms.tollgate()).clock(coarsely()).keys::<K>().build().expect("terms make sense")
}

/// In a store made for so many keys.
pub fn fixed<K: Key + Clone>(terms: Terms, keys: usize, clock: Clock) -> Limiter<K, RandomState, Fixed> {
    let builder = Limiter::builder().quota(terms.tollgate()).clock(clock).keys::<K>();
    builder.fixed(keys as u64).build().expect("terms make sense")
}

/// With three quotas a key.
pub fn three_sharded<K: Key + Clone>(terms: Terms) -> Limiter<K> {
    Limiter::builder().plan("three", three(terms)).keys::<K>().build().expect("terms make sense")
}

/// With three quotas a key, in a store made for so many keys.
pub fn three_fixed<K: Key + Clone>(terms: Terms, keys: usize) -> Limiter<K, RandomState, Fixed> {
    let builder = Limiter::builder().plan("three", three(terms)).keys::<K>();
    builder.fixed(keys as u64).build().expect("terms make sense")
}

fn three(terms: Terms) -> [tollgate::Quota; 3] {
    ["a", "b", "c"].map(|name| terms.tollgate().named(name))
}

/// What those need for three quotas a key that have one a limiter. What one denies is not given back to the others.
pub struct Three<T>(pub [T; 3]);

impl<K, T: Subject<K>> Subject<K> for Three<T> {
    fn name(&self) -> &'static str {
        self.0[0].name()
    }

    fn check(&self, key: &K) -> bool {
        self.0.iter().all(|limiter| limiter.check(key))
    }
}

/// A fixed store, checked eight at a time.
pub struct Many<K: Key>(pub Limiter<K, RandomState, Fixed>);

impl<K: Key + Clone> Subject<K> for Many<K> {
    fn name(&self) -> &'static str {
        "tollgate, 8 at a time"
    }

    fn check(&self, key: &K) -> bool {
        Limiter::check(&self.0, key).is_allowed()
    }

    fn check_all(&self, keys: &[K], order: &[u32]) {
        for indexes in order.chunks_exact(8) {
            let mut checks: [Check<'_, K>; 8] =
                std::array::from_fn(|n| Check::new(black_box(&keys[indexes[n] as usize])));
            self.0.check_many(&mut checks);
            for check in &checks {
                black_box(check.is_allowed());
            }
        }
    }
}

/// A limiter to be made, and the name of its row.
pub struct Maker<'a, K> {
    pub name: &'static str,
    make: Box<dyn Fn() -> Box<dyn Subject<K>> + 'a>,
}

impl<'a, K> Maker<'a, K> {
    pub fn new<S: Subject<K> + 'static>(name: &'static str, make: impl Fn() -> S + 'a) -> Self {
        Self { name, make: Box::new(move || Box::new(make())) }
    }

    pub fn make(&self) -> Box<dyn Subject<K>> {
        (self.make)()
    }
}

/// Ours, in either store and on either clock. Fixed stores are made for `capacity` keys.
pub fn ours<'a, K: Key + Clone + 'static>(terms: Terms, capacity: usize) -> Vec<Maker<'a, K>> {
    vec![
        Maker::new("sharded", move || tollgate(terms)),
        Maker::new("sharded + coarse", move || coarse(terms)),
        Maker::new("fixed", move || fixed(terms, capacity, Clock::precise())),
        Maker::new("fixed + coarse", move || fixed(terms, capacity, coarsely())),
    ]
}

/// Governor at its best, and as it comes.
pub fn governors<'a, K: Eq + Hash + Clone + Send + Sync + 'static>(terms: Terms) -> Vec<Maker<'a, K>> {
    vec![Maker::new("governor, fast", move || fast_governor(terms)), Maker::new("governor", move || governor(terms))]
}

/// A default plan that nobody is on, one of one quota, and one of three.
pub fn plans(terms: Terms) -> Limiter {
    let quota = terms.tollgate();
    let builder = Limiter::builder().plan("none", quota).plan("one", quota).plan("three", three(terms));
    let builder = builder.default_plan("none");
    builder.build().expect("terms make sense")
}

pub fn governor<K: Eq + Hash + Clone>(terms: Terms) -> Governor<K> {
    governor::RateLimiter::dashmap_with_clock(terms.governor(), DefaultClock::default())
}

/// With our hasher and the clock that a thread of quanta's keeps up to a millisecond: the best that its users get.
pub fn fast_governor<K: Eq + Hash + Clone>(terms: Terms) -> FastGovernor<K> {
    let clock = QuantaUpkeepClock::from_interval(Duration::from_millis(1)).expect("one upkeep at a time");
    governor::RateLimiter::dashmap_with_clock_and_hasher(terms.governor(), clock, RandomState::new())
}

/// A key of 20 bytes, the length of many an API key.
pub fn string_key(n: u64) -> String {
    format!("key-{n:016x}")
}

/// Which keys come, and in which order.
pub struct Load<K> {
    pub name: &'static str,
    /// Each key once, in random order.
    pub keys: Vec<K>,
    /// Indexes into `keys`, as the checks come.
    pub order: Vec<u32>,
}

pub fn load<K>(name: &'static str, make: fn(u64) -> K, keys: u32, zipf: bool, checks: usize) -> Load<K> {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut numbers: Vec<u64> = (0..u64::from(keys)).collect();
    numbers.shuffle(&mut rng);
    let order = if zipf {
        let zipf = Zipf::new(f64::from(keys), 1.0).expect("a distribution that exists");
        (0..checks).map(|_| rng.sample(zipf) as u32 - 1).collect()
    } else {
        (0..checks).map(|_| rng.random_range(0..keys)).collect()
    };
    // Ranks are in random places, so that the frequent keys do not lie together.
    Load { name, keys: numbers.into_iter().map(make).collect(), order }
}

/// Nanoseconds for each check of one thread.
pub fn one_thread<K>(subject: &dyn Subject<K>, load: &Load<K>) -> f64 {
    let order = &load.order[..load.order.len() / subject.share()];
    let start = Instant::now();
    subject.check_all(&load.keys, order);
    start.elapsed().as_nanos() as f64 / order.len() as f64
}

/// Nanoseconds of wall time for each check, all threads together: each has keys of its own, or both have the same.
pub fn two_threads<K: Sync>(subject: &dyn Subject<K>, keys: &[&[K]; 2]) -> f64 {
    let checks = (1 << 19) / subject.share();
    let start = Barrier::new(2);
    let times = thread::scope(|scope| {
        let threads = keys.map(|keys| {
            let start = &start;
            scope.spawn(move || {
                let order: Vec<u32> = (0..keys.len() as u32).cycle().take(checks).collect();
                start.wait();
                let start = Instant::now();
                subject.check_all(keys, &order);
                start.elapsed().as_nanos() as f64 / checks as f64
            })
        });
        threads.map(|thread| thread.join().expect("a check does not panic"))
    });
    times.iter().sum::<f64>() / 4.0
}
