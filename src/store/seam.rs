//! What every store does, and what it hands out.

use crate::bucket::Demand;
use crate::clock::Time;
use crate::decision::Seen;
use crate::error::BuildError;
use crate::key::Key;
use crate::plans::{Granted, Move, PlanTicks, Plans, Wish};
use crate::refunds::{Patience, RefundsSeen};
use crate::shared::{Ledgers, Who, Write};
#[cfg(all(feature = "global", not(loom)))]
use crate::store::KeyState;
use crate::store::Taken;
use crate::ticks::Now;

/// The least `tat` that is none: what stands in its place while nobody may use a bucket.
pub(crate) const CLOSED: u64 = 1 << 62;

/// Tells a key of that hash in the store of that random number from all others, for refunds and places in flight. What comes
/// from an overflow has the top bit set.
#[inline(always)]
pub(crate) const fn resident(hash: u64, salt: u64) -> u64 {
    (hash ^ salt) >> 1
}

/// What there is of one key on one plan: a bucket for each of its quotas, in their order, a count of requests in flight, and
/// ledgers of global quotas.
///
/// It may have become somebody else's while it is used. Then no bucket of it takes anything more, and
/// [`has_left`](State::has_left) says so.
pub(crate) trait State: Copy {
    /// Whether all of it is counted by that version of the policy. One that isn't is counted by the one before, or closed.
    fn is_of(self, version: u64) -> bool;

    /// Tells the place where it is from all others that its key may have been in: lives are counted by place.
    fn home(self) -> u8;

    /// Where the n-th bucket stands; [`CLOSED`] or above if nobody may use it.
    fn tat(self, n: usize) -> u64;

    /// What is known of refunds to the n-th bucket: to be read before a take.
    fn refunds(self, n: usize) -> RefundsSeen;

    /// See [`Bucket::draw`](crate::bucket::Bucket::draw). The denial of a bucket that is closed has a `tat` that says so.
    fn draw(self, n: usize, demand: &Demand, tat: u64, now: u64) -> Result<u64, u64>;

    /// Gives back what was taken at the instant `then` from the buckets of `quotas`, which come first and in their order, and
    /// has not come back by itself. Returns those, as bits, that a new policy has carried over since, so that nothing of them
    /// was.
    fn give_back(
        self,
        quotas: &[Granted],
        taken: &[Taken],
        then: Now,
        patience: Patience,
        clock: impl Fn() -> Now,
    ) -> u8;

    /// Requests that have entered and not left.
    fn in_flight(self) -> u32;

    /// Lets one more request in, if fewer than `limit` are in flight.
    fn enter(self, limit: u32) -> bool;

    /// Counts one request less in flight: true if there was one.
    fn leave(self) -> bool;

    /// A ledger for each global quota of the plan, if it has any.
    fn ledgers(&self) -> Option<&Ledgers>;

    /// Whether it is somebody else's by now.
    fn has_left(self) -> bool;
}

/// What [`Store::settle`] is to do about a key that is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Newcomer {
    /// Make its state.
    Keep,
    /// Show what its state would be.
    Show,
}

/// The keys and their states.
pub(crate) trait Store<K: Key + ?Sized>: 'static {
    /// What it hands out.
    type State<'a>: State
    where
        Self: 'a;

    /// Whether it can keep the states of these plans.
    ///
    /// # Errors
    ///
    /// What is too much for it.
    fn accepts(&self, plans: &Plans) -> Result<(), BuildError>;

    /// The hash of a key.
    fn hash(&self, key: &K) -> u64;

    /// Tells the key from all others of all limiters.
    fn id(&self, key: &K) -> u64;

    /// Asks for the memory in which the key of a hash is most likely to be.
    fn prefetch(&self, hash: u64);

    /// Asks for the memory in which the key of a hash is if it is not there, once that memory has come.
    fn prefetch_next(&self, hash: u64);

    /// Takes what is wished for of a known key, whose hash that is: whether it is allowed, and what was seen. `None` if that takes
    /// more than a look: nothing is taken then, or what was taken stays so. `current` is the version that is in force.
    fn take_one(
        &self,
        hash: u64,
        key: &K,
        wish: Wish<'_>,
        current: impl Fn() -> u64,
        time: &impl Time,
    ) -> Option<(bool, Seen)>;

    /// Hands the state of `key` on `plan`, to be used by that version, to `f`, with an id of the key, if there is one. It may be
    /// one of the version before.
    fn visit<R>(&self, key: &K, plan: &PlanTicks, version: u64, f: impl FnOnce(Self::State<'_>, u64) -> R)
    -> Option<R>;

    /// Hands the state of `key` on `plan` to `f`, once it is counted by the version of `plans`, with an id of the key
    /// and the time of `clock`. If there is none, `newcomer` says what then; where there is no room it is that of the
    /// overflow, and the id says so. `None` if `is_current` finds that this version is not the current one any more.
    #[expect(clippy::too_many_arguments, reason = "what they have in common is this call")]
    fn settle<R>(
        &self,
        key: &K,
        plans: &Plans,
        plan: &PlanTicks,
        newcomer: Newcomer,
        is_current: impl Fn() -> bool,
        clock: impl Fn() -> Now,
        f: impl FnOnce(Self::State<'_>, u64, Now) -> R,
    ) -> Option<R>;

    /// Carries all states over to the version of `plans`, which is in force already.
    fn carry_all(&self, plans: &Plans);

    /// Moves what `key` has used by `by`, within the version of `plans`: true if there was anything. `None` if that is not
    /// the current one any more.
    fn move_use(&self, key: &K, plans: &Plans, by: &Move, at: Now, is_current: impl Fn() -> bool) -> Option<bool>;

    /// Makes all buckets of `key` full, on every plan: true if there were any. `None` if the version of `plans` is not the
    /// current one any more.
    fn reset(&self, key: &K, plans: &Plans, is_current: impl FnOnce() -> bool) -> Option<bool>;

    /// Counts one request of `key` less in flight: on the plan of index `plan`, where it was counted; or where that plan went, if
    /// it was removed; or where the key was moved. Nobody moves the key while it looks. False if there is none.
    fn leave(&self, key: &K, plans: &Plans, plan: u16) -> bool;

    /// Calls `f` for every state that has ledgers.
    #[cfg(all(feature = "global", not(loom)))]
    fn each(&self, f: impl FnMut(&KeyState));

    /// How `key` is told to a fleet.
    fn who<'a>(&self, key: &'a K) -> Who<'a, K>;

    /// The number of keys.
    fn len(&self) -> u64;

    /// Evictions and checks in overflow so far.
    fn counts(&self) -> (u64, u64);
}

/// Which store a limiter has, with its options: [`Sharded`](crate::Sharded) or [`Fixed`](crate::Fixed).
///
/// It is for naming in bounds, and only this crate implements it.
#[expect(private_bounds, reason = "what a store does is known in this crate only")]
#[expect(private_interfaces, reason = "what a store is made of is known in this crate only")]
pub trait Stores<K: Key + ?Sized, S: 'static>: Sized + 'static {
    #[doc(hidden)]
    type Of: Store<K> + Send + Sync + 'static;

    #[doc(hidden)]
    fn build(self, hasher: S, plans: &Plans, write: Write<K>) -> Result<Self::Of, BuildError>;
}
