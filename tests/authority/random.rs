//! Random batches, judged by lists of what was charged that are looked through from end to end.

use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestError, TestRunner};

use super::*;

fn run<T: std::fmt::Debug>(cases: u32, inputs: impl Strategy<Value = T>, test: impl Fn(T)) {
    let config = ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(0x0A17_0817),
        failure_persistence: None,
        max_shrink_iters: 5_000,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(&inputs, |input| {
        test(input);
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, input)) => panic!("{reason}\nby {input:#?}"),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

/// What happens next. Sub-windows are said by how far they are before the head.
#[derive(Clone, Debug)]
enum Step {
    /// Time goes on.
    Wait(u64),
    /// The clock goes back, by less than what counts as set back.
    Back(u64),
    Report(i64, Report),
    Exact(u32),
    Status,
    Repair(Vec<(i64, i64)>),
}

fn steps(sub: u64, subs: u16, limit: u32) -> impl Strategy<Value = Vec<Step>> {
    let far = i64::from(subs) + 4;
    let units = || prop_oneof![3 => Just(0), 4 => 0..=limit / 2 + 1, 1 => 0..=limit * 2 + 2];
    let report = (-2..far, (units(), units(), units()), (units(), units(), units())).prop_map(
        |(age, (used, kept, returned), (overdraft, need, want))| {
            // An overdraft is seldom, lest everything be denied.
            let overdraft = overdraft.saturating_sub(1) / 3;
            Step::Report(age, Report { lease: 0, used, kept, returned, overdraft, need, want })
        },
    );
    let repair = prop::collection::vec((-2..far, -40..40_i64), 0..6);
    let step = prop_oneof![
        4 => (0..=sub * 2).prop_map(Step::Wait),
        1 => (0..=sub * (u64::from(subs) + 4)).prop_map(Step::Wait),
        1 => (0..2 * sub).prop_map(Step::Back),
        6 => report,
        6 => (0..=limit + 1).prop_map(Step::Exact),
        1 => Just(Step::Status),
        1 => repair.prop_map(Step::Repair),
    ];
    prop::collection::vec(step, 1..60)
}

/// A window as a list of charges.
#[derive(Clone, Debug)]
struct Log {
    limit: u64,
    sub: u64,
    subs: u64,
    smooth: bool,
    /// Sub-window and units.
    charges: Vec<(u64, u64)>,
    /// The sub-window of the last record that was no mere look.
    written: Option<u64>,
}

impl Log {
    fn in_window(&self, time: u64) -> Range<u64> {
        let now = time / self.sub;
        now.saturating_sub(self.subs)..now + 2
    }

    fn counted(&self, time: u64) -> u64 {
        let window = self.in_window(time);
        let part = |oldest: bool| {
            let charges = self.charges.iter().filter(|(to, _)| window.contains(to));
            let is_oldest = |to: u64| to + self.subs == time / self.sub;
            charges.filter(|(to, _)| is_oldest(*to) == oldest).map(|(_, units)| units).sum::<u64>()
        };
        let still_in = if self.smooth { self.sub - time % self.sub } else { self.sub };
        part(false) + (part(true) * still_in).div_ceil(self.sub)
    }

    fn room(&self, time: u64) -> u64 {
        self.limit.saturating_sub(self.counted(time))
    }

    fn charge(&mut self, to: u64, units: u64, time: u64) {
        if self.in_window(time).contains(&to) {
            self.charges.push((to, units));
        }
    }

    fn take_off(&mut self, from: u64, units: u64, time: u64) -> u64 {
        let window = self.in_window(time);
        let mut left = units;
        for (to, units) in &mut self.charges {
            if *to == from && window.contains(to) {
                let off = left.min(*units);
                *units -= off;
                left -= off;
            }
        }
        units - left
    }

    fn carry_out(&mut self, body: &Body, time: u64) -> Answer {
        let (now, head) = (time / self.sub, time / self.sub + 1);
        let created = self.written.is_none_or(|written| written + 1 < self.in_window(time).start);
        let (mut kept, mut granted, mut needed) = (0, 0, 0);
        match body {
            Body::Report(report) => {
                let [used, report_kept, returned, overdraft, need, want] =
                    [report.used, report.kept, report.returned, report.overdraft, report.need, report.want]
                        .map(u64::from);
                let taken = self.take_off(report.lease, used + report_kept + returned, time);
                kept = taken.min(report_kept);
                self.charge(now, used + overdraft, time);
                self.charge(head, kept, time);
                let room = self.room(time);
                if need <= room {
                    granted = want.min(room / 2 + room % 2).max(need);
                }
                self.charge(head, granted, time);
                needed = need;
            }
            Body::Exact { cost } => {
                needed = u64::from(*cost);
                if needed <= self.room(time) {
                    granted = needed;
                    self.charge(now, granted, time);
                }
            }
            Body::Repair(charges) => {
                let mut to_come = 0_u64;
                for (sub_window, units) in charges {
                    let many = units.unsigned_abs();
                    match (*sub_window > head, *units > 0) {
                        (true, true) => to_come += many,
                        (true, false) => to_come = to_come.saturating_sub(many),
                        (false, true) => self.charge(*sub_window, many, time),
                        (false, false) => _ = self.take_off(*sub_window, many, time),
                    }
                }
                self.charge(head, to_come, time);
            }
            _ => {}
        }
        if !matches!(body, Body::Status) {
            self.written = Some(now);
        }
        let needed = if granted > 0 { 1 } else { needed.max(1) };
        Answer {
            kept: kept as u32,
            granted: granted as u32,
            room: self.room(time) as u32,
            retry_after: wait(|wait| self.room(time + wait) >= needed),
            reset_after: wait(|wait| self.counted(time + wait) == 0),
            created,
            failed: false,
        }
    }
}

/// A bucket as a list of what was taken from it, and, below 0, put back.
#[derive(Clone, Debug)]
struct Drops {
    burst: u64,
    units: u64,
    period: u64,
    life: u64,
    /// Time and units.
    drops: Vec<(u64, i64)>,
    /// When it was last written, and what it lacked then.
    written: Option<(u64, u128)>,
}

impl Drops {
    /// The most that was taken since any drop in excess of what came back since, times the period.
    fn lacks(&self, time: u64) -> u128 {
        let mut taken = 0_i128;
        let excess = self.drops.iter().rev().map(|(at, units)| {
            taken += i128::from(*units) * i128::from(self.period);
            taken - i128::from(time - at) * i128::from(self.units)
        });
        excess.max().map_or(0, |excess| excess.max(0).unsigned_abs())
    }

    fn room(&self, time: u64) -> u64 {
        self.burst.saturating_sub(self.lacks(time).div_ceil(self.period.into()).try_into().expect("a small number"))
    }

    fn carry_out(&mut self, body: &Body, time: u64) -> Answer {
        let known = self.written.is_some_and(|(at, lacked)| {
            u128::from(time - at) * u128::from(self.units) < lacked.max(u128::from(self.burst * self.period))
        });
        let (mut kept, mut granted, mut needed) = (0, 0, 0);
        match body {
            Body::Report(report) => {
                kept = report.kept;
                needed = u64::from(report.need);
                if time / self.life <= report.lease {
                    self.drops.push((time, -i64::from(report.returned)));
                }
                self.drops.push((time, i64::from(report.overdraft)));
                let room = self.room(time);
                if needed <= room {
                    granted = u64::from(report.want).min(room / 2 + room % 2).max(needed);
                }
            }
            Body::Exact { cost } => {
                needed = u64::from(*cost);
                granted = if needed <= self.room(time) { needed } else { 0 };
            }
            Body::Repair(charges) => self.drops.push((time, charges.iter().map(|(_, units)| units).sum())),
            _ => {}
        }
        self.drops.push((time, granted as i64));
        if !matches!(body, Body::Status) {
            self.written = Some((time, self.lacks(time)));
        }
        let needed = if granted > 0 { 1 } else { needed.max(1) };
        Answer {
            kept,
            granted: granted as u32,
            room: self.room(time) as u32,
            retry_after: wait(|wait| self.room(time + wait) >= needed),
            reset_after: wait(|wait| self.lacks(time + wait) == 0),
            created: !known,
            failed: false,
        }
    }
}

/// The first wait that is long enough, if all longer ones are; that of a century is never.
fn wait(enough: impl Fn(u64) -> bool) -> u64 {
    let mut waits = 0..1_u64 << 52;
    if !enough(waits.end) {
        return u64::MAX;
    }
    while !waits.is_empty() {
        let middle = waits.start.midpoint(waits.end);
        if enough(middle) { waits.end = middle } else { waits.start = middle + 1 }
    }
    waits.end
}

/// Plays the steps from `start` on, and compares the answers with those of `judge`.
fn play<S: Subject>(subject: S, rule: Rule, start: u64, steps: &[Step], mut judge: impl FnMut(&Body, u64) -> Answer) {
    let mut talk = Talk::new(subject);
    let (mut clock, mut time) = (start, 0);
    let limit = u64::from(rule.limit());
    let mut overdrafts = 0;
    talk.to(start);
    for (index, step) in steps.iter().enumerate() {
        // The authority knows of the time at which it was last spoken to.
        let now = time.max(clock);
        let sub_window = |age: i64| rule.head_at(now).saturating_add_signed(-age);
        let body = match step {
            Step::Wait(wait) => {
                clock += wait;
                talk.to(clock);
                continue;
            }
            Step::Back(back) => {
                clock = clock.saturating_sub(*back);
                talk.to(clock);
                continue;
            }
            Step::Report(age, report) => Body::Report(Report { lease: sub_window(*age), ..*report }),
            Step::Exact(cost) => exact(*cost),
            Step::Status => Body::Status,
            Step::Repair(charges) => {
                Body::Repair(charges.iter().map(|(age, units)| (sub_window(*age), *units)).collect())
            }
        };
        overdrafts += match &body {
            Body::Report(report) => u64::from(report.overdraft) + u64::from(report.used) + u64::from(report.kept),
            Body::Repair(charges) => charges.iter().map(|(_, units)| units.unsigned_abs()).sum(),
            _ => 0,
        };
        time = now;
        let expected = judge(&body, time);
        let answer = talk.say(1, rule, body.clone());
        assert_eq!(answer, expected, "step {index}, {body:?} at {time}");
        assert!(u64::from(talk.counted(rule)) <= limit + overdrafts, "step {index}, {body:?} at {time}");
    }
}

/// Long after the origin, or so early that a window begins before it.
fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..1_000, MIDNIGHT..MIDNIGHT + 1_000]
}

