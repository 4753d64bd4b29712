//! Waits, what is forgotten and when, and clocks that go wrong.

use super::*;

const BUCKET: Rule = Rule::Bucket { burst: 10, units: 3, period: SECOND, life: SECOND };

pub(crate) fn whoever_waits_as_told_is_served_and_nobody_earlier<S: Subject>(new: impl Fn() -> S) {
    for smooth in [false, true] {
        for cost in 1..=10 {
            let rule = Rule::Window { limit: 10, sub: 300_007, subs: 7, smooth };
            let mut talk = Talk::new(new());
            for (after, units) in [(0, 3), (299_000, 1), (700_000, 2), (700_001, 3), (1_300_000, 1)] {
                assert_eq!(talk.at(after).say(0, rule, exact(units)).granted, units);
            }
            talk.assert_wait(rule, cost);
        }
    }
    for cost in 1..=10 {
        let mut talk = Talk::new(new());
        assert_eq!(talk.say(0, BUCKET, exact(10)).granted, 10);
        talk.at(100_001).assert_wait(BUCKET, cost);
    }
    // Who waits for what an overdraft took, too.
    let mut talk = Talk::new(new());
    talk.say(0, window(10, 10), overdraft(25));
    assert_eq!(talk.assert_wait(window(10, 10), 1), 11 * SECOND);
    let mut talk = Talk::new(new());
    talk.say(0, BUCKET, overdraft(25));
    assert_eq!(talk.assert_wait(BUCKET, 1), 5_333_334);
}

pub(crate) fn a_charge_is_counted_for_a_window_and_a_sub_window_at_most<S: Subject>(new: impl Fn() -> S) {
    let rule = window(100, 10);
    for after in [0, 1, SECOND / 2, SECOND - 1] {
        let mut talk = Talk::new(new());
        talk.at(after).say(1, rule, exact(1));
        assert_eq!(talk.counted_at(rule, [after + 10 * SECOND, 11 * SECOND - 1, 11 * SECOND]), [1, 1, 0]);
    }
    // Looked at in between or not.
    let mut talk = Talk::new(new());
    talk.say(1, rule, exact(1));
    for after in 1..30 {
        let counted = talk.at(after * SECOND).counted(rule);
        assert_eq!(counted, after.min(10) as u32, "at {after} s");
        talk.say(1, rule, exact(1));
    }
}

pub(crate) fn a_key_that_is_not_used_is_forgotten<S: Subject>(new: impl Fn() -> S) {
    let rule = window(100, 10);
    for (after, known) in [(11, true), (14, false), (1_000_000, false)] {
        let mut talk = Talk::new(new());
        talk.say(1, rule, exact(1));
        let answer = talk.at(after * SECOND).say(1, rule, Body::Status);
        assert_eq!((answer.created, answer.room), (!known, 100), "after {after} s");
    }
    // Ten units at three a second.
    for (after, known, room) in [(3_000, true, 9), (4_000, false, 10)] {
        let mut talk = Talk::new(new());
        talk.say(1, BUCKET, exact(10));
        let answer = talk.at(after * MILLI).say(1, BUCKET, Body::Status);
        assert_eq!((answer.created, answer.room), (!known, room), "after {after} ms");
    }
    // A debt is remembered until it is paid.
    let mut talk = Talk::new(new());
    talk.say(1, BUCKET, overdraft(90));
    let answer = talk.at(29 * SECOND).say(1, BUCKET, Body::Status);
    assert_eq!((answer.created, answer.room), (false, 7));
}

pub(crate) fn a_clock_that_goes_back_a_little_stands_still<S: Subject>(new: impl Fn() -> S) {
    for back in [MILLI, 4 * SECOND, 5 * SECOND] {
        let (mut talk, rule) = (Talk::new(new()), window(100, 10));
        talk.say(1, rule, exact(1));
        talk.at(10 * SECOND).say(1, rule, exact(2));
        // Second 0 goes at 11 s, second 10 at 21 s, and so does what is charged now.
        let reply = talk.at(10 * SECOND - back).tell(1, vec![Record { name: KEY, rule, body: exact(4) }]);
        let Reply::Done { time, answers, .. } = reply else { panic!("{reply:?}") };
        assert_eq!((time, answers[0].room, answers[0].reset_after), (MIDNIGHT + 10 * SECOND, 93, 11 * SECOND));
        assert_eq!(talk.counted_at(rule, [11 * SECOND - 1, 11 * SECOND, 21 * SECOND - 1, 21 * SECOND]), [7, 6, 6, 0]);

        let mut talk = Talk::new(new());
        talk.at(8 * SECOND).say(1, BUCKET, exact(10));
        talk.at(10 * SECOND).say(1, BUCKET, exact(6));
        assert_eq!(talk.at(10 * SECOND - back).say(1, BUCKET, exact(1)).retry_after, 333_334);
        assert_eq!(talk.counted_at(BUCKET, [10 * SECOND, 11 * SECOND]), [10, 7]);
    }
}

