//! The units that one quota has admitted to one key, and the most that it may.
//!
//! # The bound
//!
//! `Limiter::refund` promises that in any window of length *t*, what was admitted and not given
//! back is at most `burst + rate × t`. The promise has no end: it holds after each take, of the
//! takes that are not given back *by then*. So a [`Ledger`] looks at each admission at all windows
//! that end with it:
//!
//! - A take that is given back later counts in full until then.
//! - A take that was given back does not count, whatever its refund was worth. An ideal limiter
//!   can't give back more than that: after a refund its bucket is at best as if the take had never
//!   been. So a limiter that admits more has given back units that had come back by themselves, or
//!   units of another take, and no correct one does.
//! - A window that begins between two admissions holds no more than the one that begins with the
//!   later of them. So those that begin with an admission are all that there are.
//!
//! # Openings
//!
//! A reset gives one new burst: the ledger begins anew and is empty. A new policy and a move keep
//! the units that are used at that instant, up to the new burst: the ledger begins anew with one
//! entry that can't be given back. It holds the *least* that any correct limiter must take for
//! used, which is the most that any window up to the instant has beyond what comes back in it; a
//! correct limiter that took less for used would have admitted the difference. What is used is
//! rounded down.
//!
//! # Instants that are known to an interval
//!
//! A check on a coarse clock goes by an instant between the published one, `lo`, and the truth,
//! `hi`. From `lo` of the first to `hi` of the last is the longest that a window can be, so that no
//! correct limiter exceeds it: it is the bound that `CoarseClock` states, with the staleness at the
//! first instant.
//!
//! # Clocks that go back
//!
//! `lo` and `hi` count the way that the clock has gone *forwards*. It is the difference of two
//! instants and all steps back between them. A clock that goes back and on again refills at most
//! for the way that it goes on, in any limiter that refills nothing twice while the clock stands.
//!
//! # Denials
//!
//! A [`Ceiling`] holds the *most* that a limiter may take for used: `Quota` says what rounding
//! costs, and refunds are left out. A denial that is not due even then is wrong.

use tollgate::Quota;

/// The interval of the instant of a check, in nanoseconds of the way that the clock has gone
/// forwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    pub(crate) lo: u64,
    pub(crate) hi: u64,
}

impl Moment {
    /// An instant that is known.
    pub(crate) const fn exact(at: u64) -> Self {
        Self { lo: at, hi: at }
    }
}

/// Units of a quota, in parts of which `period` are one unit: `rate` of them come back in a
/// nanosecond.
type Parts = u128;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The number of the take; `None` for an entry that can't be given back.
    tag: Option<u64>,
    parts: Parts,
    at: Moment,
    /// Whether the burst had no room for all of it.
    is_cut: bool,
}

/// The most that any window up to `hi` holds beyond what comes back in it.
fn most_used(entries: &[Entry], rate: u128, hi: u64) -> Parts {
    let (mut sum, mut most) = (0, 0);
    for entry in entries.iter().rev() {
        sum += entry.parts;
        let back = rate * u128::from(hi.saturating_sub(entry.at.lo));
        most = most.max(sum.saturating_sub(back));
    }
    most
}

/// The takes of one quota that were admitted and not given back.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    quota: Quota,
    entries: Vec<Entry>,
}

impl Ledger {
    /// Nothing admitted yet.
    pub(crate) const fn new(quota: Quota) -> Self {
        Self { quota, entries: Vec::new() }
    }

    pub(crate) const fn quota(&self) -> &Quota {
        &self.quota
    }

    fn rate(&self) -> u128 {
        u128::from(self.quota.rate())
    }

    fn period(&self) -> u128 {
        self.quota.period().as_nanos()
    }

    fn burst(&self) -> Parts {
        u128::from(self.quota.limit()) * self.period()
    }

    /// Notes a take of `cost` units that was admitted.
    ///
    /// # Errors
    ///
    /// The facts, if a window that ends with it holds too much.
    pub(crate) fn admit(&mut self, tag: u64, cost: u64, at: Moment) -> Result<(), String> {
        if cost == 0 {
            return Ok(());
        }
        // What no window can begin before any more: from here on, each that begins earlier holds
        // less beyond what comes back.
        if self.used(at.lo) == 0 {
            self.entries.clear();
        }
        self.entries.push(Entry { tag: Some(tag), parts: u128::from(cost) * self.period(), at, is_cut: false });
        if self.used(at.hi) <= self.burst() {
            return Ok(());
        }
        // Literally, window by window, so that the message says which one it is.
        let mut parts = 0;
        for entry in self.entries.iter().rev() {
            parts += entry.parts;
            let length = at.hi.saturating_sub(entry.at.lo);
            let bound = self.burst() + self.rate() * u128::from(length);
            if parts > bound {
                let (units, bound) = (self.units(parts), self.units(bound));
                let (from, to, quota) = (entry.at.lo, at.hi, &self.quota);
                return Err(format!("{units} units from {from} ns to {to} ns, at most {bound} by {quota}"));
            }
        }
        unreachable!("one of the windows is too full")
    }

