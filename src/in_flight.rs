//! A request that is under way.

use std::fmt;

use crate::decision::Allow;

/// A request that was allowed, counted as in flight until this is dropped.
///
/// Its place is given back on the plan that it was taken on, and when the key was [moved](crate::Limiter::move_plan) on the
/// plan that it was moved to. Where requests of a moved key are in flight on several plans, it may be that of another one
/// of them.
///
/// It owns what it needs, so that it can go along with the request: into a task, or into the body of a response.
#[must_use = "a request is in flight for as long as this lives"]
pub struct InFlight {
    allow: Allow,
    leave: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl InFlight {
    pub(crate) fn new(allow: Allow, leave: Option<Box<dyn FnOnce() + Send + Sync>>) -> Self {
        Self { allow, leave }
    }

    /// The answer, with its numbers.
    pub const fn allow(&self) -> &Allow {
        &self.allow
    }

    /// The answer, so that what the request took can be given back: what remains here has nothing to give back. The
    /// request stays in flight.
    pub fn take_allow(&mut self) -> Allow {
        let mut rest = Allow::alone(self.allow.seen);
        rest.take_nothing();
        std::mem::replace(&mut self.allow, rest)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(leave) = self.leave.take() {
            leave();
        }
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("allow", &self.allow).finish_non_exhaustive()
    }
}
