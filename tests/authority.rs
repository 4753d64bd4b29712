//! The in-memory authority, by what every authority has to do, and by what only this one shows.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a judge that finds a fault stops the test")]

#[path = "authority/conformance.rs"]
#[macro_use]
mod conformance;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use conformance::{KEY, MIDNIGHT, MILLI, SECOND, Subject, Talk, ask, exact, window};
use tollgate::global::{Authority, Batch, Body, Books, Call, MemoryAuthority, Record, Reply, WireName};

/// The authority in memory, by way of its front door.
struct Memory {
    authority: MemoryAuthority,
    /// Microseconds.
    clock: Arc<AtomicU64>,
}

impl Memory {
    fn new() -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let read = clock.clone();
        let authority = MemoryAuthority::with_clock(move || Duration::from_micros(read.load(Ordering::Relaxed)));
        Self { authority, clock }
    }
}

impl Subject for Memory {
    fn at(&mut self, time: u64) {
        self.clock.store(time, Ordering::Relaxed);
    }

    fn apply(&mut self, batch: &Batch) -> Reply {
        let (send, replies) = mpsc::channel();
        self.authority.call(Call::new(Arc::new(batch.clone()), move |reply| send.send(reply).unwrap()));
        replies.try_recv().expect("an answer in place").expect("no error")
    }
}

conformance!(Memory::new);

/// A batch of one record that spends a unit.
fn batch(node: u64, number: u64, after: Option<u64>, name: u128) -> Batch {
    let record = Record { name: WireName(name), rule: window(100, 10), body: exact(1) };
    Batch { node, shard: 0, number, after, records: vec![record] }
}

#[test]
fn what_a_node_said_is_forgotten_after_a_minute_of_silence() {
    let mut books = Books::default();
    let first = books.apply(&batch(1, 5, None, 1), 0);
    // To ask again is not silence.
    assert_eq!(books.apply(&batch(1, 5, None, 1), 40 * SECOND), first);
    assert_eq!(books.apply(&batch(1, 4, None, 1), 99 * SECOND), Reply::Stale);
    assert_eq!(books.apply(&batch(1, 9, Some(6), 1), 158 * SECOND), Reply::Gap { have: 5 });
    assert_eq!(books.apply(&batch(1, 9, Some(5), 1), 218 * SECOND), Reply::Gap { have: 0 });
    assert!(matches!(books.apply(&batch(1, 1, None, 1), 218 * SECOND), Reply::Done { .. }));
}

#[test]
fn keys_of_which_nothing_is_counted_go_as_others_are_used() {
    let mut books = Books::default();
    for key in 0..10_000 {
        books.apply(&batch(1, key + 1, None, key.into()), 0);
    }
    assert_eq!(books.len(), 10_000);
    // Still counted.
    for number in 10_001..20_000 {
        books.apply(&batch(1, number, None, 0), 11 * SECOND);
    }
    assert_eq!(books.len(), 10_000);
    // A record looks at two.
    for number in 20_000..25_001 {
        books.apply(&batch(1, number, None, 0), 12 * SECOND);
    }
    assert_eq!((books.len(), books.is_empty()), (1, false));
}

#[test]
fn keys_go_while_as_many_new_ones_come_whatever_their_rule() {
    let mut books = Books::default();
    for key in 0..40_000_u64 {
        let mut batch = batch(1, key + 1, None, key.into());
        if key % 2 == 0 {
            let (burst, units, period, life) = (100, 100, 10 * SECOND, SECOND);
            batch.records[0].rule = tollgate::global::Rule::Bucket { burst, units, period, life };
        }
        // A thousand a second, each for up to twelve.
        books.apply(&batch, key * MILLI);
        assert!(books.len() <= 20_000, "{} keys after {key}", books.len());
    }
}

#[test]
fn a_key_that_nobody_uses_after_the_clock_was_set_back_goes_in_time() {
    let mut books = Books::default();
    books.apply(&batch(1, 1, None, 1), MIDNIGHT);
    books.apply(&batch(1, 2, None, 2), 0);
    for second in 1..=11 {
        assert_eq!(books.counted(WireName(1), second * SECOND), u64::from(second < 11), "{second}");
        books.apply(&batch(1, 2 + second, None, 2), second * SECOND);
    }
    books.apply(&batch(1, 100, None, 2), 12 * SECOND);
    books.apply(&batch(1, 101, None, 2), 12 * SECOND);
    assert_eq!(books.len(), 1);
}

