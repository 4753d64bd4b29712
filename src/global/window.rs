//! The sliding window of one key, at the authority.
//!
//! A ring of counts for the sub-windows *n - S* to *n + 1*, where *n* is the current one. Sub-window *b* is counted
//! until *(b + S + 1) · sub*: whatever was spent in it was spent before *(b + 1) · sub*, so that it is counted for a
//! whole window at least. What is taken off, charged and asked for is said by sub-window; the ring moves on when it is
//! told to, and never back.

/// Units charged to the sub-windows of one key.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// The length of a sub-window in microseconds, at least 1.
    sub: u64,
    /// The current sub-window.
    now: u64,
    /// Where the count of the oldest sub-window is; the others follow.
    oldest: usize,
    /// A count of `u32::MAX` stands for that or more, which is all that there can be room for.
    counts: Box<[u32]>,
    total: u64,
}

impl Window {
    /// A window of `subs` sub-windows, with nothing in it. `None` if it would have none, or empty ones.
    pub(crate) fn new(sub: u64, subs: u16, time: u64) -> Option<Self> {
        let now = time.checked_div(sub)?;
        let counts = vec![0; usize::from(subs) + 2].into_boxed_slice();
        (subs > 0).then_some(Self { sub, now, oldest: 0, counts, total: 0 })
    }

    /// Whether these are its sub-windows.
    pub(crate) fn has(&self, sub: u64, subs: u16) -> bool {
        self.sub == sub && self.counts.len() == usize::from(subs) + 2
    }

    /// The current sub-window.
    pub(crate) const fn current(&self) -> u64 {
        self.now
    }

    /// The sub-window that leases are charged to.
    pub(crate) const fn head(&self) -> u64 {
        self.now.saturating_add(1)
    }

    /// Moves on to `time`. At an earlier one it stays where it is.
    pub(crate) fn advance(&mut self, time: u64) {
        let steps = (time / self.sub).saturating_sub(self.now);
        if steps >= self.counts.len() as u64 {
            self.counts.fill(0);
            self.total = 0;
        } else {
            for _ in 0..steps {
                self.total -= u64::from(std::mem::take(&mut self.counts[self.oldest]));
                self.oldest = self.index(1);
            }
        }
        self.now += steps;
    }

    /// Whether nothing that may ever have been charged is counted at `time`.
    pub(crate) fn is_gone(&self, time: u64) -> bool {
        (time / self.sub).saturating_sub(self.now) >= self.counts.len() as u64
    }

    /// Charges `units` to sub-window `to`, if that is in the window.
    pub(crate) fn charge(&mut self, to: u64, units: u64) {
        if let Some(count) = self.count_of(to) {
            let before = *count;
            *count = u64::from(before).saturating_add(units).try_into().unwrap_or(u32::MAX);
            let added = *count - before;
            self.total += u64::from(added);
        }
    }

    /// Takes `units` off sub-window `from`, as many as it has, and says how many that were.
    pub(crate) fn take_off(&mut self, from: u64, units: u64) -> u64 {
        let Some(count) = self.count_of(from) else { return 0 };
        let taken = (*count).min(u32::try_from(units).unwrap_or(u32::MAX));
        // What is beyond the end of a count is not known, so such a one is not lowered.
        if *count < u32::MAX {
            *count -= taken;
            self.total -= u64::from(taken);
        }
        u64::from(taken)
    }

    /// What is counted at `time`, which the window was moved on to. `smooth`: of the oldest sub-window only the part that is
    /// still in the window.
    pub(crate) fn counted(&self, time: u64, smooth: bool) -> u64 {
        let oldest = self.counts[self.oldest];
        if !smooth || oldest == 0 {
            return self.total;
        }
        let gone = time.saturating_sub(self.now.saturating_mul(self.sub)).min(self.sub);
        let part = (u128::from(oldest) * u128::from(self.sub - gone)).div_ceil(u128::from(self.sub));
        self.total - u64::from(oldest) + part as u64
    }

    /// The wait at `time` until `most` units are counted, or fewer.
    pub(crate) fn wait(&self, most: u64, time: u64, smooth: bool) -> u64 {
        if self.counted(time, smooth) <= most {
            return 0;
        }
        let mut later = self.total;
        for place in 0..self.counts.len() {
            let count = self.counts[self.index(place)];
            later -= u64::from(count);
            let Some(spare) = most.checked_sub(later) else { continue };
            // This is the sub-window that has to go, or down to what may stay of it. It has more than that.
            let left = if smooth { u128::from(self.sub) * u128::from(spare) / u128::from(count) } else { 0 };
            return until(self.end(place) - left, time);
        }
        0
    }

    /// The wait at `time` until nothing is counted.
    pub(crate) fn wait_for_none(&self, time: u64) -> u64 {
        let newest = (0..self.counts.len()).rev().find(|place| self.counts[self.index(*place)] > 0);
        newest.map_or(0, |place| until(self.end(place), time))
    }

    /// When the sub-window at `place`, counted from the oldest, is counted no more.
    fn end(&self, place: usize) -> u128 {
        (u128::from(self.now) + place as u128 + 1) * u128::from(self.sub)
    }

    /// The index of the count at `place`, counted from the oldest.
    fn index(&self, place: usize) -> usize {
        (self.oldest + place) % self.counts.len()
    }

