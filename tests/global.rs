//! Limits that a fleet shares, through limiters, with real threads over an authority in memory.
//!
//! The protocol itself is tested in the simulator; this is about what a caller sees. Nothing here depends on how long
//! anything takes: whoever waits does so without an end in sight.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is how a test fails")]

mod stores;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use stores::{Kind, over_both};
use tollgate::global::{
    Answer, Authority, AuthorityError, Batch, Call, Fleet, GlobalQuota, MemoryAuthority, Reply, StartError, WhenAway,
};
use tollgate::{BuildError, Decision, Limiter, Plan, Policy, Quota, RandomState, Reason, Source, TestClock, Unit};

over_both!(
    a_token_bucket_that_the_fleet_shares_holds_its_burst,
    the_limit_is_kept_by_all_nodes_together_and_the_denial_says_until_when,
    without_overdraft_a_first_check_asks_and_a_first_acquire_waits,
    a_cost_of_all_that_is_left_is_admitted_and_one_above_the_limit_never,
    an_overdraft_admits_the_first_request_at_once,
    quotas_of_the_node_and_of_the_fleet_are_taken_from_together_or_not_at_all,
    each_global_quota_counts_its_kind_of_unit,
    an_exact_check_asks_every_time_and_counts_what_other_nodes_hold,
    a_denied_exact_check_gives_back_what_the_node_took,
    a_status_shows_the_fleet_and_takes_nothing,
    a_shutdown_reports_and_gives_leases_back,
    a_fleet_that_is_dropped_admits_nothing_more_and_keeps_nobody_waiting,
    while_the_authority_is_away_each_quota_does_what_it_says,
    a_reload_changes_the_limit_and_keeps_what_was_used,
    a_key_that_an_authority_can_not_read_is_on_leases_again_once_it_can,
    a_plan_that_gets_its_first_global_quota_and_loses_it_again_keeps_what_was_used,
    what_is_moved_to_and_from_a_plan_with_a_global_quota_is_used,
    the_keys_of_a_plan_that_goes_bring_their_use_to_one_of_the_other_kind,
    a_place_in_flight_is_given_back_where_its_plan_went,
    totals_are_exact_while_keys_go_in_and_out_of_the_table,
    a_plan_that_shrinks_to_one_quota_has_it_where_checks_look,
    a_waiter_that_is_dropped_as_it_is_told_takes_nothing_from_the_next,
    thirty_waiters_are_served_at_the_rate_and_the_rest_are_denied,
);

const MINUTE: Duration = Duration::from_secs(60);

/// Longer than anything here takes.
const PATIENT: Duration = Duration::from_secs(600);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread: what waits for a fleet needs no runtime.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn fleet(authority: &MemoryAuthority) -> Fleet {
    Fleet::builder(authority.clone()).start().expect("there are threads")
}

fn limiter<T: Kind>(fleet: &Fleet, plan: impl Into<Plan>) -> Limiter<str, RandomState, T> {
    T::make(Limiter::builder().fleet(fleet).plan("free", plan)).expect("a plan that makes sense")
}

fn only(quota: GlobalQuota) -> Plan {
    Plan::new([]).global(quota)
}

fn ten() -> GlobalQuota {
    GlobalQuota::sliding_window(10, MINUTE).overdraft(0)
}

fn acquire<T: Kind>(limiter: &Limiter<str, RandomState, T>, key: &str, cost: u64) -> Decision {
    wait(limiter.acquire_global(key, cost, Duration::from_secs(5)))
}

/// What is used fleet-wide, once nothing is on its way any more.
fn used<T: Kind>(limiter: &Limiter<str, RandomState, T>, key: &str) -> u64 {
    wait(limiter.status_global(key)).expect("the authority answers")[0].used
}

fn without_overdraft_a_first_check_asks_and_a_first_acquire_waits<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let limiter = limiter::<T>(&fleet, only(ten()));
    let Decision::Deny(deny) = limiter.check("alice") else { panic!("there is no lease yet") };
    assert_eq!((deny.reason(), deny.limit()), (Reason::NoLease, 10));
    assert!(
        deny.retry_after().is_some_and(|wait| wait >= Duration::from_micros(1) && wait < Duration::from_secs(1)),
        "{deny}"
    );
    let allowed = acquire(&limiter, "alice", 1);
    assert!(allowed.is_allowed(), "{allowed}");
    assert_eq!(allowed.source(), Source::Lease);
}

