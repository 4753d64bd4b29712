//! What a node asks of the authority, when, and what it makes of the answers: a state machine without I/O, clock or
//! chance. The background thread drives it, and so does a simulator.
//!
//! Whoever drives it hands it ledgers that have turned dirty ([`on_news`](Protocol::on_news)), lets it look at its timers
//! ([`on_tick`](Protocol::on_tick)), carries batches to the authority for as long as it has any
//! ([`poll_batch`](Protocol::poll_batch)) and answers back ([`on_reply`](Protocol::on_reply)). Instants are ticks of the
//! node's clock, which may stand still but not go back.
//!
//! # One lease a key
//!
//! A report tells of a lease what was *used*, what is *kept* and what is *returned*. The authority moves what is kept to the
//! head of its window, together with what it grants, and so there is never more than one lease of a key, with one deadline.
//! Until the answer comes, the old deadline holds; units that are used meanwhile were kept, and are reported as used of the
//! new lease. Until the answer comes it does not matter either whether they are charged where they were or at the head:
//! both is at or after the sub-window that they are used in.
//!
//! # Deadlines
//!
//! The authority tells when it carried a batch out, by its own clock. Of that only the part of a sub-window that was over
//! is used: from it follows how long the lease lives, and the node counts that from before the batch was sent for the first
//! time, less a margin for clocks that run at different speeds.
//!
//! # Lost writes
//!
//! An answer that tells of a [gap](super::Reply::Gap) shows that the authority has lost what it was told. What it was told in
//! the last seconds is in the *log*, and is told again as repairs, before anything else.

mod answer;
mod look;
mod send;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use super::account::Account;
use super::authority::{Answer, AuthorityError, Batch, Body, Record, Reply, Report, Rule, WireName};
use super::breaker::Breaker;
use super::ledger::{Ledger, MAX_BALANCE, NOWHERE, Terms};
use super::quota::WhenAway;
use super::redo::{Log, Repairs};
use super::stats::Counts;

/// Ticks in a microsecond.
pub(crate) const MICRO: u64 = crate::ticks::PER_NANO * 1_000;

/// Ticks in a millisecond.
const MILLI: u64 = MICRO * 1_000;

/// Beyond every instant.
const NEVER: u64 = u64::MAX;

/// The most records in a batch: an authority is busy with so many for a quarter of a millisecond, and more of them cost no
/// less each.
pub(super) const MAX_RECORDS: usize = 128;

/// After so long without a batch an authority may have forgotten the number of the last.
const FORGOTTEN_AFTER: u64 = 30_000 * MILLI;

/// What an authority was told is kept for so long.
const LOG_FOR: u64 = 10_000 * MILLI;

/// The shortest wait for an answer.
const SHORTEST_TIMEOUT: u64 = 50 * MILLI;

/// The longest.
const LONGEST_TIMEOUT: u64 = 2_000 * MILLI;

/// Ticks in a minute.
const MINUTE: u64 = 60_000 * MILLI;

/// Nothing is admitted any more.
const CLOSED: Terms =
    Terms { deadline: 0, denied_until: NEVER, room: 0, overdraft: 0, overdraft_from: NEVER, low: 0, away: false };

/// What a protocol is told when it starts.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "internal; whoever drives a protocol makes them")]
pub struct Settings {
    /// The name of this node.
    pub node: u64,
    /// Ticks between reports.
    pub interval: u64,
    /// How many shards the keys are divided into.
    pub shards: u16,
    /// Any number, other than those of other nodes.
    pub chance: u64,
}

/// What whoever drives the protocol should know.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "internal; whoever drives a protocol acts on all")]
pub enum Event {
    /// Of this ledger, which is watched, something is new.
    Changed(Arc<Ledger>),
    /// What was asked under this number was answered.
    Answered(u64, Answer),
    /// The authority does not answer.
    Silent,
    /// The authority answers again.
    Back,
    /// The authority has lost what it was told; so many batches are told again, and so many were too old for that.
    Gap {
        /// Which shard.
        shard: u16,
        /// Batches.
        repaired: u64,
        /// Batches.
        lost: u64,
    },
    /// The authority can't make sense of what it has of this key.
    Broken(WireName),
    /// It can again.
    Mended(WireName),
}

