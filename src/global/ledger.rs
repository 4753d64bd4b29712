//! A key's account of what it may spend of a global quota, and has spent: one word that requests change, and terms that
//! only the background thread writes.
//!
//! # The word
//!
//! | bits | |
//! |---|---|
//! | 28 | *balance*: units of the lease that are left |
//! | 24 | *overdraft*: units that were admitted without a lease and have not been reported with success |
//! | 1 | *dirty*: the ledger is in a queue, or about to be |
//! | 1 | *urgent*: it is in the one that does not wait for the next report |
//! | 10 | *epoch*: which terms hold |
//!
//! A request takes from it by one compare-and-swap. What was used of a lease is not counted: the background thread knows
//! what it has put into the balance, and sees what is left.
//!
//! # The terms
//!
//! Until when a lease may be spent, until when the window is known to be full, and how much overdraft there may be, belong
//! to an epoch. There are two sets, used in turn: the thread fills the one that is not in use, and then moves the epoch on by
//! a compare-and-swap of the word. A request reads the word, the terms of its epoch, and changes the word. Between the two:
//!
//! - The epoch has not moved: the terms were those of the lease that the units come from, since nobody writes terms that
//!   are in use.
//! - It has moved on: the compare-and-swap fails, and the request looks again. So no unit of a new lease is spent under the
//!   terms of an old one, and none of an old one under those of a new one.
//! - It has moved on by 1024, and the word is the same by chance: the terms were those of an earlier lease, which ended
//!   earlier, and the unit is accounted for where it was taken.
//!
//! Who refuses changes nothing that the epoch guards, and at worst refuses by the terms of the next lease.
//!
//! # The instant of an admission
//!
//! lies between the reading of the clock and the answer. A thread that is stopped between the two, for however long, finds one
//! of three things when it takes the unit. The lease that the unit comes from is alive: the admission is dated by the taking,
//! which is before the end of the sub-window that the unit is charged to. It is over, but the background thread has not taken
//! the unit out to give it back: the admission is dated by the clock reading, when the lease was alive. Or the unit is out,
//! and there is nothing to take.

#![allow(clippy::exhaustive_structs, clippy::exhaustive_enums, reason = "models and tests see these, and nobody else")]

use std::fmt;

use super::WireName;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The largest balance.
pub(crate) const MAX_BALANCE: u32 = (1 << 28) - 1;

/// The largest overdraft.
pub(crate) const MAX_OVERDRAFT: u32 = (1 << 24) - 1;

const OVERDRAFT: u32 = 28;
const DIRTY: u64 = 1 << 52;
const URGENT: u64 = 1 << 53;
const EPOCH: u32 = 54;

/// The word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Word(u64);

impl Word {
    const fn balance(self) -> u32 {
        (self.0 & MAX_BALANCE as u64) as u32
    }

    const fn overdraft(self) -> u32 {
        ((self.0 >> OVERDRAFT) & MAX_OVERDRAFT as u64) as u32
    }

    const fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    const fn epoch(self) -> u64 {
        self.0 >> EPOCH
    }

    const fn with_balance(self, balance: u32) -> Self {
        Self(self.0 & !(MAX_BALANCE as u64) | balance as u64)
    }

    const fn with_overdraft(self, overdraft: u32) -> Self {
        Self(self.0 & !((MAX_OVERDRAFT as u64) << OVERDRAFT) | (overdraft as u64) << OVERDRAFT)
    }

    const fn is_urgent(self) -> bool {
        self.0 & URGENT != 0
    }

    const fn dirty(self) -> Self {
        Self(self.0 | DIRTY)
    }

    const fn urgent(self) -> Self {
        Self(self.0 | DIRTY | URGENT)
    }

    const fn clean(self) -> Self {
        Self(self.0 & !DIRTY & !URGENT)
    }

    const fn in_next_epoch(self) -> Self {
        Self(self.0.wrapping_add(1 << EPOCH))
    }
}

