//! A node under load: in this process, or in one of its own that can be killed and stopped.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hdrhistogram::Histogram;
use tollgate::global::{Authority, Call, Fleet, GlobalQuota, RedisAuthority, WhenAway};
use tollgate::{Limiter, Plan, Source};

use crate::proxy::is_hit;
use crate::server::signal;

/// What comes, and how much of it the fleet may admit.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Units in a window, of each quota.
    pub(crate) limit: u64,
    pub(crate) window: Duration,
    /// How often nodes report.
    pub(crate) interval: Duration,
    pub(crate) nodes: usize,
    /// Requests a second that come to each node, of each quota.
    pub(crate) rate: u64,
    /// Calm kinds get one of so many.
    pub(crate) calm: u64,
    /// How many sub-windows there are, as many as is usual if it is not said.
    pub(crate) subs: Option<u16>,
}

/// A quota that the load is measured by.
pub(crate) struct Kind {
    pub(crate) plan: &'static str,
    pub(crate) overdraft: u32,
    pub(crate) when_away: WhenAway,
    /// Whether less comes than there is, and not much more.
    pub(crate) is_calm: bool,
}

/// All kinds are under the same load on the same nodes at the same time.
pub(crate) const KINDS: [Kind; 6] = [
    Kind { plan: "deny, 0", overdraft: 0, when_away: WhenAway::Deny, is_calm: false },
    Kind { plan: "deny, 1", overdraft: 1, when_away: WhenAway::Deny, is_calm: false },
    Kind { plan: "local, 0", overdraft: 0, when_away: WhenAway::Local, is_calm: false },
    Kind { plan: "local, 1", overdraft: 1, when_away: WhenAway::Local, is_calm: false },
    Kind { plan: "calm, deny", overdraft: 0, when_away: WhenAway::Deny, is_calm: true },
    Kind { plan: "calm, local", overdraft: 0, when_away: WhenAway::Local, is_calm: true },
];

/// One more, of which there is always some left: it is admitted if and only if there is a lease.
pub(crate) const STEADY: usize = KINDS.len();

/// A request that was admitted, by instants of the processor's counter, which all processes share.
#[derive(Clone, Copy)]
pub(crate) struct Admitted {
    pub(crate) kind: usize,
    pub(crate) before: u64,
    pub(crate) after: u64,
}

/// What a node and the one who watches it tell each other.
#[derive(Default)]
pub(crate) struct Watch {
    /// Which histogram checks are counted in.
    pub(crate) phase: AtomicUsize,
    stop: AtomicBool,
    /// When each kind was last admitted on a lease.
    leased: [AtomicU64; STEADY + 1],
    /// How many of each kind were admitted.
    admitted: [AtomicU64; STEADY + 1],
    /// How many were admitted since the authority was away.
    pub(crate) away: AtomicU64,
}

impl Watch {
    pub(crate) fn admitted(&self, kind: usize) -> u64 {
        self.admitted[kind].load(Ordering::SeqCst)
    }

    pub(crate) fn leased(&self, kind: usize) -> u64 {
        self.leased[kind].load(Ordering::SeqCst)
    }
}

/// What a node has seen.
pub(crate) struct Log {
    pub(crate) admitted: Vec<Admitted>,
    /// How long checks took in each phase, in nanoseconds.
    pub(crate) latency: Vec<Histogram<u64>>,
}

/// An authority some of whose answers are lost after it has done what it was asked to.
pub(crate) struct Lossy {
    pub(crate) inner: RedisAuthority,
    /// How many of a thousand.
    pub(crate) loses: Arc<AtomicU32>,
    pub(crate) calls: AtomicU64,
}

impl Lossy {
    pub(crate) fn new(url: &str, loses: &Arc<AtomicU32>) -> Self {
        let inner = RedisAuthority::builder(url).build().unwrap();
        Self { inner, loses: Arc::clone(loses), calls: AtomicU64::new(0) }
    }
}

impl Authority for Lossy {
    fn call(&self, call: Call) {
        let is_lost = is_hit(self.calls.fetch_add(1, Ordering::SeqCst), &self.loses);
        let batch = Arc::clone(call.batch());
        self.inner.call(Call::new(batch, move |reply| {
            if !is_lost {
                call.answer(reply);
            }
        }));
    }
}

/// A node of this process.
pub(crate) struct Node {
    pub(crate) fleet: Fleet,
    pub(crate) watch: Arc<Watch>,
    driver: JoinHandle<Log>,
}

impl Node {
    pub(crate) fn start(url: &str, load: &Load, loses: &Arc<AtomicU32>) -> Self {
        let fleet = fleet(Lossy::new(url, loses), load);
        let limiter = limiter(&fleet, load);
        let watch = Arc::new(Watch::default());
        let (watched, load) = (Arc::clone(&watch), *load);
        let driver = thread::spawn(move || {
            let mut admitted = Vec::new();
            let latency = drive(&limiter, &load, &watched, |one| {
                if one.kind != STEADY {
                    admitted.push(one);
                }
            });
            Log { admitted, latency }
        });
        Self { fleet, watch, driver }
    }

    /// Ends the load, and leaves the fleet as it is.
    pub(crate) fn stop(self) -> (Fleet, Log) {
        self.watch.stop.store(true, Ordering::SeqCst);
        (self.fleet, self.driver.join().unwrap())
    }
}

fn fleet(authority: impl Authority, load: &Load) -> Fleet {
    Fleet::builder(authority).interval(load.interval).start().unwrap()
}

