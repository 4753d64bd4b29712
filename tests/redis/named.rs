//! Faults that other limiters had with Redis, each with the right value. The doc comment of a test carries the public report.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{Connection, cmd};
use tollgate::global::{
    Answer, Batch, Body, Books, Fleet, GlobalQuota, Record, RedisAuthority, Reply, Rule, WhenAway, WireName,
};
use tollgate::internal::Packed;
use tollgate::{Limiter, Plan};

use crate::conformance::{self, KEY, MILLI, SECOND, exact, window};
use crate::live::{ask, assert_all_end};
use crate::proxy::Proxy;
use crate::server::Server;

/// A batch of one record.
pub(crate) fn batch(number: u64, after: Option<u64>, rule: Rule, body: Body) -> Batch {
    Batch { node: 1, shard: 0, number, after, records: vec![Record { name: KEY, rule, body }] }
}

pub(crate) fn answers(reply: &Reply) -> &[Answer] {
    match reply {
        Reply::Done { answers, .. } => answers,
        reply => panic!("{reply:?}"),
    }
}

/// What is counted of `KEY`, asked by another node.
pub(crate) fn counted(authority: &RedisAuthority, rule: Rule) -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let status = Batch { node: now, ..batch(1, None, rule, Body::Status) };
    rule.limit() - answers(&ask(authority, &status).unwrap())[0].room
}

pub(crate) fn authority(url: String) -> RedisAuthority {
    RedisAuthority::builder(url).response_timeout(Duration::from_millis(300)).build().unwrap()
}

/// The key that [`KEY`] is counted under, which is there.
fn key_of(connection: &mut Connection) -> Vec<u8> {
    let batch = batch(1, None, window(1, 1), Body::Status);
    let name = Packed::new(&batch, "").unwrap().keys.remove(3);
    counters(connection).into_iter().map(|(key, _)| key).find(|key| key.ends_with(&name)).expect("it is there")
}

/// The keys that are counted under, and how long they live.
pub(crate) fn counters(connection: &mut Connection) -> Vec<(Vec<u8>, i64)> {
    let name = |key: &[u8]| key.len() - key.iter().position(|byte| *byte == b'}').unwrap();
    assert_all_end(connection).into_iter().filter(|(key, _)| name(key) == 23).collect()
}

/// Kong/kong#14995: a time to live in milliseconds is given as one in seconds; a window of a minute lives 55,700 years.
#[test]
fn a_window_of_a_minute_lives_for_minutes() {
    let server = Server::new();
    let authority = authority(server.url());
    ask(&authority, &batch(1, None, window(100, 60), exact(1))).unwrap();
    let all = assert_all_end(&mut server.connection());
    assert_eq!(all.len(), 4);
    let counters = counters(&mut server.connection());
    assert!(matches!(counters.as_slice(), [(_, 60_000..=120_000)]), "{counters:?}");
}

/// teamplanes/graphql-rate-limit#22: windows of 600.001 s and of half a second give times to live that are no whole numbers,
/// or 0.
#[test]
fn odd_windows_have_whole_times_to_live() {
    let server = Server::new();
    let authority = authority(server.url());
    let mut connection = server.connection();
    let rules = [(600_001 * MILLI / 60, 60), (50 * MILLI, 10), (333, 3), (600_000_001 / 7, 7)];
    for ((sub, subs), number) in rules.into_iter().zip(1..) {
        cmd("FLUSHALL").exec(&mut connection).unwrap();
        let rule = Rule::Window { limit: 10, sub, subs, smooth: number % 2 == 0 };
        let reply = ask(&authority, &batch(number, None, rule, exact(4))).unwrap();
        assert_eq!((answers(&reply)[0].granted, answers(&reply)[0].room), (4, 6));
        let longest = ((u64::from(subs) + 3) * sub / 1_000 + 3) as i64;
        for (key, life) in counters(&mut connection) {
            assert!(life <= longest, "{} lives {life} of {longest} ms", key.escape_ascii());
        }
    }
}

/// redis/redis#4548: the count is there, and its time to live was never set; the key is denied for ever.
#[test]
fn a_key_that_lost_its_time_to_live_gets_one_and_denies_no_longer_than_others() {
    let server = Server::new();
    let authority = authority(server.url());
    let mut connection = server.connection();
    let rule = Rule::Window { limit: 10, sub: 20 * MILLI, subs: 5, smooth: false };
    let full = ask(&authority, &batch(1, None, rule, exact(10))).unwrap();
    let wait = answers(&ask(&authority, &batch(2, Some(1), rule, exact(1))).unwrap())[0].retry_after;
    let key = counters(&mut connection).remove(0).0;
    assert_eq!(cmd("PERSIST").arg(&key).query(&mut connection), Ok(1));
    // It is set with the first report of the next sub-window.
    thread::sleep(Duration::from_micros(wait));
    let reply = ask(&authority, &batch(3, Some(2), rule, exact(10))).unwrap();
    assert_eq!(answers(&reply)[0].granted, 10, "{full:?}, {reply:?}");
    assert_all_end(&mut connection);
}

