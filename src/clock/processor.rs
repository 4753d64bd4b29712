//! The processor's counter as a clock, and how it goes on after a step back.
//!
//! All precise clocks of a process are this one, so that a step that one limiter finds is settled for all.
//!
//! # A step back
//!
//! The counter of a machine that slept, was restored from a snapshot or was moved to another host may start over. A bucket's
//! word that is far ahead is no proof of that: its reader may be late, and a debt may stand ahead on purpose. So words are
//! never lowered for it. A denial that outlasts all that can stand ahead asks here, and here the system's clock is the judge:
//!
//! - This clock is no more than a second behind the system's: nothing is changed, and the denial stands.
//! - It is behind by more: `origin` is moved so that it goes on from what the system's clock tells. It gains nothing on that
//!   one, which is read before the counter.
//!
//! A counter that leaps ahead is followed, as it always was. Where it comes back from there it agrees with the system's clock
//! again, and what was written ahead of that is waited for: it has been granted already.

use std::sync::OnceLock;
// The standard library's: this outlives every execution of a model, and no model reads it.
use std::sync::atomic::{AtomicU64, Ordering};

use super::system_ticks;
use crate::ticks::{MAX_NOW, Now, PER_NANO, SECOND};

/// The binary places of `scale`.
const PLACES: u32 = 48;

/// A `quanta` clock with the step from its counts to ticks in one multiplication.
#[derive(Debug)]
pub(super) struct Processor {
    counter: quanta::Clock,
    /// The count at the origin of the process, as if the counter had been running then. A settled step moves it.
    origin: AtomicU64,
    /// Ticks a count, in units of 2^-48: to some 10^-15, and up to 8 µs a count.
    scale: u64,
    /// The number of counts after which the clock stands still.
    last: u64,
    /// When this clock was last set to what the system's clock tells, in ticks.
    set_at: AtomicU64,
    followed: AtomicU64,
    #[cfg(test)]
    by_hand: Option<ByHand>,
}

/// What stands in for the counter, in nanoseconds, and for the system's clock, in ticks.
#[cfg(test)]
#[derive(Default, Debug)]
struct ByHand {
    counter: AtomicU64,
    system: AtomicU64,
}

