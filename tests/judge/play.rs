//! Plays scripts on limiters and has the books judge each answer.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use tollgate::{
    Allow, BuildError, Check, Clock, CoarseClock, Decision, Deny, DirectLimiter, Fixed, InFlight, Limiter, Now,
    PlanLimiter, Quota, Sharded, Stores, TestClock, Unit,
};

use super::ledger::Moment;
use super::model::{Books, OVERFLOW, cost_of};
use super::script::{Costs, NAMES, PolicySpec, Script, Spread, Step, Store, Time};

/// The latest instant that a script moves to: 300 days, before any clock ends.
const END: u64 = 300 * 86_400 * 1_000_000_000;

/// The age that a step of a coarse clock may have and still counts in full.
const LONGEST: Duration = Duration::MAX;

/// The front doors that a script uses. `at` is given where the script brings its own instants.
trait Subject {
    fn take(&self, key: u64, plan: Option<usize>, costs: Costs, at: Option<Now>) -> Decision;
    fn peek(&self, key: u64, plan: Option<usize>, costs: Costs, at: Option<Now>) -> Decision;
    fn batch(&self, keys: &[u64], at: Option<Now>) -> Vec<bool>;
    fn enter(&self, key: u64, plan: Option<usize>, costs: Costs, at: Option<Now>) -> Option<Result<InFlight, Deny>>;
    fn refund(&self, key: u64, allow: Allow, at: Option<Now>);
    /// `None` where there is no such thing.
    fn reset(&self, key: u64) -> Option<bool>;
    fn reload(&self, policy: &PolicySpec, at: Option<Now>) -> Option<Result<(), BuildError>>;
    fn move_use(&self, key: u64, from: usize, to: usize, at: Option<Now>) -> Option<bool>;
    /// Checks that were decided in overflow.
    fn overflow(&self) -> u64;
}

fn by_unit((requests, tokens): Costs) -> [(Unit, u64); 2] {
    [(Unit::REQUESTS, requests), (Unit::TOKENS, tokens)]
}

/// A limiter, and a handle for a plan that is not the default.
struct Keyed<T: Stores<u64, Spread>> {
    limiter: Limiter<u64, Spread, T>,
}

impl<T: Stores<u64, Spread>> Keyed<T> {
    fn plan(&self, plan: usize) -> Option<PlanLimiter<u64, Spread, T>> {
        self.limiter.plan(NAMES[plan]).ok()
    }
}

impl<T: Stores<u64, Spread>> Subject for Keyed<T> {
    fn take(&self, key: u64, plan: Option<usize>, costs: Costs, at: Option<Now>) -> Decision {
        let limiter = &self.limiter;
        match (plan.and_then(|plan| self.plan(plan)), costs, at) {
            (None, (1, 0), None) => limiter.check(&key),
            (None, (1, 0), Some(at)) => limiter.check_at(&key, at),
            (None, (cost, 0), None) => limiter.check_cost(&key, cost),
            (None, (cost, 0), Some(at)) => limiter.check_cost_at(&key, cost, at),
            (None, costs, None) => limiter.check_costs(&key, &by_unit(costs)),
            (None, costs, Some(at)) => limiter.check_costs_at(&key, &by_unit(costs), at),
            (Some(plan), (cost, 0), None) => plan.check_cost(&key, cost),
            (Some(plan), (cost, 0), Some(at)) => plan.check_cost_at(&key, cost, at),
            (Some(plan), costs, None) => plan.check_costs(&key, &by_unit(costs)),
            (Some(plan), costs, Some(at)) => plan.check_costs_at(&key, &by_unit(costs), at),
        }
    }

    fn peek(&self, key: u64, plan: Option<usize>, costs: Costs, at: Option<Now>) -> Decision {
        let costs = by_unit(costs);
        match (plan.and_then(|plan| self.plan(plan)), at) {
            (None, None) => self.limiter.peek_costs(&key, &costs),
            (None, Some(at)) => self.limiter.peek_costs_at(&key, &costs, at),
            (Some(plan), None) => plan.peek_costs(&key, &costs),
            (Some(plan), Some(at)) => plan.peek_costs_at(&key, &costs, at),
        }
    }

