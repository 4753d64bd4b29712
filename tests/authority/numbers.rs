//! Batches by their numbers, and who sent them.

use super::*;

/// A batch of node 1 and shard 0 that spends one unit.
fn batch(number: u64, after: Option<u64>) -> Batch {
    let record = Record { name: KEY, rule: window(100, 10), body: exact(1) };
    Batch { node: 1, shard: 0, number, after, records: vec![record] }
}

fn is_done(reply: &Reply) -> bool {
    matches!(reply, Reply::Done { .. })
}

pub(crate) fn a_batch_that_comes_again_is_answered_as_it_was_and_done_once<S: Subject>(new: impl Fn() -> S) {
    let mut talk = Talk::new(new());
    let first = talk.subject.apply(&batch(1, None));
    let Reply::Done { time, answers, .. } = &first else { panic!("{first:?}") };
    assert_eq!((*time, answers[0].granted, answers[0].created), (MIDNIGHT, 1, true));
    // In the meantime all that the reply says has changed.
    talk.at(3 * SECOND).say(2, window(100, 10), exact(20));
    for wait in [3, 4, 9] {
        talk.at(wait * SECOND);
        assert_eq!(talk.subject.apply(&batch(1, None)), first);
        assert_eq!(talk.subject.apply(&batch(1, Some(77))), first);
    }
    assert_eq!(talk.counted_at(window(100, 10), [10 * SECOND]), [21]);
}

pub(crate) fn a_lower_number_is_stale_and_does_nothing<S: Subject>(new: impl Fn() -> S) {
    let mut talk = Talk::new(new());
    assert!(is_done(&talk.subject.apply(&batch(7, None))));
    for (number, after) in [(6, None), (0, None), (6, Some(7)), (6, Some(5))] {
        assert_eq!(talk.subject.apply(&batch(number, after)), Reply::Stale);
    }
    assert_eq!(talk.counted(window(100, 10)), 1);
    assert!(is_done(&talk.subject.apply(&batch(8, Some(7)))));
}

pub(crate) fn a_number_after_one_that_is_not_the_last_is_a_gap_and_does_nothing<S: Subject>(new: impl Fn() -> S) {
    let mut talk = Talk::new(new());
    for after in [0, 4] {
        assert_eq!(talk.subject.apply(&batch(5, Some(after))), Reply::Gap { have: 0 });
    }
    assert_eq!(talk.counted(window(100, 10)), 0);
    assert!(is_done(&talk.subject.apply(&batch(2, None))));
    for after in [0, 1, 3, 4, 5] {
        assert_eq!(talk.subject.apply(&batch(5, Some(after))), Reply::Gap { have: 2 });
    }
    assert_eq!(talk.counted(window(100, 10)), 1);
    // What is said after a gap: that it does not matter, or that it was known.
    assert!(is_done(&talk.subject.apply(&batch(6, None))));
    assert!(is_done(&talk.subject.apply(&batch(u64::MAX, Some(6)))));
    assert_eq!(talk.counted(window(100, 10)), 3);
}

pub(crate) fn the_numbers_of_a_node_and_shard_are_their_own<S: Subject>(new: impl Fn() -> S) {
    let mut talk = Talk::new(new());
    assert!(is_done(&talk.subject.apply(&batch(9, None))));
    for (node, shard) in [(1, 1), (2, 0), (2, 1), (0, 1), (u64::MAX - 1, u16::MAX)] {
        let other = Batch { node, shard, ..batch(1, None) };
        assert!(is_done(&talk.subject.apply(&other)), "node {node}, shard {shard}");
    }
    assert_eq!(talk.counted(window(100, 10)), 6);
}

pub(crate) fn what_was_said_is_known_for_a_minute<S: Subject>(new: impl Fn() -> S) {
    let mut talk = Talk::new(new());
    let first = talk.subject.apply(&batch(1, None));
    talk.at(59 * SECOND);
    assert_eq!(talk.subject.apply(&batch(1, None)), first);
    assert_eq!(talk.subject.apply(&batch(0, None)), Reply::Stale);
    assert!(is_done(&talk.subject.apply(&batch(2, Some(1)))));
    talk.at(118 * SECOND);
    assert!(is_done(&talk.subject.apply(&batch(3, Some(2)))));
}

pub(crate) fn nodes_are_counted_for_a_minute<S: Subject>(new: impl Fn() -> S) {
    let mut talk = Talk::new(new());
    let nodes = |talk: &mut Talk<S>, node, after| match talk.at(after * SECOND).tell(node, Vec::new()) {
        Reply::Done { nodes, answers, .. } => {
            assert_eq!(answers, []);
            nodes
        }
        reply => panic!("{reply:?}"),
    };
    assert_eq!(nodes(&mut talk, 1, 0), 1);
    assert_eq!(nodes(&mut talk, 1, 1), 1);
    assert_eq!(nodes(&mut talk, 2, 20), 2);
    assert_eq!(nodes(&mut talk, 3, 40), 3);
    assert_eq!(nodes(&mut talk, 3, 59), 3);
    assert_eq!(nodes(&mut talk, 3, 62), 2);
    assert_eq!(nodes(&mut talk, 2, 79), 2);
    assert_eq!(nodes(&mut talk, 2, 122), 1);
}
