//! What is done for a key, line by line of what a batch says.

use super::*;

/// The number of the sub-window that begins `after` seconds after midnight.
const fn second(after: u64) -> u64 {
    MIDNIGHT / SECOND + after
}

/// A burst of ten that comes back in a second.
const BUCKET: Rule = Rule::Bucket { burst: 10, units: 10, period: SECOND, life: SECOND };

pub(crate) fn what_was_used_is_taken_off_the_lease_and_charged_to_the_current_sub_window<S: Subject>(
    new: impl Fn() -> S,
) {
    let (mut talk, rule) = (Talk::new(new()), window(100, 10));
    assert_eq!(talk.say(1, rule, ask(10, 10)).granted, 10);
    // It is charged to second 1, until the end of second 11, and was it: at 0.5 s, four of them to second 0, whose end is
    // that of second 10, and six to second 1.
    let report = Report { lease: second(1), used: 4, kept: 6, ..Report::default() };
    let answer = talk.at(SECOND / 2).report(1, rule, report);
    assert_eq!((answer.kept, answer.granted, answer.room, answer.created), (6, 0, 90, false));
    assert_eq!(talk.counted_at(rule, [11 * SECOND - 1, 11 * SECOND, 12 * SECOND - 1, 12 * SECOND]), [10, 6, 6, 0]);

    // What is kept goes on from the sub-window of the lease to the head, what was used to where it is now.
    let mut talk = Talk::new(new());
    assert_eq!(talk.say(1, rule, ask(10, 10)).granted, 10);
    let report = Report { lease: second(1), used: 3, kept: 5, returned: 2, ..Report::default() };
    let answer = talk.at(4 * SECOND).report(1, rule, report);
    assert_eq!((answer.kept, answer.room), (5, 92));
    assert_eq!(talk.counted_at(rule, [15 * SECOND - 1, 15 * SECOND, 16 * SECOND - 1, 16 * SECOND]), [8, 5, 5, 0]);
}

pub(crate) fn no_more_is_taken_off_than_there_is<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(100, 10));
    assert_eq!(talk.say(1, rule, ask(10, 10)).granted, 10);
    let report = Report { lease: second(1), used: 8, kept: 7, ..Report::default() };
    assert_eq!(talk.at(2 * SECOND).report(1, rule, report).kept, 7);
    assert_eq!(talk.counted(rule), 15);

    // What was used is charged in full, what is kept only where it was there.
    let mut talk = Talk::new(new());
    assert_eq!(talk.say(1, rule, ask(10, 10)).granted, 10);
    let report = Report { lease: second(1), used: 12, kept: 12, returned: 12, ..Report::default() };
    assert_eq!(talk.at(2 * SECOND).report(1, rule, report).kept, 10);
    assert_eq!(talk.counted(rule), 22);
}

pub(crate) fn a_lease_that_has_left_the_window_has_nothing<S: Subject>(new: impl Fn() -> S) {
    let rule = window(100, 10);
    // At 12 s seconds 2 to 13 are in the window. A lease is charged to the second after the one in which it is granted.
    for (lease, expected) in [(1, (0, 4)), (2, (3, 7)), (13, (3, 7))] {
        let mut talk = Talk::new(new());
        assert_eq!(talk.at((lease - 1) * SECOND).say(1, rule, ask(10, 10)).granted, 10);
        let report = Report { lease: second(lease), used: 4, kept: 3, returned: 3, ..Report::default() };
        let answer = talk.at(12 * SECOND).report(1, rule, report);
        assert_eq!((answer.kept, talk.counted(rule)), expected, "second {lease}");
    }
    // A lease in a sub-window that is yet to come is one of a clock that was set back since.
    let mut talk = Talk::new(new());
    talk.say(1, rule, ask(10, 10));
    for lease in [second(2), second(3), u64::MAX] {
        assert_eq!(talk.report(1, rule, Report { lease, used: 1, kept: 9, ..Report::default() }).kept, 0);
    }
    assert_eq!(talk.counted(rule), 13);
}