    fn batch(&self, keys: &[u64], at: Option<Now>) -> Vec<bool> {
        let mut checks: Vec<_> = keys.iter().map(Check::new).collect();
        match at {
            None => self.limiter.check_many(&mut checks),
            Some(at) => self.limiter.check_many_at(&mut checks, at),
        }
        checks.iter().map(Check::is_allowed).collect()
    }

    fn enter(&self, key: u64, plan: Option<usize>, costs: Costs, at: Option<Now>) -> Option<Result<InFlight, Deny>> {
        let costs = by_unit(costs);
        Some(match (plan.and_then(|plan| self.plan(plan)), at) {
            (None, None) => self.limiter.enter_costs(&key, &costs),
            (None, Some(at)) => self.limiter.enter_costs_at(&key, &costs, at),
            (Some(plan), None) => plan.enter_costs(&key, &costs),
            (Some(plan), Some(at)) => plan.enter_costs_at(&key, &costs, at),
        })
    }

    fn refund(&self, key: u64, allow: Allow, at: Option<Now>) {
        match at {
            None => self.limiter.refund(&key, allow),
            Some(at) => self.limiter.refund_at(&key, allow, at),
        }
    }

    fn reset(&self, key: u64) -> Option<bool> {
        Some(self.limiter.reset(&key))
    }

    fn reload(&self, policy: &PolicySpec, at: Option<Now>) -> Option<Result<(), BuildError>> {
        Some(match at {
            None => self.limiter.reload(policy.policy()),
            Some(at) => self.limiter.reload_at(policy.policy(), at),
        })
    }

    fn move_use(&self, key: u64, from: usize, to: usize, at: Option<Now>) -> Option<bool> {
        match at {
            None => self.limiter.move_plan(&key, NAMES[from], NAMES[to]).ok(),
            Some(at) => self.limiter.move_plan_at(&key, NAMES[from], NAMES[to], at).ok(),
        }
    }

    fn overflow(&self) -> u64 {
        self.limiter.stats().overflow
    }
}

/// A limiter of one bucket, of one quota.
struct Direct {
    limiter: DirectLimiter,
    quota: Quota,
}

impl Subject for Direct {
    fn take(&self, _: u64, _: Option<usize>, costs: Costs, at: Option<Now>) -> Decision {
        match (cost_of(&self.quota, costs), at) {
            (1, None) => self.limiter.check(),
            (1, Some(at)) => self.limiter.check_at(at),
            (cost, None) => self.limiter.check_cost(cost),
            (cost, Some(at)) => self.limiter.check_cost_at(cost, at),
        }
    }

    fn peek(&self, _: u64, _: Option<usize>, costs: Costs, at: Option<Now>) -> Decision {
        match (cost_of(&self.quota, costs), at) {
            (cost, None) => self.limiter.peek_cost(cost),
            (cost, Some(at)) => self.limiter.peek_cost_at(cost, at),
        }
    }

    fn batch(&self, _: &[u64], _: Option<Now>) -> Vec<bool> {
        Vec::new()
    }

    fn enter(&self, _: u64, _: Option<usize>, _: Costs, _: Option<Now>) -> Option<Result<InFlight, Deny>> {
        None
    }

    fn refund(&self, _: u64, allow: Allow, at: Option<Now>) {
        match at {
            None => self.limiter.refund(allow),
            Some(at) => self.limiter.refund_at(allow, at),
        }
    }

    fn reset(&self, _: u64) -> Option<bool> {
        None
    }

    fn reload(&self, _: &PolicySpec, _: Option<Now>) -> Option<Result<(), BuildError>> {
        None
    }

    fn move_use(&self, _: u64, _: usize, _: usize, _: Option<Now>) -> Option<bool> {
        None
    }

    fn overflow(&self) -> u64 {
        0
    }
}

