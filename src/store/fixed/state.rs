//! A way as decisions use it.

use super::COUNT;
use super::in_flight::leave;
use super::way::{Way, stamp_of};
use crate::bucket::Demand;
use crate::plans::Granted;
use crate::refunds::{Patience, RefundsSeen, grain};
use crate::shared::Ledgers;
use crate::store::{CLOSED, KeyState, State, Taken, grains};
use crate::ticks::Now;

/// What a decision uses of a key.
#[derive(Clone, Copy)]
pub(crate) struct FixedState<'a> {
    local: Local<'a>,
    /// What has its ledgers, if its plan has global quotas.
    beside: Option<&'a KeyState>,
}

/// The buckets and the places in flight.
#[derive(Clone, Copy)]
enum Local<'a> {
    /// A way of the key's own.
    Own {
        way: Way<'a>,
        /// Which word each quota has.
        places: &'a [u8],
        /// What words are flipped by.
        stamp: u64,
        in_flight: Option<usize>,
    },
    /// That of the overflow, or what a newcomer would have.
    Apart(&'a KeyState),
    /// None, as the plan has global quotas only.
    #[cfg_attr(not(feature = "global"), expect(dead_code, reason = "there are none then"))]
    None,
}

impl<'a> FixedState<'a> {
    /// The state of a key that has that way, by that version of the policy.
    #[inline(always)]
    pub(super) const fn own(way: Way<'a>, places: &'a [u8], version: u64, in_flight: Option<usize>) -> Self {
        Self { local: Local::Own { way, places, stamp: stamp_of(version), in_flight }, beside: None }
    }

    /// A state outside of the table.
    pub(super) const fn apart(state: &'a KeyState) -> Self {
        Self { local: Local::Apart(state), beside: None }
    }

    /// A state of nothing but ledgers.
    #[cfg(feature = "global")]
    pub(super) const fn of_ledgers(beside: &'a KeyState) -> Self {
        Self { local: Local::None, beside: Some(beside) }
    }

    /// The same with the ledgers of `beside`.
    #[cfg(feature = "global")]
    pub(super) const fn with_ledgers(self, beside: &'a KeyState) -> Self {
        Self { beside: Some(beside), ..self }
    }
}

impl State for FixedState<'_> {
    #[inline(always)]
    fn is_of(self, version: u64) -> bool {
        let local = match self.local {
            Local::Own { places, stamp, .. } => {
                stamp == stamp_of(version) && (0..places.len()).all(|n| self.tat(n) < CLOSED)
            }
            Local::Apart(state) => state.is_of(version),
            Local::None => true,
        };
        local && self.beside.is_none_or(|state| state.is_of(version))
    }

    #[inline(always)]
    fn home(self) -> u8 {
        match self.local {
            Local::Own { way, .. } => way.home,
            Local::Apart(_) | Local::None => 0,
        }
    }

    #[inline(always)]
    fn tat(self, n: usize) -> u64 {
        match self.local {
            Local::Own { way, places, stamp, .. } => {
                way.load(usize::from(places[n])).map_or(CLOSED, |word| word ^ stamp)
            }
            Local::Apart(state) => state.tat(n),
            Local::None => CLOSED,
        }
    }

    #[inline(always)]
    fn refunds(self, n: usize) -> RefundsSeen {
        match self.local {
            Local::Own { way, .. } => way.refunds().seen(),
            Local::Apart(state) => state.refunds(n),
            Local::None => RefundsSeen::default(),
        }
    }

    #[inline(always)]
    fn draw(self, n: usize, demand: &Demand, mut tat: u64, now: u64) -> Result<u64, u64> {
        let (way, place, stamp) = match self.local {
            Local::Own { way, places, stamp, .. } => (way, usize::from(places[n]), stamp),
            Local::Apart(state) => return state.draw(n, demand, tat, now),
            Local::None => return Err(CLOSED),
        };
        loop {
            let Some(next) = demand.after(tat, now) else { return Err(tat) };
            if way.exchange(place, tat ^ stamp, next ^ stamp) {
                return Ok(next);
            }
            tat = self.tat(n);
        }
    }

    fn give_back(
        self,
        quotas: &[Granted],
        taken: &[Taken],
        then: Now,
        patience: Patience,
        clock: impl Fn() -> Now,
    ) -> u8 {
        let (way, places, stamp) = match self.local {
            Local::Own { way, places, stamp, .. } => (way, places, stamp),
            Local::Apart(state) => return state.give_back(quotas, taken, then, patience, clock),
            Local::None => return 0,
        };
        let of_quotas = || quotas.iter().zip(places).zip(taken).enumerate().filter(|(_, (_, taken))| taken.cost != 0);
        let seen = of_quotas().map(|(_, (_, taken))| taken.refunds);
        let Some(last) = seen.max_by_key(|seen| seen.life()) else { return 0 };
        let mut carried = 0;
        way.refunds().give_back(last, patience, |before| {
            // One count for all quotas, each in grains of its own: each is lowered by that much at most.
            let mut most = 0;
            // A life may have begun in the middle of the take.
            let of_this_life = of_quotas().filter(|(_, (_, taken))| taken.refunds.life() == before.life());
            for (n, ((quota, place), taken)) in of_this_life {
                let (place, quota) = (usize::from(*place), &quota.ticks);
                let grain = grain(quota.charge(quota.burst()));
                let given_back = before.since(taken.refunds, grain);
                let lowered = loop {
                    let Some(word) = way.load(place) else { break 0 };
                    let tat = word ^ stamp;
                    if tat >= CLOSED {
                        carried |= 1 << n;
                        break 0;
                    }
                    let at = clock();
                    // What was evicted from here was so at the floor at the latest: nothing of it is later than that.
                    let floor = way.gate.floor();
                    let now = quota.at(at).max(floor);
                    let lowered = taken.worth(quota, given_back, quota.at(then), now).min(tat.saturating_sub(now));
                    // Full is full from this instant on, also where time stands still: or it would never be idle.
                    let next = if tat - lowered == now { at.ticks().max(floor) } else { tat - lowered };
                    if lowered == 0 || way.exchange(place, word, next ^ stamp) {
                        break lowered;
                    }
                };
                most = most.max(grains(quota, lowered));
            }
            most
        });
        carried
    }

    fn in_flight(self) -> u32 {
        match self.local {
            Local::Own { way, in_flight, .. } => {
                in_flight.and_then(|n| way.load(n)).map_or(0, |word| (word & COUNT) as u32)
            }
            Local::Apart(state) => State::in_flight(state),
            Local::None => 0,
        }
    }

    fn enter(self, limit: u32) -> bool {
        match self.local {
            Local::Own { way, in_flight: Some(place), .. } => {
                way.swap(place, |word| (word & COUNT < u64::from(limit)).then_some(word + 1))
            }
            Local::Apart(state) => state.enter(limit),
            Local::Own { .. } | Local::None => true,
        }
    }

    fn leave(self) -> bool {
        match self.local {
            Local::Own { way, in_flight: Some(place), .. } => leave(way, place),
            Local::Apart(state) => state.leave(),
            Local::Own { .. } | Local::None => true,
        }
    }

    fn ledgers(&self) -> Option<&Ledgers> {
        self.beside.or(if let Local::Apart(state) = self.local { Some(state) } else { None })?.ledgers()
    }

    fn has_left(self) -> bool {
        match self.local {
            Local::Own { way, .. } => way.has_left(),
            Local::Apart(_) | Local::None => false,
        }
    }
}