pub(crate) fn what_is_returned_is_there_for_the_grant<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(10, 10));
    assert_eq!(talk.say(1, rule, ask(10, 10)).granted, 10);
    assert_eq!(talk.say(2, rule, ask(1, 1)).granted, 0);
    let report = Report { lease: second(1), used: 2, returned: 8, need: 8, want: 8, ..Report::default() };
    let answer = talk.report(1, rule, report);
    assert_eq!((answer.granted, answer.kept, answer.room), (8, 0, 0));
}

pub(crate) fn an_overdraft_is_charged_whether_it_fits_or_not<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(10, 10));
    assert_eq!(talk.say(1, rule, overdraft(7)).room, 3);
    assert_eq!(talk.say(2, rule, overdraft(7)).room, 0);
    assert_eq!(talk.counted(rule), 14);
    // It is charged before anything is granted, and to the current sub-window.
    let answer =
        talk.at(SECOND).report(3, window(20, 10), Report { overdraft: 5, need: 2, want: 2, ..Report::default() });
    assert_eq!((answer.granted, answer.room), (0, 1));
    assert_eq!(talk.counted_at(rule, [11 * SECOND - 1, 11 * SECOND, 12 * SECOND - 1, 12 * SECOND]), [19, 5, 5, 0]);
}

pub(crate) fn a_grant_is_half_the_room_unless_more_is_needed<S: Subject>(new: impl Fn() -> S) {
    let rule = window(101, 10);
    for (need, want, granted) in [
        (0, 0, 0),
        (0, 3, 3),
        (0, 80, 51),
        (51, 80, 51),
        (60, 80, 60),
        (101, 101, 101),
        (102, 102, 0),
        (u32::MAX, u32::MAX, 0),
        (0, u32::MAX, 51),
        (5, 2, 5),
    ] {
        let answer = Talk::new(new()).say(1, rule, ask(need, want));
        assert_eq!((answer.granted, answer.room), (granted, 101 - granted), "need {need}, want {want}");
    }
    // The room is what is left, and a last unit is granted too.
    let mut talk = Talk::new(new());
    let grants = [(); 9].map(|()| talk.say(1, rule, ask(0, 101)).granted);
    assert_eq!(grants, [51, 25, 13, 6, 3, 2, 1, 0, 0]);
    assert_eq!(Talk::new(new()).say(1, window(0, 10), ask(0, 1)).granted, 0);
}

pub(crate) fn a_grant_is_charged_to_the_head<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(100, 10));
    assert_eq!(talk.at(SECOND - 1).say(1, rule, ask(5, 5)).granted, 5);
    assert_eq!(talk.counted_at(rule, [12 * SECOND - 1, 12 * SECOND]), [5, 0]);
}

pub(crate) fn exact_is_all_or_nothing<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(10, 10));
    assert_eq!(talk.say(1, rule, exact(7)).granted, 7);
    let answer = talk.say(1, rule, exact(4));
    assert_eq!((answer.granted, answer.room), (0, 3));
    let answer = talk.say(1, rule, exact(3));
    assert_eq!((answer.granted, answer.room), (3, 0));
    assert_eq!(talk.say(1, rule, exact(0)).granted, 0);
    // To the current sub-window.
    assert_eq!(talk.counted_at(rule, [11 * SECOND - 1, 11 * SECOND]), [10, 0]);
}