fn the_limit_is_kept_by_all_nodes_together_and_the_denial_says_until_when<T: Kind>() {
    let authority = MemoryAuthority::new();
    let fleets: Vec<_> = (0..3).map(|_| fleet(&authority)).collect();
    let nodes: Vec<_> = fleets.iter().map(|fleet| limiter::<T>(fleet, only(ten()))).collect();
    for n in 0..10 {
        let decision = acquire(&nodes[n % 3], "alice", 1);
        assert!(decision.is_allowed(), "{n}: {decision}");
    }
    for node in &nodes {
        let Decision::Deny(deny) = acquire(node, "alice", 1) else { panic!("eleven of ten") };
        assert_eq!((deny.reason(), deny.remaining()), (Reason::TooSoon, 0));
        let wait = deny.retry_after().unwrap();
        assert!(wait > MINUTE / 2 && wait <= MINUTE + MINUTE / 60, "{wait:?}");
        // And without asking anybody, from now on.
        assert!(node.check("alice").is_denied());
        assert!(acquire(node, "bob", 1).is_allowed(), "another key");
    }
}

fn a_cost_of_all_that_is_left_is_admitted_and_one_above_the_limit_never<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let limiter = limiter::<T>(&fleet, only(ten()));
    assert!(acquire(&limiter, "alice", 3).is_allowed());
    assert!(acquire(&limiter, "alice", 7).is_allowed());
    assert!(acquire(&limiter, "alice", 1).is_denied());

    let Decision::Deny(deny) = acquire(&limiter, "bob", 11) else { panic!("eleven of ten") };
    assert_eq!((deny.reason(), deny.retry_after()), (Reason::CostExceedsBurst, None));
    assert_eq!(limiter.check_cost("bob", 1 << 40).retry_after(), None);
    assert!(acquire(&limiter, "bob", 10).is_allowed(), "the denial has taken nothing");
    // The low bits of this are 0, and there is a lease.
    assert_eq!(limiter.check_cost("bob", 1 << 32).retry_after(), None);
}

fn an_overdraft_admits_the_first_request_at_once<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let quota = GlobalQuota::sliding_window(1_000, MINUTE).overdraft(2);
    let limiter = limiter::<T>(&fleet, only(quota));
    let first = limiter.check_cost("alice", 2);
    assert!(first.is_allowed());
    assert_eq!(first.source(), Source::Overdraft);
    // By default there is one as well.
    let other = T::make(Limiter::builder().fleet(&fleet).plan("pro", only(GlobalQuota::sliding_window(1_000, MINUTE))))
        .unwrap();
    assert_eq!(other.check("alice").source(), Source::Overdraft);
}

fn quotas_of_the_node_and_of_the_fleet_are_taken_from_together_or_not_at_all<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let limiter = limiter::<T>(&fleet, Plan::new([Quota::per_hour(4)]).global(ten()));
    assert!(acquire(&limiter, "alice", 3).is_allowed());
    // The node's has one left: the fleet's is not asked.
    let deny = limiter.check_cost("alice", 2);
    assert_eq!((deny.is_denied(), deny.limit(), deny.source()), (true, 4, Source::Local));
    assert!(acquire(&limiter, "alice", 1).is_allowed());
    assert_eq!(used(&limiter, "alice"), 4);

    // Of the fleet's nothing is left: the node's is untouched.
    let authority = MemoryAuthority::new();
    let fleet = Fleet::builder(authority).start().unwrap();
    let limiter = self::limiter::<T>(&fleet, Plan::new([Quota::per_hour(40)]).global(ten()));
    assert!(acquire(&limiter, "alice", 10).is_allowed());
    let deny = acquire(&limiter, "alice", 5);
    assert_eq!((deny.is_denied(), deny.limit(), deny.source()), (true, 10, Source::Lease));
    let standings = limiter.peek_all("alice");
    assert_eq!((standings[0].remaining(), standings[1].remaining()), (30, 0));
    assert_eq!(standings[1].name(), "fleet requests/min");
}

fn each_global_quota_counts_its_kind_of_unit<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let tokens = GlobalQuota::sliding_window(1_000, MINUTE).unit(Unit::TOKENS).overdraft(1.0);
    let limiter = limiter::<T>(&fleet, only(tokens));
    assert!(limiter.check_costs("alice", &[(Unit::REQUESTS, 1), (Unit::TOKENS, 600)]).is_allowed());
    assert!(limiter.check_costs("alice", &[(Unit::REQUESTS, 5_000)]).is_allowed(), "requests are free");
    assert!(limiter.check_costs("alice", &[(Unit::TOKENS, 600)]).is_denied());
}

