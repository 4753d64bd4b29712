//! The connection to the server: made when it is needed, watched, and made anew.
//!
//! One task has all the state and acts on events: a call, the outcome of a try to connect, the outcome of a call. Everything
//! that takes time is a task of its own that ends in such an event. So there is one try to connect at a time, and calls that
//! come meanwhile wait for that.
//!
//! A call may be sent any number of times: the script carries a number out once.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, RedisError, Script, Value, cmd};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, timeout};

use super::SCRIPT;
use super::packed::{Packed, unpack};
use super::trouble::{Fate, Trouble};
use crate::global::{AuthorityError, Batch, Call, Reply};

/// The first wait after a try to connect that failed.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Answers in a row that did not come in time, after which the connection is not trusted any more.
const TOLERATED: u32 = 2;

/// What a supervisor is told when it starts.
pub(super) struct Settings {
    pub(super) client: Client,
    /// Host and port.
    pub(super) address: String,
    /// What the keys of each shard begin with.
    pub(super) starts: Vec<String>,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
}

/// A call, and whether it has been sent on a connection that was lost.
pub(super) struct Sent {
    call: Call,
    again: bool,
}

pub(super) enum Event {
    Call(Call),
    Connected(Result<MultiplexedConnection, Trouble>),
    /// Of the connection of that number.
    Done(u64, Sent, Result<Reply, Trouble>),
    Stop,
}

enum Link {
    Down,
    Connecting,
    Up(MultiplexedConnection),
}

pub(super) struct Supervisor {
    settings: Arc<Settings>,
    hash: Arc<str>,
    events: UnboundedSender<Event>,
    link: Link,
    /// Which connection this is.
    number: u64,
    /// Whether it has answered a call.
    proved: bool,
    /// Answers in a row that did not come in time.
    silences: u32,
    /// Calls that wait for the connection.
    waiting: Vec<Sent>,
    /// The last wait between two tries, zero if there was an answer since.
    wait: Duration,
    /// When to try again, and why not before.
    not_before: Option<(Instant, AuthorityError)>,
}

impl Supervisor {
    pub(super) fn new(settings: Settings, events: UnboundedSender<Event>) -> Self {
        Self {
            settings: Arc::new(settings),
            hash: Script::new(SCRIPT).get_hash().into(),
            events,
            link: Link::Down,
            number: 0,
            proved: false,
            silences: 0,
            waiting: Vec::new(),
            wait: Duration::ZERO,
            not_before: None,
        }
    }

    /// Runs until it is told to stop. Calls that are under way then are lost.
    pub(super) async fn run(mut self, mut inbox: UnboundedReceiver<Event>) {
        while let Some(event) = inbox.recv().await {
            match event {
                Event::Call(call) => self.send(Sent { call, again: false }),
                Event::Connected(Ok(connection)) => {
                    self.number += 1;
                    (self.link, self.proved, self.silences) = (Link::Up(connection), false, 0);
                    std::mem::take(&mut self.waiting).into_iter().for_each(|sent| self.send(sent));
                }
                Event::Connected(Err(trouble)) => {
                    self.leave(&trouble.error);
                    std::mem::take(&mut self.waiting).into_iter().for_each(|sent| self.send(sent));
                }
                Event::Done(number, sent, outcome) => self.done(number == self.number, sent, outcome),
                Event::Stop => return,
            }
        }
    }

    /// Sends a call, now or once there is a connection, or fails it.
    fn send(&mut self, sent: Sent) {
        if let Link::Up(connection) = &self.link {
            let (connection, settings, events) = (connection.clone(), Arc::clone(&self.settings), self.events.clone());
            let (hash, number) = (Arc::clone(&self.hash), self.number);
            tokio::spawn(async move {
                let call = carry_out(connection, &settings, &hash, sent.call.batch());
                let outcome = timeout(settings.response_timeout, call).await;
                let silence = |_| Err(Trouble::silence(&settings.address, settings.response_timeout));
                let outcome = outcome.unwrap_or_else(silence);
                _ = events.send(Event::Done(number, sent, outcome));
            });
            return;
        }
        if matches!(self.link, Link::Down) {
            if let Some((at, error)) = &self.not_before {
                let wait = at.saturating_duration_since(Instant::now());
                if !wait.is_zero() {
                    sent.call.answer(Err(error.clone().retry_after(wait)));
                    return;
                }
            }
            self.connect();
        }
        self.waiting.push(sent);
    }