fn subject(script: &Script, clock: Clock) -> Result<Box<dyn Subject>, BuildError> {
    let plans = || script.policies.iter().flat_map(|policy| policy.plans.iter().flatten());
    let builder = Limiter::builder().keys::<u64>().hasher(Spread(script.hashes)).policy(script.policies[0].policy());
    Ok(match script.store {
        Store::Sharded { max_keys } => {
            let limiter: Limiter<_, _, Sharded> = builder.clock(clock).shards(2).max_keys(max_keys).build()?;
            Box::new(Keyed { limiter })
        }
        Store::Fixed { keys } => {
            let quotas = plans().map(|plan| plan.quotas.len()).max().unwrap_or(1);
            let in_flight = plans().any(|plan| plan.in_flight.is_some());
            let fixed = builder.clock(clock).fixed(keys).room_for(quotas, in_flight);
            let limiter: Limiter<_, _, Fixed> = fixed.build()?;
            Box::new(Keyed { limiter })
        }
        Store::Direct => {
            let quota = script.policies[0].plans[0].as_ref().map_or(Quota::per_second(1), |plan| plan.quotas[0]);
            Box::new(Direct { limiter: DirectLimiter::with_clock(quota, clock)?, quota })
        }
    })
}

/// A limiter with its books.
struct Side {
    subject: Box<dyn Subject>,
    books: Books,
}

/// An allow that is held.
struct Held {
    allow: Allow,
    id: u64,
    on: usize,
    key: u64,
    in_overflow: bool,
}

/// A request in flight.
struct Guard {
    on: usize,
    id: u64,
    /// Gives its place back when it is dropped.
    guard: InFlight,
}

/// The clocks of a script.
struct Watch {
    time: Time,
    test: TestClock,
    clock: Clock,
    /// The time of the clock, in nanoseconds.
    now: u64,
    /// The sum of its steps forwards.
    way: u64,
    /// The same when it was published last.
    published: u64,
    /// By how much it may still be set back where it is the limiter's own.
    back: u64,
}

/// A limiter's own clock that is back by more than a second goes on from where it was, which the way does not tell. So it is
/// set back by less in all; instants of the caller are set back by any step.
const BACK: u64 = 900_000_000;

impl Watch {
    fn new(time: Time) -> Self {
        let test = TestClock::new();
        let clock = match time {
            Time::Given | Time::Clock => test.clock(),
            Time::Coarse => CoarseClock::new().of(test.clock()).max_step(LONGEST).by_hand().expect("options in range"),
        };
        Self { time, test, clock, now: 0, way: 0, published: 0, back: BACK }
    }

    fn set(&mut self, now: u64) {
        self.way += now.saturating_sub(self.now);
        self.now = now;
        self.test.set(Duration::from_nanos(now));
    }

    fn given(&self) -> Option<Now> {
        let given = || Now::since_origin(Duration::from_nanos(self.now)).expect("scripts end before the last instant");
        (self.time == Time::Given).then(given)
    }

    /// Returns the interval of the instant that a check goes by.
    const fn of_check(&self) -> Moment {
        match self.time {
            Time::Coarse => Moment { lo: self.published, hi: self.way },
            Time::Given | Time::Clock => Moment::exact(self.way),
        }
    }
}

struct Court {
    sides: Vec<Side>,
    watch: Watch,
    held: BTreeMap<u32, Vec<Held>>,
    guards: BTreeMap<u32, Vec<Guard>>,
    takes: u64,
    is_crowded: bool,
    /// The answers so far, if they are to be kept.
    log: Option<Vec<String>>,
}

/// A limiter, a key, a plan and the costs of a request.
#[derive(Clone, Copy)]
struct Request {
    on: usize,
    key: u64,
    plan: usize,
    costs: Costs,
}

impl Court {
    /// Runs `ask`, and says whether it was decided in overflow.
    fn watched<R>(&mut self, on: usize, ask: impl FnOnce(&dyn Subject) -> R) -> (R, bool) {
        let Self { sides, is_crowded, .. } = self;
        let Side { subject, books } = &mut sides[on];
        if !*is_crowded {
            return (ask(&**subject), false);
        }
        let before = subject.overflow();
        let answer = ask(&**subject);
        let in_overflow = subject.overflow() > before;
        if in_overflow {
            books.overflow();
        }
        (answer, in_overflow)
    }

    /// Whether the books may take an admission for one of the overflow. On a coarse clock a check
    /// may be denied there, and then be admitted to a place of its own.
    fn is_shared(&self, in_overflow: bool) -> bool {
        in_overflow && self.watch.time != Time::Coarse
    }