    fn count_of(&mut self, sub_window: u64) -> Option<&mut u32> {
        let subs = self.counts.len() as u128 - 2;
        let place = (u128::from(sub_window) + subs).checked_sub(u128::from(self.now))?;
        let place = usize::try_from(place).ok().filter(|place| *place < self.counts.len())?;
        let index = self.index(place);
        self.counts.get_mut(index)
    }
}

/// The wait at `time` until `instant`; one that can't be said is as good as none that ends.
pub(crate) fn until(instant: u128, time: u64) -> u64 {
    instant.saturating_sub(u128::from(time)).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    /// A window whose sub-windows 0 to 3 have these units, at the start of sub-window 2.
    fn window(sub: u64, units: [u64; 4]) -> Window {
        let mut window = Window::new(sub, 2, 2 * sub).unwrap();
        for (to, units) in units.into_iter().enumerate() {
            window.charge(to as u64, units);
        }
        window
    }

    #[test]
    fn a_sub_window_is_counted_until_a_whole_window_after_its_end() {
        let window = window(10, [1, 2, 4, 8]);
        let counted = |time| {
            let mut window = window.clone();
            window.advance(time);
            window.counted(time, false)
        };
        assert_eq!([20, 29, 30, 39, 40, 49, 50, 59, 60].map(counted), [15, 15, 14, 14, 12, 12, 8, 8, 0]);
        assert_eq!([59, 60].map(|time| window.is_gone(time)), [false, true]);
    }

    #[test]
    fn a_smooth_window_counts_the_part_that_is_left_rounded_up() {
        let window = window(10, [10, 3, 0, 0]);
        let counted = |time| {
            let mut window = window.clone();
            window.advance(time);
            window.counted(time, true)
        };
        assert_eq!([20, 21, 29, 30, 33, 34, 39, 40].map(counted), [13, 12, 4, 3, 3, 2, 1, 0]);
    }

    #[test]
    fn what_is_not_in_the_window_has_nothing_and_takes_nothing() {
        let mut window = window(10, [1, 2, 4, 8]);
        for (sub_window, has) in [(1, 2), (2, 4), (3, 8), (4, 0), (0, 1), (u64::MAX, 0)] {
            assert_eq!(window.take_off(sub_window, 100), has, "{sub_window}");
        }
        window.charge(4, 7);
        window.charge(u64::MAX, 7);
        assert_eq!(window.counted(20, false), 0);
        window.advance(30);
        window.charge(0, 7);
        assert_eq!(window.counted(30, false), 0);
    }

    #[test]
    fn a_full_count_is_not_lowered() {
        let mut window = window(10, [0, 0, u64::MAX, 5]);
        assert_eq!(window.counted(20, false), u64::from(u32::MAX) + 5);
        assert_eq!(window.take_off(2, 7), 7);
        assert_eq!(window.counted(20, false), u64::from(u32::MAX) + 5);
    }

    #[test]
    fn an_earlier_time_changes_nothing() {
        let mut window = window(10, [1, 2, 4, 8]);
        for time in [19, 10, 0] {
            window.advance(time);
            let counted = [false, true].map(|smooth| window.counted(time, smooth));
            assert_eq!((window.current(), counted, window.wait(14, time, false)), (2, [15, 15], 30 - time));
        }
    }

    #[test]
    fn the_ends_of_time_are_reached_without_a_fall() {
        for (sub, subs) in [(1, 1), (1, u16::MAX), (u64::MAX, 1), (u64::MAX, u16::MAX), (u64::MAX - 1, 3)] {
            for time in [0, 1, u64::MAX - 1, u64::MAX] {
                let mut window = Window::new(sub, subs, time).unwrap();
                for to in [0, window.current(), window.head(), u64::MAX] {
                    window.charge(to, u64::MAX);
                }
                for later in [time, u64::MAX, 0, 1] {
                    window.advance(later);
                    let waits = [true, false].map(|smooth| window.wait(3, later, smooth));
                    assert!(waits[0] <= window.wait_for_none(later) && waits[1] <= window.wait_for_none(later));
                }
            }
        }
        assert!(Window::new(0, 1, 1).is_none() && Window::new(1, 0, 1).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 2_000,
            rng_seed: RngSeed::Fixed(0x317D),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Looked for microsecond by microsecond.
        #[test]
        fn a_wait_ends_when_what_is_wanted_fits_and_not_before(
            sub in 1_u64..12,
            subs in 1_u16..6,
            time in 0_u64..200,
            ahead in 0_u64..30,
            charges in prop::collection::vec((0_u64..9, 0_u64..20), 0..8),
            most in 0_u64..60,
            smooth in any::<bool>(),
        ) {
            let mut window = Window::new(sub, subs, time + ahead).unwrap();
            window.advance(time);
            for (back, units) in charges {
                window.charge(window.head().saturating_sub(back), units);
            }
            let first = |most| {
                (time..time + 1_000).find(|time| {
                    let mut later = window.clone();
                    later.advance(*time);
                    later.counted(*time, smooth) <= most
                })
            };
            prop_assert_eq!(Some(time + window.wait(most, time, smooth)), first(most));
            prop_assert_eq!(Some(time + window.wait_for_none(time)), first(0));
        }
    }
}
