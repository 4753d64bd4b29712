//! Whether the authority answers, and when to try again.

/// The first wait after an authority was found not to answer, in milliseconds.
const FIRST_WAIT: u64 = 50;

/// The longest wait between two tries, in milliseconds.
const LONGEST_WAIT: u64 = 2_000;

/// Failures in a row after which an authority is taken not to answer: one can be a lost packet.
const TOLERATED: u32 = 1;

/// Ticks in a millisecond.
const MILLI: u64 = crate::ticks::PER_NANO * 1_000_000;

/// What is known of the authority's health. While it is open there is one try at a time, whatever waits.
#[derive(Default, Debug)]
pub(super) struct Breaker {
    failures: u32,
    /// When the first of the calls began that were not answered.
    failing_since: u64,
    /// When to try, while it is open.
    probe_at: u64,
    /// In milliseconds, 0 while it is closed.
    wait: u64,
    /// Whether a try is under way.
    probing: bool,
}

impl Breaker {
    pub(super) const fn is_open(&self) -> bool {
        self.wait != 0
    }

    /// Since when the authority has not answered, if it does not.
    pub(super) fn silent_since(&self) -> Option<u64> {
        self.is_open().then_some(self.failing_since)
    }

    /// Whether a call may be made now.
    pub(super) const fn may_call(&self, now: u64) -> bool {
        !self.is_open() || (now >= self.probe_at && !self.probing)
    }

    /// Whether a try is under way.
    pub(super) const fn is_probing(&self) -> bool {
        self.probing
    }

    /// When a call may be made.
    pub(super) const fn probe_at(&self) -> u64 {
        self.probe_at
    }

    /// A call is made; true if it is the one try.
    pub(super) fn on_call(&mut self) -> bool {
        self.probing = self.is_open();
        self.probing
    }

    /// A call has failed that was first made at `began`; true if that opens the breaker. `chance` is any number, which spreads
    /// the tries of many nodes; before `not_before` none is of use.
    pub(super) fn on_failure(&mut self, began: u64, is_probe: bool, now: u64, not_before: u64, chance: u64) -> bool {
        if self.failures == 0 {
            self.failing_since = began;
        }
        self.failures = self.failures.saturating_add(1);
        if self.is_open() && !is_probe {
            // It was under way when the breaker opened: that adds no tries.
            return false;
        }
        self.probing = false;
        if self.failures <= TOLERATED {
            return false;
        }
        let opens = !self.is_open();
        self.wait = (self.wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
        // From three quarters of the wait to five quarters.
        let ticks = self.wait * MILLI;
        self.probe_at = (now + ticks * 3 / 4 + chance % (ticks / 2)).max(not_before);
        opens
    }

    /// A call was answered; true if that closes the breaker.
    pub(super) fn on_answer(&mut self) -> bool {
        let closes = self.is_open();
        *self = Self::default();
        closes
    }
}
