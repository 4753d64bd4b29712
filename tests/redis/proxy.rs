//! A network between clients and a server that holds back, breaks off, swallows and doubles what it carries.
//!
//! It carries whole messages, so that a fault hits a request or an answer, and not a part of one.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Default)]
struct State {
    /// The port of the server.
    target: AtomicU16,
    /// What it carries is not cut into messages.
    is_raw: bool,
    /// How many connections were taken.
    accepted: AtomicUsize,
    /// Answers are held back.
    delays_answers: AtomicBool,
    /// Answers come so many microseconds late.
    lag: AtomicU64,
    /// The next answer ends the connection instead.
    breaks_on_answer: AtomicBool,
    /// So many of a thousand answers end the connection instead.
    breaks: AtomicU32,
    /// Counts answers, so that which of them are hit depends on nothing else.
    answers: AtomicU64,
    /// Connections are taken, and nothing is carried.
    holds: AtomicBool,
    /// Whatever comes is dropped, and its connection carries nothing from then on.
    swallows: AtomicBool,
    /// The server is sent each request twice, and its second answer is dropped.
    doubles: AtomicBool,
    /// How many requests were sent twice.
    doubled: AtomicUsize,
    /// Answers are another string instead.
    garbles: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

/// Carries between its port and a server's until the process ends.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<State>,
}

impl Proxy {
    pub(crate) fn to(server: u16) -> Self {
        Self::new(State { target: server.into(), ..State::default() })
    }

    /// A proxy that carries what comes as it comes: not all that servers say to each other are messages.
    pub(crate) fn raw(server: u16) -> Self {
        Self::new(State { target: server.into(), is_raw: true, ..State::default() })
    }

    fn new(state: State) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(state);
        let all = Arc::clone(&state);
        // It ends with the test's process.
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                all.accepted.fetch_add(1, Ordering::SeqCst);
                all.open.lock().unwrap().push(client.try_clone().unwrap());
                if all.holds.load(Ordering::SeqCst) {
                    continue;
                }
                match TcpStream::connect(("127.0.0.1", all.target.load(Ordering::SeqCst))) {
                    Ok(server) => carry(&all, client, server),
                    Err(_) => _ = client.shutdown(Shutdown::Both),
                }
            }
        });
        Self { port, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// Connections that are made from now on lead to another server.
    pub(crate) fn point_to(&self, server: u16) {
        self.state.target.store(server, Ordering::SeqCst);
    }

    /// Whether what the server answers is held back.
    pub(crate) fn delay_answers(&self, delays: bool) {
        self.state.delays_answers.store(delays, Ordering::SeqCst);
    }

    /// How late answers come from now on.
    pub(crate) fn lag(&self, lag: Duration) {
        self.state.lag.store(lag.as_micros() as u64, Ordering::SeqCst);
    }

    /// The next answer of the server ends the connection that it is for.
    pub(crate) fn break_on_answer(&self) {
        self.state.breaks_on_answer.store(true, Ordering::SeqCst);
    }

    /// So many of a thousand answers end the connection that they are for.
    pub(crate) fn break_answers(&self, of_a_thousand: u32) {
        self.state.breaks.store(of_a_thousand, Ordering::SeqCst);
    }

    /// Whether connections that are made from now on carry nothing.
    pub(crate) fn hold(&self, holds: bool) {
        self.state.holds.store(holds, Ordering::SeqCst);
    }

    /// Whether whatever comes is dropped, as if the other end had gone without a word. A connection on which something was
    /// dropped carries nothing again.
    pub(crate) fn swallow(&self, swallows: bool) {
        self.state.swallows.store(swallows, Ordering::SeqCst);
    }

    /// Whether the server is sent each request twice.
    pub(crate) fn double(&self, doubles: bool) {
        self.state.doubles.store(doubles, Ordering::SeqCst);
    }

    pub(crate) fn doubled(&self) -> usize {
        self.state.doubled.load(Ordering::SeqCst)
    }

    /// Whether each answer is a string that means nothing.
    pub(crate) fn garble(&self, garbles: bool) {
        self.state.garbles.store(garbles, Ordering::SeqCst);
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        for client in self.state.open.lock().unwrap().drain(..) {
            _ = client.shutdown(Shutdown::Both);
        }
    }
}