fn an_exact_check_asks_every_time_and_counts_what_other_nodes_hold<T: Kind>() {
    let authority = MemoryAuthority::new();
    let (one, two) = (fleet(&authority), fleet(&authority));
    let nodes = [limiter::<T>(&one, only(ten())), limiter::<T>(&two, only(ten()))];
    for n in 0..10 {
        let decision = wait(nodes[n % 2].check_exact("alice"));
        assert!(decision.is_allowed(), "{n}: {decision}");
        assert_eq!(decision.remaining(), 9 - n as u64);
    }
    let Decision::Deny(deny) = wait(nodes[0].check_exact("alice")) else { panic!("eleven of ten") };
    assert_eq!((deny.reason(), deny.remaining()), (Reason::TooSoon, 0));
    assert_eq!(used(&nodes[1], "alice"), 10, "a denial is not counted");
    assert!(acquire(&nodes[0], "alice", 1).is_denied());
}

fn a_denied_exact_check_gives_back_what_the_node_took<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let limiter = limiter::<T>(&fleet, Plan::new([Quota::per_hour(40)]).global(ten()));
    assert!(wait(limiter.check_exact_cost("alice", 10)).is_allowed());
    assert!(wait(limiter.check_exact_cost("alice", 5)).is_denied());
    assert_eq!(limiter.peek_all("alice")[0].remaining(), 30);
}

fn a_status_shows_the_fleet_and_takes_nothing<T: Kind>() {
    let authority = MemoryAuthority::new();
    let (one, two) = (fleet(&authority), fleet(&authority));
    let (one, two) = (limiter::<T>(&one, only(ten())), limiter::<T>(&two, only(ten())));
    assert!(acquire(&one, "alice", 4).is_allowed());
    for _ in 0..3 {
        let status = wait(two.status_global("alice")).unwrap();
        assert_eq!((status.len(), status[0].limit, status[0].used, status[0].remaining), (1, 10, 4, 6));
        assert!(status[0].reset_after > MINUTE / 2 && status[0].reset_after <= MINUTE * 2);
        assert_eq!(&*status[0].quota, "fleet requests/min");
    }
    assert_eq!(wait(two.status_global("bob")).unwrap()[0].remaining, 10);
}

fn a_shutdown_reports_and_gives_leases_back<T: Kind>() {
    let authority = MemoryAuthority::new();
    let one = fleet(&authority);
    let quota = GlobalQuota::sliding_window(10, MINUTE).overdraft(0);
    {
        let limiter = limiter::<T>(&one, only(quota));
        // Four are granted, none is used.
        assert!(limiter.check_cost("alice", 4).retry_after().is_some());
        let four_are_out = || used(&limiter, "alice") == 4;
        while !four_are_out() {
            thread::yield_now();
        }
        assert!(limiter.check("alice").is_allowed());
        let end = one.shutdown(PATIENT);
        assert!(end.is_settled, "{end:?}");
        assert_eq!((end.unreported, end.returned), (0, 3));
        assert!(limiter.check("alice").is_denied(), "nothing is admitted after that");
        assert!(acquire(&limiter, "alice", 1).is_denied(), "and nobody waits");
    }
    let two = fleet(&authority);
    let limiter = limiter::<T>(&two, only(quota));
    assert_eq!(used(&limiter, "alice"), 1);
    assert!(acquire(&limiter, "alice", 9).is_allowed());
}

fn a_fleet_that_is_dropped_admits_nothing_more_and_keeps_nobody_waiting<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let limiter = limiter::<T>(&fleet, only(ten()));
    assert!(acquire(&limiter, "alice", 1).is_allowed());
    drop(fleet);
    assert!(acquire(&limiter, "bob", 1).is_denied());
    assert!(wait(limiter.status_global("bob")).is_err());
    assert!(wait(limiter.check_exact("bob")).is_denied());
}

/// An authority that can be told to say nothing.
#[derive(Clone)]
struct Fickle {
    inner: MemoryAuthority,
    is_silent: Arc<AtomicBool>,
}

impl Authority for Fickle {
    fn call(&self, call: Call) {
        if self.is_silent.load(Ordering::Relaxed) {
            call.answer(Err(AuthorityError::new("connection refused")));
        } else {
            self.inner.call(call);
        }
    }
}

/// Moves the clock on until `done`.
fn until(clock: &TestClock, done: impl Fn() -> bool) {
    while !done() {
        clock.advance(Duration::from_millis(1));
        thread::sleep(Duration::from_micros(50));
    }
}

