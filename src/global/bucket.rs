//! The token bucket of one key at an authority, exact at every rate.

use super::window::until;

/// A token bucket, by what it lacks.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    burst: u32,
    /// At least 1.
    units: u32,
    /// At least 1.
    period: u64,
    /// At least 1.
    life: u64,
    /// The units that it lacks times the microseconds of a period, so that what comes back in a microsecond is a whole
    /// number: however often it is looked at, nothing is lost to rounding or gained by it.
    debt: u128,
    /// When it lacked them.
    at: u64,
}

impl Bucket {
    /// A full one. `units`, `period` and `life` are at least 1.
    pub(super) const fn new(burst: u32, units: u32, period: u64, life: u64, at: u64) -> Self {
        Self { burst, units, period, life, debt: 0, at }
    }

    pub(super) const fn burst(&self) -> u32 {
        self.burst
    }

    /// Lacks at least as much afterwards, rounded up to what the new period can tell apart.
    pub(super) fn adopt(&mut self, burst: u32, units: u32, period: u64, life: u64) {
        if period != self.period {
            let (whole, part) = (self.debt / u128::from(self.period), self.debt % u128::from(self.period));
            let part = (part * u128::from(period)).div_ceil(u128::from(self.period));
            self.debt = whole.saturating_mul(period.into()).saturating_add(part);
        }
        (self.burst, self.units, self.period, self.life) = (burst, units, period, life);
    }

    pub(super) fn advance(&mut self, time: u64) {
        let elapsed = time.saturating_sub(self.at);
        self.debt = self.debt.saturating_sub(u128::from(elapsed) * u128::from(self.units));
        self.at = self.at.max(time);
    }

    /// Whether it is full, and has not been used for as long as it takes to fill.
    pub(super) fn is_gone(&self, time: u64) -> bool {
        let memory = self.debt.max(u128::from(self.burst) * u128::from(self.period));
        u128::from(time.saturating_sub(self.at)) * u128::from(self.units) >= memory
    }

    pub(super) fn take(&mut self, units: u64) {
        self.debt = self.debt.saturating_add(u128::from(units) * u128::from(self.period));
    }

    /// Puts back what is left of the lease of that number, if that may still be.
    pub(super) fn take_back(&mut self, lease: u64, units: u64) {
        if self.at / self.life <= lease {
            self.put_back(units);
        }
    }

    pub(super) fn put_back(&mut self, units: u64) {
        self.debt = self.debt.saturating_sub(u128::from(units) * u128::from(self.period));
    }

    pub(super) fn counted(&self) -> u64 {
        self.debt.div_ceil(self.period.into()).try_into().unwrap_or(u64::MAX)
    }

    /// The wait from `at` until it lacks `most` units, or less.
    pub(super) fn wait(&self, most: u64) -> u64 {
        let excess = self.debt.saturating_sub(u128::from(most) * u128::from(self.period));
        until(excess.div_ceil(self.units.into()), 0)
    }
}
