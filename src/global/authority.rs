//! Whoever holds the fleet-wide truth, and what nodes say to it.
//!
//! Everything that a node wants of an authority goes in numbered batches, one at a time for each node and shard. A batch is
//! resent, unchanged, until it is answered, and an authority that has seen its number answers as it did the first time:
//! so each batch counts once, whatever is lost on the way. What an authority does with a batch is specified here, and
//! [`MemoryAuthority`](super::MemoryAuthority) does it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Whoever holds the fleet-wide truth.
///
/// [`MemoryAuthority`](super::MemoryAuthority) serves one process. One of your own has to keep what [`Batch`] says.
pub trait Authority: Send + Sync + 'static {
    /// Has `call` carried out, and answered when that is done. This must not block: it is called on the thread that all
    /// limiters of a fleet share.
    ///
    /// A call that is dropped counts as lost: it is made again, with the same batch, and so it is if it takes long.
    fn call(&self, call: Call);
}

/// A batch that waits for its answer.
#[must_use = "a call that is not answered is made again"]
pub struct Call {
    batch: Arc<Batch>,
    answer: Box<dyn FnOnce(Result<Reply, AuthorityError>) + Send>,
}

impl Call {
    /// A call whose answer goes to `answer`.
    pub fn new(batch: Arc<Batch>, answer: impl FnOnce(Result<Reply, AuthorityError>) + Send + 'static) -> Self {
        Self { batch, answer: Box::new(answer) }
    }

    /// What is to be carried out.
    pub const fn batch(&self) -> &Arc<Batch> {
        &self.batch
    }

    /// Answers.
    pub fn answer(self, reply: Result<Reply, AuthorityError>) {
        (self.answer)(reply);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("batch", &self.batch).finish_non_exhaustive()
    }
}

/// The name of a key of one quota at an authority: 128 bits that depend on nothing but the key, the quota and the
/// fleet's secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "it is 128 bits and nothing more")]
pub struct WireName(pub u128);

impl fmt::Debug for WireName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// How an authority counts a quota.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Rule {
    /// A window of `subs` sub-windows of `sub` microseconds each, that slides by one of them at a time.
    ///
    /// At the time *t* the current sub-window is *n = t / sub*, and what is counted is all that is charged to the
    /// sub-windows *n - subs* to *n + 1*, the latter being the *head*, to which leases are charged. A `smooth` window
    /// counts of sub-window *n - subs* only the part that is still in the window, rounded up.
    Window {
        /// Units that may be counted at once.
        limit: u32,
        /// The length of a sub-window in microseconds, at least 1.
        sub: u64,
        /// How many sub-windows the window has, at least 1.
        subs: u16,
        /// Whether the oldest sub-window is counted in part.
        smooth: bool,
    },
    /// A bucket of `burst` units that gets `units` back every `period` microseconds.
    ///
    /// What is granted is out of the bucket at once, and comes back like anything else. So a lease is over when its life
    /// is, and is never prolonged. Its number, *t / life + 1* at the time *t* that it was granted, tells until when what is
    /// left of it may be put back: so that nothing is that the bucket has made up for long ago.
    Bucket {
        /// Units in a full bucket.
        burst: u32,
        /// Units that come back in a period.
        units: u32,
        /// Microseconds.
        period: u64,
        /// How long a lease lives, in microseconds.
        life: u64,
    },
}

impl Rule {
    /// The most units there can be at once.
    pub const fn limit(&self) -> u32 {
        match self {
            Self::Window { limit, .. } => *limit,
            Self::Bucket { burst, .. } => *burst,
        }
    }

    /// The current sub-window at `time`; for a bucket, lives since the origin.
    pub const fn sub_at(&self, time: u64) -> u64 {
        match self {
            Self::Window { sub, .. } => match time.checked_div(*sub) {
                Some(sub) => sub,
                None => 0,
            },
            Self::Bucket { life, .. } => match time.checked_div(*life) {
                Some(sub) => sub,
                None => 0,
            },
        }
    }

    /// The sub-window that a lease granted at `time` is charged to: the last one in which it can be spent.
    pub const fn head_at(&self, time: u64) -> u64 {
        self.sub_at(time).saturating_add(1)
    }

    /// How long a lease that is granted at `time` lives, in microseconds: to the end of its sub-window.
    pub const fn life_at(&self, time: u64) -> u64 {
        match self {
            Self::Window { sub, .. } => self.head_at(time).saturating_add(1).saturating_mul(*sub).saturating_sub(time),
            Self::Bucket { life, .. } => *life,
        }
    }

    /// The time after which nothing is left of what was charged, in microseconds.
    pub fn memory(&self) -> u64 {
        match self {
            Self::Window { sub, subs, .. } => (u64::from(*subs) + 3).saturating_mul(*sub),
            Self::Bucket { burst, units, period, .. } => {
                let time = (u128::from(*burst) * u128::from(*period)).div_ceil(u128::from(*units).max(1));
                u64::try_from(time).unwrap_or(u64::MAX)
            }
        }
    }

    /// The longest that a lease can live, in microseconds.
    pub const fn longest_life(&self) -> u64 {
        match self {
            Self::Window { sub, .. } => sub.saturating_mul(2),
            Self::Bucket { life, .. } => *life,
        }
    }
}