/// What holds until the next reply. Instants are in ticks of the limiter's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The balance may be spent before this.
    pub deadline: u64,
    /// Before this the window is full, but for `room` units.
    pub denied_until: u64,
    /// Units that the authority has left.
    pub room: u32,
    /// Units that may be admitted without a lease, from `overdraft_from` on.
    pub overdraft: u32,
    /// When nothing is known of the key any more, or from when on it is known to have room.
    pub overdraft_from: u64,
    /// At this balance more is to be asked for.
    pub low: u32,
    /// Whether the balance was given by this node itself, since the authority does not answer.
    pub away: bool,
}

impl Terms {
    /// Of a key of which nothing is known.
    pub const fn unknown(overdraft: u32) -> Self {
        Self {
            deadline: 0,
            denied_until: 0,
            room: 0,
            overdraft: if overdraft < MAX_OVERDRAFT { overdraft } else { MAX_OVERDRAFT },
            overdraft_from: 0,
            low: 0,
            away: false,
        }
    }
}

// Relaxed, for all of these: they are written before the epoch that they belong to is published, with Release, and read after
// that was read, with Acquire.

/// What every request reads of the terms.
#[derive(Debug)]
struct Hot {
    deadline: AtomicU64,
    denied_until: AtomicU64,
    room: AtomicU32,
    /// The lowest bit is `away`.
    low: AtomicU32,
}

/// What is read of them where there is no lease.
#[derive(Debug)]
struct Cold {
    overdraft_from: AtomicU64,
    overdraft: AtomicU32,
}

/// One set of terms.
#[derive(Clone, Copy)]
struct TermsCell<'a> {
    hot: &'a Hot,
    cold: &'a Cold,
}

impl Hot {
    fn new(terms: Terms) -> Self {
        Self {
            deadline: AtomicU64::new(terms.deadline),
            denied_until: AtomicU64::new(terms.denied_until),
            room: AtomicU32::new(terms.room),
            low: AtomicU32::new(low_and_away(terms)),
        }
    }
}

impl Cold {
    fn new(terms: Terms) -> Self {
        Self { overdraft_from: AtomicU64::new(terms.overdraft_from), overdraft: AtomicU32::new(terms.overdraft) }
    }
}

fn low_and_away(terms: Terms) -> u32 {
    terms.low << 1 | u32::from(terms.away)
}

impl TermsCell<'_> {
    fn set(self, terms: Terms) {
        let Self { hot, cold } = self;
        hot.deadline.store(terms.deadline, Ordering::Relaxed);
        hot.denied_until.store(terms.denied_until, Ordering::Relaxed);
        hot.room.store(terms.room, Ordering::Relaxed);
        hot.low.store(low_and_away(terms), Ordering::Relaxed);
        cold.overdraft_from.store(terms.overdraft_from, Ordering::Relaxed);
        cold.overdraft.store(terms.overdraft, Ordering::Relaxed);
    }

    fn get(self) -> Terms {
        let Self { hot, cold } = self;
        let low = hot.low.load(Ordering::Relaxed);
        Terms {
            deadline: hot.deadline.load(Ordering::Relaxed),
            denied_until: hot.denied_until.load(Ordering::Relaxed),
            room: hot.room.load(Ordering::Relaxed),
            overdraft: cold.overdraft.load(Ordering::Relaxed),
            overdraft_from: cold.overdraft_from.load(Ordering::Relaxed),
            low: low >> 1,
            away: low & 1 != 0,
        }
    }
}

/// What a request is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spent {
    /// The answer.
    pub answer: Answered,
    /// Whether the ledger has to go on a queue: whoever is told so puts it there.
    pub news: bool,
    /// Whether that is the one that the background thread looks at now.
    pub urgent: bool,
}

impl Spent {
    /// What came of changing `before`, which is now urgent, or dirty.
    #[inline]
    const fn new(answer: Answered, before: Word, urgent: bool) -> Self {
        let urgent = urgent && !before.is_urgent();
        Self { answer, news: urgent || !before.is_dirty(), urgent }
    }
}

