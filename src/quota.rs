//! What a key is granted, and the same in ticks.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::error::BuildError;
use crate::ticks::{MAX_FILL, MAX_NOW, Now, SECOND, from_duration, to_duration};
use crate::unit::Unit;

/// A rate and a burst: what a key is granted.
///
/// A key may take up to `burst` units at one instant, and gets `rate` units back in every `period`, one by one and
/// not all at once. In any window of length *t* it is admitted at most `burst + rate × t / period` units, exactly. *t* counts by
/// the limiter's [clock](crate::Clock#steps-back); with instants of two callers that differ by *d*, it is *t + d*.
/// A unit is whatever the caller counts: a request, a byte, a token of a language model.
///
/// The burst is the rate unless [`burst`](Quota::burst) says otherwise: `per_second(100)` admits 100 at once and then
/// one every 10 ms.
///
/// A rate of 0 is legal: the burst is then all there is, ever. Its burst has to be given.
///
/// A quota is a description. Whether it makes sense is decided where a limiter is built, with a [`BuildError`] that
/// names it: refused are a burst of 0, a period of 0 or over 73 years, a burst that takes more than four years to fill,
/// and one of over 2^60 units that never does.
///
/// # What rounding costs
///
/// Time is counted in ticks of 1/8 ns, and rounding always favours the quota. It never admits more than the bound above, and it
/// admits less by no more than this: each decision is charged at most one tick too much, or 10 ppm of what it should be charged
/// if that is more. Under sustained load of decisions of cost *c*, the rate that comes out is therefore at least `rate × (1 −
/// max(10 ppm, rate / (c × 8·10⁹)))` with the rate in units a second. Where `8·10⁹ × period in seconds / rate` is whole, as for
/// every power of ten up to 10⁹ a second, nothing is lost at all. From a full bucket the whole burst can be taken at one
/// instant, unless the rate is one whose unit is so short (under 12.5 µs, 80,000 a second) that 10 ppm of it is less than
/// rounding costs: then the last unit of a burst may have to wait one tick for each decision that came before it at that same
/// instant.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Quota;
///
/// const LOGINS: Quota = Quota::per_minute(5).burst(3);
/// assert_eq!((LOGINS.rate(), LOGINS.period(), LOGINS.limit()), (5, Duration::from_secs(60), 3));
/// assert_eq!(LOGINS.to_string(), "5/min, burst 3");
/// assert_eq!(Quota::new(40_000, Duration::from_secs(15 * 60)).to_string(), "40000 per 900s, burst 40000");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quota {
    rate: u64,
    period: Duration,
    burst: u64,
    unit: Unit,
    name: Option<&'static str>,
}

impl Quota {
    /// `rate` units every `period`, and a burst of `rate`.
    pub const fn new(rate: u64, period: Duration) -> Self {
        Self { rate, period, burst: rate, unit: Unit::REQUESTS, name: None }
    }

    /// `rate` units a second, and a burst of `rate`.
    pub const fn per_second(rate: u64) -> Self {
        Self::new(rate, Duration::from_secs(1))
    }

    /// `rate` units a minute, and a burst of `rate`.
    pub const fn per_minute(rate: u64) -> Self {
        Self::new(rate, Duration::from_secs(60))
    }

    /// `rate` units an hour, and a burst of `rate`.
    pub const fn per_hour(rate: u64) -> Self {
        Self::new(rate, Duration::from_secs(3_600))
    }

    /// `rate` units a day of 86,400 s, and a burst of `rate`.
    pub const fn per_day(rate: u64) -> Self {
        Self::new(rate, Duration::from_secs(86_400))
    }

