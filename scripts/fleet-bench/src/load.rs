//! The same requests, at the same instants, on the same nodes, for whoever is measured.

use std::future::poll_fn;
use std::sync::Barrier;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::task::{JoinSet, unconstrained};
use tokio::time::{sleep, timeout};

use crate::peers::{Check, Client, Failure, Kind, Limit, Node, Verdict};

/// When a request comes, and of which client.
pub type Request = (Duration, u32);

/// What each node is asked.
pub type Load = Vec<Vec<Request>>;

/// A request that was answered.
pub struct Record {
    pub client: u32,
    /// When it was asked, and when answered, in nanoseconds from the start.
    pub asked: u64,
    pub answered: u64,
    pub verdict: Verdict,
}

pub struct Outcome {
    pub records: Vec<Record>,
    pub unanswered: usize,
}

/// How long the last answers are waited for.
const GRACE: Duration = Duration::from_secs(5);

/// Between the last node's connection and the first request.
const SETTLE: Duration = Duration::from_millis(500);

/// Runs `load` and calls `begin` when all nodes are connected, and `end` before they shut down.
///
/// Each node has a thread that asks and a runtime with a thread of its own for what its limiter does in the background. A
/// request that isn't answered at once goes on beside those that follow, so that a slow answer delays no other request.
pub fn run<T>(
    kind: Kind,
    limit: Limit,
    url: &str,
    clients: &'static [Client],
    load: &Load,
    begin: impl FnOnce() -> Result<T, Failure>,
    end: impl FnOnce(&T) -> Result<(), Failure>,
) -> Result<Outcome, Failure> {
    let nodes = load.len();
    let (ready, go, done, over) =
        (Barrier::new(nodes + 1), Barrier::new(nodes + 1), Barrier::new(nodes + 1), Barrier::new(nodes + 1));
    let start = std::sync::OnceLock::new();
    thread::scope(|scope| {
        let threads: Vec<_> = load
            .iter()
            .map(|requests| {
                let (ready, go, done, over, start) = (&ready, &go, &done, &over, &start);
                scope.spawn(move || -> Result<(Vec<Record>, usize), Failure> {
                    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
                    let node = runtime.block_on(Node::new(kind, limit, url));
                    ready.wait();
                    go.wait();
                    let start: Instant = *start.get_or_init(Instant::now);
                    let result = match &node {
                        Ok(node) => Ok(runtime.block_on(drive(node, clients, requests, start))),
                        Err(_) => Ok((Vec::new(), requests.len())),
                    };
                    done.wait();
                    over.wait();
                    // Whatever goes on in there has had its time.
                    runtime.shutdown_background();
                    node.and(result)
                })
            })
            .collect();
        ready.wait();
        thread::sleep(SETTLE);
        let begun = begin();
        go.wait();
        done.wait();
        let ended = begun.and_then(|begun| end(&begun));
        over.wait();
        let mut outcome = Outcome { records: Vec::new(), unanswered: 0 };
        for thread in threads {
            let (records, unanswered) = thread.join().map_err(|_| "a node panicked")??;
            outcome.records.extend(records);
            outcome.unanswered += unanswered;
        }
        ended.map(|()| outcome)
    })
}

async fn drive(node: &Node, clients: &'static [Client], requests: &[Request], start: Instant) -> (Vec<Record>, usize) {
    let since = |instant: Instant| instant.duration_since(start).as_nanos() as u64;
    let mut records = Vec::with_capacity(requests.len());
    let mut pending = JoinSet::new();
    for &(at, client) in requests {
        let early = at.saturating_sub(start.elapsed());
        if !early.is_zero() {
            sleep(early).await;
        }
        let asked = Instant::now();
        let verdict = match node.check(&clients[client as usize]) {
            Check::Now(verdict) => Some(verdict),
            Check::Later(mut answer) => {
                // What is ready at once is no business of the scheduler, and its budget is not used up by many of them.
                match unconstrained(poll_fn(|context| Poll::Ready(answer.as_mut().poll(context)))).await {
                    Poll::Ready(verdict) => Some(verdict),
                    Poll::Pending => {
                        pending.spawn(async move { (answer.await, client, asked, Instant::now()) });
                        None
                    }
                }
            }
        };
        let answered = Instant::now();
        if let Some(verdict) = verdict {
            records.push(Record { client, asked: since(asked), answered: since(answered), verdict });
        }
    }
    let late = async {
        while let Some(joined) = pending.join_next().await {
            let Ok((verdict, client, asked, answered)) = joined else { continue };
            records.push(Record { client, asked: since(asked), answered: since(answered), verdict });
        }
    };
    _ = timeout(GRACE, late).await;
    let unanswered = requests.len() - records.len();
    (records, unanswered)
}