/// express-rate-limit/rate-limit-redis#251: a script that ran is run again since its reply was late; one that was unknown is
/// not.
#[test]
fn a_script_whose_reply_was_lost_counts_once_and_one_that_was_unknown_too() {
    let server = Server::new();
    let proxy = Proxy::to(server.port);
    let authority = authority(proxy.url());
    let rule = window(100, 60);
    ask(&authority, &batch(1, None, rule, exact(1))).unwrap();
    proxy.delay_answers(true);
    let second = batch(2, Some(1), rule, exact(1));
    let error = ask(&authority, &second).unwrap_err();
    assert!(error.to_string().contains("no answer to a batch"), "{error}");
    proxy.delay_answers(false);
    let reply = ask(&authority, &second).unwrap();
    assert_eq!((answers(&reply)[0].granted, answers(&reply)[0].room), (1, 98));
    assert_eq!(counted(&authority, rule), 2);

    cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection()).unwrap();
    let reply = ask(&authority, &batch(3, Some(2), rule, exact(1))).unwrap();
    assert_eq!((answers(&reply)[0].granted, counted(&authority, rule)), (1, 3));
}

/// spring-cloud/spring-cloud-gateway#248: two keys of a call are in different slots of a cluster, which refuses it, and
/// everything is admitted.
#[test]
fn all_keys_of_a_call_are_in_one_slot() {
    let server = Server::with(&["--cluster-enabled", "yes"]);
    let mut connection = server.connection();
    let mut slots = cmd("CLUSTER");
    slots.arg("ADDSLOTS").arg((0..16_384).collect::<Vec<_>>()).exec(&mut connection).unwrap();
    while !cmd("CLUSTER").arg("INFO").query::<String>(&mut connection).unwrap().contains("cluster_state:ok") {
        thread::sleep(Duration::from_millis(10));
    }
    let authority = RedisAuthority::builder(server.url()).key_prefix("limits").build().unwrap();
    let mut used = Vec::new();
    for shard in 0..16 {
        let record = |name| Record { name: WireName(name), rule: window(10, 60), body: exact(4) };
        let records = (0..64).map(|name| record(name + 1_000 * u128::from(shard))).collect();
        let reply = ask(&authority, &Batch { node: 1, shard, number: 1, after: None, records }).unwrap();
        assert!(answers(&reply).iter().all(|answer| answer.granted == 4 && answer.room == 6));
        used.clear();
        for (key, _) in assert_all_end(&mut connection) {
            used.push(cmd("CLUSTER").arg("KEYSLOT").arg(&key).query::<u16>(&mut connection).unwrap());
        }
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), usize::from(shard) + 1);
    }
    // A sixteenth of the slots has one each.
    assert!(used.iter().zip(0..).all(|(slot, shard)| slot / 1_024 == shard), "{used:?}");
}

/// HeyPuter/puter PR#3574: the key holds a string of another program; what is counted is no number, and everything is admitted.
#[test]
fn a_key_of_another_program_fails_alone_and_stays_as_it_is() {
    let server = Server::new();
    let authority = authority(server.url());
    let mut connection = server.connection();
    let rule = window(5, 60);
    let mut number = 0;
    let mut told = |body: Body| {
        number += 1;
        let mut batch = batch(number, None, rule, body);
        batch.records.push(Record { name: WireName(1), rule, body: Body::Status });
        answers(&ask(&authority, &batch).unwrap()).to_vec()
    };
    told(exact(1));
    let key = key_of(&mut connection);
    let dump = |connection: &mut Connection| cmd("DUMP").arg(&key).query::<Vec<u8>>(connection).unwrap();
    let strangers: [(&str, &[&str]); 5] = [
        ("SET", &["3"]),
        ("SET", &[""]),
        ("SET", &["\u{1}234567890123456789012345"]),
        ("HSET", &["a", "b"]),
        ("SADD", &["a"]),
    ];
    for (command, arguments) in strangers {
        cmd("DEL").arg(&key).exec(&mut connection).unwrap();
        cmd(command).arg(&key).arg(arguments).exec(&mut connection).unwrap();
        let before = dump(&mut connection);
        for body in [exact(1), Body::Status, Body::Repair(vec![(1, 1)]), conformance::ask(1, 1)] {
            let answers = told(body);
            assert_eq!(answers[0], Answer { failed: true, ..Answer::default() }, "{command} {arguments:?}");
            assert_eq!((answers[1].failed, answers[1].room), (false, 5));
        }
        assert_eq!(dump(&mut connection), before);
    }
    cmd("DEL").arg(&key).exec(&mut connection).unwrap();
    assert_eq!(told(exact(1))[0].room, 4);
    assert_all_end(&mut connection);
}