    /// The same rate with a burst of `burst` units: the most that is admitted at one instant.
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        Self { burst, ..self }
    }

    /// The same quota, of units of another kind: requests unless this says otherwise.
    ///
    /// ```
    /// use tollgate::{Quota, Unit};
    ///
    /// assert_eq!(Quota::per_minute(90_000).unit(Unit::TOKENS).to_string(), "90000 tokens/min, burst 90000");
    /// ```
    #[must_use]
    pub const fn unit(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    /// The same quota under another name than [`name`](Quota::name) would give it: two quotas of one plan that have unit
    /// and period in common need one, and a quota that keeps its name keeps its use when a policy is
    /// [reloaded](crate::Limiter::reload), whatever else of it changes.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Self {
        Self { name: Some(name), ..self }
    }

    /// What this quota is called in a plan: what [`named`](Quota::named) says, or its unit and its period, as in
    /// `requests/min`.
    pub fn name(&self) -> Cow<'static, str> {
        match self.name {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(format!("{}/{}", self.unit, Period(self.period))),
        }
    }

    /// Whether [`named`](Quota::named) has given it a name.
    #[cfg(feature = "global")]
    pub(crate) const fn is_named(&self) -> bool {
        self.name.is_some()
    }

    /// What is counted.
    pub const fn counted(&self) -> Unit {
        self.unit
    }

    /// Units that come back in every [`period`](Quota::period).
    pub const fn rate(&self) -> u64 {
        self.rate
    }

    /// The time in which [`rate`](Quota::rate) units come back.
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// The burst in units, which is what HTTP headers call the limit.
    pub const fn limit(&self) -> u64 {
        self.burst
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rate.fmt(f)?;
        if self.unit != Unit::REQUESTS {
            write!(f, " {}", self.unit)?;
        }
        match Period(self.period) {
            period if period.unit().is_some() => write!(f, "/{period}")?,
            period => write!(f, " per {period}")?,
        }
        write!(f, ", burst {}", self.burst)
    }
}

/// A period as people write it.
struct Period(Duration);

impl Period {
    const fn unit(&self) -> Option<&'static str> {
        match (self.0.as_secs(), self.0.subsec_nanos()) {
            (1, 0) => Some("s"),
            (60, 0) => Some("min"),
            (3_600, 0) => Some("h"),
            (86_400, 0) => Some("day"),
            _ => None,
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit() {
            Some(unit) => f.write_str(unit),
            None => write!(f, "{:?}", self.0),
        }
    }
}

/// Rounding a unit up to whole ticks is accepted while it costs at most one part in this many.
///
/// A clock crystal is off by more: quanta drifts some 80 ppm against the system clock (metrics-rs/quanta#99).
const WHOLE_TICKS_LOSS: u128 = 100_000;

/// The largest burst of a quota that never refills.
const MAX_UNITS: u64 = 1 << 60;

/// A quota, refused or turned into what a decision calculates with: a unit takes `num / den` ticks to come back.
///
/// Two ways to round are right, and no quota mixes them:
///
/// - **Whole ticks a unit** (`den` = 1, almost every quota): a unit is rounded up to whole ticks, and from there on
///   everything is exact. Any split of the burst is admitted at one instant.
/// - **Whole ticks a decision** (`den` > 1: fast rates, mostly of bytes, where a whole tick is too much for a unit):
///   a cost is rounded up to whole ticks, the room that it needs is rounded down.
///
/// Both keep the bound. Let admissions 1 to n lie in a window of length t. The first starts no earlier than the
/// window, each but the last moves the bucket's word on by at least its cost × num / den, and the last is admitted no
/// more than (burst − its cost) × num / den ahead of its instant. So all costs but the last, × num / den, are at most
/// t + (burst − last) × num / den, which is the bound times num / den.
///
/// One word of whole ticks cannot do better than the second way: with unit 2.5 ticks and burst 2, `tat` = 5 seen at 2
/// may come from two units taken at 0 (a third at 2 would exceed 2 + 2 / 2.5) or, rounded up, from one taken at 2 (and
/// a second is due).
///
/// `den` = 0 marks a quota that never refills: one tick a unit, and time stands still at `MAX_NOW`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaTicks {
    burst: u64,
    num: u64,
    den: u64,
    /// How far ahead of the instant `tat` may be, and a second: beyond that a denial asks the clock. Worked out here, since each
    /// denial compares with it.
    reach: u64,
}