/// The answer of a ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_enums, reason = "internal; requests match on all")]
pub enum Answered {
    /// Units of a lease were spent, and so many are left; how many the authority has beside them.
    Lease {
        /// Units that are left of it.
        left: u32,
        /// Units that the authority had left when it was last heard.
        room: u32,
        /// In which epoch, for a refund.
        epoch: u64,
        /// Whether this node gave the lease to itself.
        away: bool,
    },
    /// Units were admitted without a lease.
    Overdraft {
        /// Units that the authority had left when it was last heard.
        room: u32,
    },
    /// The window is full until then, in ticks, but for that many units.
    Full {
        /// An instant in ticks.
        until: u64,
        /// Units.
        room: u32,
        /// Whether it is this node's own share that is used up.
        away: bool,
    },
    /// There is no lease yet; one was asked for.
    NoLease {
        /// Units that are known to be there.
        room: u32,
    },
}

impl Answered {
    /// Whether the units may be spent.
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::Lease { .. } | Self::Overdraft { .. })
    }
}

/// What the background thread finds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Found {
    /// Units of the lease that are left.
    pub balance: u32,
    /// Units admitted without a lease and not acknowledged.
    pub overdraft: u32,
    /// Units taken out of the balance.
    pub withdrawn: u32,
}

/// A key's account with one global quota.
// In this order and so aligned, a take from a lease touches one cache line.
#[repr(C, align(64))]
pub struct Ledger {
    word: AtomicU64,
    hot: [Hot; 2],
    cold: [Cold; 2],
    /// The most units that a request was refused for want of a lease.
    need: AtomicU32,
    /// Units that were refused since the window is full, and for want of a lease. Written without a read-modify-write: they may
    /// miss some, and steer no more than how much is asked for.
    full: AtomicU32,
    missed: AtomicU32,
    /// Before this, in ticks, it may not be forgotten.
    keep_until: AtomicU64,
    /// Where the background thread has its account, or [`NOWHERE`].
    place: AtomicU32,
    name: WireName,
    quota: super::QuotaRef,
}

/// No place.
pub(crate) const NOWHERE: u32 = u32::MAX;

impl Ledger {
    /// The ledger of a key of which nothing is known.
    pub fn new(name: WireName, quota: super::QuotaRef) -> Self {
        Self::with_terms(name, Terms::unknown(quota.overdraft_at_first()), quota)
    }

    /// The ledger of a key that has another already, which the background thread still has to close: until it has, there is
    /// no overdraft.
    pub fn after_another(name: WireName, quota: super::QuotaRef) -> Self {
        Self::with_terms(name, Terms { overdraft_from: u64::MAX, ..Terms::unknown(0) }, quota)
    }

    fn with_terms(name: WireName, terms: Terms, quota: super::QuotaRef) -> Self {
        Self {
            word: AtomicU64::new(0),
            hot: [Hot::new(terms), Hot::new(terms)],
            cold: [Cold::new(terms), Cold::new(terms)],
            need: AtomicU32::new(0),
            full: AtomicU32::new(0),
            missed: AtomicU32::new(0),
            keep_until: AtomicU64::new(0),
            place: AtomicU32::new(NOWHERE),
            name,
            quota,
        }
    }

    /// Which key of which quota.
    pub fn name(&self) -> WireName {
        self.name
    }

    /// The quota.
    pub fn quota(&self) -> &super::QuotaRef {
        &self.quota
    }

    fn load(&self) -> Word {
        // Acquire: pairs with the Release in `renew`: the terms of the epoch are there.
        Word(self.word.load(Ordering::Acquire))
    }

