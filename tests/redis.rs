//! The authority in Redis: its script against the books in memory and against what every authority has to do, in a Lua
//! interpreter and in a server; and its client against a server and a network that fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a judge that finds a fault stops the test")]

#[path = "authority/conformance.rs"]
#[macro_use]
mod conformance;
mod capture;
#[path = "redis/cost.rs"]
mod cost;
#[path = "redis/equal.rs"]
mod equal;
#[path = "redis/events.rs"]
mod events;
#[path = "redis/faults.rs"]
mod faults;
#[path = "redis/live.rs"]
mod live;
#[path = "redis/lua.rs"]
mod lua;
#[path = "redis/matrix.rs"]
mod matrix;
#[path = "redis/named.rs"]
mod named;
#[path = "redis/proxy.rs"]
mod proxy;
#[path = "redis/script.rs"]
mod script_alone;
#[path = "redis/server.rs"]
mod server;
#[cfg(feature = "redis-tls")]
#[path = "redis/tls.rs"]
mod tls;

/// The script, in a Lua interpreter.
mod script {
    use crate::conformance;
    use crate::lua::Scripted;

    conformance!(Scripted::new);
}

/// The script, in a Lua interpreter, against the books.
mod script_and_books {
    use crate::conformance::{MIDNIGHT, Subject};
    use crate::equal::{Applied, play, run};
    use crate::lua::Scripted;

    fn answers_as_the_books_do(cases: u32, far: bool) {
        run(cases, far, |rules, steps| {
            let mut scripted = Scripted::new();
            play(&rules, &steps, MIDNIGHT, |clock, batch| {
                scripted.at(clock);
                let afresh = scripted.store().lives().is_empty();
                Applied { reply: scripted.apply(batch), clock, afresh }
            });
        });
    }

    #[test]
    fn small_limits() {
        answers_as_the_books_do(6_000, false);
    }

    #[test]
    fn limits_as_large_as_can_be_counted() {
        answers_as_the_books_do(6_000, true);
    }
}

/// The script, in a server, in virtual time.
mod server_script {
    use crate::conformance;
    use crate::live::Virtual;

    conformance!(Virtual::new);
}

/// The script, in a server, against the books: in virtual time, and as it ships by way of the client.
mod server_and_books {
    use std::time::{SystemTime, UNIX_EPOCH};

    use tollgate::global::{RedisAuthority, Reply};

    use crate::conformance::{MIDNIGHT, Subject};
    use crate::equal::{Applied, Step, play, run};
    use crate::live::{Virtual, ask, assert_all_end};
    use crate::server::Server;

    fn answers_as_the_books_do(cases: u32, far: bool) {
        run(cases, far, |rules, steps| {
            let mut server = Virtual::new();
            play(&rules, &steps, MIDNIGHT, |clock, batch| {
                server.at(clock);
                Applied { reply: server.apply(batch), clock, afresh: false }
            });
        });
    }

    #[test]
    fn small_limits() {
        answers_as_the_books_do(1_000, false);
    }

    #[test]
    fn limits_as_large_as_can_be_counted() {
        answers_as_the_books_do(1_000, true);
    }

    #[test]
    fn what_ships_by_the_clock_of_the_server() {
        let server = Server::new();
        let authority = RedisAuthority::builder(server.url()).shards(1).build().unwrap();
        let mut connection = server.connection();
        for far in [false, true] {
            run(200, far, |rules, mut steps| {
                redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
                steps.retain(|step| matches!(step, Step::Tell(_)));
                let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
                let mut last = start;
                play(&rules, &steps, start, |_, batch| {
                    let reply = ask(&authority, batch).unwrap();
                    if let Reply::Done { time, .. } = reply {
                        last = time;
                    }
                    Applied { reply, clock: last, afresh: false }
                });
            });
            assert_all_end(&mut connection);
        }
    }
}
