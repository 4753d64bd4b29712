//! A server and a network that fail, each in one way, and what the client makes of it.

use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, cmd};
use tollgate::global::{RedisAuthority, RedisBuildError, Reply};

use crate::conformance::{exact, window};
use crate::live::{answer_to, ask, assert_all_end};
use crate::named::{answers, authority, batch, counted, counters};
use crate::proxy::Proxy;
use crate::server::{PATIENT, Server, free_port};

fn config(connection: &mut Connection, name: &str, value: &str) {
    cmd("CONFIG").arg("SET").arg(name).arg(value).exec(connection).unwrap();
}

#[test]
fn a_flush_is_told_by_a_gap() {
    let server = Server::new();
    let authority = authority(server.url());
    let rule = window(100, 60);
    ask(&authority, &batch(1, None, rule, exact(1))).unwrap();
    cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    assert_eq!(ask(&authority, &batch(2, Some(1), rule, exact(1))).unwrap(), Reply::Gap { have: 0 });
    assert_eq!(counted(&authority, rule), 0);
    assert_all_end(&mut server.connection());
}

#[test]
fn records_of_its_own_that_were_overwritten_are_written_anew() {
    let server = Server::new();
    let authority = authority(server.url());
    let mut connection = server.connection();
    let rule = window(100, 60);
    for (command, arguments) in [("SET", &["3"][..]), ("SET", &[""]), ("SADD", &["a"]), ("HSET", &["a", "b"])] {
        cmd("FLUSHALL").exec(&mut connection).unwrap();
        ask(&authority, &batch(1, None, rule, exact(1))).unwrap();
        let counters: Vec<_> = counters(&mut connection).into_iter().map(|(key, _)| key).collect();
        for (key, _) in assert_all_end(&mut connection) {
            if !counters.contains(&key) {
                cmd("DEL").arg(&key).exec(&mut connection).unwrap();
                cmd(command).arg(&key).arg(arguments).exec(&mut connection).unwrap();
            }
        }
        assert_eq!(ask(&authority, &batch(2, Some(1), rule, exact(1))).unwrap(), Reply::Gap { have: 0 });
        let reply = ask(&authority, &batch(3, None, rule, exact(1))).unwrap();
        assert!(matches!(reply, Reply::Done { nodes: 1, .. }), "{reply:?}");
        assert_eq!(answers(&reply)[0].room, 98);
        assert_all_end(&mut connection);
    }
}

#[test]
fn a_primary_that_has_become_a_replica_is_left_and_found_again() {
    let server = Server::new();
    let proxy = Proxy::to(server.port);
    let authority = authority(proxy.url());
    let mut connection = server.connection();
    let rule = window(100, 60);
    ask(&authority, &batch(1, None, rule, exact(1))).unwrap();
    cmd("REPLICAOF").arg("127.0.0.1").arg(free_port()).exec(&mut connection).unwrap();
    let second = batch(2, Some(1), rule, exact(1));
    let error = ask(&authority, &second).unwrap_err();
    assert!(error.to_string().contains("READONLY") && error.to_string().contains("primary"), "{error}");
    assert!(error.wait().is_some());
    cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut connection).unwrap();
    thread::sleep(error.wait().unwrap());
    let reply = ask(&authority, &second).unwrap();
    assert_eq!((answers(&reply)[0].room, proxy.accepted()), (98, 2));
}

#[test]
fn without_memory_nothing_is_done() {
    let server = Server::new();
    let authority = authority(server.url());
    let mut connection = server.connection();
    let rule = window(100, 60);
    ask(&authority, &batch(1, None, rule, exact(1))).unwrap();
    let second = batch(2, Some(1), rule, exact(1));
    config(&mut connection, "maxmemory", "1");
    for _ in 0..3 {
        let error = ask(&authority, &second).unwrap_err();
        assert!(error.to_string().contains("maxmemory"), "{error}");
        assert!(error.wait().is_some());
    }
    config(&mut connection, "maxmemory", "0");
    assert_eq!(answers(&ask(&authority, &second).unwrap())[0].room, 98);
    assert_eq!(counted(&authority, rule), 2);
}

#[test]
fn a_server_that_stands_still_is_waited_for_and_counts_once() {
    let server = Server::new();
    let proxy = Proxy::to(server.port);
    let authority = authority(proxy.url());
    let rule = window(100, 60);
    ask(&authority, &batch(1, None, rule, exact(1))).unwrap();
    server.pause();
    let paused = Instant::now();
    let second = batch(2, Some(1), rule, exact(1));
    while paused.elapsed() < Duration::from_secs(2) {
        let asked = Instant::now();
        let error = ask(&authority, &second).unwrap_err();
        // The longest is a try to connect.
        assert!(asked.elapsed() < Duration::from_secs(5), "{error} after {:?}", asked.elapsed());
        thread::sleep(Duration::from_millis(20));
    }
    server.resume();
    let reply = ask_until_answered(&authority, &second);
    assert_eq!(answers(&reply)[0].room, 98);
    assert_eq!(counted(&authority, rule), 2);
    assert!(proxy.accepted() < 12, "{} connections", proxy.accepted());
}