    fn note(&mut self, request: Request, what: &str, in_overflow: bool) {
        let (now, way) = (self.watch.now, self.watch.way);
        if let Some(log) = &mut self.log {
            let Request { on, key, plan, costs } = request;
            let place = if in_overflow { " in overflow" } else { "" };
            log.push(format!("{now} ns (way {way}): {what}{place}: {costs:?} of key {key}, plan {plan}, limiter {on}"));
        }
    }

    /// The plan as the books know it, and as it is named in the call.
    fn plan(&self, on: usize, plan: usize) -> (usize, Option<usize>) {
        let effective = self.sides[on].books.policy().effective(plan);
        (effective, Some(effective).filter(|plan| *plan > 0))
    }

    fn take(&mut self, request: Request) -> Result<Option<Held>, String> {
        let Request { on, key, plan, costs } = request;
        let (plan, named) = self.plan(on, plan);
        let (at, given) = (self.watch.of_check(), self.watch.given());
        let (decision, in_overflow) = self.watched(on, |subject| subject.take(key, named, costs, given));
        let shared = self.is_shared(in_overflow);
        self.note(request, if decision.is_allowed() { "admitted" } else { "denied" }, in_overflow);
        let books = &mut self.sides[on].books;
        match decision {
            Decision::Deny(_) => books.deny((key, plan), costs, false, at.hi).map(|()| None),
            Decision::Allow(allow) => {
                self.takes += 1;
                books.admit((key, plan), costs, self.takes, at, shared)?;
                Ok(Some(Held { allow, id: self.takes, on, key, in_overflow }))
            }
        }
    }

    fn enter(&mut self, request: Request, tag: u32) -> Result<(), String> {
        let Request { on, key, plan, costs } = request;
        let (plan, named) = self.plan(on, plan);
        let (at, given) = (self.watch.of_check(), self.watch.given());
        let (entered, in_overflow) = self.watched(on, |subject| subject.enter(key, named, costs, given));
        let shared = self.is_shared(in_overflow);
        self.note(request, if matches!(entered, Some(Ok(_))) { "entered" } else { "not entered" }, in_overflow);
        let books = &mut self.sides[on].books;
        match entered {
            None => Ok(()),
            Some(Err(_)) => books.deny((key, plan), costs, true, at.hi),
            Some(Ok(mut guard)) => {
                self.takes += 1;
                let id = self.takes;
                books.admit((key, plan), costs, id, at, shared)?;
                books.enter(id, (key, plan))?;
                let allow = guard.take_allow();
                self.held.entry(tag).or_default().push(Held { allow, id, on, key, in_overflow });
                self.guards.entry(tag).or_default().push(Guard { on, id, guard });
                Ok(())
            }
        }
    }

    /// Gives `held` back to the limiter `on` and the key `key`.
    fn give_back(&mut self, held: Held, on: usize, key: u64) {
        let given = self.watch.given();
        self.sides[on].subject.refund(key, held.allow, given);
        if on != held.on {
            return;
        }
        // The bucket that all share knows no keys: an allow of it is given back under any.
        if key == held.key || held.in_overflow {
            self.sides[on].books.give_back(&[held.key, OVERFLOW], held.id);
        }
    }

