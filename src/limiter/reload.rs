//! Another policy, or another plan, with everybody's use carried over.

use std::sync::PoisonError;

use super::{Inner, Limiter};
use crate::error::{BuildError, UnknownPlan};
use crate::key::Key;
use crate::plans::Move;
use crate::policy::{Compiled, Policy};
use crate::store::{Store, Stores};
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::ticks::Now;

/// Reloads take turns. One that was called before another and comes to its turn after it does nothing.
#[derive(Debug)]
pub(super) struct Reloads {
    called: AtomicU64,
    done: Mutex<Done>,
}

#[derive(Debug)]
struct Done {
    /// The call whose policy is in force.
    call: u64,
    /// Whether a sweep was begun that has not ended, since code of the user panicked in it.
    is_sweeping: bool,
}

impl Reloads {
    pub(super) fn new() -> Self {
        Self { called: AtomicU64::new(0), done: Mutex::new(Done { call: 0, is_sweeping: false }) }
    }
}

impl<K: Key + ?Sized, S: 'static, T: Stores<K, S>> Limiter<K, S, T> {
    /// Moves what `key` has used on the plan `from` to the plan `to`, as after an upgrade, now: true if there was
    /// anything.
    ///
    /// Quotas of the two plans are matched by [name](crate::Quota::name), and a lone one with a lone one. Of each, the units used
    /// at this instant stay used, up to the new burst, in addition to what was used there already: 90 of 100 used leaves
    /// 910 of 1,000. A quota that has no match starts full. Requests in flight stay so.
    ///
    /// It moves use, not the key: which plan a key is on is for the caller or the [`Policy`] to say. Say so first, since a
    /// check on the old plan after this is counted there.
    ///
    /// # Errors
    ///
    /// [`UnknownPlan`] if there is no plan of the one name or the other.
    pub fn move_plan(&self, key: &K, from: &str, to: &str) -> Result<bool, UnknownPlan> {
        self.move_plan_at(key, from, to, self.clock().latest())
    }

    /// [`move_plan`](Self::move_plan) at the instant `now`.
    ///
    /// # Errors
    ///
    /// [`UnknownPlan`] if there is no plan of the one name or the other.
    pub fn move_plan_at(&self, key: &K, from: &str, to: &str, now: Now) -> Result<bool, UnknownPlan> {
        let Inner { current, store, .. } = &*self.inner;
        loop {
            let policy = current.get();
            let known =
                |name: &str| policy.named(name).map(|id| policy.plans.get(id.0)).ok_or_else(|| UnknownPlan::new(name));
            let by = Move::new(known(from)?, known(to)?);
            if let Some(moved) = store.move_use(key, &policy.plans, &by, now, || current.is(policy.plans.version)) {
                return Ok(moved);
            }
        }
    }

    /// Puts `policy` in force while requests run, now.
    ///
    /// What was used stays used: nobody is given a fresh burst, and nobody waits longer than under the new quota alone.
    ///
    /// - Plans are matched by name. Within a plan, quotas are matched by [name](crate::Quota::name), by default their unit and
    ///   period, and a lone one with a lone one. Of each, the units used at this instant stay used, up to the new burst:
    ///   199 of 2,000 used leaves 1 of 200. A quota that has no match starts full.
    /// - What a smaller burst has no room for is forgotten: 1,500 of 2,000 used are 200 of 200, and 200 of 2,000 when the
    ///   old policy comes back.
    /// - The keys of a plan that is gone move to the default plan with their use, and so do handles of it. While keys of that
    ///   plan are in overflow, which these may have been too, they inherit its debt.
    /// - What was taken before can be given back after, where the plan has the same quotas.
    /// - Each decision is taken by one policy. A request that runs meanwhile may still be decided by the old one; none is
    ///   once this has returned.
    ///
    /// It returns when all keys have been carried over. That takes some 0.3 µs each on the caller's thread where it has a
    /// core to itself, and on a busy machine longer, since it gives way: a shard is locked for a few keys at a time, as it
    /// is for a newcomer, and who waits comes first. A second reload waits for the first, and of several that wait the
    /// one that was called last stays in force.
    ///
    /// Where checks are given their instants, so must this be: [`reload_at`](Self::reload_at).
    ///
    /// If `Eq` or `Drop` of a key panics in here, the new policy is in force, all other keys keep their use, and the keys that
    /// were not reached yet are carried over as they come, or by the next reload.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if the policy makes no sense. The old one is then in force as before.
    pub fn reload(&self, policy: Policy<K>) -> Result<(), BuildError> {
        self.swap(policy, || self.clock().latest())
    }

    /// [`reload`](Self::reload) at the instant `now`.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if the policy makes no sense. The old one is then in force as before.
    pub fn reload_at(&self, policy: Policy<K>, now: Now) -> Result<(), BuildError> {
        self.swap(policy, || now)
    }

    fn swap(&self, policy: Policy<K>, clock: impl FnOnce() -> Now) -> Result<(), BuildError> {
        let Inner { current, store, reloads, fleet, .. } = &*self.inner;
        // Relaxed: it numbers the calls, and nothing else is ordered by it.
        let call = reloads.called.fetch_add(1, Ordering::Relaxed) + 1;
        let mut done = reloads.done.lock().unwrap_or_else(PoisonError::into_inner);
        self.end_sweep(&mut done);
        let at = clock();
        let compiled = Compiled::new(policy, Some(&*current.get()), at, fleet)?;
        store.accepts(&compiled.plans)?;
        if call < done.call {
            // A newer one came first, and stays.
            return Ok(());
        }
        done.call = call;
        self.put_in_force(&mut done, compiled);
        Ok(())
    }

    fn put_in_force(&self, done: &mut Done, compiled: Compiled<K>) {
        done.is_sweeping = true;
        self.inner.current.replace(compiled.plans.version, compiled);
        self.end_sweep(done);
    }

    /// Has every state be of the version in force, before there is a newer one.
    fn end_sweep(&self, done: &mut Done) {
        let Inner { current, store, .. } = &*self.inner;
        if done.is_sweeping {
            store.carry_all(&current.get().plans);
            done.is_sweeping = false;
        }
    }

    /// Says that the instants that the caller brings go on from `now`, though later ones were brought before: a clock was set
    /// back, or one instant was wrong by far, as by a wrong unit.
    ///
    /// By itself a limiter never takes an earlier instant for more than a late caller, and denies until time has caught up.
    /// After this call no key waits for longer than its buckets take to fill: what is used of a key at `now`, up to its burst,
    /// stays used, so that nothing is granted at once. Keys that were idle and have been dropped are as new, which is worth a
    /// burst of each at most. In a window that spans the call, the time before it and after it counts, and not the step. Allows
    /// from before the call give back nothing. A limiter that goes by its own [`Clock`](crate::Clock) needs no such call.
    ///
    /// It returns when all keys have been gone through, as [`reload`](Self::reload) does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Now, Quota};
    ///
    /// let limiter = Limiter::new(Quota::per_second(1).burst(5))?;
    /// let at = |seconds| Now::since_origin(Duration::from_secs(seconds));
    /// assert!(limiter.check_cost_at("alice", 5, at(100)?).is_allowed());
    /// assert_eq!(limiter.check_at("alice", at(20)?).retry_after(), Some(Duration::from_secs(81)));
    /// limiter.time_went_back(at(20)?);
    /// assert_eq!(limiter.check_at("alice", at(20)?).retry_after(), Some(Duration::from_secs(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn time_went_back(&self, now: Now) {
        let Inner { current, reloads, .. } = &*self.inner;
        let mut done = reloads.done.lock().unwrap_or_else(PoisonError::into_inner);
        self.end_sweep(&mut done);
        let rewound = current.get().rewound(now);
        self.put_in_force(&mut done, rewound);
    }
}
