//! Threads, judged by what is true in any order that racing calls may have had.
//!
//! - A reset that races a take: the take comes before it and is wiped, and then can't be given
//!   back; or it comes after. Either way, what is admitted after both is at most a burst, but for
//!   what the refund of a take *after* the reset makes room for.
//! - A refund that races an eviction, or a reset: the key starts anew with one burst, and so does
//!   the key that comes in its place. Whatever the order, no key is admitted more than a burst at
//!   one instant.
//! - A newcomer that races a reload: a key that used units keeps them, up to the new burst, on
//!   either side of the reload.
//! - Phases: all calls of a phase are at one instant. When it is over, what was admitted and not
//!   given back has to be within the bound in each window of phases. Which take came before which
//!   refund is not asked.
//! - A guard counts from after its `enter` until before its drop, so that those that are counted
//!   are at most those that the limiter knows.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::{Allow, Decision, Fixed, Limiter, Now, Plan, Policy, Quota, Sharded, Stores};

use super::chance::{Chance, mix};
use super::ledger::{Ledger, Moment};
use super::script::Spread;

type Keyed<T> = Limiter<u64, Spread, T>;

fn at(nanos: u64) -> Now {
    Now::since_origin(Duration::from_nanos(nanos)).unwrap()
}

const SECOND: u64 = 1_000_000_000;

/// A plan of `first` and of more quotas that never deny before it.
fn plan(first: Quota, quotas: usize) -> Plan {
    let names = ["second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"];
    Plan::new([first].into_iter().chain(names.iter().take(quotas - 1).map(|name| first.named(name))))
}

fn sharded(plan: Plan, hashes: u64, max_keys: u64) -> Keyed<Sharded> {
    let builder = Limiter::builder().keys::<u64>().hasher(Spread(hashes)).plan("default", plan);
    builder.shards(2).max_keys(max_keys).build().unwrap()
}

fn fixed(plan: Plan, hashes: u64, keys: u64) -> Keyed<Fixed> {
    Limiter::builder().keys::<u64>().hasher(Spread(hashes)).plan("default", plan).fixed(keys).build().unwrap()
}

/// Takes single units of `key` until one is denied, and returns their number, at most 1,000.
fn drain<T: Stores<u64, Spread>>(limiter: &Keyed<T>, key: u64, now: Now) -> u64 {
    (0..1_000).take_while(|_| limiter.check_at(&key, now).is_allowed()).count() as u64
}

fn allow(decision: Decision) -> Option<Allow> {
    match decision {
        Decision::Allow(allow) => Some(allow),
        Decision::Deny(_) => None,
    }
}

/// Passes up to some hundred cycles, another number in each round, so that two calls meet at
/// different places.
fn linger(round: u64, salt: u64) {
    // No `spin_loop`: one takes as long as half a call.
    (0..mix(round ^ salt << 56) % 256).for_each(|spin| _ = std::hint::black_box(spin));
}

fn wait_until(counter: &AtomicU64, least: u64) {
    let mut spins = 0_u32;
    while counter.load(SeqCst) < least {
        spins += 1;
        if spins.is_multiple_of(1_024) { thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// The number of rounds, and the time that they may take.
type Rounds = (u64, Duration);

/// Rounds in which two threads meet.
const MEETING: u64 = 32;

/// Rounds of two threads: `before` of [`MEETING`] rounds, then `one` and `other` of each at once,
/// then `after`, which says what is wrong. It ends after so many rounds, or when the time is up.
///
/// Within a meeting, each thread waits for the other before a round, but not for long: a machine
/// that is busy runs one of them only, and handing over takes longer than a call.
///
/// Returns the first fault and its round.
fn duel<A>(
    (rounds, within): Rounds,
    mut before: impl FnMut(u64),
    one: impl Fn(u64) -> A,
    other: impl Fn(u64) + Sync,
    mut after: impl FnMut(u64, A) -> Result<(), String>,
) -> Result<(), (u64, String)> {
    let (begun, is_over, start) = (AtomicU64::new(0), AtomicBool::new(false), Instant::now());
    let [done_one, done_other] = [const { AtomicU64::new(0) }; 2];
    let catch_up = |round: u64, with: &AtomicU64| {
        (0..2_000).take_while(|_| with.load(SeqCst) < round).for_each(|_| ());
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                wait_until(&begun, round + 1);
                if is_over.load(SeqCst) {
                    return;
                }
                catch_up(round, &done_one);
                linger(round, 1);
                other(round);
                done_other.store(round + 1, SeqCst);
            }
        });
        let mut result = Ok(());
        for first in (0..rounds).step_by(MEETING as usize) {
            let meeting = first..first + MEETING;
            meeting.clone().for_each(&mut before);
            begun.store(meeting.end, SeqCst);
            let mut answers = Vec::new();
            for round in meeting.clone() {
                catch_up(round, &done_other);
                linger(round, 2);
                answers.push(one(round));
                done_one.store(round + 1, SeqCst);
            }
            wait_until(&done_other, meeting.end);
            result = meeting
                .zip(answers)
                .try_for_each(|(round, answer)| after(round, answer).map_err(|fault| (round, fault)));
            if result.is_err() || start.elapsed() > within {
                break;
            }
        }
        is_over.store(true, SeqCst);
        begun.store(u64::MAX, SeqCst);
        result
    })
}