    fn terms_of(&self, word: Word) -> TermsCell<'_> {
        let cell = (word.epoch() & 1) as usize;
        TermsCell { hot: &self.hot[cell], cold: &self.cold[cell] }
    }

    fn swap(&self, old: Word, new: Word) -> Result<(), Word> {
        // AcqRel. Release: what was written to `need` before is there for whoever takes the ledger out
        // of the queue, and terms for whoever sees their epoch. Acquire: the other side of both. Together they also order what
        // a request has read of the terms before it changed the word before what the thread writes there once the epoch has
        // moved on: nobody acts upon terms of an epoch to come.
        self.word.compare_exchange_weak(old.0, new.0, Ordering::AcqRel, Ordering::Acquire).map(|_| ()).map_err(Word)
    }

    /// Spends `cost` units, at least 1, all or nothing, at the instant `now` in ticks.
    #[inline]
    pub fn spend(&self, cost: u32, now: u64) -> Spent {
        match self.spend_lease(cost, now) {
            Some(spent) => spent,
            None => self.spend_without_lease(self.load(), cost, now),
        }
    }

    /// Spends `cost` units of the lease, if there is one with so many.
    #[inline]
    pub fn spend_lease(&self, cost: u32, now: u64) -> Option<Spent> {
        let mut word = self.load();
        loop {
            let terms = self.terms_of(word).hot;
            let balance = word.balance();
            if balance < cost || now >= terms.deadline.load(Ordering::Relaxed) {
                return None;
            }
            let left = balance - cost;
            let (low, room) = (terms.low.load(Ordering::Relaxed), terms.room.load(Ordering::Relaxed));
            let is_low = balance > low >> 1 && left <= low >> 1;
            let next = word.with_balance(left);
            match self.swap(word, if is_low { next.urgent() } else { next.dirty() }) {
                Ok(()) => {
                    let answer = Answered::Lease { left, room, epoch: word.epoch(), away: low & 1 != 0 };
                    return Some(Spent::new(answer, word, is_low));
                }
                Err(changed) => word = changed,
            }
        }
    }

    #[cold]
    fn spend_without_lease(&self, mut word: Word, cost: u32, now: u64) -> Spent {
        loop {
            let terms = self.terms_of(word).get();
            if now < terms.deadline && cost <= word.balance() {
                // It has come in the meantime.
                let left = word.balance() - cost;
                match self.swap(word, word.with_balance(left).urgent()) {
                    Ok(()) => {
                        let answer = Answered::Lease { left, room: terms.room, epoch: word.epoch(), away: terms.away };
                        return Spent::new(answer, word, true);
                    }
                    Err(changed) => word = changed,
                }
                continue;
            }
            if now < terms.denied_until && cost > terms.room {
                note_refused(&self.full, cost);
                let answer = Answered::Full { until: terms.denied_until, room: terms.room, away: terms.away };
                return Spent { answer, news: false, urgent: false };
            }
            let overdraft = word.overdraft().saturating_add(cost);
            let next = if now >= terms.overdraft_from && overdraft <= terms.overdraft {
                word.with_overdraft(overdraft)
            } else {
                self.need.fetch_max(cost, Ordering::Relaxed);
                word
            };
            // Even where nothing changes, so that whoever takes the ledger out of the queue finds what was just needed.
            match self.swap(word, next.urgent()) {
                Ok(()) => {
                    let answer = if next == word {
                        note_refused(&self.missed, cost);
                        Answered::NoLease { room: terms.room }
                    } else {
                        Answered::Overdraft { room: terms.room }
                    };
                    return Spent::new(answer, word, true);
                }
                Err(changed) => word = changed,
            }
        }
    }

    /// What [`spend`](Self::spend) would answer. Nothing is asked for.
    pub fn peek(&self, cost: u32, now: u64) -> Answered {
        let word = self.load();
        let terms = self.terms_of(word).get();
        if now < terms.deadline && cost <= word.balance() {
            let left = word.balance();
            Answered::Lease { left, room: terms.room, epoch: word.epoch(), away: terms.away }
        } else if now < terms.denied_until && cost > terms.room {
            Answered::Full { until: terms.denied_until, room: terms.room, away: terms.away }
        } else if now >= terms.overdraft_from && word.overdraft().saturating_add(cost) <= terms.overdraft {
            Answered::Overdraft { room: terms.room }
        } else {
            Answered::NoLease { room: terms.room }
        }
    }

    /// Gives `cost` units back that were spent as `answer` says, unless the background thread has looked at the ledger
    /// since: then they are accounted for as used, and stay so.
    pub fn unspend(&self, cost: u32, answer: Answered) -> bool {
        let mut word = self.load();
        loop {
            let next = match answer {
                Answered::Lease { epoch, .. } if epoch == word.epoch() => {
                    // What was spent in this epoch fits back, whatever the caller says.
                    word.with_balance(word.balance().saturating_add(cost).min(MAX_BALANCE))
                }
                _ => return false,
            };
            match self.swap(word, next) {
                Ok(()) => return true,
                Err(changed) => word = changed,
            }
        }
    }

    /// Whether this equals the ledger of a key of which nothing is known, in the eyes of whoever comes at `now` or later.
    pub fn is_idle(&self, now: u64) -> bool {
        let word = self.load();
        word.balance() == 0
            && word.overdraft() == 0
            && !word.is_dirty()
            && now >= self.keep_until.load(Ordering::Relaxed)
    }

    /// Whether it is in the queue, or should be.
    pub fn is_dirty(&self) -> bool {
        self.load().is_dirty()
    }
}