pub(crate) fn a_status_writes_nothing<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(10, 10));
    for _ in 0..2 {
        let answer = talk.say(1, rule, Body::Status);
        assert_eq!(answer, Answer { room: 10, created: true, ..Answer::default() });
    }
    talk.say(1, rule, exact(10));
    let other = Rule::Window { limit: 20, sub: 2 * SECOND, subs: 5, smooth: true };
    assert_eq!(talk.say(1, other, Body::Status), Answer { room: 20, created: true, ..Answer::default() });
    assert_eq!(talk.say(1, window(20, 10), Body::Status).room, 10);
    let answer = talk.say(1, rule, Body::Status);
    let wait = 11 * SECOND;
    assert_eq!(answer, Answer { room: 0, retry_after: wait, reset_after: wait, ..Answer::default() });

    talk.at(0).say(1, BUCKET, exact(10));
    assert_eq!(talk.at(SECOND / 2).say(1, BUCKET, Body::Status).room, 5);
    assert_eq!(talk.say(1, BUCKET, Body::Status).retry_after, 0);
    assert_eq!(talk.say(1, BUCKET, exact(6)).granted, 0);
}

pub(crate) fn a_repair_adds_and_takes_off_where_it_is_still_counted<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(100, 10));
    talk.at(20 * SECOND).say(1, rule, exact(5));
    let charges = [(9, 1), (10, 2), (20, 4), (21, 8)].map(|(after, units)| (second(after), units));
    let answer = talk.say(1, rule, Body::Repair(charges.to_vec()));
    assert_eq!((answer.room, answer.granted, answer.created), (81, 0, false));
    // Never below 0, and what comes later in the list does not make up for it.
    let charges =
        [(10, -1), (21, -100), (21, 3), (9, -50), (20, i64::MIN)].map(|(after, units)| (second(after), units));
    assert_eq!(talk.say(1, rule, Body::Repair(charges.to_vec())).room, 96);
    assert_eq!(talk.counted_at(rule, [21 * SECOND - 1, 21 * SECOND, 32 * SECOND - 1, 32 * SECOND]), [4, 3, 3, 0]);
    assert_eq!(talk.say(1, rule, Body::Repair(vec![(second(32), i64::MAX)])).room, 0);

    // To a bucket, the sum.
    assert_eq!(talk.say(1, BUCKET, Body::Repair(vec![(0, 7), (9, -2), (u64::MAX, 1)])).room, 4);
    assert_eq!(talk.say(1, BUCKET, Body::Repair(vec![(0, -4)])).room, 8);
    assert_eq!(talk.say(1, BUCKET, Body::Repair(vec![(0, i64::MIN), (0, i64::MIN)])).room, 10);
    assert_eq!(talk.say(1, BUCKET, Body::Repair(vec![(0, i64::MAX), (0, i64::MAX)])).room, 0);
}

pub(crate) fn repairs_commute_and_count_once<S: Subject>(new: impl Fn() -> S) {
    let rule = window(100, 10);
    let lists: [&[(u64, i64)]; 3] = [&[(0, 3), (1, 5), (1, -5)], &[(1, 4), (0, 2), (0, -1)], &[(u64::MAX / SECOND, 1)]];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut talk = Talk::new(new());
        for index in order {
            let charges = lists[index].iter().map(|(after, units)| (second(*after), *units)).collect();
            let record = Record { name: KEY, rule, body: Body::Repair(charges) };
            let batch = Batch { node: index as u64, shard: 0, number: 1, after: None, records: vec![record] };
            let reply = talk.subject.apply(&batch);
            assert_eq!(talk.subject.apply(&batch), reply);
        }
        assert_eq!(talk.counted_at(rule, [11 * SECOND - 1, 11 * SECOND, 12 * SECOND]), [9, 5, 0], "{order:?}");
    }
}