fn assert_none(what: &str, found: Result<(), (u64, String)>) {
    if let Err((round, fault)) = found {
        panic!("{what}, round {round}: {fault}");
    }
}

/// A reset against a take of 3 of 5 that never come back; then all is used, the 3 are given back,
/// and all is used again.
fn reset_against_take<T: Stores<u64, Spread>>(limiter: &Keyed<T>, rounds: Rounds) -> Result<(), (u64, String)> {
    let now = at(0);
    duel(
        rounds,
        // So that the key is known, mostly with a unit used.
        |key| _ = limiter.check_cost_at(&key, key % 3, now).is_allowed(),
        |key| allow(limiter.check_cost_at(&key, 3, now)),
        |key| _ = limiter.reset(&key),
        |key, allow| {
            let first = drain(limiter, key, now);
            if let Some(allow) = allow {
                limiter.refund_at(&key, allow, now);
            }
            let second = drain(limiter, key, now);
            // Both are since the reset, and what was given back is among neither.
            match first + second {
                6.. => Err(format!("{first} units, and {second} more after the refund, of 5")),
                _ => Ok(()),
            }
        },
    )
}

/// A reset against the refund of all that was used.
fn reset_against_refund<T: Stores<u64, Spread>>(limiter: &Keyed<T>, rounds: Rounds) -> Result<(), (u64, String)> {
    let (now, held) = (at(0), RefCell::new(BTreeMap::new()));
    duel(
        rounds,
        |key| _ = held.borrow_mut().insert(key, allow(limiter.check_cost_at(&key, 5, now))),
        |key| {
            let held = held.borrow_mut().remove(&key).flatten();
            held.map(|allow| limiter.refund_at(&key, allow, now))
        },
        |key| _ = limiter.reset(&key),
        |key, _| match drain(limiter, key, now) {
            units @ 6.. => Err(format!("{units} units of 5")),
            _ => Ok(()),
        },
    )
}

/// Gives back a take of a key of a full set while a newcomer takes its place: six others stay, as
/// they have used a burst.
fn refund_against_newcomer(rounds: Rounds, quotas: usize) -> Result<(), (u64, String)> {
    let quota = Quota::per_second(1).burst(4);
    let limiters: Vec<_> = (0..MEETING).map(|hashes| fixed(plan(quota, quotas), hashes, 4)).collect();
    let limiter = |round: u64| &limiters[(round % MEETING) as usize];
    let held = RefCell::new(BTreeMap::new());
    // What the newcomer of each round has taken.
    let taken = [const { AtomicU64::new(0) }; MEETING as usize];
    // Each round has instants and keys of its own.
    let key = |round: u64, n: u64| round * 16 + n;
    let start = |round: u64| round * 100 * SECOND;
    duel(
        rounds,
        |round| {
            // Four units, of which three are given back: the bucket is full after a second, and the
            // last take saw four.
            let first = key(round, 0);
            let limiter = limiter(round);
            let mut allows: Vec<_> = (0..4).filter_map(|_| allow(limiter.check_at(&first, at(start(round))))).collect();
            let last = allows.pop();
            allows.into_iter().for_each(|allow| limiter.refund_at(&first, allow, at(start(round))));
            held.borrow_mut().insert(round, last);
            for n in 1..7 {
                _ = limiter.check_cost_at(&key(round, n), 4, at(start(round) + SECOND)).is_allowed();
            }
        },
        |round| {
            let held = held.borrow_mut().remove(&round).flatten();
            held.map(|allow| limiter(round).refund_at(&key(round, 0), allow, at(start(round) + 2 * SECOND)))
        },
        |round| {
            let is_allowed =
                limiter(round).check_cost_at(&key(round, 7), 3, at(start(round) + 2 * SECOND)).is_allowed();
            taken[(round % MEETING) as usize].store(if is_allowed { 3 } else { 0 }, SeqCst);
        },
        |round, _| {
            let taken = taken[(round % MEETING) as usize].load(SeqCst);
            let units = taken + drain(limiter(round), key(round, 7), at(start(round) + 2 * SECOND));
            if units > 4 { Err(format!("{units} units of a newcomer, of 4, with {quotas} quotas")) } else { Ok(()) }
        },
    )
}