/// What a node tells an authority at once.
///
/// An authority keeps, for each node and shard, the number of the last batch that it carried out, and its reply:
///
/// - The number is that one: the reply is what it was then. Nothing is done.
/// - It is lower: [`Reply::Stale`]. Nothing is done.
/// - `after` is a number, and not that one: the authority has lost what it was told. [`Reply::Gap`]. Nothing is done.
/// - Otherwise the records are carried out in their order, all at one time of the authority's clock.
///
/// It may forget the number of a node that said nothing for a minute, together with the reply.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "authorities take it apart and tests put it together")]
pub struct Batch {
    /// Who says this: drawn by chance when the node starts.
    pub node: u64,
    /// Which keys it is about: those of one shard. A node has one batch of a shard under way at a time.
    pub shard: u16,
    /// Higher than that of any batch before.
    pub number: u64,
    /// The number of the last batch of this node and shard that was answered; `None` if it does not matter, since nothing of
    /// what was said before is of interest any more.
    pub after: Option<u64>,
    /// One for each key that there is something to be said of.
    pub records: Vec<Record>,
}

/// What is said of one key of one quota.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "authorities take it apart and tests put it together")]
pub struct Record {
    /// Which key.
    pub name: WireName,
    /// How it is counted.
    pub rule: Rule,
    /// What is said.
    pub body: Body,
}

/// What is said of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Body {
    /// What was spent, and what is asked for.
    Report(Report),
    /// Units to be spent at once: all of them or none are charged to the current sub-window.
    Exact {
        /// Units.
        cost: u32,
    },
    /// Nothing, but the answer is wanted. Nothing is written.
    Status,
    /// What was charged by batches that the authority has lost: added to these sub-windows, where they are still counted,
    /// or taken off where negative, but never below 0. To a bucket the sum is added.
    Repair(Vec<(u64, i64)>),
}

/// What a node has spent of a key, and what it asks for.
///
/// An authority carries it out in this order:
///
/// 1. `used + kept + returned` units are taken off the sub-window `lease`, as many as it has. One that is not in the window
///    any more has none.
/// 2. `used + overdraft` units are charged to the current sub-window.
/// 3. Of `kept` as many as were taken off in 1 are charged to the head: the lease goes on.
/// 4. A grant is charged to the head. Let *room* be the limit less what is counted now. The grant is 0 if `need`
///    exceeds the room; otherwise `want`, but no more than half the room, rounded up, and no less than `need`.
///
/// In a bucket, what is `returned` is put back, up to the burst, if the current sub-window is not past `lease`. What is
/// `overdraft` or granted is taken out. What is `used` or `kept` is out since it was granted, and stays so.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(clippy::exhaustive_structs, reason = "authorities take it apart and tests put it together")]
pub struct Report {
    /// The sub-window that the node's lease is charged to.
    pub lease: u64,
    /// Units of the lease that were spent.
    pub used: u32,
    /// Units of the lease that are unspent, and stay with the node.
    pub kept: u32,
    /// Units of the lease that the node gives up.
    pub returned: u32,
    /// Units that were admitted without a lease.
    pub overdraft: u32,
    /// The least that is of use: 0 if any number is.
    pub need: u32,
    /// Units that are asked for, at least `need`.
    pub want: u32,
}

/// The answer to a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a node has to know what to do with each")]
pub enum Reply {
    /// The batch was carried out, now or before.
    Done {
        /// When, by the authority's clock, in microseconds.
        time: u64,
        /// How many nodes have been heard of lately, the caller included.
        nodes: u32,
        /// One for each record.
        answers: Vec<Answer>,
    },
    /// Nothing was done: the authority knows of this node and shard batches up to `have` only.
    Gap {
        /// The number of the last batch it knows, 0 for none.
        have: u64,
    },
    /// Nothing was done: it has carried out a later batch.
    Stale,
}

/// How a key stands after a record was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(clippy::exhaustive_structs, reason = "authorities put it together")]
pub struct Answer {
    /// Of `kept`, as many units as go on.
    pub kept: u32,
    /// Units granted, or spent at once.
    pub granted: u32,
    /// Units that are left for whoever comes next.
    pub room: u32,
    /// The wait until what was needed, and at least one unit, fits if nobody takes or gives any more, in microseconds: 0 if it
    /// does, `u64::MAX` for never.
    pub retry_after: u64,
    /// The wait until nothing is counted any more if nobody takes any more, in microseconds.
    pub reset_after: u64,
    /// Whether the authority did not know the key.
    pub created: bool,
    /// Whether the authority could not make sense of what it has under this name, and did nothing.
    pub failed: bool,
}

/// Why an authority did not answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AuthorityError {
    what: String,
    trouble: Option<&'static str>,
    retry_after: Option<Duration>,
}

impl AuthorityError {
    /// An error that says `what` went wrong, and what to do.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), trouble: None, retry_after: None }
    }

    /// The same, with the wait before which it is no use to try again.
    #[must_use]
    pub fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// The same, with a word for what the trouble is, such as `READONLY`: a fleet tells of it by an event of its own, once for as
    /// long as it lasts. Not for an authority that is out of reach, which is told anyway.
    #[must_use]
    pub fn because_of(self, trouble: &'static str) -> Self {
        Self { trouble: Some(trouble), ..self }
    }

    /// The word for what the trouble is, if there is one.
    pub const fn trouble(&self) -> Option<&'static str> {
        self.trouble
    }

    /// The wait before which it is no use to try again, if that is known.
    pub const fn wait(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for AuthorityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for AuthorityError {}