fn while_the_authority_is_away_each_quota_does_what_it_says<T: Kind>() {
    let clock = TestClock::new();
    let silent = Fickle { inner: MemoryAuthority::new(), is_silent: Arc::new(AtomicBool::new(true)) };
    let fleet = Fleet::builder(silent.clone()).clock(clock.clock()).start().unwrap();
    let quota = |name, away| GlobalQuota::sliding_window(100, MINUTE).overdraft(0).nodes(4).when_away(away).named(name);
    let builder = Limiter::builder()
        .fleet(&fleet)
        .plan("local", only(quota("local", WhenAway::Local)))
        .plan("allow", only(quota("allow", WhenAway::Allow)))
        .plan("deny", only(quota("deny", WhenAway::Deny)))
        .default_plan("deny");
    let limiter = T::make(builder).unwrap();
    let [local, allow, deny] = ["local", "allow", "deny"].map(|plan| limiter.plan(plan).unwrap());
    until(&clock, || {
        let _ = deny.check("alice");
        let _ = local.check_cost("alice", 25);
        allow.check_cost("alice", 100).is_allowed()
    });
    assert_eq!(allow.check("alice").source(), Source::Away);
    assert!((0..20).all(|_| allow.check_cost("alice", 100).is_allowed()), "everything");
    // A quarter of it, since there are four nodes; some of it may have been taken already.
    until(&clock, || local.check("alice").source() == Source::Away);
    let admitted = (0..100).filter(|_| local.check("alice").is_allowed()).count();
    assert!(admitted <= 25, "{admitted}");
    assert!(deny.check("alice").is_denied());
    assert!(fleet.stats().is_silent);

    silent.is_silent.store(false, Ordering::Relaxed);
    until(&clock, || !fleet.stats().is_silent && deny.check("alice").is_allowed());
}

fn a_reload_changes_the_limit_and_keeps_what_was_used<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let limiter = limiter::<T>(&fleet, only(ten()));
    assert!(acquire(&limiter, "alice", 8).is_allowed());
    let policy = |limit| Policy::new().plan("free", only(GlobalQuota::sliding_window(limit, MINUTE).overdraft(0)));
    limiter.reload(policy(12)).unwrap();
    assert!(acquire(&limiter, "alice", 5).is_denied());
    assert!(acquire(&limiter, "alice", 4).is_allowed());
    limiter.reload(policy(5)).unwrap();
    assert!(acquire(&limiter, "alice", 1).is_denied());
    limiter.reload(policy(20)).unwrap();
    assert!(acquire(&limiter, "alice", 8).is_allowed());
    assert!(acquire(&limiter, "alice", 1).is_denied());
    limiter.reload(Policy::new().plan("free", [Quota::per_minute(3)])).unwrap();
    assert_eq!(limiter.check("alice").limit(), 3);
}

/// Units of the node's own quota that `key` has left.
fn own<T: Kind>(limiter: &Limiter<str, RandomState, T>, key: &str) -> u64 {
    limiter.peek_all(key)[0].remaining()
}

fn a_plan_that_gets_its_first_global_quota_and_loses_it_again_keeps_what_was_used<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let local = || Plan::new([Quota::per_hour(10)]).in_flight(3);
    // With a quota more than it had.
    let global = || Plan::new([Quota::per_hour(10), Quota::per_day(1_000)]).in_flight(3).global(ten());
    let builder = Limiter::builder().fleet(&fleet).plan("free", local());
    let limiter = T::roomy(builder, 100).unwrap();
    assert!(limiter.check_cost("alice", 4).is_allowed());
    let guard = limiter.enter("alice").unwrap();
    for (turn, left) in [(0, 4), (1, 2)] {
        limiter.reload(Policy::new().plan("free", global())).unwrap();
        assert!(acquire(&limiter, "alice", 1).is_allowed());
        assert_eq!((own(&limiter, "alice"), used(&limiter, "alice") > turn), (left, true));
        assert_eq!(limiter.peek_all("alice")[1].remaining(), 999);
        limiter.reload(Policy::new().plan("free", local())).unwrap();
        assert!(limiter.check("alice").is_allowed());
        assert_eq!(own(&limiter, "alice"), left - 1);
    }
    assert_eq!(limiter.peek_all("alice").last().map(|one| one.remaining()), Some(2));
    drop(guard);
    assert_eq!(limiter.peek_all("alice").last().map(|one| one.remaining()), Some(3));
    assert_eq!((own(&limiter, "alice"), limiter.len()), (1, 1));
}

