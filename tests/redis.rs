//! The authority in Redis: its script against the books in memory and against what every authority has to do, in a Lua
//! interpreter and in a server; and its client against a server and a network that fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a judge that finds a fault stops the test")]

#[path = "authority/conformance.rs"]
#[macro_use]
mod conformance;
#[path = "redis/cost.rs"]
mod cost;
#[path = "redis/equal.rs"]
mod equal;
#[path = "redis/lua.rs"]
mod lua;
#[path = "redis/server.rs"]
mod server;

/// The script, in a Lua interpreter.
mod script {
    use crate::conformance;
    use crate::lua::Scripted;

    conformance!(Scripted::new);
}

/// The script, in a Lua interpreter, against the books.
mod script_and_books {
    use crate::conformance::Subject;
    use crate::equal::{Applied, play, run};
    use crate::lua::Scripted;

    fn answers_as_the_books_do(cases: u32, far: bool) {
        run(cases, far, |rules, steps| {
            let mut scripted = Scripted::new();
            play(&rules, &steps, |clock, batch| {
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