    fn step(&mut self, script: &Script, step: &Step) -> Result<(), String> {
        match step.of_store(script.store) {
            Step::Forward(nanos) => self.watch.set(self.watch.now.saturating_add(nanos).min(END)),
            Step::Back(nanos) => {
                let step = match self.watch.time {
                    Time::Given => nanos,
                    Time::Clock => nanos.min(self.watch.back),
                    Time::Coarse => 0,
                };
                self.watch.back -= step.min(self.watch.back);
                self.watch.set(self.watch.now.saturating_sub(step));
            }
            Step::Publish => {
                self.watch.clock.publish();
                self.watch.published = self.watch.way;
            }
            Step::Take { on, key, plan, costs, tag } => {
                if let Some(held) = self.take(Request { on, key, plan, costs })? {
                    self.held.entry(tag).or_default().push(held);
                }
            }
            Step::Drain { on, key, plan } => {
                let limit = self.sides[on]
                    .books
                    .policy()
                    .plan(self.plan(on, plan).0)
                    .map_or(1, |plan| plan.quotas.iter().map(Quota::limit).min().unwrap_or(1));
                let counts_tokens = self.sides[on].books.policy().counts_tokens();
                let mut cost = limit.next_power_of_two();
                // Each cost is halved when it is denied. A time that never stops refilling is not
                // worth more tries.
                for _ in 0..200 {
                    let costs = (cost, if counts_tokens { cost } else { 0 });
                    if cost > 0 && self.take(Request { on, key, plan, costs })?.is_none() {
                        cost /= 2;
                    }
                }
            }
            Step::Batch { on, keys } => {
                let (at, given) = (self.watch.of_check(), self.watch.given());
                for key in &keys {
                    // One by one, so that each is known to be in overflow or not.
                    let (answers, in_overflow) = self.watched(on, |subject| subject.batch(&[*key], given));
                    let shared = self.is_shared(in_overflow);
                    let books = &mut self.sides[on].books;
                    match answers.first() {
                        None => {}
                        Some(false) => books.deny((*key, 0), (1, 0), false, at.hi)?,
                        Some(true) => {
                            self.takes += 1;
                            books.admit((*key, 0), (1, 0), self.takes, at, shared)?;
                        }
                    }
                }
            }
            Step::Cycle { on, key, plan, costs, times } => {
                let log = self.log.take();
                for _ in 0..times {
                    if let Some(held) = self.take(Request { on, key, plan, costs })? {
                        self.give_back(held, on, key);
                    }
                }
                self.log = log;
                self.note(Request { on, key, plan, costs }, "taken and given back", false);
            }
            Step::Enter { on, key, plan, costs, tag } => self.enter(Request { on, key, plan, costs }, tag)?,
            Step::Leave { tag } => {
                if let Some(Guard { on, id, guard }) = self.guards.get_mut(&tag).and_then(Vec::pop) {
                    drop(guard);
                    self.sides[on].books.leave(id);
                }
            }
            Step::Refund { tag } => {
                if let Some(held) = self.held.get_mut(&tag).and_then(Vec::pop) {
                    let (on, key) = (held.on, held.key);
                    self.give_back(held, on, key);
                }
            }
            Step::Misdirect { tag, on, key } => {
                if let Some(held) = self.held.get_mut(&tag).and_then(Vec::pop) {
                    self.give_back(held, on, key);
                }
            }
            Step::RefundPeek { on, key, plan, costs } => {
                let (named, given) = (self.plan(on, plan).1, self.watch.given());
                let subject = &self.sides[on].subject;
                if let Decision::Allow(allow) = subject.peek(key, named, costs, given) {
                    subject.refund(key, allow, given);
                }
            }
            Step::Reset { on, key } => {
                let Side { subject, books } = &mut self.sides[on];
                if let Some(was_known) = subject.reset(key) {
                    books.reset(key, was_known);
                }
            }
            Step::Reload { on, policy } => {
                let (policy, given) = (&script.policies[policy], self.watch.given());
                let Side { subject, books } = &mut self.sides[on];
                match subject.reload(policy, given) {
                    None => {}
                    Some(Ok(())) => books.reload(policy, self.watch.way),
                    Some(Err(error)) => return Err(format!("{error}: {policy:?}")),
                }
            }
            Step::Move { on, key, from, to } => {
                let given = self.watch.given();
                let Side { subject, books } = &mut self.sides[on];
                if let Some(moved) = subject.move_use(key, from, to, given) {
                    books.move_use(key, (from, to), self.watch.way, moved)?;
                }
            }
        }
        Ok(())
    }
}

/// Plays `script`.
///
/// # Errors
///
/// The first fault, with the step that showed it.
pub(crate) fn play(script: &Script) -> Result<(), Fault> {
    play_logged(script, &mut None)
}