/// The same, by way of a limiter: of 20 requests against a limit of 5 as many are admitted as the policy says, and not by a
/// count that is none.
#[test]
fn a_limiter_keeps_to_its_policy_for_a_key_of_another_program() {
    for (policy, admitted) in [(WhenAway::Deny, 0), (WhenAway::Allow, 20)] {
        let server = Server::new();
        let mut connection = server.connection();
        let fleet = Fleet::builder(authority(server.url())).interval(Duration::from_millis(20)).start().unwrap();
        let quota = GlobalQuota::sliding_window(5, Duration::from_secs(60)).overdraft(0).when_away(policy);
        let limiter = Limiter::builder().fleet(&fleet).plan("api", Plan::new([]).global(quota)).build().unwrap();
        // Learns of the key and makes it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let acquire = |limiter: &Limiter| {
            runtime.block_on(limiter.acquire_global("alice", 1, Duration::from_millis(300))).is_allowed()
        };
        assert!(acquire(&limiter));
        drop(limiter);
        let key = counters(&mut connection).remove(0).0;
        cmd("SET").arg(&key).arg("3").exec(&mut connection).unwrap();
        let limiter = Limiter::builder().fleet(&fleet).plan("api", Plan::new([]).global(quota)).build().unwrap();
        let count = (0..20).filter(|_| acquire(&limiter)).count();
        assert_eq!(count, admitted, "{policy:?}");
    }
}

/// express-rate-limit/rate-limit-redis PR#209: a key that has less than a millisecond to live is taken for gone, and what it
/// counts is forgotten.
#[test]
fn what_is_about_to_end_is_counted_to_the_end() {
    let server = Server::new();
    let authority = authority(server.url());
    let rule = Rule::Window { limit: 1_000_000, sub: 700, subs: 2, smooth: false };
    let mut books = Books::default();
    for number in 1..2_000 {
        let batch = batch(number, None, rule, exact(1));
        let reply = ask(&authority, &batch).unwrap();
        let Reply::Done { time, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(reply, books.apply(&batch, time));
        // Up to about the time at which the key ends.
        thread::sleep(Duration::from_micros(number * 37 % 3_000));
    }
}

/// tj/node-ratelimiter#11: a time to live that is below zero is refused, the error is lost, and nothing is limited.
#[test]
fn the_shortest_windows_are_kept_for_a_millisecond() {
    let server = Server::new();
    let authority = authority(server.url());
    let mut connection = server.connection();
    let shortest = Rule::Window { limit: 10, sub: 1, subs: 1, smooth: false };
    let bucket = Rule::Bucket { burst: 1, units: u32::MAX, period: 1, life: 1 };
    for (rule, number) in [shortest, bucket].into_iter().zip(1..) {
        let reply = ask(&authority, &batch(number, None, rule, exact(1))).unwrap();
        assert_eq!((answers(&reply)[0].granted, answers(&reply)[0].failed), (1, false));
        assert_all_end(&mut connection);
    }
}

/// brandur/redis-cell#50: 1,000 in 60 s; what is left after each of three calls is 1,000, since the time to live is rounded
/// to 0 and nothing is kept.
#[test]
fn what_a_bucket_gave_is_missing() {
    let server = Server::new();
    let authority = authority(server.url());
    let rule = Rule::Bucket { burst: 1_000, units: 1_000, period: 60 * SECOND, life: SECOND };
    let room = |number| answers(&ask(&authority, &batch(number, None, rule, exact(1))).unwrap())[0].room;
    assert_eq!([1, 2, 3].map(room), [999, 998, 997]);
}

/// redis-rs/redis-rs#1190: the server restarts once, and every call fails from then on.
#[test]
fn the_next_call_after_a_restart_succeeds() {
    let mut server = Server::new();
    let authority = authority(server.url());
    let rule = window(100, 60);
    ask(&authority, &batch(1, None, rule, exact(1))).unwrap();
    server.crash();
    server.start_again();
    // It has forgotten everything, and says so.
    assert_eq!(ask(&authority, &batch(2, Some(1), rule, exact(1))).unwrap(), Reply::Gap { have: 0 });
    let reply = ask(&authority, &batch(3, None, rule, exact(1))).unwrap();
    assert_eq!((answers(&reply)[0].created, answers(&reply)[0].room), (true, 99));
}