/// The background thread's side. Nobody else calls these, and no two threads at once.
impl Ledger {
    fn change(&self, change: impl Fn(Word) -> Word) -> Word {
        let mut word = self.load();
        loop {
            let next = change(word);
            if next == word {
                return word;
            }
            match self.swap(word, next) {
                Ok(()) => return word,
                Err(changed) => word = changed,
            }
        }
    }

    /// Looks at the ledger, which is then not dirty any more, and takes out of its balance what is more than `keep` says of
    /// the balance.
    pub fn collect(&self, keep: impl Fn(u32) -> u32) -> Found {
        let kept = |word: Word| keep(word.balance()).min(word.balance());
        // What was spent is accounted for from here on, and must not be given back any more: that goes by the epoch. The
        // terms stay as they are.
        let word = self.load();
        self.terms_of(word.in_next_epoch()).set(self.terms_of(word).get());
        let word = self.change(|word| {
            let looked_at = word.with_balance(kept(word)).clean();
            if word.is_dirty() { looked_at.in_next_epoch() } else { looked_at }
        });
        Found { balance: kept(word), overdraft: word.overdraft(), withdrawn: word.balance() - kept(word) }
    }

    /// What was refused since this was asked last.
    pub fn wanted(&self) -> Wanted {
        let [need, full, missed] = [&self.need, &self.full, &self.missed].map(|units| units.swap(0, Ordering::Relaxed));
        Wanted { need, full, missed }
    }

    /// Begins the next epoch under `terms`: takes `withdraw` units out of the balance, or as many as are left, puts `add` in,
    /// and takes `acknowledged` units of overdraft for settled.
    pub fn renew(&self, terms: Terms, withdraw: u32, add: u32, acknowledged: u32) -> Renewed {
        let next = self.load().in_next_epoch();
        // Nobody reads these before the epoch has moved on: the terms before the present ones can't be acted upon any more.
        self.terms_of(next).set(terms);
        let changed = |word: Word| {
            let left = word.balance() - withdraw.min(word.balance());
            word.with_balance(left.saturating_add(add).min(MAX_BALANCE))
                .with_overdraft(word.overdraft().saturating_sub(acknowledged))
                .in_next_epoch()
        };
        let before = self.change(changed);
        Renewed { before: before.balance(), balance: changed(before).balance() }
    }

    /// The terms that hold.
    pub fn terms(&self) -> Terms {
        self.terms_of(self.load()).get()
    }

    /// Where the thread has its account.
    pub fn place(&self) -> u32 {
        self.place.load(Ordering::Relaxed)
    }

    /// The account is in `place` from now on.
    pub fn set_place(&self, place: u32) {
        self.place.store(place, Ordering::Relaxed);
    }

    /// Before `until` it is not to be forgotten.
    pub fn keep_until(&self, until: u64) {
        self.keep_until.store(until, Ordering::Relaxed);
    }
}

/// What requests were refused.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Wanted {
    /// The most units that one was refused for want of a lease.
    pub need: u32,
    /// Units that were refused since the window was known to be full.
    pub full: u32,
    /// Units that were refused for want of a lease.
    pub missed: u32,
}

/// The balance of a ledger before and after it was renewed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewed {
    /// Before.
    pub before: u32,
    /// After.
    pub balance: u32,
}

fn note_refused(refused: &AtomicU32, cost: u32) {
    refused.store(refused.load(Ordering::Relaxed).saturating_add(cost), Ordering::Relaxed);
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.load();
        f.debug_struct("Ledger")
            .field("name", &self.name)
            .field("balance", &word.balance())
            .field("overdraft", &word.overdraft())
            .field("dirty", &word.is_dirty())
            .field("terms", &self.terms_of(word).get())
            .finish()
    }
}