impl QuotaTicks {
    /// Turns `quota` into ticks.
    ///
    /// # Errors
    ///
    /// Every quota that makes no sense, see [`Quota`].
    pub const fn new(quota: Quota) -> Result<Self, BuildError> {
        let Quota { rate, period, burst, .. } = quota;
        if burst == 0 {
            return Err(BuildError::ZeroBurst { quota });
        }
        if period.is_zero() {
            return Err(BuildError::ZeroPeriod { quota });
        }
        if rate == 0 {
            if burst > MAX_UNITS {
                return Err(BuildError::BurstTooLarge { quota });
            }
            return Ok(Self::of(burst, 1, 0));
        }
        let period = from_duration(period);
        if period > u64::MAX as u128 {
            return Err(BuildError::PeriodTooLong { quota });
        }

        let whole = period.div_ceil(rate as u128);
        let excess = whole * rate as u128 - period;
        let (num, den) = if excess * WHOLE_TICKS_LOSS <= period {
            (whole as u64, 1)
        } else {
            let common = gcd(period as u64, rate);
            (period as u64 / common, rate / common)
        };
        if (burst as u128 * num as u128).div_ceil(den as u128) > MAX_FILL as u128 {
            return Err(BuildError::FillTooLong { quota });
        }
        Ok(Self::of(burst, num, den))
    }

    const fn of(burst: u64, num: u64, den: u64) -> Self {
        let quota = Self { burst, num, den, reach: 0 };
        Self { reach: quota.charge(burst) + SECOND, ..quota }
    }

    /// What stands in the answer where nothing is limited. No bucket is kept of it.
    pub(crate) const UNLIMITED: Self = Self { burst: u64::MAX, num: 1, den: 1, reach: MAX_NOW };

    /// As many places as requests may be in flight: each is a unit, and none comes back by time.
    pub(crate) const fn places(limit: u32) -> Self {
        Self::of(limit as u64, 1, 0)
    }

    /// Where `tat` of a bucket of this quota goes when its quota becomes `new` at the instant `at`: what was used is
    /// worked out at that instant, up to the new burst, and stays used. A part of a tick is rounded up.
    pub(crate) const fn carry(&self, tat: u64, new: &Self, at: Now) -> u64 {
        let ahead = tat.saturating_sub(self.at(at));
        if ahead == 0 {
            // Full, and from the same instant on.
            return if tat < at.ticks() { tat } else { at.ticks() };
        }
        // In units and a rest of `rest / num` of one. A quota that never refills has one tick a unit.
        let scaled = ahead as u128 * at_least_one(self.den);
        let (units, rest) = (scaled / self.num as u128, scaled % self.num as u128);
        let empty = new.charge(new.burst);
        if units >= new.burst as u128 {
            return new.at(at) + empty;
        }
        let part = (rest * new.num as u128).div_ceil(self.num as u128);
        let ahead = (units * new.num as u128 + part).div_ceil(at_least_one(new.den));
        new.at(at) + if ahead < empty as u128 { ahead as u64 } else { empty }
    }

    /// The burst in units.
    pub(crate) const fn burst(&self) -> u64 {
        self.burst
    }

    /// Whether a unit is a whole number of ticks, so that any number of them is given back exactly.
    pub(crate) const fn has_whole_ticks(&self) -> bool {
        self.den <= 1
    }

    /// Whether units never come back.
    pub(crate) const fn never_refills(&self) -> bool {
        self.den == 0
    }

    /// The instant in ticks that this quota's buckets see.
    #[inline]
    pub(crate) const fn at(&self, now: Now) -> u64 {
        if self.never_refills() { stand_still() } else { now.ticks() }
    }

    /// What taking `cost` units, at most the burst, moves `tat` on by.
    #[inline]
    pub(crate) const fn charge(&self, cost: u64) -> u64 {
        match self.den {
            0 | 1 => cost * self.num,
            _ => self.charge_rounded(cost),
        }
    }

    // Out of line: a division that few quotas need would make every check larger.
    #[cold]
    const fn charge_rounded(&self, cost: u64) -> u64 {
        (cost as u128 * self.num as u128).div_ceil(self.den as u128) as u64
    }

    /// How far ahead of the instant `tat` may be for `cost` units, at most the burst, to be admitted.
    #[inline]
    pub(crate) const fn room(&self, cost: u64) -> u64 {
        let left = self.burst - cost;
        match self.den {
            0 | 1 => left * self.num,
            _ => self.room_rounded(left),
        }
    }

    #[cold]
    const fn room_rounded(&self, left: u64) -> u64 {
        (left as u128 * self.num as u128 / self.den as u128) as u64
    }

    /// How far ahead of the instant `tat` may be for all that a take at that instant, or up to a second later, has put there.
    #[inline]
    pub(crate) const fn reach(&self) -> u64 {
        self.reach
    }