pub(crate) fn a_repair_beyond_the_head_is_charged_to_the_head<S: Subject>(new: impl Fn() -> S) {
    // The lost batches were dated by a clock that was ahead of this one: they are no less true for that.
    let (mut talk, rule) = (Talk::new(new()), window(100, 10));
    talk.say(1, rule, ask(10, 10));
    // A lease of 20, of which 5 were used and 15 given back.
    let charges = [(3, 20), (3, -20), (2, 5)].map(|(after, units)| (second(after), units));
    assert_eq!(talk.say(1, rule, Body::Repair(charges.to_vec())).room, 85);
    // What is not from this list can't be taken off: it may be another's.
    assert_eq!(talk.say(1, rule, Body::Repair(vec![(second(2), -5)])).room, 85);
    assert_eq!(talk.counted_at(rule, [12 * SECOND - 1, 12 * SECOND]), [15, 0]);
}

pub(crate) fn records_are_carried_out_in_their_order<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(10, 10));
    let other = WireName(KEY.0 + 1);
    let record = |name, cost| Record { name, rule, body: exact(cost) };
    let reply = talk.tell(1, vec![record(KEY, 7), record(other, 6), record(KEY, 4), record(KEY, 3), record(other, 4)]);
    let Reply::Done { answers, time, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(time, MIDNIGHT);
    let seen: Vec<_> = answers.iter().map(|answer| (answer.granted, answer.room, answer.created)).collect();
    assert_eq!(seen, [(7, 3, true), (6, 4, true), (0, 3, false), (3, 0, false), (4, 0, false)]);
}

pub(crate) fn an_answer_says_how_the_key_stands<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(10, 10));
    let never = u64::MAX;
    let answer = talk.say(1, rule, ask(2, 2));
    let reset_after = 12 * SECOND;
    assert_eq!(answer, Answer { granted: 2, room: 8, reset_after, created: true, ..Answer::default() });
    // Where what was needed was granted, the wait is that for the next unit.
    let answer = talk.say(1, rule, exact(6));
    assert_eq!((answer.granted, answer.room, answer.retry_after), (6, 2, 0));
    assert_eq!(talk.say(1, rule, exact(3)).retry_after, 11 * SECOND);
    assert_eq!(talk.say(1, rule, ask(2, 2)).retry_after, 11 * SECOND);
    // One unit at least.
    let answer = talk.at(SECOND).say(1, rule, ask(0, 1));
    assert_eq!((answer.granted, answer.retry_after, answer.reset_after), (0, 10 * SECOND, 11 * SECOND));
    assert_eq!(talk.say(1, rule, Body::Status).retry_after, 10 * SECOND);
    assert_eq!(talk.say(1, rule, exact(7)).retry_after, 11 * SECOND);
    assert_eq!(talk.say(1, rule, exact(10)).retry_after, 11 * SECOND);
    assert_eq!(talk.say(1, rule, exact(11)).retry_after, never);
    assert_eq!(talk.say(1, rule, ask(11, 11)).retry_after, never);
    assert_eq!(talk.say(1, window(0, 10), Body::Status).retry_after, never);
}

pub(crate) fn a_smooth_window_counts_a_part_of_the_oldest_sub_window<S: Subject>(new: impl Fn() -> S) {
    let rule = Rule::Window { limit: 10, sub: SECOND, subs: 10, smooth: true };
    let mut talk = Talk::new(new());
    assert_eq!(talk.say(1, rule, exact(10)).granted, 10);
    // It leaves from 10 s to 11 s, a unit each 100 ms, and is counted until all of it has left.
    let times = [0, 1, 100_000, 100_001, 550_000, 900_000, 999_999, SECOND].map(|part| 10 * SECOND + part);
    assert_eq!(talk.counted_at(rule, [9_999_999]), [10]);
    assert_eq!(talk.counted_at(rule, times), [10, 10, 9, 9, 5, 1, 1, 0]);

    let mut talk = Talk::new(new());
    talk.say(1, rule, exact(7));
    talk.at(SECOND).say(1, rule, exact(3));
    let answer = talk.at(2 * SECOND).say(1, rule, ask(1, 1));
    // A seventh of a second is no whole number of microseconds.
    assert_eq!((answer.retry_after, answer.reset_after), (8 * SECOND + 142_858, 10 * SECOND));
    assert_eq!(talk.say(1, rule, ask(8, 8)).retry_after, 9 * SECOND + 333_334);
    talk.assert_wait(rule, 4);
}

