//! What a fleet has admitted, against what it may.

use super::node::Admitted;

/// The instants before and after each admission of one kind, in nanoseconds, both sorted.
///
/// An admission is dated by some instant between them. So a window holds it for certain only if it holds both: a thread that
/// is held up in between makes the judge see less, and never too much.
pub(crate) struct Dates {
    before: Vec<u64>,
    after: Vec<u64>,
}

impl Dates {
    pub(crate) fn of(kind: usize, all: &[Admitted], nanos: impl Fn(u64) -> u64) -> Self {
        let all: Vec<_> = all.iter().filter(|one| one.kind == kind).collect();
        let sorted = |date: fn(&Admitted) -> u64| {
            let mut dates: Vec<_> = all.iter().map(|one| nanos(date(one))).collect();
            dates.sort_unstable();
            dates
        };
        Self { before: sorted(|one| one.before), after: sorted(|one| one.after) }
    }

    /// The most that any window of that length held.
    pub(crate) fn worst(&self, window: u64) -> u64 {
        let mut ended = 0;
        let held = self.before.iter().enumerate().map(|(begun, start)| {
            while self.after.get(ended).is_some_and(|after| *after < start + window) {
                ended += 1;
            }
            // What began before and ended later is taken off and was not counted: that is on the safe side.
            ended.saturating_sub(begun)
        });
        held.max().unwrap_or(0) as u64
    }

    /// How many were admitted between two instants.
    pub(crate) fn between(&self, from: u64, to: u64) -> u64 {
        let until = |instant| self.before.partition_point(|before| *before < instant);
        until(to).saturating_sub(until(from)) as u64
    }
}

#[test]
fn a_window_holds_what_began_and_ended_in_it() {
    let one = |(before, after)| Admitted { kind: 0, before, after };
    let worst = |all: &[(u64, u64)]| {
        let all: Vec<_> = all.iter().copied().map(one).collect();
        Dates::of(0, &all, |raw| raw).worst(10)
    };
    assert_eq!(worst(&[]), 0);
    assert_eq!(worst(&[(0, 0), (5, 5), (9, 9)]), 3);
    assert_eq!(worst(&[(0, 0), (5, 5), (10, 10)]), 2);
    assert_eq!(worst(&[(3, 3), (0, 0), (12, 12), (11, 11), (13, 13)]), 3);
    // It may have been at 0 or at 50.
    assert_eq!(worst(&[(0, 50), (41, 41), (42, 42)]), 2);
    let dates = Dates::of(0, &[one((1, 2)), one((4, 4)), Admitted { kind: 1, before: 2, after: 2 }], |raw| raw);
    assert_eq!((dates.between(0, 4), dates.between(1, 5)), (1, 2));
}
