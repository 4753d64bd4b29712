//! What the script does that the books do not have: keys that end, records that are lost one by one, and a server that refuses.

use tollgate::global::{Batch, Body, Record, Reply, Rule, WireName};
use tollgate::internal::Packed;

use crate::conformance::{KEY, MIDNIGHT, MILLI, SECOND, Subject, exact, window};
use crate::lua::Scripted;
use crate::named::{answers, batch};

/// The keys of what a node was told, the time, the nodes, and `KEY`.
fn keys(batch: &Batch) -> [Vec<u8>; 4] {
    Packed::new(batch, "{0}").unwrap().keys.try_into().unwrap()
}

fn at(time: u64) -> Scripted {
    let mut scripted = Scripted::new();
    scripted.at(time);
    scripted
}

#[test]
fn a_write_that_is_refused_is_the_first_and_nothing_is_done() {
    let mut scripted = at(MIDNIGHT);
    let rule = window(100, 10);
    scripted.apply(&batch(1, None, rule, exact(1)));
    for error in ["OOM command not allowed", "READONLY You can't write", "MISCONF Redis is configured"] {
        scripted.store().refuses = Some(error);
        scripted.store().writes = 0;
        assert_eq!(scripted.try_apply(&batch(2, Some(1), rule, exact(1))), Err(error.to_owned()));
        assert_eq!(scripted.store().writes, 1);
        scripted.store().refuses = None;
    }
    assert_eq!(answers(&scripted.apply(&batch(2, Some(1), rule, exact(1))))[0].room, 98);
}

#[test]
fn a_status_writes_nothing_under_its_key() {
    let mut scripted = at(MIDNIGHT);
    let status = batch(1, None, window(100, 10), Body::Status);
    scripted.apply(&status);
    let [.., key] = keys(&status);
    assert_eq!(scripted.store().lives().len(), 3);
    assert!(scripted.store().lives().iter().all(|(other, _)| *other != key));
}

/// The server's clock is 3 s back when the key is written, and goes on from there: the key has to live so much longer.
#[test]
fn a_key_that_is_written_while_the_time_stands_still_lives_until_nothing_is_counted() {
    for (rule, ends) in [
        (window(100, 10), 12 * SECOND),
        (Rule::Bucket { burst: 10, units: 1, period: SECOND, life: SECOND }, 10 * SECOND),
    ] {
        let mut scripted = at(MIDNIGHT);
        scripted.apply(&Batch { node: 2, records: Vec::new(), ..batch(1, None, rule, exact(1)) });
        scripted.at(MIDNIGHT - 3 * SECOND);
        scripted.apply(&batch(1, None, rule, exact(10)));
        for (after, created) in [(ends - MILLI, false), (ends, true)] {
            scripted.at(MIDNIGHT + after);
            let status = Batch { node: after, ..batch(1, None, rule, Body::Status) };
            assert_eq!(answers(&scripted.apply(&status))[0].created, created, "{rule:?} after {after}");
        }
    }
}

#[test]
fn keys_end_when_nothing_is_counted_any_more() {
    for (rule, ends) in [
        (window(100, 10), 13 * SECOND),
        (Rule::Bucket { burst: 10, units: 1, period: SECOND, life: SECOND }, 10 * SECOND),
        (Rule::Bucket { burst: 1, units: 1, period: SECOND, life: SECOND }, 8 * SECOND),
    ] {
        let mut scripted = at(MIDNIGHT);
        // Of the last one eight are taken, though it has one.
        let overdraft = tollgate::global::Report { overdraft: 7, ..Default::default() };
        let records = [exact(1), Body::Report(overdraft)].map(|body| Record { name: KEY, rule, body });
        let told = batch(1, None, rule, exact(1));
        scripted.apply(&Batch { records: records.to_vec(), ..told.clone() });
        let [.., key] = keys(&told);
        let is_there = |scripted: &Scripted| scripted.store().lives().iter().any(|(other, _)| *other == key);
        scripted.at(MIDNIGHT + ends);
        assert!(is_there(&scripted), "{rule:?}");
        scripted.at(MIDNIGHT + ends + 2 * SECOND);
        assert!(!is_there(&scripted), "{rule:?}");
    }
}