    fn connect(&mut self) {
        self.link = Link::Connecting;
        let (settings, events) = (Arc::clone(&self.settings), self.events.clone());
        tokio::spawn(async move {
            // Deadlines are kept here, where what follows from them is decided.
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            let connection = settings.client.get_multiplexed_async_connection_with_config(&config);
            let outcome = match timeout(settings.connect_timeout, connection).await {
                Ok(outcome) => outcome.map_err(|error| Trouble::of(&error, &settings.address, "open a connection")),
                Err(_) => Err(Trouble::unreachable(&settings.address, settings.connect_timeout)),
            };
            _ = events.send(Event::Connected(outcome));
        });
    }

    /// A call has ended. `current`: on the connection that there is now.
    fn done(&mut self, current: bool, sent: Sent, outcome: Result<Reply, Trouble>) {
        let trouble = match outcome {
            Ok(reply) => {
                if current {
                    (self.proved, self.silences) = (true, 0);
                    (self.wait, self.not_before) = (Duration::ZERO, None);
                }
                sent.call.answer(Ok(reply));
                return;
            }
            Err(trouble) => trouble,
        };
        let current = current && matches!(self.link, Link::Up(_));
        match trouble.fate {
            Fate::Keep => self.silences = 0,
            Fate::Doubt if current => {
                self.silences += 1;
                if self.silences >= TOLERATED {
                    self.link = Link::Down;
                }
            }
            Fate::Lost if current && self.proved => self.link = Link::Down,
            Fate::Lost | Fate::Leave if current => self.leave(&trouble.error),
            _ => {}
        }
        if trouble.fate == Fate::Lost && !sent.again {
            self.send(Sent { again: true, ..sent });
            return;
        }
        let error = match (&self.link, &self.not_before) {
            (Link::Down, Some((at, _))) => trouble.error.retry_after(at.saturating_duration_since(Instant::now())),
            _ => trouble.error,
        };
        sent.call.answer(Err(error));
    }

    /// Leaves the connection alone, if there is one, for longer the more often that happens without an answer in between.
    fn leave(&mut self, why: &AuthorityError) {
        self.link = Link::Down;
        self.wait = (self.wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
        // From a half of the wait to all of it, so that nodes do not come all at once. A fleet waits for so long too before it
        // asks again: were this longer, it would ask in vain, and wait once more.
        let part = crate::hasher::random() % 512;
        let wait = (self.wait * (512 + part as u32) / 1_024).max(why.wait().unwrap_or_default());
        self.not_before = Some((Instant::now() + wait, why.clone()));
    }
}

/// Has the server carry a batch out.
async fn carry_out(
    mut connection: MultiplexedConnection,
    settings: &Settings,
    hash: &str,
    batch: &Batch,
) -> Result<Reply, Trouble> {
    let start = &settings.starts[usize::from(batch.shard) % settings.starts.len()];
    let trouble = |error: &RedisError, purpose| Trouble::of(error, &settings.address, purpose);
    let Some(packed) = Packed::new(batch, start) else {
        return Err(Trouble::new(Fate::Keep, &settings.address, "a batch has too many rules: send smaller ones"));
    };
    let evalsha = evalsha(hash, &packed);
    let mut reply = query(&mut connection, &evalsha).await;
    if reply.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT")) {
        // Nothing was done.
        let load = query(&mut connection, cmd("SCRIPT").arg("LOAD").arg(SCRIPT)).await;
        load.map_err(|error| trouble(&error, "take a script in (SCRIPT LOAD)"))?;
        reply = query(&mut connection, &evalsha).await;
    }
    match reply {
        Ok(Value::BulkString(bytes)) => unpack(&bytes, batch),
        Ok(_) => None,
        Err(error) => return Err(trouble(&error, "carry a batch out (EVALSHA)")),
    }
    .ok_or_else(|| {
        let what = "its answer to a batch (EVALSHA) makes no sense: is it Redis?";
        let Trouble { error, fate } = Trouble::new(Fate::Leave, &settings.address, what);
        Trouble { error: error.because_of("no Redis"), fate }
    })
}

/// What the server answers, an error as such.
async fn query(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    connection.send_packed_command(command).await.and_then(Value::extract_error)
}

fn evalsha(hash: &str, packed: &Packed) -> Cmd {
    let mut evalsha = cmd("EVALSHA");
    evalsha.arg(hash).arg(packed.keys.len());
    for key in &packed.keys {
        evalsha.arg(key);
    }
    evalsha.arg(&packed.argument);
    evalsha
}