/// The longest wait for an answer, in this minute and the last.
#[derive(Clone, Copy, Default, Debug)]
struct Slowest {
    minute: u64,
    now: u64,
    before: u64,
}

impl Slowest {
    const fn at(self, now: u64) -> Self {
        let minute = now / MINUTE;
        match minute.saturating_sub(self.minute) {
            0 => self,
            1 => Self { minute, now: 0, before: self.now },
            _ => Self { minute, now: 0, before: 0 },
        }
    }

    fn note(&mut self, wait: u64, now: u64) {
        *self = self.at(now);
        self.now = self.now.max(wait);
    }
}

/// Who a record of a batch is about.
#[derive(Clone, Copy, Debug)]
enum About {
    /// An account, and what of its word was reported.
    Account { place: u32, overdraft: u32, kept: u32 },
    /// A question of that number.
    Question(u64),
    /// What the authority has lost.
    Repair,
}

/// A batch that is under way.
#[derive(Debug)]
struct UnderWay {
    batch: Arc<Batch>,
    about: Vec<About>,
    first_sent: u64,
    sent: u64,
    tries: u32,
    /// Whether it is to be made again as soon as that is possible.
    failed: bool,
    /// Whether it is the one try that is made while the authority does not answer.
    is_probe: bool,
}

#[derive(Debug)]
struct Shard {
    /// The number of the last batch.
    number: u64,
    /// The number of the last batch that was carried out, if any of it is of interest.
    after: Option<u64>,
    under_way: Option<UnderWay>,
    /// Accounts with something to report.
    queue: VecDeque<u32>,
    /// Repairs that go before anything else.
    repairs: VecDeque<Vec<Record>>,
    /// What waited while the authority was found to have lost something.
    held_back: Option<(Vec<Record>, Vec<About>, u64)>,
    questions: VecDeque<(u64, Record)>,
    /// Whether something in there should not wait for the next tick.
    urgent: bool,
    next_tick: u64,
    sent: u64,
    log: Log,
}

/// A node's side of the protocol.
#[derive(Debug)]
pub struct Protocol {
    settings: Settings,
    accounts: Vec<Option<Account>>,
    free: Vec<u32>,
    shards: Vec<Shard>,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    breaker: Breaker,
    /// The round trip and how much it varies, smoothed, in ticks.
    round_trip: u64,
    variation: u64,
    slowest: Slowest,
    /// How often the timeout is doubled, since of late no batch was answered at the first try.
    patience: u32,
    nodes: Option<u32>,
    closing: bool,
    chance: u64,
    events: Vec<Event>,
    /// What has happened so far.
    pub counts: Counts,
}

impl Protocol {
    /// A node that knows nothing yet, at the instant `now`.
    pub fn new(settings: Settings, now: u64) -> Self {
        let mut protocol = Self {
            settings,
            accounts: Vec::new(),
            free: Vec::new(),
            shards: Vec::new(),
            timers: BinaryHeap::new(),
            breaker: Breaker::default(),
            round_trip: 0,
            variation: 0,
            slowest: Slowest::default(),
            patience: 0,
            nodes: None,
            closing: false,
            chance: settings.chance,
            events: Vec::new(),
            counts: Counts::default(),
        };
        for _ in 0..settings.shards.max(1) {
            // Nodes that start together need not report together.
            let next_tick = now + protocol.chance() % settings.interval.max(1);
            protocol.shards.push(Shard {
                number: 0,
                after: None,
                under_way: None,
                queue: VecDeque::new(),
                repairs: VecDeque::new(),
                held_back: None,
                questions: VecDeque::new(),
                urgent: false,
                next_tick,
                sent: 0,
                log: Log::default(),
            });
        }
        protocol
    }

