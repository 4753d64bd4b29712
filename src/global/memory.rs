//! An authority in memory, for one process and for tests.
//!
//! [`Books`] is all that it knows, with time as an argument, and [`MemoryAuthority`] puts a lock and a clock around that.
//!
//! # What goes
//!
//! A key of which nothing can be counted any more equals one that was never heard of. Each record looks at the [`SWEEP`]
//! keys that were looked at longest ago, so that there are soon no more of them than are in use, and no batch takes long.
//!
//! # The clock
//!
//! The time of the books never goes back. It stands still while the clock is a little behind where it was. If the clock is
//! far behind, it was set back: then the books go on from where they were, and are ahead of the clock from then on. So
//! nothing is forgotten early, no key waits for the clock to come back, and a sub-window that a lease was charged to never
//! gets the number of another. A leap forwards can't be told from a long silence.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::authority::{Answer, Authority, Batch, Body, Call, Record, Reply, WireName};
use super::count::Count;
use crate::sync::Mutex;

/// How long it is known what a node said last, and that it is there, in microseconds.
const LATELY: u64 = 60_000_000;

/// The most that a clock goes back by unless it was set back, in microseconds.
const SLACK: u64 = 5_000_000;

/// How many keys a record looks at. With two, those that are gone go faster than new ones come.
const SWEEP: usize = 2;

/// An authority in the memory of one process. Clones share what it knows.
///
/// It serves limiters that share a limit within a process, and tests: [`books`](Self::books) shows what was counted and
/// makes it lose things. What it knows is lost with the process.
///
/// ```
/// use std::sync::{Arc, mpsc};
/// use tollgate::global::{Authority, Batch, Body, Call, MemoryAuthority, Record, Reply, Rule, WireName};
///
/// let authority = MemoryAuthority::new();
/// let (name, rule) = (WireName(7), Rule::Window { limit: 100, sub: 1_000_000, subs: 60, smooth: false });
/// let record = Record { name, rule, body: Body::Exact { cost: 30 } };
/// let batch = Batch { node: 1, shard: 0, number: 1, after: None, records: vec![record] };
///
/// let (send, replies) = mpsc::channel();
/// authority.call(Call::new(Arc::new(batch), move |reply| _ = send.send(reply)));
/// let Reply::Done { answers, .. } = replies.recv()?? else { panic!("a first batch is carried out") };
/// assert_eq!((answers[0].granted, answers[0].room), (30, 70));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryAuthority {
    inner: Arc<Inner>,
}

struct Inner {
    books: Mutex<Books>,
    clock: Box<dyn Fn() -> Duration + Send + Sync>,
}

impl MemoryAuthority {
    /// An authority that knows nothing yet, on a clock that starts now.
    pub fn new() -> Self {
        let origin = Instant::now();
        Self::with_clock(move || origin.elapsed())
    }

    /// An authority that knows nothing yet, on a clock of yours: the time since some origin. It may leap.
    pub fn with_clock(clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { inner: Arc::new(Inner { books: Mutex::default(), clock: Box::new(clock) }) }
    }

    /// Hands the books to `f`. Nobody is answered meanwhile, so `f` must not call this authority.
    pub fn books<R>(&self, f: impl FnOnce(&mut Books) -> R) -> R {
        // The books do not panic; an `f` that does leaves them as it had them.
        f(&mut self.inner.books.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Default for MemoryAuthority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority for MemoryAuthority {
    /// Answers before it returns.
    fn call(&self, call: Call) {
        let time = (self.inner.clock)().as_micros().try_into().unwrap_or(u64::MAX);
        let reply = self.books(|books| books.apply(call.batch(), time));
        // Not under the lock: whoever is answered may call again.
        call.answer(Ok(reply));
    }
}

impl fmt::Debug for MemoryAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryAuthority").finish_non_exhaustive()
    }
}

/// What an authority knows, and what it does about a batch, with time as an argument: no clock and no lock.
///
/// It does what [`Batch`] says. Where that leaves something open, it counts too much rather than too little.
///
/// ```
/// use tollgate::global::{Batch, Body, Books, Record, Reply, Rule, WireName};
///
/// let (name, rule) = (WireName(7), Rule::Window { limit: 100, sub: 1_000_000, subs: 60, smooth: false });
/// let record = Record { name, rule, body: Body::Exact { cost: 30 } };
/// let batch = Batch { node: 1, shard: 0, number: 1, after: None, records: vec![record] };
///
/// let mut books = Books::default();
/// let reply = books.apply(&batch, 5_000_000);
/// assert!(matches!(&reply, Reply::Done { answers, .. } if answers[0].granted == 30));
/// // The reply was lost, and the batch is sent again.
/// assert_eq!(books.apply(&batch, 5_200_000), reply);
/// assert_eq!(books.counted(name, 5_200_000), 30);
/// ```
#[derive(Clone, Default, Debug)]
pub struct Books {
    /// The latest time at which anything was done.
    time: u64,
    /// By how much the time is ahead of the clock: all that it was ever set back by, in microseconds.
    ahead: u64,
    /// By node and shard, the number of the last batch that was carried out, and its reply.
    told: Recent<(u64, u16), (u64, Reply)>,
    nodes: Recent<u64, ()>,
    keys: HashMap<WireName, Count>,
    /// Each key once, in the order in which they are to be looked at.
    arrivals: VecDeque<WireName>,
}

impl Books {
    /// Carries a batch out at `clock`, in microseconds since some origin.
    ///
    /// The time of the reply is that, unless the clock went back: up to five seconds, and time stands still until it has
    /// made up for it; by more, and time goes on from where it was.
    pub fn apply(&mut self, batch: &Batch, clock: u64) -> Reply {
        let time = self.advance(clock);
        let speaker = (batch.node, batch.shard);
        self.nodes.put(batch.node, (), time);
        let mut have = None;
        if let Some((number, reply)) = self.told.hear(speaker, time) {
            if batch.number == *number {
                return reply.clone();
            }
            if batch.number < *number {
                return Reply::Stale;
            }
            have = Some(*number);
        }
        if batch.after.is_some() && batch.after != have {
            return Reply::Gap { have: have.unwrap_or(0) };
        }
        let answers = batch.records.iter().map(|record| self.carry_out(record, time)).collect();
        let nodes = self.nodes.len().try_into().unwrap_or(u32::MAX);
        let reply = Reply::Done { time, nodes, answers };
        self.told.put(speaker, (batch.number, reply.clone()), time);
        reply
    }

