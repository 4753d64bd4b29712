//! What is told of steps back.

use std::fmt;

/// How often a [clock](crate::Clock) was found to have stepped back, for a gauge.
///
/// A step is found by a denial that outlasts all that its quota can stand ahead, by more than a second. One that nothing was
/// denied for is not counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct ClockSteps {
    /// How many were followed: the clock went on from where it was.
    pub followed: u64,
    /// How many were not, since the clock went back and forth: denials stand until it is where it was.
    pub refused: u64,
}

impl fmt::Display for ClockSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { followed, refused } = self;
        write!(f, "{followed} steps back followed, {refused} not")
    }
}