/// It was set back by an hour, and what says so lives as long as any key.
#[test]
fn by_how_much_the_clock_was_set_back_is_known_for_as_long_as_keys_are() {
    let rule = Rule::Window { limit: 10, sub: 86_400 * SECOND, subs: 10, smooth: false };
    let mut scripted = at(MIDNIGHT);
    let first = scripted.apply(&batch(1, None, rule, exact(10)));
    scripted.at(MIDNIGHT - 3_600 * SECOND);
    scripted.apply(&batch(2, None, rule, Body::Status));
    let reset = answers(&first)[0].reset_after;
    for (wait, room) in [(reset - 1, 0), (reset, 10)] {
        scripted.at(MIDNIGHT - 3_600 * SECOND + wait);
        let reply = scripted.apply(&Batch { node: wait, ..batch(1, None, rule, Body::Status) });
        assert_eq!(answers(&reply)[0].room, room);
    }
}

/// Evicted: keys are ahead of the time then. They count too much rather than too little.
#[test]
fn a_time_that_was_lost_frees_nothing_early() {
    for smooth in [false, true] {
        let rule = Rule::Window { limit: 10, sub: SECOND, subs: 5, smooth };
        let mut scripted = at(MIDNIGHT);
        let told = batch(1, None, rule, exact(7));
        scripted.apply(&told);
        let [_, time, ..] = keys(&told);
        scripted.store().remove(&time);
        scripted.at(MIDNIGHT - 20 * SECOND);
        let reply = scripted.apply(&batch(2, None, rule, exact(4)));
        let answer = answers(&reply)[0];
        assert_eq!((answer.granted, answer.room, answer.created), (0, 3, false));
        // It says so for how long.
        assert_eq!(answer.reset_after, 26 * SECOND);
        assert!((25 * SECOND..=26 * SECOND).contains(&answer.retry_after));
        assert_eq!(answers(&scripted.apply(&batch(3, None, rule, exact(2))))[0].room, 1);
        scripted.at(MIDNIGHT + 6 * SECOND);
        assert_eq!(answers(&scripted.apply(&batch(4, None, rule, exact(2))))[0].room, 8);
    }
}

#[test]
fn what_makes_no_sense_is_not_read() {
    let rule = window(100, 10);
    let told = batch(1, None, rule, exact(1));
    for (place, key) in keys(&told).iter().enumerate() {
        for bytes in
            [&b""[..], b"3", b"\x01", b"\x02", b"\x03", b"\x04", &[1; 66], &[5; 65], &[2; 34], &[4; 24], &[3; 17]]
        {
            let mut scripted = at(MIDNIGHT);
            scripted.store().put(key, bytes);
            let reply = scripted.apply(&told);
            assert_eq!(answers(&reply)[0].failed, place == 3, "{} under {place}", bytes.escape_ascii());
        }
        // What looks right is believed, and does no harm.
        for bytes in [&[1; 65][..], &[5; 64], &[2; 35], &[4; 25], &[3; 40]] {
            let mut scripted = at(MIDNIGHT);
            scripted.store().put(key, bytes);
            let reply = scripted.apply(&told);
            assert!(matches!(reply, Reply::Done { .. } | Reply::Stale), "{reply:?}");
        }
    }
}

#[test]
fn a_thousand_records_are_carried_out_at_once() {
    let mut scripted = at(MIDNIGHT);
    let rule = window(100, 10);
    let record = |name: u128| Record { name: WireName(name % 1_500), rule, body: exact(1) };
    let records = (0..2_500).map(record).collect();
    let reply = scripted.apply(&Batch { records, ..batch(1, None, rule, exact(1)) });
    assert!(answers(&reply).iter().zip(0..).all(|(answer, place)| answer.room == if place < 1_500 { 99 } else { 98 }));
}