/// Newcomers at every point of a sweep: `keys` keys use all, the quota is replaced by one that
/// takes longer to fill, and while the sweep runs newcomers come at an instant at which the old
/// quota says that each key is idle.
fn newcomers_in_a_sweep(keys: u64, quotas: usize, hashes: u64) -> Result<(), String> {
    let (old, new) = (Quota::per_second(10).burst(10), Quota::per_second(1).burst(100));
    let limiter = fixed(plan(old, quotas), hashes, keys);
    // Twice as many as are expected: each way is in use.
    let known = keys * 2;
    let mut owned = vec![false; known as usize];
    for key in 0..known {
        let before = limiter.len();
        let admitted = limiter.check_cost_at(&key, 10, at(0)).is_allowed();
        owned[key as usize] = admitted && limiter.len() > before;
    }
    let (reloaded, started) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            started.store(true, SeqCst);
            limiter.reload_at(Policy::new().plan("default", plan(new, quotas)), at(SECOND / 2)).unwrap();
            reloaded.store(true, SeqCst);
        });
        while !started.load(SeqCst) {
            std::hint::spin_loop();
        }
        // At 1.1 s, 5 of 10 being used at 0.5 s, 4.4 are used: a cost of 96 of 100 does not fit.
        let now = at(SECOND * 11 / 10);
        let mut newcomer = known;
        while !reloaded.load(SeqCst) && newcomer < known * 3 {
            _ = limiter.check_at(&newcomer, now).is_allowed();
            newcomer += 1;
        }
        for key in (0..known).filter(|key| owned[*key as usize]) {
            if limiter.check_cost_at(&key, 96, now).is_allowed() {
                return Err(format!(
                    "key {key} of {keys}, {quotas} quotas: 10 used at 0 s of {old}, 5 at 0.5 s when it became {new}, \
                     and 96 more admitted at 1.1 s, after {} newcomers",
                    newcomer - known
                ));
            }
        }
        Ok(())
    })
}

/// The calls of one thread on one key in a phase.
#[derive(Default)]
struct Log {
    admitted: BTreeMap<u64, (u64, u64)>,
    given_back: Vec<u64>,
}