    /// SplitMix64.
    fn chance(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.chance ^ (self.chance >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn shard_of(&self, name: WireName) -> u16 {
        ((name.0 >> 96) % self.shards.len() as u128) as u16
    }

    /// What has happened since this was asked last.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Looks at a ledger that was dirty.
    pub fn on_news(&mut self, ledger: &Arc<Ledger>, now: u64) {
        let place = self.place_of(ledger, now);
        self.visit(place, now);
    }

    /// Has changes of `ledger` told as [`Event::Changed`], once.
    pub fn watch(&mut self, ledger: &Arc<Ledger>, now: u64) {
        let place = self.place_of(ledger, now);
        if let Some(account) = self.account(place) {
            account.is_watched = true;
        }
        self.visit(place, now);
    }

    /// Asks the authority something beside the accounts; the answer is told as [`Event::Answered`] with `number`.
    pub fn ask(&mut self, number: u64, name: WireName, rule: Rule, body: Body) {
        let shard = self.shard_of(name);
        if let Some(shard) = self.shards.get_mut(usize::from(shard)) {
            shard.questions.push_back((number, Record { name, rule, body }));
            shard.urgent = true;
        }
    }

    /// Nobody waits for the answer to that number any more: if it was not sent yet, it never will be.
    pub fn take_back(&mut self, number: u64) {
        for shard in &mut self.shards {
            shard.questions.retain(|(asked, _)| *asked != number);
        }
    }

    fn place_of(&mut self, ledger: &Arc<Ledger>, now: u64) -> u32 {
        let place = ledger.place();
        if self.accounts.get(place as usize).is_some_and(Option::is_some) {
            return place;
        }
        let account = Account::new(Arc::clone(ledger), self.shard_of(ledger.name()), now);
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.accounts.push(None);
                self.accounts.len() as u32 - 1
            }
        };
        ledger.set_place(place);
        self.accounts[place as usize] = Some(account);
        self.counts.accounts += 1;
        place
    }

    fn account(&mut self, place: u32) -> Option<&mut Account> {
        self.accounts.get_mut(place as usize).and_then(Option::as_mut)
    }

    /// The same, and where to count what is found out about it.
    fn account_and_counts(&mut self, place: u32) -> Option<(&mut Account, &mut Counts)> {
        let account = self.accounts.get_mut(place as usize).and_then(Option::as_mut)?;
        Some((account, &mut self.counts))
    }

    /// Looks at whatever it is time for.
    pub fn on_tick(&mut self, now: u64) {
        while let Some(Reverse((at, place))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            let Some(account) = self.account(place) else { continue };
            // Others are of accounts that were at this place before, or there is an earlier one.
            if account.timer == at || account.far_timer == at {
                account.timer = if account.timer == at { 0 } else { account.timer };
                account.far_timer = if account.far_timer == at { 0 } else { account.far_timer };
                self.visit(place, now);
            }
        }
        for shard in 0..self.shards.len() {
            self.note_timeout(shard, now);
            let shard = &mut self.shards[shard];
            shard.log.forget(now.saturating_sub(LOG_FOR));
        }
    }

