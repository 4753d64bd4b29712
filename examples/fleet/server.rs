//! A Redis server for the time that this program runs.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Failure;

/// How long it may take to come up.
const PATIENCE: Duration = Duration::from_secs(10);

/// A `redis-server` on a free port of this machine, which saves nothing. It is stopped when this is dropped.
pub(crate) struct Server {
    child: Child,
    port: u16,
}

impl Server {
    pub(crate) fn start() -> Result<Self, Failure> {
        // Free a moment ago; who takes it in between keeps it.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"];
        let mut command = Command::new("redis-server");
        command.args(options).arg(port.to_string()).current_dir(std::env::temp_dir());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                "there is no `redis-server` on the PATH to start: install one, or give the address of one with --redis"
                    .to_owned()
            }
            _ => format!("redis-server could not be started: {error}"),
        })?;
        let mut server = Self { child, port };
        let begun = Instant::now();
        while !server.answers() {
            if let Some(status) = server.child.try_wait()? {
                return Err(
                    format!("redis-server ended with {status}; give the address of another with --redis").into()
                );
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("redis-server did not answer on port {port} within {PATIENCE:?}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        println!("started a redis-server on port {port}");
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn answers(&self) -> bool {
        let ask = || -> io::Result<bool> {
            let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
            connection.set_read_timeout(Some(Duration::from_secs(1)))?;
            connection.write_all(b"PING\r\n")?;
            let mut pong = [0; 5];
            connection.read_exact(&mut pong)?;
            Ok(&pong == b"+PONG")
        };
        ask().unwrap_or(false)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