fn what_is_moved_to_and_from_a_plan_with_a_global_quota_is_used<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let builder = Limiter::builder()
        .fleet(&fleet)
        .plan("free", [Quota::per_hour(10)])
        .plan("pro", Plan::new([Quota::per_hour(10)]).global(ten()))
        .default_plan("free");
    let limiter = T::make(builder).unwrap();
    let pro = limiter.plan("pro").unwrap();
    let left = || (own(&limiter, "alice"), pro.peek_all("alice")[0].remaining());
    assert!(limiter.check_cost("alice", 4).is_allowed());
    assert_eq!(limiter.move_plan("alice", "free", "pro"), Ok(true));
    assert_eq!(left(), (10, 6));
    assert!(wait(pro.acquire_global("alice", 1, PATIENT)).is_allowed());
    assert_eq!(limiter.move_plan("alice", "pro", "free"), Ok(true));
    assert_eq!(left(), (5, 10));
    // Added to what there is, either way.
    assert!(wait(pro.acquire_global("alice", 2, PATIENT)).is_allowed());
    assert_eq!(limiter.move_plan("alice", "pro", "free"), Ok(true));
    assert_eq!(left(), (3, 10));
    assert!(wait(pro.acquire_global("alice", 1, PATIENT)).is_allowed());
    assert_eq!(limiter.move_plan("alice", "free", "pro"), Ok(true));
    assert_eq!(left(), (10, 2));
    assert_eq!(
        (limiter.move_plan("alice", "free", "pro"), limiter.move_plan("bob", "pro", "free")),
        (Ok(false), Ok(false))
    );
    assert!(limiter.reset("alice"));
    assert_eq!(left(), (10, 10));
}

fn the_keys_of_a_plan_that_goes_bring_their_use_to_one_of_the_other_kind<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let (local, global) = (|| Plan::new([Quota::per_hour(10)]), || Plan::new([Quota::per_hour(10)]).global(ten()));
    for from_local in [true, false] {
        let (first, second) = if from_local { (local(), global()) } else { (global(), local()) };
        let plans = Policy::new().plan("goes", first).plan("stays", second.clone()).default_plan("stays");
        let limiter = T::roomy(Limiter::builder().fleet(&fleet).policy(plans), 100).unwrap();
        let goes = limiter.plan("goes").unwrap();
        assert!(wait(goes.acquire_global("alice", 4, PATIENT)).is_allowed());
        limiter.reload(Policy::new().plan("stays", second)).unwrap();
        assert_eq!((own(&limiter, "alice"), goes.peek_all("alice")[0].remaining()), (6, 6));
        assert!(acquire(&limiter, "alice", 1).is_allowed());
        assert_eq!((own(&limiter, "alice"), limiter.len()), (5, 1));
    }
}

/// The place was taken in the one place, and is given back in the other, where its plan went.
fn a_place_in_flight_is_given_back_where_its_plan_went<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let local = || Plan::new([Quota::per_hour(10)]).in_flight(2);
    let global = || local().global(ten());
    for kinds in [[local(), local(), global()], [local(), global(), global()], [local(), global(), local()]] {
        let mut policies = ["trial", "team", "pro"]
            .into_iter()
            .zip(kinds)
            .map(|(name, plan)| Policy::new().plan("free", local()).plan(name, plan).default_plan(name));
        let limiter = T::roomy(Limiter::builder().fleet(&fleet).policy(policies.next().unwrap()), 100).unwrap();
        let left = || limiter.peek_all("alice").iter().find(|one| one.name() == "in flight").map(|one| one.remaining());
        let free = limiter.plan("free").unwrap();
        let _stays = free.enter("alice").unwrap();
        let leaves = limiter.enter("alice").unwrap();
        for policy in policies {
            limiter.reload(policy).unwrap();
            assert_eq!(left(), Some(1));
        }
        drop(leaves);
        assert_eq!((free.peek_all("alice").last().map(|one| one.remaining()), left()), (Some(1), Some(2)));
    }
}

/// Four threads take from three keys that never refill, while one has their plan get a global quota and lose it again, and moves
/// them to one that has another and back.
/// With global quotas on the way, and with places in flight.
fn a_plan_that_shrinks_to_one_quota_has_it_where_checks_look<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let [a, x] = [Quota::per_day(9).named("a"), Quota::per_day(7).named("x")];
    let builder = Limiter::builder().fleet(&fleet).plan("p", Plan::new([a]));
    let limiter = T::roomy(builder, 100).unwrap();
    assert!(limiter.check("bob").is_allowed());
    let reload = |plan: Plan| limiter.reload(Policy::new().plan("p", plan)).unwrap();
    reload(Plan::new([x, a]).global(ten()));
    let _ = acquire(&limiter, "bob", 1);
    let left = || limiter.peek_all("bob").iter().find(|one| one.name() == "x").map(|one| one.remaining());
    for (plan, expected) in [
        (Plan::new([x]), 6),
        (Plan::new([x]).in_flight(3), 5),
        (Plan::new([a, x]), 4),
        (Plan::new([x]).global(ten()), 3),
        (Plan::new([x]), 2),
    ] {
        reload(plan);
        assert_eq!(left(), Some(expected));
        assert!(acquire(&limiter, "bob", 1).is_allowed());
    }
    assert_eq!(left(), Some(1));
}