/// Asks as a fleet does: again and again.
fn ask_until_answered(authority: &RedisAuthority, batch: &tollgate::global::Batch) -> Reply {
    let begun = Instant::now();
    loop {
        match ask(authority, batch) {
            Ok(reply) => return reply,
            Err(error) => assert!(begun.elapsed() < PATIENT, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_answers_in_a_row_that_do_not_come_end_the_connection() {
    let server = Server::new();
    let proxy = Proxy::to(server.port);
    let authority = authority(proxy.url());
    let rule = window(100, 60);
    ask(&authority, &batch(1, None, rule, exact(1))).unwrap();
    proxy.delay_answers(true);
    let second = batch(2, Some(1), rule, exact(1));
    ask(&authority, &second).unwrap_err();
    // An answer in between.
    proxy.delay_answers(false);
    ask(&authority, &second).unwrap();
    proxy.delay_answers(true);
    let third = batch(3, Some(2), rule, exact(1));
    ask(&authority, &third).unwrap_err();
    assert_eq!(proxy.accepted(), 1);
    ask(&authority, &third).unwrap_err();
    proxy.delay_answers(false);
    assert_eq!(answers(&ask(&authority, &third).unwrap())[0].room, 97);
    assert_eq!((proxy.accepted(), counted(&authority, rule)), (2, 3));
}

#[test]
fn a_connection_that_breaks_after_the_script_has_run_is_made_anew_and_counts_once() {
    let server = Server::new();
    let proxy = Proxy::to(server.port);
    let authority = authority(proxy.url());
    let rule = window(100, 60);
    ask(&authority, &batch(1, None, rule, exact(1))).unwrap();
    for number in 2..20 {
        proxy.break_on_answer();
        let reply = ask(&authority, &batch(number, Some(number - 1), rule, exact(1))).unwrap();
        assert_eq!(u64::from(answers(&reply)[0].room), 100 - number);
        assert_eq!(proxy.accepted(), number as usize);
    }
    assert_eq!(counted(&authority, rule), 19);
}

#[test]
fn an_idle_connection_that_was_cut_is_made_anew() {
    let server = Server::new();
    let proxy = Proxy::to(server.port);
    let authority = authority(proxy.url());
    for number in 1..10 {
        ask(&authority, &batch(number, None, window(100, 60), exact(1))).unwrap();
        proxy.cut();
        thread::sleep(Duration::from_millis(number * 3 % 10));
    }
    assert_eq!(counted(&authority, window(100, 60)), 9);
}

#[test]
fn there_is_one_try_to_connect_at_a_time() {
    let server = Server::new();
    let proxy = Proxy::to(server.port);
    let timeout = Duration::from_millis(200);
    let authority = RedisAuthority::builder(proxy.url()).connect_timeout(timeout).build().unwrap();
    // Nothing is connected to before the first call.
    assert_eq!(proxy.accepted(), 0);
    proxy.hold(true);
    let begun = Instant::now();
    let mut failed = 0;
    while begun.elapsed() < Duration::from_secs(2) {
        let calls: Vec<_> =
            (1..=50).map(|number| answer_to(&authority, &batch(number, None, window(9, 9), exact(1)))).collect();
        for call in calls {
            let error = call.recv_timeout(PATIENT).unwrap().unwrap_err();
            assert!(error.to_string().contains(&format!("127.0.0.1:{}", proxy.port)), "{error}");
            assert!(error.wait().is_some_and(|wait| wait <= Duration::from_millis(2_500)), "{:?}", error.wait());
            failed += 1;
        }
        thread::sleep(Duration::from_millis(5));
    }
    // 0.2 s each, and 50 ms, 100 ms, 200 ms and so on between them.
    assert!((2..=6).contains(&proxy.accepted()), "{} tries for {failed} calls", proxy.accepted());
    proxy.hold(false);
    ask_until_answered(&authority, &batch(1, None, window(9, 9), exact(1)));
}

#[test]
fn a_refused_connection_fails_calls_at_once() {
    let authority = authority(format!("redis://127.0.0.1:{}", free_port()));
    let begun = Instant::now();
    for number in 1..200 {
        let error = ask(&authority, &batch(number, None, window(9, 9), exact(1))).unwrap_err();
        assert!(error.to_string().contains("open a connection"), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_wrong_password_is_told_and_not_shown() {
    let server = Server::with(&["--requirepass", "correct-horse"]);
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port);
    for (url, code) in [(url("wrong-staple"), "log-in"), (server.url(), "log-in")] {
        let builder = RedisAuthority::builder(url);
        assert!(!format!("{builder:?}").contains("staple"));
        let authority = builder.build().unwrap();
        let error = ask(&authority, &batch(1, None, window(9, 9), exact(1))).unwrap_err();
        let said = format!("{error} {error:?} {authority:?}");
        assert!(said.contains(code) && !said.contains("staple") && !said.contains("redis://"), "{said}");
        assert!(error.wait().is_some());
    }
    let right = RedisAuthority::builder(url("correct-horse")).build().unwrap();
    ask(&right, &batch(1, None, window(9, 9), exact(1))).unwrap();
}

#[test]
fn a_user_needs_the_commands_that_are_documented_and_no_more() {
    let server = Server::new();
    let mut connection = server.connection();
    let commands = [
        "evalsha",
        "script|load",
        "time",
        "get",
        "mget",
        "set",
        "setrange",
        "pexpire",
        "del",
        "zadd",
        "zcard",
        "zremrangebyscore",
    ];
    let mut user = cmd("ACL");
    user.arg("SETUSER").arg("limits").arg(&["on", ">pass", "~tg*", "-@all"]);
    user.arg(&commands.map(|command| format!("+{command}"))).exec(&mut connection).unwrap();
    let url = format!("redis://limits:pass@127.0.0.1:{}", server.port);
    let with_prefix = |prefix| RedisAuthority::builder(url.as_str()).key_prefix(prefix).build().unwrap();
    let rule = window(100, 60);
    for number in 1..4 {
        let reply = ask(&with_prefix("tg"), &batch(number, None, rule, exact(1))).unwrap();
        assert_eq!(u64::from(answers(&reply)[0].room), 100 - number);
    }
    let error = ask(&with_prefix("other"), &batch(9, None, rule, exact(1))).unwrap_err();
    assert!(error.to_string().contains("NOPERM"), "{error}");
    assert!(!error.to_string().contains("pass"), "{error}");
}

#[test]
fn another_server_is_told_apart() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        use std::io::{Read, Write};
        for client in listener.incoming().take(3) {
            let mut client = client.unwrap();
            _ = client.read(&mut [0; 1_024]);
            _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let authority = authority(format!("redis://127.0.0.1:{port}"));
    let error = ask(&authority, &batch(1, None, window(9, 9), exact(1))).unwrap_err();
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
}

#[test]
fn databases_and_prefixes_keep_fleets_apart() {
    let server = Server::new();
    let rule = window(100, 60);
    let builders = [
        RedisAuthority::builder(server.url()),
        RedisAuthority::builder(server.url()).database(3),
        RedisAuthority::builder(format!("{}/4", server.url())),
        RedisAuthority::builder(server.url()).key_prefix("other:"),
    ];
    for builder in builders {
        let authority = builder.build().unwrap();
        assert_eq!(answers(&ask(&authority, &batch(1, None, rule, exact(1))).unwrap())[0].room, 99);
    }
}

#[test]
fn what_can_not_be_built_is_told_without_the_password() {
    for (url, expected) in [
        ("redis//:secret@host", "could not be understood"),
        ("redis://:secret@host:notaport", "could not be understood"),
        ("redis://:secret@host/notadatabase", "could not be understood"),
        ("http://:secret@host", "could not be understood"),
        ("", "could not be understood"),
    ] {
        let error = RedisAuthority::builder(url).build().unwrap_err();
        let said = format!("{error} {error:?}");
        assert!(said.contains(expected) && !said.contains("secret"), "{said}");
    }
    let error = RedisAuthority::builder("redis://host").key_prefix("a{b}").build().unwrap_err();
    assert!(matches!(&error, RedisBuildError::BraceInPrefix { prefix } if prefix == "a{b}"), "{error}");
    assert!(matches!(RedisAuthority::builder("redis://host").shards(0).build(), Err(RedisBuildError::NoShards)));
    if cfg!(not(feature = "redis-tls")) {
        let error = RedisAuthority::builder("rediss://host").build().unwrap_err();
        assert!(error.to_string().contains("redis-tls"), "{error}");
    }
}

#[test]
fn when_it_is_dropped_its_connection_ends() {
    let server = Server::new();
    let mut connection = server.connection();
    let authority = authority(server.url());
    let clients =
        |connection: &mut Connection| cmd("CLIENT").arg("LIST").query::<String>(connection).unwrap().lines().count();
    ask(&authority, &batch(1, None, window(9, 9), exact(1))).unwrap();
    assert_eq!(clients(&mut connection), 2);
    drop(authority);
    let begun = Instant::now();
    while clients(&mut connection) > 1 {
        assert!(begun.elapsed() < PATIENT, "its connection is there still");
        thread::sleep(Duration::from_millis(5));
    }
}
