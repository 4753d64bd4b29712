//! What every authority has to do, whatever it keeps its books in.
//!
//! The tests are functions over a [`Subject`]; `conformance!` makes them tests of one. They see what a node sees, and
//! nothing else.

use std::collections::HashMap;

use tollgate::global::{Answer, Batch, Body, Record, Reply, Report, Rule, WireName};

pub(crate) mod clock;
pub(crate) mod faults;
pub(crate) mod keys;
pub(crate) mod numbers;
pub(crate) mod random;

/// An authority whose clock the test sets.
pub(crate) trait Subject {
    /// Sets its clock to `time`, in microseconds.
    fn at(&mut self, time: u64);

    /// Has a batch carried out.
    fn apply(&mut self, batch: &Batch) -> Reply;
}

/// Tests of the subjects that `$new` makes: a function that is called for each.
macro_rules! conformance {
    ($new:expr) => {
        conformance! {
            $new =>
            numbers:
                a_batch_that_comes_again_is_answered_as_it_was_and_done_once
                a_lower_number_is_stale_and_does_nothing
                a_number_after_one_that_is_not_the_last_is_a_gap_and_does_nothing
                the_numbers_of_a_node_and_shard_are_their_own
                what_was_said_is_known_for_a_minute
                nodes_are_counted_for_a_minute;
            keys:
                what_was_used_is_taken_off_the_lease_and_charged_to_the_current_sub_window
                no_more_is_taken_off_than_there_is
                a_lease_that_has_left_the_window_has_nothing
                what_is_returned_is_there_for_the_grant
                an_overdraft_is_charged_whether_it_fits_or_not
                a_grant_is_half_the_room_unless_more_is_needed
                a_grant_is_charged_to_the_head
                exact_is_all_or_nothing
                a_status_writes_nothing
                a_repair_adds_and_takes_off_where_it_is_still_counted
                repairs_commute_and_count_once
                a_repair_beyond_the_head_is_charged_to_the_head
                records_are_carried_out_in_their_order
                an_answer_says_how_the_key_stands
                a_smooth_window_counts_a_part_of_the_oldest_sub_window
                a_bucket_gets_back_its_units_one_by_one
                a_bucket_lends_and_takes_back
                a_new_limit_keeps_the_counts_and_a_new_form_starts_afresh
                a_new_rate_of_a_bucket_holds_from_then_on
                a_rule_that_makes_no_sense_fails_alone;
            clock:
                whoever_waits_as_told_is_served_and_nobody_earlier
                a_charge_is_counted_for_a_window_and_a_sub_window_at_most
                a_key_that_is_not_used_is_forgotten
                a_clock_that_goes_back_a_little_stands_still
                a_clock_that_is_set_back_forgets_nothing_early
                a_clock_that_is_set_back_by_years_is_not_waited_for
                a_lease_of_before_the_clock_was_set_back_is_not_taken_for_another
                a_bucket_whose_clock_is_set_back_gets_nothing_for_it
                a_clock_that_leaps_forward_is_believed;
            faults:
                every_request_counts_however_many_come_at_once
                a_report_between_requests_counts_nothing_twice
                a_cost_above_the_limit_is_never_granted_and_takes_nothing
                the_wait_is_that_for_the_oldest_units
                later_use_keeps_nothing_alive
                what_has_left_the_window_is_not_counted;
            random:
                a_window_counts_as_a_log_does
                a_bucket_counts_as_a_log_does
                no_window_in_real_time_holds_more_than_the_limit
                any_batch_is_answered;
        }
    };
    ($new:expr => $($topic:ident: $($test:ident)+;)+) => {
        $(mod $topic {
            use super::*;

            $(#[test]
            fn $test() {
                conformance::$topic::$test($new);
            })+
        })+
    };
}

/// Midnight, to a second and to a minute, in a year to come.
pub(crate) const MIDNIGHT: u64 = 2_000_000_000 / 86_400 * 86_400 * SECOND;

pub(crate) const MILLI: u64 = 1_000;
pub(crate) const SECOND: u64 = 1_000 * MILLI;