pub(crate) fn a_window_counts_as_a_log_does<S: Subject>(new: impl Fn() -> S) {
    let rules = (1_u64..50, 1_u16..7, 0_u32..40, any::<bool>());
    let inputs = (rules, starts()).prop_flat_map(|((sub, subs, limit, smooth), start)| {
        (Just((sub, subs, limit, smooth)), Just(start), steps(sub, subs, limit))
    });
    run(2_000, inputs, |((sub, subs, limit, smooth), start, steps)| {
        let mut log = Log { limit: limit.into(), sub, subs: subs.into(), smooth, charges: Vec::new(), written: None };
        let rule = Rule::Window { limit, sub, subs, smooth };
        play(new(), rule, start, &steps, |body, time| log.carry_out(body, time));
    });
}

pub(crate) fn a_bucket_counts_as_a_log_does<S: Subject>(new: impl Fn() -> S) {
    let rules = (0_u32..40, 1_u32..20, 1_u64..60);
    let inputs = (rules, starts()).prop_flat_map(|((burst, units, period), start)| {
        (Just((burst, units, period)), Just(start), steps(period, 4, burst))
    });
    run(2_000, inputs, |((burst, units, period), start, steps)| {
        let life = period / 2 + 1;
        let mut drops =
            Drops { burst: burst.into(), units: units.into(), period, life, drops: Vec::new(), written: None };
        let rule = Rule::Bucket { burst, units, period, life };
        play(new(), rule, start, &steps, |body, time| drops.carry_out(body, time));
    });
}

