//! A network between a client and a server that holds back and breaks off what it carries.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

#[derive(Default)]
struct State {
    /// How many connections were taken.
    accepted: AtomicUsize,
    /// Bytes from the server are held back.
    delays_answers: AtomicBool,
    /// Bytes from the server end the connection instead.
    breaks_on_answer: AtomicBool,
    /// Connections are taken, and nothing is carried.
    holds: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

/// Carries between its port and a server's until it is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<State>,
}

impl Proxy {
    pub(crate) fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
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
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                    _ = client.shutdown(Shutdown::Both);
                    continue;
                };
                let there = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || carry(there.0, there.1, |_| {}));
                let state = Arc::clone(&all);
                thread::spawn(move || {
                    carry(server, client, |client| {
                        if state.breaks_on_answer.swap(false, Ordering::SeqCst) {
                            _ = client.shutdown(Shutdown::Both);
                        }
                        while state.delays_answers.load(Ordering::SeqCst) {
                            thread::sleep(Duration::from_millis(1));
                        }
                    });
                });
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

    /// Whether what the server answers is held back.
    pub(crate) fn delay_answers(&self, delays: bool) {
        self.state.delays_answers.store(delays, Ordering::SeqCst);
    }

    /// The next answer of the server ends the connection that it is for.
    pub(crate) fn break_on_answer(&self) {
        self.state.breaks_on_answer.store(true, Ordering::SeqCst);
    }

    /// Whether connections that are made from now on carry nothing.
    pub(crate) fn hold(&self, holds: bool) {
        self.state.holds.store(holds, Ordering::SeqCst);
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        for client in self.state.open.lock().unwrap().drain(..) {
            _ = client.shutdown(Shutdown::Both);
        }
    }
}

/// Carries until either end is closed, and calls `before` each time.
fn carry(mut from: TcpStream, mut to: TcpStream, before: impl Fn(&TcpStream)) {
    let mut bytes = [0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        before(&to);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    _ = from.shutdown(Shutdown::Both);
    _ = to.shutdown(Shutdown::Both);
}