/// Carries between both until either is closed.
fn carry(state: &Arc<State>, client: TcpStream, server: TcpStream) {
    for end in [&client, &server] {
        _ = end.set_nodelay(true);
    }
    // Which of the answers that are to come are for the client.
    let wanted = Arc::new(Mutex::new(VecDeque::new()));
    let is_dead = Arc::new(AtomicBool::new(false));
    let (late, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    let ends = || (client.try_clone().unwrap(), server.try_clone().unwrap());

    let (from, mut to) = ends();
    let (this, dead, expected) = (Arc::clone(state), Arc::clone(&is_dead), Arc::clone(&wanted));
    thread::spawn(move || {
        each_message(this.is_raw, from, |request| {
            if this.swallows.load(Ordering::SeqCst) {
                dead.store(true, Ordering::SeqCst);
            }
            if dead.load(Ordering::SeqCst) {
                return true;
            }
            let twice = this.doubles.load(Ordering::SeqCst);
            expected.lock().unwrap().extend([true, false].iter().take(1 + usize::from(twice)));
            this.doubled.fetch_add(usize::from(twice), Ordering::SeqCst);
            (0..=usize::from(twice)).all(|_| to.write_all(request).is_ok())
        });
        _ = to.shutdown(Shutdown::Both);
    });

    let (to, from) = ends();
    let (this, dead) = (Arc::clone(state), Arc::clone(&is_dead));
    thread::spawn(move || {
        each_message(this.is_raw, from, |answer| {
            if this.swallows.load(Ordering::SeqCst) {
                dead.store(true, Ordering::SeqCst);
            }
            if !wanted.lock().unwrap().pop_front().unwrap_or(true) || dead.load(Ordering::SeqCst) {
                return true;
            }
            let number = this.answers.fetch_add(1, Ordering::SeqCst);
            if this.breaks_on_answer.swap(false, Ordering::SeqCst) || is_hit(number, &this.breaks) {
                return false;
            }
            let answer = if this.garbles.load(Ordering::SeqCst) { b"$7\r\nrubbish\r\n" } else { answer };
            let lag = Duration::from_micros(this.lag.load(Ordering::SeqCst));
            late.send((Instant::now() + lag, answer.to_vec())).is_ok()
        });
        _ = to.shutdown(Shutdown::Both);
    });

    let state = Arc::clone(state);
    thread::spawn(move || {
        let mut client = client;
        for (due, answer) in due {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            while state.delays_answers.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            if client.write_all(&answer).is_err() {
                break;
            }
        }
        _ = client.shutdown(Shutdown::Both);
        _ = server.shutdown(Shutdown::Both);
    });
}

/// Whether the answer of that number is one of so many of a thousand, which lie as if by chance.
pub(crate) fn is_hit(number: u64, of_a_thousand: &AtomicU32) -> bool {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed >> 32) % 1_000 < u64::from(of_a_thousand.load(Ordering::SeqCst))
}

/// Reads until the other end is closed or `act` is false of a message.
fn each_message(is_raw: bool, mut from: TcpStream, mut act: impl FnMut(&[u8]) -> bool) {
    let (mut bytes, mut kept) = ([0; 65_536], Vec::new());
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        kept.extend_from_slice(&bytes[..count]);
        let length = |kept: &[u8]| if is_raw { Some(kept.len()).filter(|length| *length > 0) } else { length(kept) };
        let mut start = 0;
        while let Some(length) = length(&kept[start..]) {
            if !act(&kept[start..start + length]) {
                return;
            }
            start += length;
        }
        kept.drain(..start);
    }
}

/// How long the message is that begins here, if all of it is here.
fn length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|two| two == b"\r\n")?;
    let number = || std::str::from_utf8(&bytes[1..line]).ok()?.parse::<i64>().ok();
    let mut end = line + 2;
    match bytes.first()? {
        b'$' => end += usize::try_from(number()?).map_or(0, |count| count + 2),
        b'*' => {
            for _ in 0..number()?.max(0) {
                end += length(bytes.get(end..)?)?;
            }
        }
        _ => {}
    }
    (end <= bytes.len()).then_some(end)
}