    /// Units with three decimals, of parts.
    fn units(&self, parts: Parts) -> String {
        let (whole, rest) = (parts / self.period(), parts % self.period());
        format!("{whole}.{:03}", rest * 1_000 / self.period())
    }

    /// The least that is used at `hi`.
    fn used(&self, hi: u64) -> Parts {
        most_used(&self.entries, self.rate(), hi)
    }

    /// Whether anything must be used at `hi`.
    pub(crate) fn is_used(&self, hi: u64) -> bool {
        self.used(hi) > 0
    }

    /// Notes that the take was given back, if it is one of this ledger.
    ///
    /// Units of another plan may have come since, more than the burst had room for. Then the refund
    /// may give back as much of what is used together, and which part of it was forgotten is not
    /// said.
    pub(crate) fn give_back(&mut self, tag: u64) {
        let Some(index) = self.entries.iter().position(|entry| entry.tag == Some(tag)) else { return };
        let parts = self.entries.remove(index).parts;
        for entry in self.entries[index..].iter_mut().filter(|entry| entry.is_cut) {
            entry.parts = entry.parts.saturating_sub(parts);
        }
    }

    /// Adds what is used of `other` at `hi`, up to the burst of this quota.
    pub(crate) fn absorb(&mut self, other: &Self, hi: u64) {
        let most = self.burst();
        // used / period × own period, in two parts that fit.
        let (used, period) = (other.used(hi), other.period());
        let parts = (used / period).saturating_mul(self.period()) + used % period * self.period() / period;
        let room = most.saturating_sub(self.used(hi));
        if parts.min(room) > 0 {
            let (parts, is_cut) = (parts.min(room), parts > room);
            self.entries.push(Entry { tag: None, parts, at: Moment::exact(hi), is_cut });
        }
    }

    /// The ledger of `quota` that takes over what is used of this one at `hi`, up to the new burst.
    pub(crate) fn carried(&self, quota: Quota, hi: u64) -> Self {
        let mut new = Self::new(quota);
        new.absorb(self, hi);
        new
    }
}

/// The most that a limiter may take for used.
#[derive(Clone, Debug)]
pub(crate) struct Ceiling {
    quota: Quota,
    rounding: Rounding,
    /// The most that any window up to the last take holds beyond what comes back in it. Nothing is
    /// taken out of it, so that it is all there is to know.
    used: Parts,
    /// When that was.
    last: u64,
}

/// The cost of rounding, as `Quota` states it.
#[derive(Clone, Copy, Debug)]
enum Rounding {
    /// A unit takes whole ticks of 1/8 ns, or never comes back: nothing.
    None,
    /// Each unit takes up to 10 ppm longer to come back; the whole burst is there at one instant.
    PerUnit,
    /// Each decision is charged a tick more, or 10 ppm, and the last unit of a burst may have to
    /// wait for that.
    PerDecision,
}

/// Parts of a [`Ceiling`] in a part of a [`Ledger`], so that 10 ppm and 1/8 ns are whole.
const FINE: u128 = 800_000;

impl Ceiling {
    pub(crate) fn new(quota: Quota) -> Self {
        let (rate, ticks) = (u128::from(quota.rate()), quota.period().as_nanos() * 8);
        let rounding = if rate == 0 || ticks.is_multiple_of(rate) {
            Rounding::None
        } else if ticks / rate >= 100_000 {
            // A tick is then at most 10 ppm of a unit: 12.5 µs.
            Rounding::PerUnit
        } else {
            Rounding::PerDecision
        };
        Self { quota, rounding, used: 0, last: 0 }
    }

    fn used(&self, at: u64) -> Parts {
        let rate = u128::from(self.quota.rate()) * FINE;
        self.used.saturating_sub(rate * u128::from(at.saturating_sub(self.last)))
    }

    fn parts(&self, units: u64) -> Parts {
        let exact = u128::from(units) * self.quota.period().as_nanos();
        match self.rounding {
            Rounding::None | Rounding::PerDecision => exact * FINE,
            Rounding::PerUnit => exact * (FINE + FINE / 100_000),
        }
    }

    fn charge(&self, units: u64) -> Parts {
        let parts = self.parts(units);
        match self.rounding {
            Rounding::None | Rounding::PerUnit => parts,
            Rounding::PerDecision => parts + (parts / 100_000).max(u128::from(self.quota.rate()) * FINE / 8),
        }
    }

    /// Notes a take that was admitted at the instant `at`.
    pub(crate) fn admit(&mut self, cost: u64, at: u64) {
        (self.used, self.last) = (self.used(at) + self.charge(cost), at);
    }

    /// Whether a denial of `cost` units is due at `at`.
    pub(crate) fn may_deny(&self, cost: u64, at: u64) -> bool {
        cost > self.quota.limit() || cost > 0 && self.used(at) + self.charge(cost) > self.parts(self.quota.limit())
    }
}