fn totals_are_exact_while_keys_go_in_and_out_of_the_table<T: Kind>() {
    const BURST: u64 = 20_000;
    const KEYS: [&str; 3] = ["alice", "bob", "carol"];
    let fleet = fleet(&MemoryAuthority::new());
    let local = || Plan::new([Quota::per_second(0).burst(BURST)]).in_flight(100);
    let global = || local().global(GlobalQuota::sliding_window(1_000_000, MINUTE).overdraft(1_000));
    let policy = |plan| Policy::new().plan("free", plan).plan("pro", global()).default_plan("free");
    let limiter = T::roomy(Limiter::builder().fleet(&fleet).policy(policy(local())), 4).unwrap();
    let is_over = AtomicBool::new(false);
    let take = |turn: u64| limiter.enter(KEYS[turn as usize % 3]).is_ok();
    let admitted: usize = thread::scope(|scope| {
        let takers =
            (0..4).map(|first| scope.spawn(move || (first..first + 14_000).filter(|turn| take(*turn)).count()));
        let takers: Vec<_> = takers.collect();
        let is_over = &is_over;
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for plan in [global(), local()] {
                    limiter.reload(policy(plan)).unwrap();
                    for key in KEYS {
                        limiter.move_plan(key, "free", "pro").unwrap();
                        limiter.move_plan(key, "pro", "free").unwrap();
                    }
                }
            }
        });
        let admitted = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
        is_over.store(true, Ordering::Relaxed);
        admitted
    });
    let rest: usize = KEYS.iter().map(|key| (0..BURST).filter(|_| limiter.check(key).is_allowed()).count()).sum();
    let total = admitted + rest;
    let all = BURST as usize * KEYS.len();
    assert!(total <= all && (total == all || !T::NEVER_PASSES_OVER), "{admitted} + {rest} of {all}");
    for key in KEYS {
        assert_eq!(limiter.peek_all(key).last().map(|one| one.remaining()), Some(100), "of {key}");
    }
}

#[test]
fn keys_without_room_share_one_account_of_the_fleet() {
    let authority = MemoryAuthority::new();
    let fleets = [fleet(&authority), fleet(&authority)];
    let nodes = fleets
        .each_ref()
        .map(|fleet| Limiter::builder().fleet(fleet).plan("free", only(ten())).max_keys(1).build().unwrap());
    for node in &nodes {
        assert!(acquire(node, "resident", 1).is_allowed());
    }
    let admitted = |n: usize| acquire(&nodes[n % 2], &format!("newcomer {n}"), 1).is_allowed();
    assert_eq!((0..20).filter(|n| admitted(*n)).count(), 10);
}

#[test]
fn what_makes_no_sense_is_refused_when_built_and_says_what_to_do() {
    let fleet = fleet(&MemoryAuthority::new());
    let refused = |quota: GlobalQuota| {
        Limiter::builder().fleet(&fleet).plan("free", only(quota)).build().map(|_| ()).unwrap_err()
    };
    let window = |window| GlobalQuota::sliding_window(100, window);
    let short = refused(window(Duration::from_millis(2_499)));
    assert!(
        matches!(short, BuildError::GlobalWindowTooShort { shortest, .. } if shortest == Duration::from_millis(2_500))
    );
    assert!(short.to_string().contains("token_bucket"), "{short}");
    assert!(matches!(refused(window(MINUTE).sub_windows(9)), BuildError::BadSubWindows { subs: 9, most: 240, .. }));
    assert!(matches!(refused(window(MINUTE).sub_windows(241)), BuildError::BadSubWindows { subs: 241, .. }));
    assert!(matches!(
        refused(window(MINUTE).overdraft(13).nodes(8)),
        BuildError::OverdraftTooLarge { overdraft: 13, nodes: 8, .. }
    ));
    assert!(matches!(refused(GlobalQuota::sliding_window(0, MINUTE)), BuildError::ZeroBurst { .. }));
    assert!(matches!(refused(GlobalQuota::sliding_window(1 << 32, MINUTE)), BuildError::GlobalLimitTooLarge { .. }));
    assert!(matches!(
        refused(GlobalQuota::token_bucket(Quota::per_second(0).burst(5))),
        BuildError::GlobalRateZero { .. }
    ));
    let twice = only(ten()).global(ten());
    let twice = Limiter::builder().fleet(&fleet).plan("free", twice).build().map(|_| ()).unwrap_err();
    assert!(matches!(twice, BuildError::DuplicateQuota { .. }));
    let alone = Limiter::builder().plan("free", only(ten())).build().map(|_| ()).unwrap_err();
    assert!(matches!(alone, BuildError::NoFleet { .. }));
    let clock = Limiter::builder().fleet(&fleet).clock(tollgate::Clock::std()).plan("free", only(ten())).build();
    assert!(matches!(clock.map(|_| ()).unwrap_err(), BuildError::ClockOfFleet));
    for legal in
        [window(Duration::from_millis(2_500)), window(MINUTE).sub_windows(240), window(MINUTE).overdraft(12).nodes(8)]
    {
        assert!(Limiter::builder().fleet(&fleet).plan("free", only(legal)).build().is_ok());
    }
}