/// What nodes do that keep to the rules, on an authority whose clock does not.
#[derive(Clone, Debug)]
enum Turn {
    Wait(u64),
    /// Moves the clock of the authority back.
    Back(u64),
    Ask {
        node: usize,
        need: u32,
        want: u32,
    },
    Spend {
        node: usize,
        units: u32,
    },
    Report {
        node: usize,
        kept: u32,
        overdraft: u32,
        want: u32,
    },
    Exact(u32),
}

fn turns(limit: u32) -> impl Strategy<Value = Vec<Turn>> {
    let (node, units) = (|| 0_usize..3, || 0..=limit);
    let turn = prop_oneof![
        4 => (0..SECOND).prop_map(Turn::Wait),
        2 => (0..3 * SECOND).prop_map(Turn::Wait),
        1 => (0..8 * SECOND).prop_map(Turn::Back),
        1 => (5 * SECOND..100 * SECOND).prop_map(Turn::Back),
        3 => (node(), units(), units()).prop_map(|(node, need, want)| Turn::Ask { node, need, want }),
        6 => (node(), units()).prop_map(|(node, units)| Turn::Spend { node, units }),
        4 => (node(), units(), 0_u32..3, units())
            .prop_map(|(node, kept, overdraft, want)| Turn::Report { node, kept, overdraft: overdraft / 2, want }),
        3 => units().prop_map(Turn::Exact),
    ];
    prop::collection::vec(turn, 1..80)
}

