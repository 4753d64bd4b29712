//! The background thread: carries what the protocol says to the authority, and back.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crossbeam_queue::SegQueue;

use super::authority::{Authority, AuthorityError, Call, Reply};
use super::dirty::Dirty;
use super::fleet::Shutdown;
use super::link::{self, Link, Request};
use super::protocol::{Event, Protocol};
use super::snapshot::{Depths, FleetStats, snapshot};
use super::tell::Teller;
use super::waiters::Waiters;
use crate::ticks::{from_duration, to_duration};

/// Requests that want the thread to look at once are looked at together, so often at most: a flood of them would else keep
/// the thread running for nothing.
const QUIET: Duration = Duration::from_millis(1);

/// What the owner of the thread and the thread tell each other.
#[derive(Default)]
pub(super) struct Control {
    /// When to be gone, in ticks, once that is asked for.
    stop_at: Mutex<Option<u64>>,
    stats: Mutex<FleetStats>,
}

impl Control {
    pub(super) fn stop_at(&self, ticks: u64) {
        *self.stop_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticks);
    }

    fn when_to_stop(&self) -> Option<u64> {
        *self.stop_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stats(&self) -> FleetStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_stats(&self, stats: FleetStats) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }
}

type Inbox = SegQueue<(u16, u64, Result<Reply, AuthorityError>)>;

/// What the thread has.
pub(super) struct Worker {
    pub(super) link: Arc<Link>,
    pub(super) authority: Arc<dyn Authority>,
    pub(super) control: Arc<Control>,
    pub(super) protocol: Protocol,
    /// When to look at ledgers that are not urgent.
    pub(super) look_at: u64,
    pub(super) teller: Teller,
    /// How often there were more ledgers with news than a queue holds.
    pub(super) was_full: u64,
}

impl Worker {
    /// Runs until it is told to stop.
    pub(super) fn run(mut self) -> Shutdown {
        self.link.attend();
        let inbox = Arc::new(Inbox::new());
        let mut waiters = Waiters::default();
        let mut closing = false;
        loop {
            self.link.hush();
            let now = self.link.clock().now().ticks();
            self.turn(&inbox, &mut waiters, now);
            self.control.set_stats(self.stats(now));

            if let Some(stop_at) = self.control.when_to_stop() {
                if !closing && now < stop_at {
                    closing = true;
                    self.protocol.close(now);
                    self.carry(&inbox, now);
                }
                if now >= stop_at || (closing && self.protocol.is_settled() && inbox.is_empty()) {
                    break;
                }
            }
            self.rest(&inbox, &waiters, now, closing);
        }
        // Whoever waits is told by this that nobody answers.
        self.link.stop();
        Shutdown {
            is_settled: closing && self.protocol.is_settled(),
            unreported: self.protocol.unsettled(),
            returned: self.protocol.counts.returned,
        }
    }

    /// Looks at everything once.
    fn turn(&mut self, inbox: &Arc<Inbox>, waiters: &mut Waiters, now: u64) {
        // Requests first: who waits for the answer to something is known before the answer is taken in.
        while let Some(request) = self.link.next_request() {
            match request {
                Request::Watch { ledger, until, tell } => {
                    waiters.watch(&ledger, until, tell);
                    self.protocol.watch(&ledger, now);
                }
                Request::Sleep { until, tell } => waiters.sleep(until, tell),
                Request::Ask { name, rule, body, until, tell } => {
                    let number = waiters.ask(until, tell);
                    self.protocol.ask(number, name, rule, body);
                }
            }
        }
        while let Some((shard, number, reply)) = inbox.pop() {
            match &reply {
                Ok(_) => self.teller.answered(),
                Err(error) => self.teller.failed(error, now),
            }
            self.protocol.on_reply(shard, number, reply, now);
        }
        let link = Arc::clone(&self.link);
        // Both are asked.
        if link.urgent().take_was_full() | link.dirty().take_was_full() {
            self.was_full += 1;
            link.all_dirty().iter().for_each(|ledger| self.protocol.on_news(ledger, now));
        }
        self.take_news(link.urgent(), now);
        // The others only once in a while: each look takes the ledger from the cores that spend from it, and has them queue it
        // again.
        if now >= self.look_at || self.control.when_to_stop().is_some() {
            self.look_at = now + ticks(link.interval()) / 2;
            self.take_news(link.dirty(), now);
        }
        self.protocol.on_tick(now);
        for question in waiters.expire(now) {
            self.protocol.take_back(question);
        }
        self.carry(inbox, now);
        for event in self.protocol.take_events() {
            self.tell(event, waiters, now);
        }
        self.teller.tell_of_keys();
        self.link.set_round_trip(self.protocol.round_trip());
    }

    fn take_news(&mut self, queue: &Dirty, now: u64) {
        // No more than there are now: others come meanwhile.
        for _ in 0..queue.len() {
            let Some(ledger) = queue.pop() else { break };
            self.protocol.on_news(&ledger, now);
        }
    }

    /// Carries what there is to the authority.
    fn carry(&mut self, inbox: &Arc<Inbox>, now: u64) {
        while let Some(batch) = self.protocol.poll_batch(now) {
            let (inbox, thread, shard, number) = (Arc::clone(inbox), thread::current(), batch.shard, batch.number);
            self.authority.call(Call::new(batch, move |reply| {
                inbox.push((shard, number, reply));
                thread.unpark();
            }));
        }
    }

    fn tell(&mut self, event: Event, waiters: &mut Waiters, now: u64) {
        match event {
            Event::Changed(ledger) => waiters.changed(&ledger),
            Event::Answered(number, answer) => waiters.answered(number, answer),
            Event::Silent => self.teller.silent(),
            Event::Back => self.teller.back(),
            Event::Gap { shard, repaired, lost } => self.teller.gap(shard, repaired, lost, now),
            Event::Broken(name) => self.teller.broken(name),
            Event::Mended(name) => self.teller.mended(name),
        }
    }

    pub(super) fn stats(&self, now: u64) -> FleetStats {
        let dirty = self.link.dirty().len() + self.link.urgent().len();
        let depths = Depths { dirty: dirty as u64, bound: 2 * link::QUEUE as u64, full: self.was_full };
        snapshot(&self.protocol, depths, now)
    }

    /// Sleeps until there is something to do.
    fn rest(&self, inbox: &Inbox, waiters: &Waiters, now: u64, closing: bool) {
        let until = |at: u64| to_duration(at.saturating_sub(now)).min(self.link.interval());
        let end = if closing { self.control.when_to_stop() } else { None };
        let next = self.protocol.next_due().min(waiters.next_due()).min(self.look_at);
        let due = until(next.min(end.unwrap_or(u64::MAX)));
        // One may have come that woke it from the first sleep, or before it.
        let has_word = || !inbox.is_empty() || !closing && self.control.when_to_stop().is_some();
        let quiet = QUIET.min(due);
        if !has_word() {
            // Only an answer or the end wakes it now.
            thread::park_timeout(quiet);
        }
        let rest = due.saturating_sub(quiet);
        if !has_word() && !rest.is_zero() && self.link.listen() {
            thread::park_timeout(rest);
        }
    }
}

fn ticks(duration: Duration) -> u64 {
    u64::try_from(from_duration(duration)).unwrap_or(u64::MAX)
}
