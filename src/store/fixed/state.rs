//! A way as decisions use it.

use super::in_flight::leave;
use super::way::{Way, parity_of};
use super::{COUNT, GRAIN};
use crate::bucket::Demand;
use crate::quota::QuotaTicks;
use crate::refunds::RefundsSeen;
use crate::shared::Ledgers;
use crate::store::{CLOSED, KeyState, State, Taken};
use crate::ticks::Now;

/// A way as a decision uses it, or what stands in for one.
#[derive(Clone, Copy)]
pub(crate) enum FixedState<'a> {
    /// A way of the key's own.
    Own {
        way: Way<'a>,
        /// Which word each quota has.
        places: &'a [u8],
        /// What words are flipped by.
        parity: u64,
        in_flight: Option<usize>,
    },
    /// That of the overflow, or what a newcomer would have.
    Apart(&'a KeyState),
}

impl State for FixedState<'_> {
    #[inline(always)]
    fn is_of(self, version: u64) -> bool {
        match self {
            Self::Own { places, parity, .. } => {
                parity == parity_of(version) && (0..places.len()).all(|n| self.tat(n) < CLOSED)
            }
            Self::Apart(state) => state.is_of(version),
        }
    }

    #[inline(always)]
    fn tat(self, n: usize) -> u64 {
        match self {
            Self::Own { way, places, parity, .. } => {
                way.load(usize::from(places[n])).map_or(CLOSED, |word| word ^ parity)
            }
            Self::Apart(state) => state.tat(n),
        }
    }

    #[inline(always)]
    fn refunds(self, n: usize) -> RefundsSeen {
        match self {
            Self::Own { way, .. } => way.set.refunds.seen(),
            Self::Apart(state) => state.refunds(n),
        }
    }

    #[inline(always)]
    fn draw(self, n: usize, demand: &Demand, mut tat: u64, now: u64) -> Result<u64, u64> {
        let (way, place, parity) = match self {
            Self::Own { way, places, parity, .. } => (way, usize::from(places[n]), parity),
            Self::Apart(state) => return state.draw(n, demand, tat, now),
        };
        loop {
            let Some(next) = demand.after(tat, now) else { return Err(tat) };
            if way.exchange(place, tat ^ parity, next ^ parity) {
                return Ok(next);
            }
            tat = self.tat(n);
        }
    }

    fn give_back(self, n: usize, quota: &QuotaTicks, taken: &Taken, then: u64, clock: impl Fn() -> Now) {
        let (way, place, parity) = match self {
            Self::Own { way, places, parity, .. } => (way, usize::from(places[n]), parity),
            Self::Apart(state) => return state.give_back(n, quota, taken, then, clock),
        };
        way.set.refunds.give_back(taken.refunds, GRAIN, |given_back| {
            loop {
                let Some(word) = way.load(place).filter(|word| word ^ parity < CLOSED) else { return 0 };
                let at = clock();
                let now = quota.at(at);
                let tat = word ^ parity;
                let lowered = taken.worth(quota, given_back, then, now).min(tat.saturating_sub(now));
                // Full is full from this instant on, also where time stands still: or it would never be idle.
                let next = if tat - lowered == now { at.ticks() } else { tat - lowered };
                if lowered == 0 || way.exchange(place, word, next ^ parity) {
                    return lowered;
                }
            }
        });
    }

    fn in_flight(self) -> u32 {
        match self {
            Self::Own { way, in_flight, .. } => {
                in_flight.and_then(|n| way.load(n)).map_or(0, |word| (word & COUNT) as u32)
            }
            Self::Apart(state) => State::in_flight(state),
        }
    }

    fn enter(self, limit: u32) -> bool {
        let (way, place) = match self {
            Self::Own { way, in_flight, .. } => match in_flight {
                Some(place) => (way, place),
                None => return true,
            },
            Self::Apart(state) => return state.enter(limit),
        };
        way.swap(place, |word| (word & COUNT < u64::from(limit)).then_some(word + 1))
    }

    fn leave(self) -> bool {
        match self {
            Self::Own { way, in_flight: Some(place), .. } => leave(way, place),
            Self::Own { .. } => false,
            Self::Apart(state) => state.leave(),
        }
    }

    fn ledgers(&self) -> Option<&Ledgers> {
        match self {
            Self::Own { .. } => None,
            Self::Apart(state) => KeyState::ledgers(state),
        }
    }

    fn has_left(self) -> bool {
        match self {
            Self::Own { way, .. } => way.has_left(),
            Self::Apart(_) => false,
        }
    }
}