/// The same, and notes each answer.
fn play_logged(script: &Script, log: &mut Option<Vec<String>>) -> Result<(), Fault> {
    let watch = Watch::new(script.time);
    let is_fixed = matches!(script.store, Store::Fixed { .. });
    let judges_denials = script.is_roomy() && script.time != Time::Coarse && !script.goes_back();
    let mut sides = Vec::new();
    for _ in 0..script.limiters {
        let subject = subject(script, watch.clock.clone()).map_err(|error| Fault::new(0, error.to_string()))?;
        sides.push(Side { subject, books: Books::new(&script.policies[0], is_fixed, judges_denials) });
    }
    let (held, guards, is_crowded) = (BTreeMap::new(), BTreeMap::new(), !script.is_roomy());
    let mut court = Court { sides, watch, held, guards, takes: 0, is_crowded, log: log.take() };
    let steps = script.steps.iter().enumerate();
    let result = steps
        .map(|(number, step)| court.step(script, step).map_err(|what| Fault::new(number, what)))
        .find(Result::is_err)
        .unwrap_or(Ok(()));
    *log = court.log.take();
    result
}

/// A rule that was broken, and where.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// The step.
    pub(crate) step: usize,
    pub(crate) what: String,
}

impl Fault {
    const fn new(step: usize, what: String) -> Self {
        Self { step, what }
    }
}

/// The same, where a panic of the library is a fault too.
pub(crate) fn play_safely(script: &Script) -> Result<(), Fault> {
    panic::catch_unwind(AssertUnwindSafe(|| play(script))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Fault::new(script.steps.len(), format!("panic: {}", text.unwrap_or_default())))
    })
}

/// Leaves out what the fault does not need: steps, and times of cycles.
pub(crate) fn shrink(script: &Script, fault: Fault) -> (Script, Fault) {
    let (mut script, mut fault) = (script.clone(), fault);
    script.steps.truncate(fault.step + 1);
    let mut tries = 3_000;
    let mut size = script.steps.len().max(1) / 2;
    while size > 0 && tries > 0 {
        let (mut start, mut has_shrunk) = (0, false);
        while start < script.steps.len() && tries > 0 {
            let mut shorter = script.clone();
            shorter.steps.drain(start..(start + size).min(shorter.steps.len()));
            tries -= 1;
            match play_safely(&shorter) {
                Err(other) => {
                    shorter.steps.truncate(other.step + 1);
                    (script, fault, has_shrunk) = (shorter, other, true);
                }
                Ok(()) => start += size,
            }
        }
        if !has_shrunk || size > 1 {
            size /= 2;
        }
    }
    for number in 0..script.steps.len() {
        while let Some(Step::Cycle { times: 2.., .. }) = script.steps.get(number) {
            let mut shorter = script.clone();
            if let Step::Cycle { times, .. } = &mut shorter.steps[number] {
                *times /= 2;
            }
            let Err(other) = play_safely(&shorter) else { break };
            (script, fault) = (shorter, other);
        }
    }
    (script, fault)
}

/// Returns the answers to the steps of `script`, one a line.
pub(crate) fn answers(script: &Script) -> String {
    let mut log = Some(Vec::new());
    let played = panic::catch_unwind(AssertUnwindSafe(|| play_logged(script, &mut log).is_ok()));
    let lines = log.unwrap_or_default();
    // The last ones tell of the fault.
    let skipped = lines.len().saturating_sub(40);
    let fails = if matches!(played, Ok(true)) { "It does not fail again.\n" } else { "" };
    format!("{fails}{}", lines[skipped..].join("\n"))
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, time, limiters, policies, steps, hashes } = self;
        writeln!(f, "{store:?}, {time:?}, {limiters} limiters, hashes {hashes:#x}")?;
        for (number, PolicySpec { plans }) in policies.iter().enumerate() {
            for (name, plan) in NAMES.iter().zip(plans) {
                let Some(plan) = plan else { continue };
                write!(f, "  policy {number}, plan {name}:")?;
                for quota in &plan.quotas {
                    write!(f, " [{}: {quota}]", quota.name())?;
                }
                writeln!(f, "{}", plan.in_flight.map_or(String::new(), |limit| format!(" {limit} in flight")))?;
            }
        }
        steps.iter().enumerate().try_for_each(|(number, step)| writeln!(f, "  {number:3} {step:?}"))
    }
}