impl Processor {
    /// That of the process.
    pub(super) fn of_process() -> &'static Self {
        static PROCESSOR: OnceLock<Processor> = OnceLock::new();
        PROCESSOR.get_or_init(|| {
            let counter = quanta::Clock::new();
            // To some 10^-12 what quanta goes by, be a count a third of a nanosecond or 40 of them.
            let nanos = counter.delta_as_nanos(0, 1 << 40);
            let new = Self::new(counter, nanos);
            let system = new.system();
            new.set(system);
            new
        })
    }

    /// A clock on `counter`, of which 2^40 counts take so many nanoseconds. It has to be set.
    fn new(counter: quanta::Clock, nanos: u64) -> Self {
        let scale = nanos.saturating_mul(PER_NANO << (PLACES - 40));
        // The upper half is below the origin.
        let last = (u128::from(MAX_NOW) << PLACES).checked_div(u128::from(scale)).unwrap_or(0);
        let last = u64::try_from(last).unwrap_or(u64::MAX).min(u64::MAX / 2);
        Self {
            counter,
            origin: AtomicU64::new(0),
            scale,
            last,
            set_at: AtomicU64::new(0),
            followed: AtomicU64::new(0),
            #[cfg(test)]
            by_hand: None,
        }
    }

    /// Sets the clock, which no other thread has yet, to `system`, which was read before.
    fn set(&self, system: u64) {
        // Relaxed: what hands the clock over hands these over.
        self.origin.store(self.origin_for(system, self.raw()), Ordering::Relaxed);
        self.set_at.store(system, Ordering::Relaxed);
    }

    #[inline(always)]
    fn raw(&self) -> u64 {
        #[cfg(test)]
        if let Some(by_hand) = &self.by_hand {
            return by_hand.counter.load(Ordering::Relaxed);
        }
        self.counter.raw()
    }

    /// The time since the origin of the process.
    #[inline(always)]
    pub(super) fn now(&self) -> Now {
        // Acquire: pairs with the Release in `follow`, and keeps the reading of the counter behind it. An older count less a
        // newer origin would be a time that never was.
        let origin = self.origin.load(Ordering::Acquire);
        let counts = self.raw().wrapping_sub(origin);
        if counts > self.last {
            return self.out_of_range(counts);
        }
        Now::from_ticks(self.scaled(counts))
    }

    /// The ticks of so many counts, at most `last`.
    #[inline(always)]
    fn scaled(&self, counts: u64) -> u64 {
        ((u128::from(counts) * u128::from(self.scale)) >> PLACES) as u64
    }

    /// The same of any number of counts, taken as negative in the upper half.
    fn ticks(&self, counts: u64) -> u64 {
        match counts {
            _ if counts > u64::MAX / 2 => 0,
            _ if counts > self.last => MAX_NOW,
            _ => self.scaled(counts),
        }
    }

    /// The count of the origin, if the counter says `raw` at the time `system`. A part of a count is left out, so that this
    /// clock is not ahead.
    fn origin_for(&self, system: u64, raw: u64) -> u64 {
        let counts = (u128::from(system) << PLACES).checked_div(u128::from(self.scale)).unwrap_or(0);
        raw.wrapping_sub(counts as u64)
    }

    /// In nine years, the end is reached. Below the origin, another core's counter may be behind for a moment, or the counter
    /// has started over.
    #[cold]
    fn out_of_range(&self, counts: u64) -> Now {
        if counts <= u64::MAX / 2 {
            return Now::MAX;
        }
        if self.ticks(counts.wrapping_neg()) > SECOND && self.follow() {
            let origin = self.origin.load(Ordering::Acquire);
            return Now::from_ticks(self.ticks(self.raw().wrapping_sub(origin)));
        }
        Now::ORIGIN
    }

    /// Whether this clock, read anew, tells `instant` less a second or later, or has been set to what the system's tells.
    #[cold]
    pub(super) fn settle(&self, instant: u64) -> bool {
        self.now().ticks().saturating_add(SECOND) >= instant || self.follow()
    }

    /// Goes on from what the system's clock tells, if that is more than a second later: whether it was.
    fn follow(&self) -> bool {
        // Acquire: pairs with the Release below, as in `now`.
        let origin = self.origin.load(Ordering::Acquire);
        // Before the counter: what passes between the two is lost, not gained.
        let system = self.system();
        let raw = self.raw();
        if system <= self.ticks(raw.wrapping_sub(origin)).saturating_add(SECOND) {
            return false;
        }
        // Release: pairs with the Acquire loads above. Where it fails, another thread has followed the same step.
        let moved = self.origin_for(system, raw);
        if self.origin.compare_exchange(origin, moved, Ordering::Release, Ordering::Relaxed).is_ok() {
            // Relaxed: each is for itself.
            self.set_at.store(system, Ordering::Relaxed);
            self.followed.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn system(&self) -> u64 {
        #[cfg(test)]
        if let Some(by_hand) = &self.by_hand {
            return by_hand.system.load(Ordering::Relaxed);
        }
        system_ticks()
    }

    /// How many steps were followed.
    pub(super) fn followed(&self) -> u64 {
        // Relaxed: the count is all there is.
        self.followed.load(Ordering::Relaxed)
    }

    /// How much faster than the system's clock this one has run since it was set to that, in parts per million.
    pub(super) fn drift_ppm(&self) -> f64 {
        let set_at = self.set_at.load(Ordering::Relaxed);
        let since = |instant: u64| instant.saturating_sub(set_at);
        let (own, system) = (since(self.now().ticks()) as f64, since(self.system()).max(PER_NANO) as f64);
        (own / system - 1.0) * 1e6
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{Clock, Source};
    use crate::ticks::from_duration;
    use crate::{DirectLimiter, Limiter, Quota};

    const HOUR: u64 = 3_600;

    /// A processor whose counter and system say what they are told.
    struct Bench {
        processor: &'static Processor,
    }

    impl Bench {
        /// On a counter that is at `begun` seconds at the origin of the process.
        fn new(begun: u64) -> Self {
            let by_hand = ByHand::default();
            by_hand.counter.store(begun * 1_000_000_000, Ordering::Relaxed);
            let processor = Processor { by_hand: Some(by_hand), ..Processor::new(quanta::Clock::new(), 1 << 40) };
            processor.set(0);
            Self { processor: Box::leak(Box::new(processor)) }
        }

        fn by_hand(&self) -> &ByHand {
            self.processor.by_hand.as_ref().unwrap()
        }

        fn clock(&self) -> Clock {
            Clock(Source::Precise(self.processor))
        }

        fn limiter(&self, quota: Quota) -> Limiter {
            Limiter::builder().quota(quota).clock(self.clock()).build().unwrap()
        }

        /// Both clocks go on.
        fn pass(&self, seconds: u64) {
            self.leap(seconds);
            self.by_hand().system.fetch_add(ticks(seconds), Ordering::Relaxed);
        }

        /// The counter alone goes on.
        fn leap(&self, seconds: u64) {
            self.by_hand().counter.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
        }

        /// The counter alone steps back, to 0 if it is not as far.
        fn step_back(&self, seconds: u64) {
            let counter = self.by_hand().counter.load(Ordering::Relaxed);
            let back = counter.saturating_sub(seconds.saturating_mul(1_000_000_000));
            self.by_hand().counter.store(back, Ordering::Relaxed);
        }

        fn seconds(&self) -> f64 {
            self.processor.now().ticks() as f64 / ticks(1) as f64
        }
    }

    fn ticks(seconds: u64) -> u64 {
        from_duration(Duration::from_secs(seconds)) as u64
    }

    /// The clock may be behind the system's by a part of a count, and no more.
    #[track_caller]
    fn assert_agrees(bench: &Bench) {
        let (own, system) = (bench.processor.now().ticks(), bench.processor.system());
        assert!(own <= system && system - own <= 2 * PER_NANO, "{own} at {system}");
    }

    #[test]
    fn a_counter_that_steps_back_goes_on_from_the_systems_clock() {
        for back in [11, 90, HOUR, 400 * 24 * HOUR] {
            let bench = Bench::new(24 * HOUR);
            let (limiter, other) = (bench.limiter(Quota::per_second(1).burst(5)), bench.clock());
            bench.pass(100);
            assert_agrees(&bench);
            assert!(limiter.check_cost("alice", 3).is_allowed());
            bench.step_back(back);
            let allowed = limiter.check("alice");
            assert!(allowed.is_allowed() && allowed.remaining() == 1, "{back} s back: {allowed:?}");
            assert_agrees(&bench);
            assert_eq!((limiter.now(), other.steps().followed), (other.now(), 1), "all clones go on");
            bench.pass(1);
            assert_eq!(limiter.peek("alice").remaining(), 2, "{back} s back");
        }
    }

    /// Below its origin the counter is read as 0 at first, and no word need be far ahead to find that out.
    #[test]
    fn a_counter_that_starts_over_does_not_stand_still() {
        let bench = Bench::new(400 * 24 * HOUR);
        let limiter = DirectLimiter::with_clock(Quota::per_second(1).burst(5), bench.clock()).unwrap();
        assert!(limiter.check_cost(5).is_allowed());
        bench.pass(3);
        bench.step_back(u64::MAX);
        assert_eq!(limiter.check_cost(5).remaining(), 3);
        assert_agrees(&bench);
        bench.pass(2);
        assert!(limiter.check_cost(5).is_allowed());
        assert_eq!(bench.clock().steps().followed, 1);
    }

    /// Of two cores, one may be behind the origin for a moment.
    #[test]
    fn a_counter_that_is_a_little_below_its_origin_stands_there() {
        let bench = Bench::new(HOUR);
        bench.step_back(1);
        assert_eq!((bench.processor.now(), bench.processor.followed()), (Now::ORIGIN, 0));
    }

    /// It leapt ahead, which the system's clock never saw, and comes back: nothing is given for that.
    #[test]
    fn a_step_that_the_systems_clock_does_not_confirm_changes_nothing() {
        let bench = Bench::new(HOUR);
        let limiter = bench.limiter(Quota::per_second(1).burst(5));
        bench.pass(10);
        bench.leap(HOUR);
        assert!(limiter.check_cost("alice", 5).is_allowed());
        bench.step_back(HOUR);
        for _ in 0..100 {
            assert!(limiter.check("alice").is_denied());
        }
        assert_agrees(&bench);
        assert_eq!(bench.clock().steps().followed, 0);
    }

    /// An instant of the caller's stands ahead on purpose.
    #[test]
    fn a_word_that_is_far_ahead_proves_no_step() {
        let bench = Bench::new(HOUR);
        let limiter = bench.limiter(Quota::per_second(1).burst(5));
        bench.pass(10);
        let ahead = Now::since_origin(Duration::from_secs(HOUR)).unwrap();
        assert!(limiter.check_cost_at("alice", 5, ahead).is_allowed());
        assert!(limiter.check("alice").is_denied() && limiter.peek("alice").is_denied());
        assert_agrees(&bench);
        assert_eq!(bench.clock().steps().followed, 0);
    }

    /// The instant of a reader that was stopped for a minute: the clock itself is where it should be.
    #[test]
    fn a_reader_that_is_late_is_no_step() {
        let bench = Bench::new(HOUR);
        bench.pass(60);
        let late = bench.processor.now().ticks();
        assert!(bench.processor.settle(late) && bench.processor.settle(late + ticks(1)));
        assert!(!bench.processor.settle(late + ticks(1) + 1));
        assert_eq!(bench.processor.followed(), 0);
    }

    #[test]
    fn steps_again_and_again_gain_nothing_on_the_systems_clock() {
        let bench = Bench::new(24 * HOUR);
        let limiter = DirectLimiter::with_clock(Quota::per_second(1).burst(5), bench.clock()).unwrap();
        bench.pass(100);
        let mut admitted = 0;
        for _ in 0..1_000 {
            admitted += (0..10).filter(|_| limiter.check().is_allowed()).count();
            bench.step_back(50);
        }
        assert_eq!(admitted, 5);
        bench.pass(3);
        assert_eq!((0..10).filter(|_| limiter.check().is_allowed()).count(), 3);
        assert!(bench.seconds() <= 103.0);
    }

    /// What was left of the old drift is no drift any more.
    #[test]
    fn drift_counts_from_the_last_step() {
        let bench = Bench::new(24 * HOUR);
        bench.pass(1_000);
        assert!(bench.processor.drift_ppm().abs() < 1.0);
        bench.step_back(500);
        assert!(bench.processor.drift_ppm() < -400_000.0);
        assert!(bench.processor.settle(ticks(1_000)));
        bench.pass(1_000);
        bench.leap(10);
        assert!((bench.processor.drift_ppm() - 10_000.0).abs() < 1.0);
    }

    #[test]
    fn the_clock_of_the_process_counts_from_one_origin_with_the_systems() {
        let (one, other, std) = (Clock::precise(), Clock::precise(), Clock::std());
        let readings = [std.now(), one.now(), other.now(), std.now()];
        let apart = readings[3].ticks().abs_diff(readings[1].ticks()).max(readings[2].ticks() - readings[1].ticks());
        // A machine that is busy may take its time between the readings.
        assert!(apart < ticks(HOUR), "{readings:?}");
        assert_eq!(one.steps().followed, other.steps().followed);
    }
}