    /// The largest cost that is admitted with `tat` this far ahead of the instant, `ahead` being below 2^62.
    pub(crate) const fn remaining(&self, ahead: u64) -> u64 {
        let used = match self.den {
            0 | 1 => ahead.div_ceil(self.num) as u128,
            den => (ahead as u128 * den as u128).div_ceil(self.num as u128),
        };
        (self.burst as u128).saturating_sub(used) as u64
    }

    /// The time an empty bucket takes to fill, rounded up to the nanosecond; `None` if it never does.
    pub(crate) const fn fill_time(&self) -> Option<Duration> {
        if self.never_refills() { None } else { Some(to_duration(self.charge(self.burst))) }
    }
}

/// A branch that is foretold, where a conditional move would wait for the clock.
#[cold]
const fn stand_still() -> u64 {
    MAX_NOW
}

const fn at_least_one(den: u64) -> u128 {
    if den == 0 { 1 } else { den as u128 }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(quota: Quota) -> QuotaTicks {
        QuotaTicks::new(quota).unwrap()
    }

    #[test]
    fn bursts_and_periods_that_make_no_sense_are_refused() {
        let refused = |quota| QuotaTicks::new(quota).unwrap_err();
        assert!(matches!(refused(Quota::per_second(5).burst(0)), BuildError::ZeroBurst { .. }));
        assert!(matches!(refused(Quota::per_second(0)), BuildError::ZeroBurst { .. }));
        assert!(matches!(refused(Quota::new(1, Duration::ZERO)), BuildError::ZeroPeriod { .. }));
        assert!(matches!(refused(Quota::new(0, Duration::ZERO).burst(1)), BuildError::ZeroPeriod { .. }));
        assert!(matches!(refused(Quota::new(1, Duration::MAX)), BuildError::PeriodTooLong { .. }));
        assert!(matches!(refused(Quota::per_second(0).burst(MAX_UNITS + 1)), BuildError::BurstTooLarge { .. }));
    }

    #[test]
    fn a_fill_time_of_four_years_is_the_longest() {
        let four_years = Duration::from_secs(1461 * 86_400);
        assert!(QuotaTicks::new(Quota::new(1, four_years)).is_ok());
        let longer = Quota::new(1, four_years + Duration::from_nanos(1));
        assert_eq!(QuotaTicks::new(longer), Err(BuildError::FillTooLong { quota: longer }));
        assert!(QuotaTicks::new(Quota::new(10, 10 * four_years)).is_err());
        assert!(QuotaTicks::new(Quota::new(10, 10 * four_years).burst(1)).is_ok());
        assert!(QuotaTicks::new(Quota::per_second(1).burst(u64::MAX)).is_err());
        assert!(QuotaTicks::new(Quota::per_second(u64::MAX)).is_ok());
    }

    #[test]
    fn units_are_whole_ticks_where_that_costs_little() {
        assert_eq!(ticks(Quota::per_day(10)).num, 8_640 * 8_000_000_000);
        assert_eq!((ticks(Quota::per_second(3)).num, ticks(Quota::per_second(3)).den), (2_666_666_667, 1));
        assert_eq!((ticks(Quota::per_second(1_000_000_000)).num, ticks(Quota::per_second(1_000_000_000)).den), (8, 1));
        assert_eq!((ticks(Quota::per_second(600_000_000)).num, ticks(Quota::per_second(600_000_000)).den), (40, 3));
    }

    #[test]
    fn room_and_remaining_agree_at_every_distance() {
        for quota in [
            Quota::per_second(3).burst(7),
            Quota::per_second(600_000_000).burst(50),
            Quota::per_second(u64::MAX).burst(1 << 40),
            Quota::per_second(0).burst(9),
        ] {
            let quota = ticks(quota);
            let full = quota.charge(quota.burst);
            for ahead in [0, 1, full / 3, full / 2, full.saturating_sub(1), full, full + 1, 2 * full] {
                let remaining = quota.remaining(ahead);
                assert!(remaining == 0 || ahead <= quota.room(remaining), "{quota:?} {ahead}");
                assert!(remaining == quota.burst || ahead > quota.room(remaining + 1), "{quota:?} {ahead}");
            }
        }
    }
}