pub(crate) const KEY: WireName = WireName(0xC0FF_EE00_0000_0000_0000_0000_0000_0001);

/// A strict window of `subs` sub-windows of a second.
pub(crate) fn window(limit: u32, subs: u16) -> Rule {
    Rule::Window { limit, sub: SECOND, subs, smooth: false }
}

pub(crate) fn exact(cost: u32) -> Body {
    Body::Exact { cost }
}

/// Asks for units and has nothing to say.
pub(crate) fn ask(need: u32, want: u32) -> Body {
    Body::Report(Report { need, want, ..Report::default() })
}

pub(crate) fn overdraft(units: u32) -> Body {
    Body::Report(Report { overdraft: units, ..Report::default() })
}

/// Nodes that talk to a subject about one key, and number their batches.
pub(crate) struct Talk<S> {
    pub(crate) subject: S,
    numbers: HashMap<u64, u64>,
    now: u64,
}

impl<S: Subject> Talk<S> {
    /// At [`MIDNIGHT`].
    pub(crate) fn new(subject: S) -> Self {
        let mut talk = Self { subject, numbers: HashMap::new(), now: 0 };
        talk.at(0);
        talk
    }

    /// Goes to `after` microseconds after midnight.
    pub(crate) fn at(&mut self, after: u64) -> &mut Self {
        self.to(MIDNIGHT + after)
    }

    pub(crate) fn to(&mut self, time: u64) -> &mut Self {
        self.now = time;
        self.subject.at(time);
        self
    }

    /// The next batch of `node`.
    pub(crate) fn tell(&mut self, node: u64, records: Vec<Record>) -> Reply {
        let number = self.numbers.entry(node).or_default();
        *number += 1;
        self.subject.apply(&Batch { node, shard: 0, number: *number, after: None, records })
    }

    /// A batch with one record.
    pub(crate) fn say(&mut self, node: u64, rule: Rule, body: Body) -> Answer {
        match self.tell(node, vec![Record { name: KEY, rule, body }]) {
            Reply::Done { answers, .. } => *answers.first().expect("one answer for one record"),
            reply => panic!("a batch with a new number was answered by {reply:?}"),
        }
    }

    pub(crate) fn report(&mut self, node: u64, rule: Rule, report: Report) -> Answer {
        self.say(node, rule, Body::Report(report))
    }

    /// What is counted, be it above the limit.
    pub(crate) fn counted(&mut self, rule: Rule) -> u32 {
        let without_limit = match rule {
            Rule::Window { sub, subs, smooth, .. } => Rule::Window { limit: u32::MAX, sub, subs, smooth },
            Rule::Bucket { units, period, life, .. } => Rule::Bucket { burst: u32::MAX, units, period, life },
            _ => panic!("a rule that no test is for"),
        };
        u32::MAX - self.say(u64::MAX, without_limit, Body::Status).room
    }

    /// The counts at these times after midnight.
    pub(crate) fn counted_at<const N: usize>(&mut self, rule: Rule, times: [u64; N]) -> [u32; N] {
        times.map(|after| self.at(after).counted(rule))
    }

    /// Denied at every earlier time that is tried, granted after the wait that the first answer says.
    pub(crate) fn assert_wait(&mut self, rule: Rule, cost: u32) -> u64 {
        let start = self.now;
        let denied = self.say(0, rule, exact(cost));
        assert_eq!(denied.granted, 0, "{cost} units by {rule:?}: {denied:?}");
        let wait = denied.retry_after;
        assert!(wait > 0 && wait < u64::MAX, "{cost} units by {rule:?}: {denied:?}");
        for part in [wait / 3, wait / 2, wait - 1] {
            let answer = self.to(start + part).say(0, rule, exact(cost));
            assert_eq!((answer.granted, answer.retry_after), (0, wait - part), "{part} µs into a wait of {wait}");
        }
        assert_eq!(self.to(start + wait).say(0, rule, exact(cost)).granted, cost, "after a wait of {wait} µs");
        wait
    }
}
