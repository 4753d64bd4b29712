//! Which denials of a thread look at the time itself.

use std::cell::Cell;

/// So many denials by one published instant, and every further one of as many looks.
const MOST: u32 = 64;

/// For so many clocks a thread counts apart.
const CLOCKS: usize = 8;

/// Whether a thread's next denial by what the clock of that `number` has published, `instant`, looks: its first, its second,
/// its fourth and so on, and from the 64th every 64th.
///
/// Each thread counts for itself, so that denials write to nothing that threads share. Clocks whose numbers differ by a
/// multiple of eight are counted as one, which looks more often: a change of the instant begins a new count.
#[inline]
pub(super) fn is_due(number: usize, instant: u64) -> bool {
    LOOKS.with(|looks| looks.is_due(number % CLOCKS, instant))
}

thread_local! {
    static LOOKS: Looks = const { Looks::new() };
}

/// Counts the denials of one thread by each clock.
struct Looks {
    /// The instants that are counted.
    instants: [Cell<u64>; CLOCKS],
    /// The denials up to the next look, that one included.
    left: [Cell<u32>; CLOCKS],
    /// The denials from the next look to the one after it.
    gaps: [Cell<u32>; CLOCKS],
}

impl Looks {
    const fn new() -> Self {
        // No instant is as late as these.
        Self {
            instants: [const { Cell::new(u64::MAX) }; CLOCKS],
            left: [const { Cell::new(0) }; CLOCKS],
            gaps: [const { Cell::new(0) }; CLOCKS],
        }
    }

    #[inline]
    fn is_due(&self, clock: usize, instant: u64) -> bool {
        if self.instants[clock].get() != instant {
            self.begin(clock, instant);
            return true;
        }
        let left = self.left[clock].get().wrapping_sub(1);
        self.left[clock].set(left);
        if left == 0 {
            self.look(clock);
        }
        left == 0
    }

    /// Looks at the first denial by an instant.
    #[cold]
    fn begin(&self, clock: usize, instant: u64) {
        self.instants[clock].set(instant);
        self.left[clock].set(1);
        self.gaps[clock].set(2);
    }

    #[cold]
    fn look(&self, clock: usize) {
        let gap = self.gaps[clock].get();
        self.left[clock].set(gap);
        self.gaps[clock].set((gap * 2).min(MOST));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Which of `denials` look, counted from 1.
    fn looks(denials: usize, mut is_due: impl FnMut() -> bool) -> Vec<usize> {
        (1..=denials).filter(|_| is_due()).collect()
    }

    #[test]
    fn looks_are_at_powers_of_two_and_then_at_every_64th() {
        let due = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256];
        assert_eq!(looks(300, || is_due(0, 5)), due);
        assert_eq!(looks(300, || is_due(0, 6)), due, "by another instant");
        assert_eq!(thread::spawn(|| looks(300, || is_due(0, 6))).join().unwrap(), due, "on another thread");
    }

    #[test]
    fn clocks_that_a_thread_asks_in_turn_are_counted_apart() {
        let due = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256];
        let mut others = 0;
        let mut turn = || {
            for other in 1..CLOCKS {
                others += usize::from(is_due(other, other as u64 * 1_000));
            }
            is_due(0, 5)
        };
        assert_eq!(looks(300, &mut turn), due);
        assert_eq!(others, (CLOCKS - 1) * due.len());
    }

    #[test]
    fn more_clocks_than_are_counted_apart_look_more_often() {
        assert_eq!(looks(100, || is_due(3, 5) | is_due(3 + CLOCKS, 6)).len(), 100);
    }
}
