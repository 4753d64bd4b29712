//! One node: a fleet handle, a limiter, and requests that flood it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tollgate::global::{Authority, Call, Fleet, GlobalQuota, MemoryAuthority};
use tollgate::{Limiter, Plan};

use super::{Args, Failure};

/// What a node tells while it runs.
pub(crate) enum Told {
    /// A request was admitted, between these two instants.
    Admitted(Duration, Duration),
    /// How many batches it has sent.
    Batches(u64),
}

/// The time on a clock that all processes of this machine read alike.
#[cfg(unix)]
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(not(unix))]
pub(crate) fn now() -> Duration {
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(std::time::Instant::now).elapsed()
}

/// Sends one node requests from `begin` on, for as long as `args` say.
pub(crate) fn drive(
    args: &Args,
    authority: impl Authority,
    begin: Duration,
    mut tell: impl FnMut(Told) -> io::Result<()>,
) -> Result<(), Failure> {
    let fleet = Fleet::builder(authority).start()?;
    let quota = GlobalQuota::sliding_window(args.limit, Duration::from_secs(args.window));
    let quota = quota.overdraft(args.overdraft).nodes(args.nodes.into());
    let limiter = Limiter::builder().fleet(&fleet).plan("api", Plan::new([]).global(quota)).build()?;
    let length = Duration::from_secs(args.seconds);
    let (mut sent, mut batches) = (0, 0);
    thread::sleep(begin.saturating_sub(now()));
    loop {
        let passed = now().saturating_sub(begin);
        if passed >= length {
            break;
        }
        let due = (passed.as_micros() * u128::from(args.rate) / 1_000_000) as u64;
        while sent < due {
            sent += 1;
            let before = now();
            if limiter.check("alice").is_allowed() {
                tell(Told::Admitted(before, now()))?;
            }
        }
        let stats = fleet.stats();
        if stats.batches != batches {
            batches = stats.batches;
            tell(Told::Batches(batches))?;
        }
        thread::sleep(Duration::from_millis(1));
    }
    let end = fleet.shutdown(Duration::from_secs(5));
    if !end.is_settled {
        return Err(format!("a node could not report all in time: {end:?}").into());
    }
    Ok(())
}

/// What one node has told, and who takes it in.
pub(crate) struct Log {
    begin: Duration,
    counts: Arc<Counts>,
    thread: Option<thread::JoinHandle<Result<(), Failure>>>,
}

#[derive(Default)]
pub(crate) struct Counts {
    spans: Mutex<Vec<(Duration, Duration)>>,
    admitted: AtomicU64,
    batches: AtomicU64,
}

impl Counts {
    pub(crate) fn take(&self, told: Told) {
        match told {
            Told::Admitted(before, after) => {
                self.spans.lock().unwrap_or_else(PoisonError::into_inner).push((before, after));
                self.admitted.fetch_add(1, Ordering::Relaxed);
            }
            Told::Batches(batches) => self.batches.store(batches, Ordering::Relaxed),
        }
    }
}

impl Log {
    /// Has `run` tell the log of a node that begins at `begin`, on a thread.
    pub(crate) fn of(begin: Duration, run: impl FnOnce(&Counts) -> Result<(), Failure> + Send + 'static) -> Self {
        let counts = Arc::new(Counts::default());
        let taker = Arc::clone(&counts);
        Self { begin, counts, thread: Some(thread::spawn(move || run(&taker))) }
    }

    pub(crate) const fn begin(&self) -> Duration {
        self.begin
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.counts.admitted.load(Ordering::Relaxed)
    }

    pub(crate) fn batches(&self) -> u64 {
        self.counts.batches.load(Ordering::Relaxed)
    }

    /// Waits for the node to end. What it admitted, each between two instants.
    pub(crate) fn finish(&mut self) -> Result<Vec<(Duration, Duration)>, Failure> {
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| "a node panicked")??;
        }
        Ok(std::mem::take(&mut *self.counts.spans.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// All nodes, in this process.
pub(crate) fn start_all(args: &Args) -> Result<Vec<Log>, Failure> {
    let (memory, begin) = (MemoryAuthority::new(), now());
    let start = |_| {
        let (args, authority) = (args.clone(), Chosen::new(args, &memory)?);
        Ok(Log::of(begin, move |counts| {
            drive(&args, authority, begin, |told| {
                counts.take(told);
                Ok(())
            })
        }))
    };
    (0..args.nodes).map(start).collect()
}

/// An authority at the other end of a network that takes its time.
struct Distant(Sender<(Duration, Call)>, Duration);

impl Distant {
    fn new(inner: MemoryAuthority, delay: Duration) -> Self {
        let (sender, calls) = mpsc::channel::<(Duration, Call)>();
        thread::spawn(move || {
            // All take equally long, so that they come in the order in which they were made.
            for (due, call) in calls {
                thread::sleep(due.saturating_sub(now()));
                inner.call(call);
            }
        });
        Self(sender, delay)
    }
}

impl Authority for Distant {
    fn call(&self, call: Call) {
        // The other end lives for as long as this.
        let _ = self.0.send((now() + self.1, call));
    }
}

/// The authority of one node.
enum Chosen {
    Distant(Distant),
    #[cfg(feature = "redis")]
    Redis(tollgate::global::RedisAuthority),
}

impl Chosen {
    fn new(args: &Args, memory: &MemoryAuthority) -> Result<Self, Failure> {
        #[cfg(feature = "redis")]
        if let Some(url) = &args.redis {
            let builder = tollgate::global::RedisAuthority::builder(url).key_prefix(&args.prefix);
            return Ok(Self::Redis(builder.build()?));
        }
        Ok(Self::Distant(Distant::new(memory.clone(), Duration::from_millis(args.delay))))
    }
}

impl Authority for Chosen {
    fn call(&self, call: Call) {
        match self {
            Self::Distant(distant) => distant.call(call),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.call(call),
        }
    }
}