/// A plan of that kind and nothing else.
pub(crate) fn plan(kind: &Kind, load: &Load) -> Plan {
    let quota = GlobalQuota::sliding_window(load.limit, load.window).overdraft(kind.overdraft);
    let quota = load.subs.map_or(quota, |subs| quota.sub_windows(subs));
    Plan::new([]).global(quota.when_away(kind.when_away))
}

fn limiter(fleet: &Fleet, load: &Load) -> Limiter {
    let mut builder = Limiter::builder().fleet(fleet);
    for kind in &KINDS {
        builder = builder.plan(kind.plan, plan(kind, load));
    }
    let steady = GlobalQuota::sliding_window(10_000_000, load.window).overdraft(0).when_away(WhenAway::Deny);
    builder.plan("steady", Plan::new([]).global(steady)).default_plan("steady").build().unwrap()
}

/// Checks each kind as often as the load says until it is told to stop.
fn drive(limiter: &Limiter, load: &Load, watch: &Watch, mut admit: impl FnMut(Admitted)) -> Vec<Histogram<u64>> {
    let clock = quanta::Clock::new();
    let names = KINDS.iter().map(|kind| kind.plan).chain(["steady"]);
    let plans: Vec<_> = names.map(|name| limiter.plan(name).unwrap()).collect();
    let mut latency = vec![Histogram::new(3).unwrap(); 3];
    let (begun, mut sent) = (clock.raw(), 0);
    while !watch.stop.load(Ordering::Relaxed) {
        let due = clock.delta_as_nanos(begun, clock.raw()) / 1_000 * load.rate / 1_000_000;
        let latency = &mut latency[watch.phase.load(Ordering::Relaxed)];
        while sent < due {
            sent += 1;
            for (kind, plan) in plans.iter().enumerate() {
                if kind < STEADY && KINDS[kind].is_calm && sent % load.calm != 0 {
                    continue;
                }
                let before = clock.raw();
                let decision = plan.check("alice");
                let after = clock.raw();
                latency.record(clock.delta_as_nanos(before, after)).unwrap();
                if decision.is_allowed() {
                    watch.admitted[kind].fetch_add(1, Ordering::SeqCst);
                    admit(Admitted { kind, before, after });
                    match decision.source() {
                        Source::Lease => watch.leased[kind].store(before, Ordering::SeqCst),
                        Source::Away => _ = watch.away.fetch_add(1, Ordering::SeqCst),
                        _ => {}
                    }
                }
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    latency
}

/// A node in a process of its own: this program once more, with one test to run.
pub(crate) struct Apart {
    child: Child,
    file: PathBuf,
}

/// What tells that test that it is such a node.
const VARIABLE: &str = "TOLLGATE_NODE";

impl Apart {
    pub(crate) fn start(url: &str, load: &Load) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("tollgate-node-{}-{number}", std::process::id()));
        let told = [
            url.to_owned(),
            file.display().to_string(),
            load.limit.to_string(),
            load.window.as_millis().to_string(),
            load.interval.as_millis().to_string(),
            load.rate.to_string(),
            load.calm.to_string(),
        ];
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "matrix::node::a_node_in_a_process_of_its_own", "--ignored", "--nocapture"]);
        // It ends when this process does.
        command.env(VARIABLE, told.join("\n")).stdin(Stdio::piped()).stdout(Stdio::null());
        Self { child: command.spawn().unwrap(), file }
    }

    /// Kills it: nothing of it runs any more.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Has the system run none of it until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        signal(&self.child, "-STOP");
    }

    pub(crate) fn resume(&self) {
        signal(&self.child, "-CONT");
    }

    /// All that it has admitted so far. Of a node that was killed the last request may be missing.
    pub(crate) fn admitted(&self) -> Vec<Admitted> {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.file) {
            file.read_to_end(&mut bytes).unwrap();
        }
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let one = |one: &[u8]| Admitted {
            kind: number(&one[..8]) as usize,
            before: number(&one[8..16]),
            after: number(&one[16..]),
        };
        bytes.chunks_exact(24).map(one).collect()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = std::fs::remove_file(&self.file);
    }
}

/// Runs until its standard input ends, and says to a file what it has admitted, each time at once.
#[test]
#[ignore = "a part of others"]
fn a_node_in_a_process_of_its_own() {
    let Ok(told) = std::env::var(VARIABLE) else { return };
    let told: Vec<_> = told.lines().collect();
    let number = |at: usize| told[at].parse::<u64>().unwrap();
    let load = Load {
        limit: number(2),
        window: Duration::from_millis(number(3)),
        interval: Duration::from_millis(number(4)),
        nodes: 1,
        rate: number(5),
        calm: number(6),
        subs: None,
    };
    let fleet = fleet(RedisAuthority::builder(told[0]).build().unwrap(), &load);
    let limiter = limiter(&fleet, &load);
    let watch = Arc::new(Watch::default());
    let watched = Arc::clone(&watch);
    thread::spawn(move || {
        _ = std::io::stdin().read(&mut [0]);
        watched.stop.store(true, Ordering::SeqCst);
    });
    let mut file = File::create(told[1]).unwrap();
    drive(&limiter, &load, &watch, |one| {
        let mut bytes = [0; 24];
        for (to, from) in bytes.chunks_exact_mut(8).zip([one.kind as u64, one.before, one.after]) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        file.write_all(&bytes).unwrap();
    });
}