/// Units that a node may spend, and has spent.
#[derive(Clone, Copy, Default, Debug)]
struct Lease {
    sub_window: u64,
    until: u64,
    left: u32,
    used: u32,
}

/// Nodes with their leases, in real time.
struct Fleet<S> {
    talk: Talk<S>,
    rule: Rule,
    now: u64,
    leases: [Lease; 3],
    /// Units that were charged whether they fit or not: overdrafts, and what was used of a lease that is forgotten.
    beyond: u32,
    /// When units were spent, and how many.
    spent: Vec<(u64, u32)>,
}

impl<S: Subject> Fleet<S> {
    fn spend(&mut self, node: usize, units: u32) {
        let lease = &mut self.leases[node];
        if self.now < lease.until {
            let units = units.min(lease.left);
            lease.left -= units;
            lease.used += units;
            self.spent.push((self.now, units));
        }
    }

    /// Reports what was used of a lease, and takes the answer over. The rest of what was not kept is returned.
    fn report(&mut self, node: usize, said: Report) {
        let (lease, now) = (&mut self.leases[node], self.now);
        // One that is over has nothing to keep.
        let kept = if now < lease.until { said.kept.min(lease.left) } else { 0 };
        let said = Report { lease: lease.sub_window, used: lease.used, kept, returned: lease.left - kept, ..said };
        let reply = self.talk.tell(node as u64, vec![Record { name: KEY, rule: self.rule, body: Body::Report(said) }]);
        let Reply::Done { time, answers, .. } = reply else { panic!("{reply:?}") };
        let Rule::Window { sub, subs, .. } = self.rule else { panic!("{:?}", self.rule) };
        self.beyond += said.overdraft + if time / sub > lease.sub_window + u64::from(subs) { said.used } else { 0 };
        let left = answers[0].kept + answers[0].granted;
        let (sub_window, until) = (self.rule.head_at(time), now + self.rule.life_at(time));
        *lease = Lease { sub_window, until, left, used: 0 };
    }

    /// What was spent in any window, but for overdrafts.
    fn most_in(&self, length: u64) -> u32 {
        let up_to = |end: u64| {
            let spent = self.spent.iter().filter(|(at, _)| *at <= end && end < at + length);
            spent.map(|(_, units)| units).sum()
        };
        self.spent.iter().map(|(end, _)| up_to(*end)).max().unwrap_or(0)
    }
}

