//! Nodes as processes: this program starts itself once for each, and they tell by pipe what they admit.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tollgate::global::RedisAuthority;

use super::node::{self, Log, Told, now};
use super::server::Server;
use super::{Args, Failure, ask, judge};

/// Set for a child: the instant at which it begins, what its keys begin with, and the server. The address may hold a password,
/// which is nobody's business who lists processes.
const BEGIN: &str = "TOLLGATE_FLEET_BEGIN";
const PREFIX: &str = "TOLLGATE_FLEET_PREFIX";
const SERVER: &str = "TOLLGATE_FLEET_SERVER";

/// Time for the children to start.
const HEAD_START: Duration = Duration::from_millis(500);

/// If this process is a child: when it begins.
pub(crate) fn begin_of_child() -> Option<Duration> {
    env::var(BEGIN).ok()?.parse().ok().map(Duration::from_nanos)
}

/// Runs one node, and writes what it tells.
pub(crate) fn be_a_node(args: Args, begin: Duration) -> Result<(), Failure> {
    let (url, prefix) = (env::var(SERVER)?, env::var(PREFIX)?);
    let authority = RedisAuthority::builder(url).key_prefix(prefix).build()?;
    let mut out = io::stdout().lock();
    // If nobody reads any more this ends too.
    node::drive(&args, authority, begin, |told| match told {
        Told::Admitted(before, after) => writeln!(out, "admitted {} {}", before.as_nanos(), after.as_nanos()),
        Told::Batches(batches) => writeln!(out, "batches {batches}"),
    })?;
    Ok(())
}

/// Starts the processes, and judges what they tell.
pub(crate) fn run(mut args: Args) -> Result<bool, Failure> {
    // Stopped when this ends, however it does.
    let mut server = None;
    let url = match args.redis.take() {
        Some(url) => url,
        None => server.insert(Server::start()?).url(),
    };
    ask::ask(&url, &args.prefix)?;
    let begin = now() + HEAD_START;
    let mut logs = Vec::new();
    for _ in 0..args.nodes {
        let child = spawn(&args, begin, &url)?;
        logs.push(Log::of(begin, move |counts| {
            let mut child = Owned(child);
            let pipe = child.0.stdout.take().ok_or("a node has no pipe")?;
            for line in BufReader::new(pipe).lines() {
                let line = line?;
                counts.take(parse(&line).ok_or_else(|| format!("a node said {line:?}"))?);
            }
            let status = child.0.wait()?;
            if status.success() { Ok(()) } else { Err(format!("a node ended with {status}: see what it said").into()) }
        }));
    }
    judge(&args, logs)
}

fn spawn(args: &Args, begin: Duration, url: &str) -> Result<Child, Failure> {
    let mut command = Command::new(env::current_exe()?);
    let options = [
        ("--nodes", args.nodes.into()),
        ("--limit", args.limit),
        ("--window", args.window),
        ("--rate", args.rate),
        ("--overdraft", args.overdraft.into()),
        ("--seconds", args.seconds),
    ];
    for (name, value) in options {
        command.arg(name).arg(value.to_string());
    }
    command.env(BEGIN, begin.as_nanos().to_string()).env(PREFIX, &args.prefix).env(SERVER, url);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().map_err(|error| format!("a node could not be started: {error}").into())
}

fn parse(line: &str) -> Option<Told> {
    let mut words = line.split(' ');
    let kind = words.next()?;
    let mut number = || words.next()?.parse().ok();
    match kind {
        "admitted" => Some(Told::Admitted(Duration::from_nanos(number()?), Duration::from_nanos(number()?))),
        "batches" => Some(Told::Batches(number()?)),
        _ => None,
    }
}

/// A child that does not outlive whoever reads from it.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