#[test]
fn intervals_that_make_no_sense_are_refused() {
    let start = |interval| Fleet::builder(MemoryAuthority::new()).interval(interval).start().map(|_| ());
    assert!(matches!(start(Duration::from_millis(9)), Err(StartError::IntervalTooShort { .. })));
    assert!(matches!(start(Duration::MAX), Err(StartError::IntervalTooLong { .. })));
    assert!(start(Duration::from_secs(3_600)).is_ok());
}

/// By its time, which may be stalled or have left out a leap, a lease could outlive its sub-window.
/// The thread is told at whatever it is: about to sleep, in its first short sleep, or in the long one.
#[test]
fn a_fleet_ends_at_once_however_long_its_interval_is() {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        for turn in 0..60 {
            let builder = Fleet::builder(MemoryAuthority::new()).interval(Duration::from_secs(3_600));
            let fleet = builder.start().unwrap();
            thread::sleep(Duration::from_micros(50 * turn));
            if turn % 2 == 0 { drop(fleet) } else { _ = fleet.shutdown(Duration::from_millis(1)) }
        }
        tell.send(()).unwrap();
    });
    assert_eq!(told.recv_timeout(PATIENT / 10), Ok(()));
}

#[test]
fn a_fleet_goes_by_no_coarse_clock() {
    let coarse = tollgate::Clock::coarse().unwrap();
    let fleet = Fleet::builder(MemoryAuthority::new()).clock(coarse).start();
    let error = fleet.map(|_| ()).unwrap_err();
    assert!(matches!(error, StartError::CoarseClock) && error.to_string().contains("Clock::precise()"), "{error}");
}

#[test]
fn an_overdraft_of_more_than_two_percent_is_worth_a_warning() {
    let warnings = |quota| Limiter::builder().plan("free", only(quota)).warnings();
    let quota = GlobalQuota::sliding_window(1_000, MINUTE).nodes(10);
    assert_eq!(warnings(quota.overdraft(2)), []);
    let warning = &warnings(quota.overdraft(3))[0];
    assert_eq!((warning.overshoot, warning.limit, warning.plan.as_str()), (30, 1_000, "free"));
    assert!(warning.to_string().contains("30 units"), "{warning}");
    assert_eq!(warnings(quota), []);
}

fn a_token_bucket_that_the_fleet_shares_holds_its_burst<T: Kind>() {
    let authority = MemoryAuthority::new();
    let fleets = [fleet(&authority), fleet(&authority)];
    let quota = GlobalQuota::token_bucket(Quota::per_hour(5).burst(20)).overdraft(0);
    let nodes = fleets.each_ref().map(|fleet| limiter::<T>(fleet, only(quota)));
    let admitted = |n: usize| acquire(&nodes[n % 2], "alice", 1).is_allowed();
    let (begun, mut count) = (Instant::now(), (0..20).filter(|n| admitted(*n)).count());
    while count < 20 {
        assert!(begun.elapsed() < PATIENT / 10, "{count} of 20");
        // What is left of a lease that a node gives back is the other's once that has been reported.
        thread::sleep(Duration::from_millis(1));
        count += (0..2).filter(|n| admitted(*n)).count();
    }
    assert_eq!(count + (0..10).filter(|n| admitted(*n)).count(), 20);
}

/// An authority that makes no sense of what it has of any key while it is told so.
#[derive(Clone)]
struct Confused(MemoryAuthority, Arc<AtomicBool>);

impl Authority for Confused {
    fn call(&self, call: Call) {
        let (batch, is_confused) = (Arc::clone(call.batch()), self.1.load(Ordering::SeqCst));
        if !is_confused {
            return self.0.call(call);
        }
        let status = Batch { node: 99, records: Vec::new(), ..(*batch).clone() };
        self.0.call(Call::new(Arc::new(status), move |reply| {
            let failed = |_| Answer { failed: true, ..Answer::default() };
            call.answer(reply.map(|reply| match reply {
                Reply::Done { time, nodes, .. } => {
                    Reply::Done { time, nodes, answers: batch.records.iter().map(failed).collect() }
                }
                other => other,
            }));
        }));
    }
}