    fn timeout(&self, way: &UnderWay) -> u64 {
        let timeout = (self.round_trip + 4 * self.variation).clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT);
        // The tries are far enough apart as it is, and an answer that comes later is taken all the same.
        let doubled = if way.is_probe { 1 } else { (way.tries + self.patience).min(6) };
        (timeout << doubled).min(LONGEST_TIMEOUT)
    }

    fn note_timeout(&mut self, shard: usize, now: u64) {
        let Some(under_way) = &self.shards[shard].under_way else { return };
        if under_way.failed || now < under_way.sent + self.timeout(under_way) {
            return;
        }
        self.counts.timeouts += 1;
        self.fail(shard, now, 0);
    }

    fn fail(&mut self, shard: usize, now: u64, not_before: u64) {
        let chance = self.chance();
        let Some(under_way) = &mut self.shards[shard].under_way else { return };
        under_way.failed = true;
        let (began, is_probe) = (under_way.first_sent, std::mem::take(&mut under_way.is_probe));
        if self.breaker.on_failure(began, is_probe, now, not_before, chance) {
            self.counts.silences += 1;
            self.events.push(Event::Silent);
            self.watch_the_silence(now);
        }
    }

    /// Has every account looked at when its lease, and the patience with the authority, are over.
    fn watch_the_silence(&mut self, now: u64) {
        let Some(since) = self.breaker.silent_since() else { return };
        for place in 0..self.accounts.len() as u32 {
            let Some(account) = self.account(place) else { continue };
            let longest = account.ledger.quota().rule().longest_life() * MICRO;
            if account.is_watched || account.need > 0 || account.is_sent || account.is_queued {
                self.look_at(place, (since + longest).max(now + 1));
            }
        }
    }

    /// Has what was admitted while the authority was away told.
    fn end_the_silence(&mut self, now: u64) {
        for place in 0..self.accounts.len() as u32 {
            if self.account(place).is_some_and(|account| account.away || account.away_used > 0) {
                self.visit(place, now);
            }
        }
        // What waited for the authority to answer is made again now.
        for shard in &mut self.shards {
            if let Some(way) = &mut shard.under_way {
                way.failed = true;
            }
        }
    }

    /// Ends all leases, and reports what was used: nothing is admitted after that.
    pub fn close(&mut self, now: u64) {
        self.closing = true;
        for place in 0..self.accounts.len() as u32 {
            let Some((account, counts)) = self.account_and_counts(place) else { continue };
            let window = account.ledger.quota().window() * MICRO;
            look::renew(account, CLOSED, look::Change::default(), now, window, counts);
            self.visit(place, now);
        }
    }

    /// Whether the authority has been told all, and has answered.
    pub fn is_settled(&self) -> bool {
        self.unsettled() == 0 && self.shards.iter().all(|shard| shard.under_way.is_none() && shard.repairs.is_empty())
    }

    /// Accounts of which something is still to be told.
    pub fn unsettled(&self) -> usize {
        self.accounts
            .iter()
            .flatten()
            .filter(|account| account.is_sent || account.is_queued || account.has_news())
            .count()
    }

    /// When [`on_tick`](Self::on_tick) or [`poll_batch`](Self::poll_batch) next have something to do, if nothing comes up before.
    pub fn next_due(&self) -> u64 {
        let mut due = self.timers.peek().map_or(NEVER, |Reverse((at, _))| *at);
        for shard in &self.shards {
            let at = match &shard.under_way {
                Some(way) if way.failed => self.breaker.probe_at(),
                Some(way) => way.sent + self.timeout(way),
                None if !shard.repairs.is_empty() || shard.held_back.is_some() => 0,
                None if shard.queue.is_empty() && shard.questions.is_empty() => NEVER,
                None if shard.urgent => shard.next_tick.min(shard.sent + self.settings.interval / 8),
                None => shard.next_tick,
            };
            // While it is silent nothing is sent before the next try, nor during it.
            let waits = self.breaker.is_open() && shard.under_way.as_ref().is_none_or(|way| way.failed);
            due = due.min(match waits {
                true if self.breaker.is_probing() || at == NEVER => NEVER,
                true => at.max(self.breaker.probe_at()),
                false => at,
            });
        }
        due
    }

    /// The smoothed round trip to the authority, in ticks.
    pub const fn round_trip(&self) -> u64 {
        self.round_trip
    }

    /// The longest that a batch took from when it was first sent to its answer, in the last one to two minutes before `now`, in
    /// ticks.
    pub fn slowest(&self, now: u64) -> u64 {
        let slowest = self.slowest.at(now);
        slowest.now.max(slowest.before)
    }

    /// For how long the authority has not answered, all silences together, in ticks.
    pub fn away(&self, now: u64) -> u64 {
        self.counts.away + self.breaker.silent_since().map_or(0, |since| now.saturating_sub(since))
    }

    /// How many nodes the authority knows of.
    pub const fn nodes(&self) -> Option<u32> {
        self.nodes
    }

    /// Whether the authority does not answer.
    pub const fn is_silent(&self) -> bool {
        self.breaker.is_open()
    }

    /// Whether a try is under way while it does not.
    pub const fn is_probing(&self) -> bool {
        self.breaker.is_probing()
    }
}
