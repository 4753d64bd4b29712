//! Faults that other limiters had, each with the right value. The doc comment of a test carries the public report.

use super::*;

/// sockudo/sockudo#251: requests of the same second are one entry; 10,000 in 19 s count as 19.
pub(crate) fn every_request_counts_however_many_come_at_once<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(20_000, 60));
    for request in 0..10_000 {
        assert_eq!(talk.at(request * 1_900).say(1, rule, exact(1)).granted, 1);
    }
    assert_eq!(talk.counted(rule), 10_000);
}

/// Kong/kong PR#11859: the first request after each report counts twice; 10 requests with a report between each are 20.
pub(crate) fn a_report_between_requests_counts_nothing_twice<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(100, 60));
    let head = MIDNIGHT / SECOND + 1;
    assert_eq!(talk.say(1, rule, ask(10, 10)).granted, 10);
    for spent in 1..=9 {
        let answer = talk.report(1, rule, Report { lease: head, used: 1, kept: 10 - spent, ..Report::default() });
        assert_eq!((answer.kept, answer.room), (10 - spent, 90));
    }
    talk.report(1, rule, Report { lease: head, used: 1, ..Report::default() });
    assert_eq!(talk.counted(rule), 10);

    // Nor where each was admitted without a lease.
    let mut talk = Talk::new(new());
    for _ in 0..10 {
        talk.say(1, rule, overdraft(1));
    }
    assert_eq!(talk.counted(rule), 10);
}

/// alisaifee/limits#151: ten a minute; a cost of 100 passes after one of 5.
pub(crate) fn a_cost_above_the_limit_is_never_granted_and_takes_nothing<S: Subject>(new: impl Fn() -> S) {
    let bucket = Rule::Bucket { burst: 10, units: 10, period: 60 * SECOND, life: SECOND };
    for rule in [window(10, 60), bucket] {
        for asked in [exact(100), ask(100, 100)] {
            let mut talk = Talk::new(new());
            assert_eq!(talk.say(1, rule, exact(5)).granted, 5);
            let answer = talk.say(1, rule, asked);
            assert_eq!((answer.granted, answer.retry_after, answer.room), (0, u64::MAX, 5), "{rule:?}");
            assert_eq!(talk.counted(rule), 5);
        }
    }
}

/// alisaifee/limits#200: two a minute; after 0, 10 and 20 s the wait is said to be 50 s, by the newest entry.
pub(crate) fn the_wait_is_that_for_the_oldest_units<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(2, 60));
    assert_eq!(talk.say(1, rule, exact(1)).granted, 1);
    assert_eq!(talk.at(10 * SECOND).say(1, rule, exact(1)).granted, 1);
    // A strict window frees them at the end of their sub-window at the latest.
    assert_eq!(talk.at(20 * SECOND).assert_wait(rule, 1), 41 * SECOND);
    let (mut talk, rule) = (Talk::new(new()), Rule::Window { limit: 2, sub: SECOND, subs: 60, smooth: true });
    talk.say(1, rule, exact(1));
    talk.at(10 * SECOND).say(1, rule, exact(1));
    assert_eq!(talk.at(20 * SECOND).assert_wait(rule, 1), 41 * SECOND);
}

/// BerriAI/litellm#14204: a request a second renews the lifetime of the counter of a minute, which never ends.
pub(crate) fn later_use_keeps_nothing_alive<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(1_000, 60));
    talk.say(1, rule, exact(100));
    for after in 1..=200 {
        let answer = talk.at(after * SECOND).say(1, rule, exact(1));
        let counted = if after <= 60 { 100 + after } else { 61 };
        assert_eq!((answer.granted, u64::from(answer.room)), (1, 1_000 - counted), "at {after} s");
    }
}

/// apache/shenyu#6754: five in 10 s; what has left the window is counted before it is dropped, and the sixth is denied.
pub(crate) fn what_has_left_the_window_is_not_counted<S: Subject>(new: impl Fn() -> S) {
    let (mut talk, rule) = (Talk::new(new()), window(5, 10));
    assert_eq!(talk.say(1, rule, exact(5)).granted, 5);
    assert_eq!(talk.at(10_001 * MILLI).say(1, rule, exact(1)).granted, 0);
    let answer = talk.at(10_001 * MILLI + SECOND).say(1, rule, exact(1));
    assert_eq!((answer.granted, answer.room), (1, 4));
}