    /// What is counted of a key at `clock`, or what its bucket lacks, rounded up. 0 if the key is not known.
    pub fn counted(&self, name: WireName, clock: u64) -> u64 {
        let (time, _) = self.time_at(clock);
        let known = self.keys.get(&name).filter(|count| !count.is_gone(time));
        known.cloned().map_or(0, |mut count| {
            count.advance(time);
            count.counted(time)
        })
    }

    /// How many keys there are, with some of which nothing is counted any more.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Forgets everything, as an authority does that lost its memory.
    pub fn flush(&mut self) {
        *self = Self::default();
    }

    /// Forgets a key, as an authority does that has too many: true if it was known. Takes longer the more keys there are.
    pub fn evict(&mut self, name: WireName) -> bool {
        let known = self.keys.remove(&name).is_some();
        if known {
            self.arrivals.retain(|arrival| *arrival != name);
        }
        known
    }

    /// The time when the clock says `clock`, and by how much it is ahead then.
    const fn time_at(&self, clock: u64) -> (u64, u64) {
        let time = clock.saturating_add(self.ahead);
        let back = self.time.saturating_sub(time);
        if back == 0 {
            (time, self.ahead)
        } else if back <= SLACK {
            (self.time, self.ahead)
        } else {
            (self.time, self.ahead.saturating_add(back))
        }
    }

    fn advance(&mut self, clock: u64) -> u64 {
        (self.time, self.ahead) = self.time_at(clock);
        self.told.drop_old(self.time);
        self.nodes.drop_old(self.time);
        self.time
    }

    fn carry_out(&mut self, record: &Record, time: u64) -> Answer {
        for _ in 0..SWEEP {
            self.look_at_next(time);
        }
        let Record { name, rule, body } = record;
        let writes = !matches!(body, Body::Status);
        let known = self.keys.get_mut(name).filter(|count| count.goes_on(rule, time));
        let created = known.is_none();
        let mut aside = None;
        let count = match known {
            Some(count) if writes => count,
            Some(count) => aside.insert(count.clone()),
            None => match Count::new(rule, time) {
                Some(count) => aside.insert(count),
                None => return Answer { failed: true, ..Answer::default() },
            },
        };
        count.advance(time);
        count.adopt(rule);
        let answer = Answer { created, ..count.carry_out(body, time) };
        if let Some(count) = aside.filter(|_| writes)
            && self.keys.insert(*name, count).is_none()
        {
            self.arrivals.push_back(*name);
        }
        answer
    }

    /// Looks at the key that was looked at longest ago, and drops it if nothing is counted of it.
    fn look_at_next(&mut self, time: u64) {
        let Some(name) = self.arrivals.pop_front() else { return };
        let Some(count) = self.keys.get(&name) else { return };
        if !count.is_gone(time) {
            self.arrivals.push_back(name);
            return;
        }
        self.keys.remove(&name);
        // After an attack, or a busy hour: what there is room for follows what there is.
        if self.keys.capacity() > 1_024 && self.keys.len() < self.keys.capacity() / 8 {
            self.keys.shrink_to(self.keys.len() * 2);
            self.arrivals.shrink_to(self.arrivals.len() * 2);
        }
    }
}

/// What was heard of lately.
#[derive(Clone, Debug)]
struct Recent<K, V> {
    /// Each with the time at which it was last heard of.
    entries: HashMap<K, (u64, V)>,
    by_time: BTreeSet<(u64, K)>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), by_time: BTreeSet::new() }
    }
}

impl<K: Copy + Ord + Hash, V> Recent<K, V> {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn put(&mut self, key: K, value: V, time: u64) {
        if let Some((last, _)) = self.entries.insert(key, (time, value)) {
            self.by_time.remove(&(last, key));
        }
        self.by_time.insert((time, key));
    }

    /// The value under `key`, which is heard of now.
    fn hear(&mut self, key: K, time: u64) -> Option<&V> {
        let (last, value) = self.entries.remove(&key)?;
        self.by_time.remove(&(last, key));
        if is_old(last, time) {
            return None;
        }
        self.put(key, value, time);
        self.entries.get(&key).map(|(_, value)| value)
    }

    /// Drops what was not heard of for long, a few at a time: who is heard of adds one.
    fn drop_old(&mut self, time: u64) {
        for _ in 0..64 {
            match self.by_time.first() {
                Some(&(last, key)) if is_old(last, time) => {
                    self.by_time.pop_first();
                    self.entries.remove(&key);
                }
                _ => return,
            }
        }
    }
}

const fn is_old(last: u64, time: u64) -> bool {
    time.saturating_sub(last) >= LATELY
}
