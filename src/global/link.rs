//! What limiters and the background thread of a fleet have in common.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::thread::Thread;
use std::time::Duration;

use futures_channel::oneshot;

use super::authority::{Answer, Body, Rule, WireName};
use super::dirty::Dirty;
use super::ledger::{Ledger, Spent};
use crate::clock::Clock;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, SegQueue, fence};

/// How many ledgers the dirty queue holds: with more of them the thread looks through all keys instead.
pub(super) const QUEUE: usize = 1 << 16;

/// What a round trip is taken to last before there was one: a network in one place, and a busy authority.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(5);

/// It sleeps, or is about to, and is to be woken.
const LISTENING: u32 = 0;

/// It has been told to look at once.
const TOLD: u32 = 1;

/// It looks, or has just looked: it need not be woken to look again.
const HUSHED: u32 = 2;

/// Someone who has ledgers.
pub(crate) trait Holder: Send + Sync {
    /// All of them that are dirty.
    fn dirty(&self) -> Vec<Arc<Ledger>>;
}

/// What callers who wait ask of the background thread.
pub(crate) enum Request {
    /// To be told once anything is new of a ledger, and at `until`, in ticks, at the latest.
    Watch { ledger: Arc<Ledger>, until: u64, tell: oneshot::Sender<()> },
    /// To be told at an instant, in ticks.
    Sleep { until: u64, tell: oneshot::Sender<()> },
    /// To be told what the authority answers, if it does before `until`.
    Ask { name: WireName, rule: Rule, body: Body, until: u64, tell: oneshot::Sender<Answer> },
}

/// One fleet as its limiters see it.
pub(crate) struct Link {
    dirty: Dirty,
    /// Those that are not to wait for the next report.
    urgent: Dirty,
    requests: SegQueue<Request>,
    /// What the thread makes of being told to look at once: one of the constants below.
    attention: AtomicU32,
    thread: OnceLock<Thread>,
    /// In ticks.
    round_trip: AtomicU64,
    /// Whether the thread is gone.
    is_stopped: AtomicU32,
    holders: Mutex<Vec<Weak<dyn Holder>>>,
    clock: Clock,
    interval: Duration,
    secret: [u8; 16],
}

impl Link {
    pub(crate) fn new(clock: Clock, interval: Duration, secret: [u8; 16]) -> Self {
        Self {
            dirty: Dirty::new(QUEUE),
            urgent: Dirty::new(QUEUE),
            requests: SegQueue::new(),
            attention: AtomicU32::new(LISTENING),
            thread: OnceLock::new(),
            round_trip: AtomicU64::new(crate::ticks::from_duration(FIRST_ROUND_TRIP) as u64),
            is_stopped: AtomicU32::new(0),
            holders: Mutex::new(Vec::new()),
            clock,
            interval,
            secret,
        }
    }

    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) const fn interval(&self) -> Duration {
        self.interval
    }

    pub(crate) const fn secret(&self) -> &[u8; 16] {
        &self.secret
    }

    pub(crate) fn add_holder(&self, holder: Weak<dyn Holder>) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        holders.retain(|holder| holder.strong_count() > 0);
        holders.push(holder);
    }

    /// What `spent` says of `ledger` has been spent: tells the thread what it has to know.
    #[inline]
    pub(crate) fn note(&self, ledger: &Arc<Ledger>, spent: Spent) {
        if spent.urgent {
            self.urgent.push(ledger);
            self.wake();
        } else if spent.news {
            self.dirty.push(ledger);
        }
    }

    /// Has the thread look at once.
    #[cold]
    pub(crate) fn wake(&self) {
        // SeqCst: pairs with the fence in `hush`. Either this sees that the thread has begun to look, and tells it to look once
        // more, or the thread sees what was queued before this.
        fence(Ordering::SeqCst);
        if self.attention.load(Ordering::Relaxed) != TOLD
            && self.attention.swap(TOLD, Ordering::AcqRel) == LISTENING
            && let Some(thread) = self.thread.get()
        {
            // If the thread is not asleep this costs no call into the system.
            thread.unpark();
        }
    }

    pub(crate) fn request(&self, request: Request) {
        if !self.is_stopped() {
            self.requests.push(request);
            self.wake();
        }
        // Else it is dropped, and whoever waits for the answer is told so by that.
    }

    /// In ticks.
    pub(crate) fn round_trip(&self) -> u64 {
        self.round_trip.load(Ordering::Relaxed)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire) != 0
    }
}

/// The thread's side.
impl Link {
    /// This thread is the one to be woken.
    pub(crate) fn attend(&self) {
        let _ = self.thread.set(std::thread::current());
    }

    /// To be called before all is looked at. Until [`listen`](Self::listen) nobody wakes the thread.
    pub(crate) fn hush(&self) {
        self.attention.store(HUSHED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Has the thread woken from now on; false if it has been told to look at once already.
    pub(crate) fn listen(&self) -> bool {
        self.attention.compare_exchange(HUSHED, LISTENING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(crate) const fn dirty(&self) -> &Dirty {
        &self.dirty
    }

    pub(crate) const fn urgent(&self) -> &Dirty {
        &self.urgent
    }

    pub(crate) fn next_request(&self) -> Option<Request> {
        self.requests.pop()
    }

    pub(crate) fn set_round_trip(&self, ticks: u64) {
        if ticks > 0 {
            self.round_trip.store(ticks, Ordering::Relaxed);
        }
    }

    /// Every ledger that is dirty.
    pub(crate) fn all_dirty(&self) -> Vec<Arc<Ledger>> {
        let holders: Vec<_> = {
            let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
            holders.iter().filter_map(Weak::upgrade).collect()
        };
        holders.iter().flat_map(|holder| holder.dirty()).collect()
    }

    /// Nobody will answer any more.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(1, Ordering::Release);
        while self.requests.pop().is_some() {}
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("interval", &self.interval).field("dirty", &self.dirty).finish_non_exhaustive()
    }
}