pub(crate) fn a_clock_that_is_set_back_forgets_nothing_early<S: Subject>(new: impl Fn() -> S) {
    let (rule, start) = (window(100, 10), 7_200 * SECOND);
    for back in [5 * SECOND + 1, 6 * SECOND + 1, 10 * SECOND - 1, 10 * SECOND, 3_600 * SECOND] {
        for part in [0, 1, SECOND / 2, SECOND - 1] {
            let play = |back: u64| {
                let mut talk = Talk::new(new());
                talk.at(start + part).say(1, rule, exact(1));
                talk.at(start + 7 * SECOND + part).say(1, rule, exact(2));
                talk.at(start + 10 * SECOND + part).say(1, rule, ask(4, 4));
                // From here on by the clock that was set back, as if it had not been.
                let now = start + 10 * SECOND + part - back;
                let reply = talk.at(now).tell(1, vec![Record { name: KEY, rule, body: exact(8) }]);
                let waits = [0, 1, SECOND - part - 1, SECOND - part, 7 * SECOND, 8 * SECOND, 10 * SECOND, 12 * SECOND];
                (reply, talk.counted_at(rule, waits.map(|wait| now + wait)))
            };
            let (reply, counted) = play(0);
            assert_eq!((counted[0], counted[7]), (15, 0));
            assert_eq!(play(back), (reply, counted), "{back} µs back, {part}");
        }
    }
}

pub(crate) fn a_clock_that_is_set_back_by_years_is_not_waited_for<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(10, 10));
    let year = 365 * 86_400 * SECOND;
    talk.say(1, rule, exact(10));
    let node = |talk: &mut Talk<S>, node| match talk.tell(node, Vec::new()) {
        Reply::Done { nodes, .. } => nodes,
        reply => panic!("{reply:?}"),
    };
    assert_eq!(node(&mut talk, 2), 2);
    talk.to(MIDNIGHT - year);
    assert_eq!(node(&mut talk, 3), 3);
    assert_eq!(talk.assert_wait(rule, 10), 11 * SECOND);
    // And again.
    talk.to(MIDNIGHT - 2 * year);
    assert_eq!(talk.assert_wait(rule, 10), 11 * SECOND);
    // Who says nothing is not there after a minute by the new clock either.
    talk.to(MIDNIGHT - 2 * year + 60 * SECOND);
    assert_eq!(node(&mut talk, 1), 2);
}

/// A lease of before has the number that a sub-window has by the new clock, in which another's is.
pub(crate) fn a_lease_of_before_the_clock_was_set_back_is_not_taken_for_another<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(10, 10));
    assert_eq!(talk.say(1, rule, ask(4, 4)).granted, 4);
    let lease = rule.head_at(MIDNIGHT);
    // Long ago, when the clock is set back to where it was granted.
    talk.at(15 * SECOND).say(2, rule, exact(1));
    assert_eq!(talk.at(0).say(2, rule, ask(6, 6)).granted, 6);
    let answer = talk.report(1, rule, Report { lease, kept: 2, returned: 2, ..Report::default() });
    assert_eq!((answer.kept, answer.room), (0, 3));
}

pub(crate) fn a_bucket_whose_clock_is_set_back_gets_nothing_for_it<S: Subject>(new: impl Fn() -> S) {
    let mut talk = Talk::new(new());
    talk.at(100 * SECOND).say(1, BUCKET, exact(10));
    assert_eq!(talk.at(90 * SECOND).say(1, BUCKET, exact(1)).retry_after, 333_334);
    assert_eq!(talk.counted_at(BUCKET, [90 * SECOND, 91 * SECOND, 92 * SECOND]), [10, 7, 4]);
    // And back again, which is not to be told from waiting.
    assert_eq!(talk.at(100 * SECOND).say(1, BUCKET, exact(10)).granted, 10);
}

pub(crate) fn a_clock_that_leaps_forward_is_believed<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(10, 10));
    talk.say(1, rule, exact(10));
    let reply = talk.at(3_600 * SECOND).tell(1, vec![Record { name: KEY, rule, body: exact(4) }]);
    let Reply::Done { time, answers, .. } = reply else { panic!("{reply:?}") };
    assert_eq!((time, answers[0].granted, answers[0].room), (MIDNIGHT + 3_600 * SECOND, 4, 6));
    // Set right again, it forgets nothing of what came after.
    assert_eq!(talk.at(SECOND).say(1, rule, exact(7)).granted, 0);
    assert_eq!(talk.say(1, rule, exact(6)).granted, 6);
}