pub(crate) fn a_bucket_gets_back_its_units_one_by_one<S: Subject>(new: impl Fn() -> S) {
    let mut talk = Talk::new(new());
    let answer = talk.say(1, BUCKET, exact(10));
    assert_eq!((answer.granted, answer.room, answer.created), (10, 0, true));
    assert_eq!((answer.retry_after, answer.reset_after), (100 * MILLI, SECOND));
    let counted = talk.counted_at(BUCKET, [1, 99_999, 100_000, 100_001, 950_000, 999_999, SECOND]);
    assert_eq!(counted, [10, 10, 9, 9, 1, 1, 0]);

    // A third of a second is no whole number of microseconds, and nobody gains by that however often it is looked at.
    let rule = Rule::Bucket { burst: 3, units: 3, period: SECOND, life: SECOND };
    let mut talk = Talk::new(new());
    assert_eq!(talk.say(1, rule, exact(3)).granted, 3);
    for looks in 1..1_000 {
        assert_eq!(talk.at(looks * 333).say(1, rule, exact(1)).granted, 0);
    }
    assert_eq!(talk.at(333_333).say(1, rule, exact(1)).retry_after, 1);
    assert_eq!(talk.at(333_334).say(1, rule, exact(1)).granted, 1);
    // What is a fraction of a microsecond too much is given back the next time.
    assert_eq!(talk.at(666_667).say(1, rule, exact(1)).granted, 1);
    assert_eq!(talk.at(1_000_000).say(1, rule, exact(1)).granted, 1);
}

pub(crate) fn a_bucket_lends_and_takes_back<S: Subject>(new: impl Fn() -> S) {
    let mut talk = Talk::new(new());
    let answer = talk.say(1, BUCKET, ask(0, 10));
    assert_eq!((answer.granted, answer.room), (5, 5));
    // What was used was taken with the grant, as was what is kept.
    let lease = second(1);
    let answer = talk.report(1, BUCKET, Report { lease, used: 2, kept: 2, returned: 1, ..Report::default() });
    assert_eq!((answer.kept, answer.room), (2, 6));
    let report = Report { lease, returned: 2, overdraft: 9, need: 1, want: 1, ..Report::default() };
    let answer = talk.report(1, BUCKET, report);
    assert_eq!((answer.granted, answer.room, answer.retry_after), (0, 0, 200 * MILLI));
    assert_eq!(talk.counted(BUCKET), 11);
    // It never has more than the burst.
    assert_eq!(talk.report(1, BUCKET, Report { lease, returned: u32::MAX, ..Report::default() }).room, 10);
    // Of a lease that is over nothing is put back: the bucket may have made up for it.
    let mut talk = Talk::new(new());
    let slow = Rule::Bucket { burst: 10, units: 1, period: 60 * SECOND, life: SECOND };
    assert_eq!(talk.say(1, slow, ask(10, 10)).granted, 10);
    let give_back = Report { lease, returned: 4, ..Report::default() };
    assert_eq!(talk.at(2 * SECOND - 1).report(1, slow, give_back).room, 4);
    assert_eq!(talk.at(2 * SECOND).report(1, slow, give_back).room, 4);
    talk.report(1, slow, Report { kept: u32::MAX, overdraft: u32::MAX, ..Report::default() });
    assert_eq!(talk.say(1, slow, ask(1, 1)).granted, 0);
}