pub(crate) fn no_window_in_real_time_holds_more_than_the_limit<S: Subject>(new: impl Fn() -> S) {
    let inputs = (1_u32..30, 1_u16..6, 0..SECOND)
        .prop_flat_map(|(limit, subs, part)| (Just(limit), Just(subs), Just(part), turns(limit)));
    run(3_000, inputs, |(limit, subs, part, turns)| {
        let (talk, rule, now) = (Talk::new(new()), window(limit, subs), MIDNIGHT + part);
        let mut fleet = Fleet { talk, rule, now, leases: Default::default(), beyond: 0, spent: Vec::new() };
        let mut behind = 0;
        for turn in turns {
            fleet.talk.to(fleet.now - behind);
            match turn {
                Turn::Wait(wait) => fleet.now += wait,
                Turn::Back(back) => behind += back,
                Turn::Exact(cost) => {
                    let granted = fleet.talk.say(9, rule, exact(cost)).granted;
                    fleet.spent.push((fleet.now, granted));
                }
                Turn::Spend { node, units } => fleet.spend(node, units),
                Turn::Ask { node, need, want } => {
                    fleet.report(node, Report { kept: limit, need, want, ..Report::default() });
                }
                Turn::Report { node, kept, overdraft, want } => {
                    fleet.report(node, Report { kept, overdraft, want, ..Report::default() });
                }
            }
            // A lease that is dated by another clock is counted until it is forgotten, and what was used of it as well.
            if behind == 0 {
                assert!(fleet.talk.counted(rule) <= limit + fleet.beyond, "{} beyond the limit", fleet.beyond);
            }
        }
        assert!(fleet.most_in(u64::from(subs) * SECOND) <= limit, "{:?}", fleet.spent);
    });
}

pub(crate) fn any_batch_is_answered<S: Subject>(new: impl Fn() -> S) {
    let number = || prop_oneof![0_u64..4, (0_u64..4).prop_map(|less| u64::MAX - less), any::<u64>()];
    let units = || prop_oneof![0_u32..4, Just(u32::MAX), any::<u32>()];
    let subs = || prop_oneof![20 => 0_u16..5, 1 => any::<u16>()];
    let windows = (units(), number(), subs(), any::<bool>()).prop_map(|(limit, sub, subs, smooth)| Rule::Window {
        limit,
        sub,
        subs,
        smooth,
    });
    let buckets = (units(), units(), number(), number()).prop_map(|(burst, units, period, life)| Rule::Bucket {
        burst,
        units,
        period,
        life,
    });
    let reports = (number(), (units(), units(), units()), (units(), units(), units())).prop_map(
        |(lease, (used, kept, returned), (overdraft, need, want))| {
            Body::Report(Report { lease, used, kept, returned, overdraft, need, want })
        },
    );
    let change = prop_oneof![-3..3_i64, Just(i64::MIN), Just(i64::MAX), any::<i64>()];
    let bodies = prop_oneof![
        reports,
        units().prop_map(exact),
        Just(Body::Status),
        prop::collection::vec((number(), change), 0..5).prop_map(Body::Repair),
    ];
    // The same few rules come again, so that there is something to go on with.
    let rules = prop::collection::vec(prop_oneof![windows, buckets], 1..3);
    let record = (0_u128..3, any::<prop::sample::Index>(), bodies);
    let batch = (0_u64..3, 0_u16..2, number(), prop::option::of(number()), prop::collection::vec(record, 0..4));
    let inputs = (rules, prop::collection::vec((number(), batch), 1..20));
    run(5_000, inputs, |(rules, batches)| {
        let mut subject = new();
        for (time, (node, shard, number, after, records)) in batches {
            subject.at(time);
            let records = records.into_iter().map(|(name, rule, body)| {
                let rule = rules[rule.index(rules.len())];
                Record { name: WireName(name), rule, body }
            });
            let batch = Batch { node, shard, number, after, records: records.collect() };
            let reply = subject.apply(&batch);
            if matches!(reply, Reply::Done { .. }) {
                assert_eq!(subject.apply(&batch), reply);
            }
        }
    });
}
