//! The script in a server: in virtual time, in which it differs in two places from the one that ships, and as it ships, by way of
//! the client.

use std::cell::RefCell;
use std::sync::{Arc, mpsc};

use redis::{Connection, Script, Value, cmd};
use tollgate::global::{Authority, AuthorityError, Batch, Call, RedisAuthority, Reply};
use tollgate::internal::{Packed, SCRIPT, unpack};

use crate::conformance::Subject;
use crate::server::{PATIENT, Server};

/// Answers a call, and waits for that.
pub(crate) fn ask(authority: &RedisAuthority, batch: &Batch) -> Result<Reply, AuthorityError> {
    answer_to(authority, batch).recv_timeout(PATIENT).expect("every call is answered")
}

/// Makes a call. Its answer comes by the way that is returned.
pub(crate) fn answer_to(authority: &RedisAuthority, batch: &Batch) -> mpsc::Receiver<Result<Reply, AuthorityError>> {
    let (send, answer) = mpsc::channel();
    authority.call(Call::new(Arc::new(batch.clone()), move |reply| _ = send.send(reply)));
    answer
}

/// Every key has a time to live.
pub(crate) fn assert_all_end(connection: &mut Connection) -> Vec<(Vec<u8>, i64)> {
    let keys: Vec<Vec<u8>> = cmd("KEYS").arg("*").query(connection).unwrap();
    let lives = keys.into_iter().map(|key| {
        let life: i64 = cmd("PTTL").arg(&key).query(connection).unwrap();
        assert!(life > 0 || life == -2, "{} lives {life} ms", key.escape_ascii());
        (key, life)
    });
    lives.collect()
}

struct Connected {
    connection: Connection,
    hash: String,
    /// Stopped when the test that runs on this thread is over.
    _server: Server,
}

thread_local! {
    static CONNECTED: RefCell<Option<Connected>> = const { RefCell::new(None) };
}

/// The script in a server of this thread, which is emptied for each.
pub(crate) struct Virtual {
    clock: u64,
}

impl Virtual {
    pub(crate) fn new() -> Self {
        CONNECTED.with_borrow_mut(|connected| {
            let connected = connected.get_or_insert_with(|| {
                let server = Server::new();
                let mut connection = server.connection();
                let script = in_virtual_time();
                cmd("SCRIPT").arg("LOAD").arg(&script).exec(&mut connection).unwrap();
                Connected { connection, hash: Script::new(&script).get_hash().to_owned(), _server: server }
            });
            cmd("FLUSHALL").exec(&mut connected.connection).unwrap();
        });
        Self { clock: 0 }
    }
}

/// The script with a clock that is under a key, and with keys that live on in real time: a test may take longer than they
/// should live in its own.
fn in_virtual_time() -> String {
    let changes = [
        ("call('TIME')", "{ string.match(call('GET', 'clock'), '(%d+) (%d+)') }"),
        ("ceil(micros / 1000) + 2", "ceil(micros / 1000) + 3600000"),
    ];
    changes.iter().fold(SCRIPT.to_owned(), |script, (from, to)| {
        assert_eq!(script.matches(from).count(), 1, "{from} is there once");
        script.replace(from, to)
    })
}

impl Subject for Virtual {
    fn at(&mut self, time: u64) {
        // The script counts in doubles. So much is the year 2112.
        self.clock = time.min(1 << 52);
    }

    fn apply(&mut self, batch: &Batch) -> Reply {
        let packed = Packed::new(batch, "{0}").unwrap();
        let clock = format!("{} {}", self.clock / 1_000_000, self.clock % 1_000_000);
        CONNECTED.with_borrow_mut(|connected| {
            let Connected { connection, hash, .. } = connected.as_mut().unwrap();
            let mut both = redis::pipe();
            both.cmd("SET").arg("clock").arg(clock).ignore();
            both.cmd("EVALSHA").arg(&*hash).arg(packed.keys.len()).arg(&packed.keys).arg(&packed.argument);
            let (Value::BulkString(reply),) = both.query(connection).unwrap() else { panic!("no string") };
            unpack(&reply, batch).unwrap_or_else(|| panic!("{}", reply.escape_ascii()))
        })
    }
}