pub(crate) fn a_new_limit_keeps_the_counts_and_a_new_form_starts_afresh<S: Subject>(new: impl Fn() -> S) {
    let mut talk = Talk::new(new());
    talk.say(1, window(10, 10), exact(8));
    for (limit, room) in [(20, 12), (4, 0), (8, 0), (9, 1), (u32::MAX, u32::MAX - 8)] {
        let answer = talk.say(1, window(limit, 10), ask(0, 0));
        assert_eq!((answer.room, answer.created), (room, false), "limit {limit}");
    }
    let smooth = Rule::Window { limit: 10, sub: SECOND, subs: 10, smooth: true };
    let answer = talk.at(10 * SECOND + 500 * MILLI).say(1, smooth, ask(0, 0));
    assert_eq!((answer.room, answer.created), (6, false));
    assert_eq!(talk.say(1, window(10, 10), ask(0, 0)).room, 2);

    let forms = [window(10, 11), Rule::Window { limit: 10, sub: SECOND / 2, subs: 11, smooth: false }, BUCKET];
    for rule in forms.into_iter().chain([window(10, 10)]) {
        let answer = talk.say(1, rule, exact(10));
        assert_eq!((answer.granted, answer.created), (10, true), "{rule:?}");
        assert_eq!((talk.say(1, rule, exact(1)).granted, talk.say(1, rule, exact(1)).created), (0, false));
    }
}

pub(crate) fn a_new_rate_of_a_bucket_holds_from_then_on<S: Subject>(new: impl Fn() -> S) {
    let slow = Rule::Bucket { burst: 20, units: 1, period: SECOND, life: SECOND };
    let mut talk = Talk::new(new());
    talk.say(1, slow, exact(20));
    // Three have come back by the old rate, and come faster now.
    let answer = talk.at(3 * SECOND).say(1, BUCKET, ask(0, 0));
    assert_eq!((answer.room, answer.created, answer.retry_after), (0, false, 800 * MILLI));
    assert_eq!(talk.counted(BUCKET), 17);
    let per_minute = Rule::Bucket { burst: 20, units: 60, period: 60 * SECOND, life: SECOND };
    assert_eq!(talk.at(4 * SECOND).say(1, per_minute, ask(0, 0)).room, 13);
    assert_eq!(talk.at(4 * SECOND + 999 * MILLI).counted(per_minute), 7);
    assert_eq!(talk.at(5 * SECOND).counted(per_minute), 6);

    // A third of a unit is two thirds of a microsecond by the new rate, and no less than that is waited for.
    let [thirds, halves] = [3, 2].map(|period| Rule::Bucket { burst: 10, units: 1, period, life: 1 });
    let mut talk = Talk::new(new());
    talk.say(1, thirds, exact(10));
    assert_eq!(talk.at(1).say(1, halves, ask(1, 1)).retry_after, 2);
}

pub(crate) fn a_rule_that_makes_no_sense_fails_alone<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(10, 10));
    let failed = Answer { failed: true, ..Answer::default() };
    talk.say(1, rule, exact(4));
    for bad in [
        Rule::Window { limit: 10, sub: 0, subs: 10, smooth: false },
        Rule::Window { limit: 10, sub: SECOND, subs: 0, smooth: true },
        Rule::Bucket { burst: 10, units: 0, period: SECOND, life: 1 },
        Rule::Bucket { burst: 10, units: 1, period: 0, life: 1 },
    ] {
        for body in [exact(1), ask(1, 1), Body::Status, Body::Repair(vec![(second(0), 3)])] {
            let record = |rule, body| Record { name: KEY, rule, body };
            let reply = talk.tell(1, vec![record(bad, body), record(rule, Body::Status)]);
            let Reply::Done { answers, .. } = reply else { panic!("{reply:?}") };
            assert_eq!((answers[0], answers[1].room, answers[1].created), (failed, 6, false), "{bad:?}");
        }
    }
    // A bucket of a name that has one.
    talk.say(1, BUCKET, exact(4));
    let bad = Rule::Bucket { burst: 10, units: 0, period: 0, life: 1 };
    assert_eq!(talk.say(1, bad, exact(1)), failed);
    assert_eq!(talk.counted(BUCKET), 4);
}