fn a_key_that_an_authority_can_not_read_is_on_leases_again_once_it_can<T: Kind>() {
    for away in [WhenAway::Deny, WhenAway::Local, WhenAway::Allow] {
        let is_confused = Arc::new(AtomicBool::new(true));
        let authority = Confused(MemoryAuthority::new(), Arc::clone(&is_confused));
        let interval = Duration::from_millis(10);
        let fleet = Fleet::builder(authority).interval(interval).start().unwrap();
        let quota = GlobalQuota::sliding_window(1_000_000, Duration::from_millis(250)).overdraft(0).when_away(away);
        let limiter = limiter::<T>(&fleet, only(quota));
        // As long as it can't, the policy holds.
        let until = |is_so: &dyn Fn(&Decision) -> bool| {
            while !is_so(&limiter.check("alice")) {
                thread::sleep(Duration::from_millis(1));
            }
        };
        match away {
            WhenAway::Deny => until(&|decision| decision.is_denied() && decision.source() == Source::Away),
            _ => until(&|decision| decision.is_allowed() && decision.source() == Source::Away),
        }
        is_confused.store(false, Ordering::SeqCst);
        until(&|decision| decision.is_allowed() && decision.source() == Source::Lease);
    }
}

/// Notes that its future was told to look, and wakes the thread that waits for that.
struct Told(AtomicBool, Thread);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        self.1.unpark();
    }
}

impl Told {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(false), thread::current()))
    }

    /// Polls `future`, and has this woken for it.
    fn poll<T>(self: &Arc<Self>, future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        self.0.store(false, Ordering::SeqCst);
        match future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(self)))) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Waits until this is woken.
    fn wait(&self) {
        let begun = Instant::now();
        while !self.0.load(Ordering::SeqCst) {
            assert!(begun.elapsed() < PATIENT / 10, "it is never told");
            thread::park_timeout(Duration::from_secs(1));
        }
    }
}

/// agronholm/anyio#947: a grant that races with a cancel is lost, and later waiters wait for ever.
fn a_waiter_that_is_dropped_as_it_is_told_takes_nothing_from_the_next<T: Kind>() {
    let fleet = fleet(&MemoryAuthority::new());
    let quota = Quota::per_second(20).burst(1);
    let of_fleet = GlobalQuota::token_bucket(quota).overdraft(0);
    for (name, plan) in [("node", Plan::new([quota])), ("fleet", only(of_fleet))] {
        let limiter = T::make(Limiter::builder().fleet(&fleet).plan(name, plan)).unwrap();
        // What is lost in one round is missing in the next.
        for round in 0..10 {
            assert!(wait(limiter.acquire_global("alice", 1, PATIENT)).is_allowed(), "{name}, round {round}");
            let (one, two) = (Told::new(), Told::new());
            let mut first = Box::pin(limiter.acquire_global("alice", 1, PATIENT));
            let mut second = Box::pin(limiter.acquire_global("alice", 1, PATIENT));
            let mut answer = one.poll(first.as_mut());
            let mut next = two.poll(second.as_mut());
            if answer.is_none() && next.is_none() {
                one.wait();
                // In every other round the first takes what it was told of, and in the others it is
                // gone before it looks.
                if round % 2 == 0 {
                    answer = one.poll(first.as_mut());
                }
            }
            drop((first, answer));
            while next.is_none() {
                two.wait();
                next = two.poll(second.as_mut());
            }
            assert!(next.is_some_and(|decision| decision.is_allowed()), "{name}, round {round}");
        }
    }
}

/// resilience4j/resilience4j#822: 3 a period, 30 threads that wait for 1.2 periods: 3 at once, 3 in
/// the period after, and up to 2 more than that each time. The report's period is 10 s.
fn thirty_waiters_are_served_at_the_rate_and_the_rest_are_denied<T: Kind>() {
    const PERIOD: Duration = Duration::from_secs(1);
    let fleet = fleet(&MemoryAuthority::new());
    let limiter = limiter::<T>(&fleet, Quota::new(3, PERIOD));
    let begun = Instant::now();
    let decisions: Vec<_> = thread::scope(|scope| {
        let waiters: Vec<_> =
            (0..30).map(|_| scope.spawn(|| wait(limiter.acquire_global("alice", 1, PERIOD * 6 / 5)))).collect();
        waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect()
    });
    let periods = begun.elapsed().as_secs_f64() / PERIOD.as_secs_f64();
    let served = decisions.iter().filter(|decision| decision.is_allowed()).count();
    // No waiter gives up before the units of a whole period have come back. A machine that is busy
    // takes longer than 1.2 periods, and then more come back: at most what the bound says.
    assert!(served >= 6, "{served} were served");
    assert!(served as f64 <= 3.0 + 3.0 * periods, "{served} were served in {periods} periods");
    for decision in decisions.iter().filter(|decision| decision.is_denied()) {
        assert!(decision.retry_after().is_some_and(|wait| wait <= PERIOD), "{decision}");
    }
}
