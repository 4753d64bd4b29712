//! A Redis server of the test's own: on a free port of this machine, in a folder of its own, with nothing saved.
//!
//! It is the `redis-server` on the PATH, or whatever program `TOLLGATE_REDIS_SERVER` names: Valkey's, or another version's.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes.
pub(crate) const PATIENT: Duration = Duration::from_secs(60);

/// A server that is stopped when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    folder: PathBuf,
    options: Vec<String>,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// A server with options, as `redis-server` takes them.
    pub(crate) fn with(options: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tollgate-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
        // Another program may take the port in the meantime.
        for _ in 0..10 {
            let port = free_port();
            let mut child = spawn(port, &folder, &options);
            if comes_up(&mut child, port) {
                return Self { child, port, folder, options };
            }
        }
        panic!("no redis-server came up with the options {options:?}; see {}", folder.display());
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// Stops it as a crash does.
    pub(crate) fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Has it save all it has, and end.
    pub(crate) fn save_and_end(&mut self) {
        // The connection ends with the server.
        _ = redis::cmd("SHUTDOWN").arg("SAVE").exec(&mut self.connection());
        assert!(self.child.wait().unwrap().success());
    }

    /// Starts it again, with what it has saved, and waits for it.
    pub(crate) fn start_again(&mut self) {
        let begun = Instant::now();
        while begun.elapsed() < PATIENT {
            self.begin_again();
            if comes_up(&mut self.child, self.port) {
                return;
            }
        }
        panic!("the server did not come up again");
    }

    /// Starts it again.
    pub(crate) fn begin_again(&mut self) {
        self.child = spawn(self.port, &self.folder, &self.options);
    }

    /// Has the system run none of it until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, name: &str) {
        signal(&self.child, name);
    }
}

/// Sends a process a signal, which is called as `kill` calls it.
pub(crate) fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn spawn(port: u16, folder: &PathBuf, options: &[String]) -> Child {
    let port = port.to_string();
    let program = std::env::var_os("TOLLGATE_REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
    let mut command = Command::new(&program);
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--databases", "64"]);
    command.arg("--dir").arg(folder).arg("--logfile").arg(folder.join("log")).args(options);
    match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => panic!(
            "these tests need a Redis server, and there is no {}: install one, with `apt-get install redis-server` on \
             Debian and Ubuntu or `brew install redis` on macOS, or name one in TOLLGATE_REDIS_SERVER",
            program.display()
        ),
        Err(error) => panic!("{} could not be started: {error}", program.display()),
    }
}

/// Whether it answers, or else has ended.
fn comes_up(child: &mut Child, port: u16) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENT {
        if let Ok(Some(_)) = child.try_wait() {
            return false;
        }
        let client = redis::Client::open(("127.0.0.1", port)).unwrap();
        if let Ok(mut connection) = client.get_connection_with_timeout(Duration::from_secs(1)) {
            // It may ask for a password.
            let pong = redis::cmd("PING").query::<String>(&mut connection);
            if pong.is_ok() || pong.is_err_and(|error| error.code() == Some("NOAUTH")) {
                return true;
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    _ = child.kill();
    false
}