#[test]
fn a_flush_forgets_everything_and_an_eviction_one_key() {
    let mut talk = Talk::new(Memory::new());
    let rule = window(100, 10);
    talk.say(1, rule, ask(10, 10));
    talk.say(2, rule, exact(5));
    let authority = talk.subject.authority.clone();
    assert_eq!(authority.books(|books| books.counted(KEY, MIDNIGHT)), 15);
    assert!(authority.books(|books| books.evict(KEY)));
    assert!(!authority.books(|books| books.evict(KEY)));
    assert_eq!(authority.books(|books| (books.len(), books.counted(KEY, MIDNIGHT))), (0, 0));
    // The numbers are known, and the key is not.
    let next = Batch { after: Some(1), ..batch(1, 2, None, KEY.0) };
    assert!(matches!(talk.subject.apply(&next), Reply::Done { nodes: 2, answers, .. } if answers[0].created));
    authority.books(Books::flush);
    assert!(authority.books(|books| books.is_empty()));
    assert_eq!(talk.subject.apply(&Batch { after: Some(2), ..batch(1, 3, None, 1) }), Reply::Gap { have: 0 });
    let afresh = talk.subject.apply(&batch(1, 1, None, 1));
    assert!(matches!(afresh, Reply::Done { nodes: 1, answers, .. } if answers[0].created));
}

#[test]
fn many_nodes_that_fell_silent_at_once_are_forgotten_at_once() {
    let mut books = Books::default();
    for node in 0..1_000 {
        books.apply(&batch(node, 1, None, 1), 0);
    }
    // What they said is dropped a few at a time.
    assert_eq!(books.apply(&batch(999, 2, Some(1), 1), 60 * SECOND), Reply::Gap { have: 0 });
}

#[test]
fn keys_that_were_evicted_and_come_again_are_looked_at_once() {
    let mut books = Books::default();
    for (number, name) in (1..).zip((0..10).chain(0..10)) {
        books.evict(WireName(name));
        books.apply(&batch(1, number, None, name), 0);
    }
    // Two looks each.
    for (number, len) in [(21, 9), (22, 7), (23, 5), (24, 3), (25, 1)] {
        books.apply(&batch(1, number, None, 99), 20 * SECOND);
        assert_eq!(books.len(), len);
    }
}

#[test]
fn whoever_is_answered_may_call_again() {
    let authority = MemoryAuthority::new();
    let (send, replies) = mpsc::channel();
    let again = authority.clone();
    authority.call(Call::new(Arc::new(batch(1, 1, None, 1)), move |first| {
        again.call(Call::new(Arc::new(batch(1, 2, Some(1), 1)), move |second| send.send((first, second)).unwrap()));
    }));
    let (first, second) = replies.recv().unwrap();
    let rooms = [first, second].map(|reply| match reply {
        Ok(Reply::Done { answers, .. }) => answers[0].room,
        reply => panic!("{reply:?}"),
    });
    assert_eq!(rooms, [99, 98]);
}

#[test]
fn a_look_that_panics_locks_nobody_out() {
    let mut memory = Memory::new();
    let authority = memory.authority.clone();
    let caught = catch_unwind(AssertUnwindSafe(|| authority.books(|_| panic!("a test that fails"))));
    assert!(caught.is_err());
    assert!(matches!(memory.apply(&batch(1, 1, None, 1)), Reply::Done { .. }));
}

#[test]
fn clones_share_what_they_know() {
    let authority = MemoryAuthority::default();
    let status = Record { body: Body::Status, ..batch(1, 1, None, 1).records.remove(0) };
    let told = |authority: &MemoryAuthority, batch: Batch| {
        let (send, replies) = mpsc::channel();
        authority.call(Call::new(Arc::new(batch), move |reply| send.send(reply).unwrap()));
        replies.recv().unwrap().unwrap()
    };
    told(&authority.clone(), batch(1, 1, None, 1));
    let reply = told(&authority, Batch { node: 2, records: vec![status], ..batch(2, 1, None, 1) });
    assert!(matches!(reply, Reply::Done { nodes: 2, answers, .. } if answers[0].room == 99));
}