/// Phases at one instant each: threads take, hold, give back and come as newcomers; and what each
/// key keeps is within the bound in every window of phases.
fn phases<T: Stores<u64, Spread>>(limiter: &Keyed<T>, quota: Quota, seed: u64, phases: u64) -> Result<(), String> {
    const THREADS: u64 = 3;
    const KEYS: u64 = 10;
    let tags = AtomicU64::new(1);
    let mut held: Vec<Vec<(u64, u64, Allow)>> = (0..THREADS).map(|_| Vec::new()).collect();
    let mut taken: BTreeMap<u64, BTreeMap<u64, (u64, u64)>> = BTreeMap::new();
    let mut now = 0;
    let mut chance = Chance::new(seed, 1 << 32);
    for phase in 0..phases {
        now += chance.pick(&[0, SECOND, 2 * SECOND, 4 * SECOND, 4 * SECOND + 1, 5 * SECOND]);
        let logs: Vec<BTreeMap<u64, Log>> = thread::scope(|scope| {
            let workers: Vec<_> = held
                .iter_mut()
                .zip(0_u64..)
                .map(|(held, thread)| {
                    let tags = &tags;
                    scope.spawn(move || {
                        let mut chance = Chance::new(seed ^ thread << 40, phase);
                        let mut logs: BTreeMap<u64, Log> = BTreeMap::new();
                        for _ in 0..60 {
                            if chance.one_in(3) && !held.is_empty() {
                                let (key, tag, allow) = held.swap_remove(chance.index(held.len()));
                                limiter.refund_at(&key, allow, at(now));
                                logs.entry(key).or_default().given_back.push(tag);
                                continue;
                            }
                            let key = chance.below(KEYS);
                            let cost = chance.pick(&[1, 1, 1, 4]);
                            if let Some(allow) = allow(limiter.check_cost_at(&key, cost, at(now))) {
                                let tag = tags.fetch_add(1, SeqCst);
                                logs.entry(key).or_default().admitted.insert(tag, (now, cost));
                                held.push((key, tag, allow));
                            }
                        }
                        logs
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        for (key, log) in logs.into_iter().flatten() {
            let of_key = taken.entry(key).or_default();
            of_key.extend(log.admitted);
            log.given_back.iter().for_each(|tag| _ = of_key.remove(tag));
        }
        for (key, of_key) in &taken {
            let mut of_key: Vec<_> = of_key.iter().map(|(tag, (at, cost))| (*at, *tag, *cost)).collect();
            of_key.sort_unstable();
            let mut ledger = Ledger::new(quota);
            for (at, tag, cost) in of_key {
                ledger
                    .admit(tag, cost, Moment::exact(at))
                    .map_err(|excess| format!("phase {phase}, key {key}: {excess}"))?;
            }
        }
    }
    Ok(())
}

/// Guards over the edge of overflow: more keys than there is room for, and at most two of each in
/// flight.
fn guards<T: Stores<u64, Spread>>(limiter: &Keyed<T>, rounds: u64) -> Result<(), String> {
    const KEYS: usize = 12;
    let alive: [AtomicU32; KEYS] = Default::default();
    let clock = AtomicU64::new(0);
    let fault = Mutex::new(None);
    thread::scope(|scope| {
        for thread in 0..3 {
            let (alive, clock, fault) = (&alive, &clock, &fault);
            scope.spawn(move || {
                let mut chance = Chance::new(thread, 77);
                let mut mine = Vec::new();
                for _ in 0..rounds {
                    // Time runs so that what has left is idle soon.
                    let now = clock.fetch_add(SECOND / 4, SeqCst);
                    if mine.len() > 6 || chance.one_in(3) && !mine.is_empty() {
                        let (key, guard): (usize, _) = mine.swap_remove(chance.index(mine.len()));
                        alive[key].fetch_sub(1, SeqCst);
                        drop(guard);
                        continue;
                    }
                    let key = chance.index(KEYS);
                    if let Ok(guard) = limiter.enter_costs_at(&(key as u64), &[(tollgate::Unit::REQUESTS, 1)], at(now))
                    {
                        let count = alive[key].fetch_add(1, SeqCst) + 1;
                        mine.push((key, guard));
                        if count > 2 {
                            *fault.lock().unwrap() = Some(format!("{count} requests of key {key} in flight, of 2"));
                        }
                    }
                }
                for (key, guard) in mine {
                    alive[key].fetch_sub(1, SeqCst);
                    drop(guard);
                }
            });
        }
    });
    fault.into_inner().unwrap().map_or(Ok(()), Err)
}

/// The multiple of a normal run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort(pub(crate) u64);

pub(crate) fn resets(Effort(effort): Effort) {
    let never = Quota::per_second(0).burst(5);
    let rounds = |millis: u64| (200_000 * effort, Duration::from_millis(millis * effort));
    let keys = 400_000 * effort;
    for quotas in [1, 2, 8] {
        // Where the window is one of a few instructions, it takes the most tries.
        let (long, short) = (rounds(if quotas == 1 { 2_000 } else { 500 }), rounds(250));
        let what = format!("{quotas} quotas of a");
        let limiter = |hashes| fixed(plan(never, quotas), hashes, keys);
        assert_none(&format!("{what} fixed store"), reset_against_take(&limiter(3), long));
        assert_none(&format!("{what} fixed store"), reset_against_refund(&limiter(4), short));
        let limiter = |hashes| sharded(plan(never, quotas), hashes, keys);
        assert_none(&format!("{what} sharded store"), reset_against_take(&limiter(3), short));
        assert_none(&format!("{what} sharded store"), reset_against_refund(&limiter(4), short));
    }
}

pub(crate) fn sweeps(Effort(effort): Effort) {
    for round in 0..effort {
        for quotas in [1, 2] {
            if let Err(fault) = newcomers_in_a_sweep(250_000, quotas, round) {
                panic!("{fault}");
            }
        }
    }
}

pub(crate) fn evictions(Effort(effort): Effort) {
    for quotas in [1, 2, 3] {
        assert_none(
            "fixed, of one set",
            refund_against_newcomer((20_000 * effort, Duration::from_secs(effort)), quotas),
        );
    }
}

pub(crate) fn windows(Effort(effort): Effort) {
    let quota = Quota::per_second(1).burst(4);
    for seed in 0..4 * effort {
        for quotas in [1, 2] {
            let told = |fault| panic!("{fault}, seed {seed}, {quotas} quotas");
            phases(&fixed(plan(quota, quotas), seed, 4), quota, seed, 60).unwrap_or_else(told);
            phases(&fixed(plan(quota, quotas), seed, 8), quota, seed, 60).unwrap_or_else(told);
            phases(&sharded(plan(quota, quotas), seed, 4), quota, seed, 60).unwrap_or_else(told);
        }
    }
}

pub(crate) fn places(Effort(effort): Effort) {
    let flights = || Plan::new([Quota::per_second(1).burst(50)]).in_flight(2);
    for seed in 0..4 * effort {
        let told = |fault| panic!("{fault}, seed {seed}");
        guards(&fixed(flights(), seed, 4), 4_000).unwrap_or_else(told);
        guards(&sharded(flights(), seed, 4), 4_000).unwrap_or_else(told);
    }
}
