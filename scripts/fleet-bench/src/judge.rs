//! What of it was right.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::load::{Load, Record};
use crate::peers::{Limit, Verdict};

/// When the requests of a client were admitted: asked and answered, both in order.
#[derive(Default)]
struct Admitted {
    asked: Vec<u64>,
    answered: Vec<u64>,
}

#[derive(Default)]
pub struct Misjudged {
    /// Denied, where fewer than the limit were admitted in the window before.
    pub denied: usize,
    /// Those of them of clients that a perfect limiter denies nothing.
    pub denied_innocent: usize,
    /// Admitted, where as many as the limit were admitted in the window before.
    pub admitted: usize,
}

/// Holds every verdict against that of a sliding window over all nodes, known to all at once, with the same history: the
/// requests of the client that were in fact admitted in the window before. Requests that overlap may have been decided in
/// either order, and only what is wrong in every order is counted.
pub fn misjudged(records: &[Record], limit: Limit, innocent: &HashSet<u32>) -> Misjudged {
    let mut admitted: HashMap<u32, Admitted> = HashMap::new();
    for record in records.iter().filter(|record| record.verdict == Verdict::Admit) {
        let client = admitted.entry(record.client).or_default();
        client.asked.push(record.asked);
        client.answered.push(record.answered);
    }
    for client in admitted.values_mut() {
        client.asked.sort_unstable();
        client.answered.sort_unstable();
    }
    let (window, requests, nothing) = (nanos(limit), limit.requests as usize, Admitted::default());
    let mut found = Misjudged::default();
    for record in records {
        let of = admitted.get(&record.client).unwrap_or(&nothing);
        let asked_by = |at: u64| of.asked.partition_point(|asked| *asked <= at);
        let answered_by = |at: u64| of.answered.partition_point(|answered| *answered <= at);
        // Nothing is a window old before there was a window.
        let old = |at: u64| at.checked_sub(window);
        if record.verdict == Verdict::Admit {
            // Answered before this was asked, and asked in the window that ends with the answer to this: certainly before, and
            // certainly not too old.
            let before = of.answered.partition_point(|answered| *answered < record.asked);
            let surely = before.saturating_sub(old(record.answered).map_or(0, asked_by));
            found.admitted += usize::from(surely >= requests);
        } else {
            // Asked before this was answered, and answered in the window that ends where this was asked: possibly so.
            let possibly = asked_by(record.answered).saturating_sub(old(record.asked).map_or(0, answered_by));
            if possibly < requests {
                found.denied += 1;
                found.denied_innocent += usize::from(innocent.contains(&record.client));
            }
        }
    }
    found
}

/// How many a sliding window over all nodes admits that decides by its own history, and the clients it denies nothing.
pub fn perfect(load: &Load, limit: Limit) -> (usize, HashSet<u32>) {
    let mut requests: Vec<(u64, u32)> =
        load.iter().flatten().map(|(at, client)| (at.as_nanos() as u64, *client)).collect();
    requests.sort_unstable();
    let mut innocent: HashSet<u32> = requests.iter().map(|(_, client)| *client).collect();
    let (mut held, mut admitted): (HashMap<u32, VecDeque<u64>>, _) = (HashMap::new(), 0);
    for (at, client) in requests {
        let held = held.entry(client).or_default();
        while held.front().is_some_and(|first| first + nanos(limit) <= at) {
            held.pop_front();
        }
        if held.len() < limit.requests as usize {
            held.push_back(at);
            admitted += 1;
        } else {
            innocent.remove(&client);
        }
    }
    (admitted, innocent)
}

/// The instants of what was admitted, in order.
pub fn instants(records: &[Record]) -> Vec<u64> {
    let admitted = records.iter().filter(|record| record.verdict == Verdict::Admit);
    let mut instants: Vec<u64> = admitted.map(|record| record.answered).collect();
    instants.sort_unstable();
    instants
}

/// The most that any window held.
pub fn most_sliding(instants: &[u64], limit: Limit) -> usize {
    let (mut held, mut most) = (VecDeque::new(), 0);
    for &at in instants {
        while held.front().is_some_and(|first| first + nanos(limit) <= at) {
            held.pop_front();
        }
        held.push_back(at);
        most = most.max(held.len());
    }
    most
}

/// The most that a window held of those that begin with the first admission after the end of the last.
pub fn most_fixed(instants: &[u64], limit: Limit) -> usize {
    let (mut end, mut held, mut most) = (0, 0, 0);
    for &at in instants {
        if at >= end {
            (end, held) = (at + nanos(limit), 0);
        }
        held += 1;
        most = most.max(held);
    }
    most
}

fn nanos(limit: Limit) -> u64 {
    limit.window.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMIT: Limit = Limit { requests: 2, window: Duration::from_nanos(100) };

    fn record(asked: u64, answered: u64, verdict: Verdict) -> Record {
        Record { client: 0, asked, answered, verdict }
    }

    fn counts(records: &[Record]) -> (usize, usize, usize) {
        let found = misjudged(records, LIMIT, &HashSet::from([0]));
        (found.denied, found.denied_innocent, found.admitted)
    }

    #[test]
    fn what_a_perfect_window_does_is_right() {
        use Verdict::{Admit, Deny};
        let right = [(0, Admit), (10, Admit), (20, Deny), (99, Deny), (100, Admit), (109, Deny), (110, Admit)];
        assert_eq!(counts(&right.map(|(at, verdict)| record(at, at, verdict))), (0, 0, 0));
    }

    #[test]
    fn a_third_in_the_window_is_admitted_wrongly() {
        let three = [0, 10, 20].map(|at| record(at, at, Verdict::Admit));
        assert_eq!(counts(&three), (0, 0, 1));
    }

    #[test]
    fn denied_wrongly_with_one_in_the_window_or_after_it() {
        let records = [(0, Verdict::Admit), (10, Verdict::Deny), (20, Verdict::Admit), (100, Verdict::Deny)];
        assert_eq!(counts(&records.map(|(at, verdict)| record(at, at, verdict))), (2, 2, 0));
    }

    #[test]
    fn overlapping_requests_have_the_benefit_of_the_doubt() {
        let overlapping =
            [record(0, 0, Verdict::Admit), record(10, 30, Verdict::Admit), record(20, 25, Verdict::Admit)];
        assert_eq!(counts(&overlapping), (0, 0, 0));
        let overlapping = [record(0, 0, Verdict::Admit), record(10, 30, Verdict::Admit), record(20, 25, Verdict::Deny)];
        assert_eq!(counts(&overlapping), (0, 0, 0));
        let overlapping = [record(0, 0, Verdict::Admit), record(20, 40, Verdict::Deny), record(30, 35, Verdict::Admit)];
        assert_eq!(counts(&overlapping), (0, 0, 0));
    }

    #[test]
    fn a_perfect_limiter_forgets_after_the_window() {
        let at = |nanos| (Duration::from_nanos(nanos), 0);
        let (admitted, innocent) = perfect(&vec![vec![at(0), at(20), at(110)], vec![at(10), at(100)]], LIMIT);
        assert_eq!((admitted, innocent.len()), (4, 0));
    }

    #[test]
    fn windows_slide_or_begin_anew() {
        let instants = [90, 95, 190, 195, 200];
        assert_eq!(most_sliding(&instants, LIMIT), 3);
        assert_eq!(most_fixed(&instants, LIMIT), 3);
        let instants = [0, 90, 95, 101, 102];
        assert_eq!(most_sliding(&instants, LIMIT), 4);
        assert_eq!(most_fixed(&instants, LIMIT), 3);
    }
}
