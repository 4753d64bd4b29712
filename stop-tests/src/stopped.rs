//! Threads that are stopped wherever they are.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Once, mpsc};
use std::time::{Duration, Instant};
use std::{hint, io, mem, process, ptr, thread};

use crate::{PATIENCE, allocator};

/// A worker does its turns.
const RUNNING: u32 = 0;
/// A signal is on its way to it.
const ASKED: u32 = 1;
/// It stands still in the handler of the signal.
const STOPPED: u32 = 2;
/// The signal met it in the allocator, and it has gone on.
const MISSED: u32 = 3;
/// It may leave the handler, and has not yet.
const LEAVING: u32 = 4;
/// It has ended.
const ENDED: u32 = 5;

/// The most steps that a worker is left alone for between two stops: some tens of microseconds.
const LONGEST_RUN: u64 = 20_000;

thread_local! {
    // An atomic, as a signal handler reads it. It has no destructor, so reading it there registers
    // nothing.
    static OWN: AtomicPtr<Worker> = const { AtomicPtr::new(ptr::null_mut()) };
}

/// A thread that can be stopped, as the thread that stops it sees it.
struct Worker {
    state: AtomicU32,
    /// How often it has done its work.
    turns: AtomicU64,
    /// Its `pthread_t`, once it runs.
    thread: AtomicU64,
}

/// Threads that are stopped, and threads that must not wait for them.
///
/// The workers do one piece of work after another and are stopped together at random instants, in
/// the middle of their work. While they stand still, each of the `checks` is run once, on a thread
/// of its own. Only when all have ended may the workers go on.
#[expect(missing_debug_implementations, reason = "it holds closures")]
#[expect(clippy::exhaustive_structs, reason = "each case gives all of it")]
pub struct Case<'a> {
    /// The work of each thread that is stopped, which is told its turn.
    pub workers: Vec<Box<dyn Fn(u64) + Sync + 'a>>,
    /// The work of a thread that is never stopped, and may wait for those that are.
    pub beside: Option<Box<dyn Fn(u64) + Sync + 'a>>,
    /// What has to come to an end while the workers stand still.
    pub checks: Vec<Box<dyn Fn() + Sync + 'a>>,
}

/// Stops the workers of `case` so many times, at instants that `seed` decides.
///
/// # Panics
///
/// Panics if the checks do not end while the workers stand still. The workers go on before that.
pub fn play(name: &str, case: &Case<'_>, stops: u64, seed: u64) {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(take_the_signal);

    let over = AtomicBool::new(false);
    // Not on the stack: a late signal may find them whatever happens here.
    let workers: Vec<&'static Worker> = case.workers.iter().map(|_| Worker::leaked()).collect();
    let (tell, told) = mpsc::channel();
    let result = thread::scope(|scope| {
        let handles: Vec<_> =
            (case.workers.iter().zip(&workers)).map(|(work, worker)| scope.spawn(|| worker.run(work, &over))).collect();
        if let Some(work) = &case.beside {
            let over = &over;
            scope.spawn(move || (0..).take_while(|_| !over.load(Ordering::Relaxed)).for_each(work));
        }
        let rounds: Vec<_> = (case.checks.iter())
            .map(|check| {
                let (start, started) = mpsc::channel::<()>();
                let tell = tell.clone();
                scope.spawn(move || {
                    for () in started {
                        check();
                        // Once the case has failed nothing listens any more.
                        _ = tell.send(());
                    }
                });
                start
            })
            .collect();
        let result = stop_and_check(&workers, &rounds, &told, stops, seed);
        over.store(true, Ordering::Relaxed);
        drop(rounds);
        // A worker that has panicked says so in the end of the scope. Until then its handle is
        // kept: a thread that was joined must not be signalled.
        drop(handles);
        result
    });
    if let Err(what) = result {
        panic!("{name}: {what}");
    }
}

/// Plays all stops. All workers run when it returns.
fn stop_and_check(
    workers: &[&'static Worker],
    rounds: &[mpsc::Sender<()>],
    told: &mpsc::Receiver<()>,
    stops: u64,
    seed: u64,
) -> Result<(), String> {
    let mut chance = Chance(seed);
    let round = || {
        rounds.iter().for_each(|start| _ = start.send(()));
        ended(told, rounds.len())
    };
    // Once before the first stop, so that no check thread does anything for the first time later.
    if round() < rounds.len() {
        fail_hard("the checks do not end though no thread is stopped");
    }
    // A thread that has not begun has no number to send a signal to.
    if !workers.iter().all(|worker| worker.wait_until(|| worker.turns() > 0)) {
        return Err("a worker has ended, or did not begin".to_owned());
    }
    for stop in 1..=stops {
        // Until one of them, which one depends on the stop, is not where it was any more.
        let first = workers[stop as usize % workers.len()];
        let turns = first.turns();
        let is_under_way = first.wait_until(|| first.turns() > turns);
        (0..chance.below(LONGEST_RUN)).for_each(|_| hint::spin_loop());
        let stopped = is_under_way && workers.iter().all(|worker| worker.stop());
        let in_time = if stopped { round() } else { 0 };
        workers.iter().for_each(|worker| worker.let_go());
        if !stopped {
            return Err(format!("stop {stop}: a worker has ended, or can't be stopped"));
        }
        let late = rounds.len() - in_time;
        if late > 0 {
            // What waits for a stopped thread ends now, so that the test can.
            if ended(told, late) < late {
                fail_hard("the checks do not end though all threads go on again");
            }
            return Err(format!("stop {stop}: checks waited {PATIENCE:?} for a thread that stood still"));
        }
    }
    Ok(())
}

/// How many of so many threads end their checks.
fn ended(told: &mpsc::Receiver<()>, of: usize) -> usize {
    (0..of).take_while(|_| told.recv_timeout(PATIENCE).is_ok()).count()
}

/// Ends the process: threads that wait for ever can't be joined.
fn fail_hard(what: &str) -> ! {
    // By hand: the test harness keeps what is printed until the test ends.
    _ = writeln!(io::stderr(), "{what}");
    process::abort()
}

impl Worker {
    fn leaked() -> &'static Self {
        Box::leak(Box::new(Self {
            state: AtomicU32::new(RUNNING),
            turns: AtomicU64::new(0),
            thread: AtomicU64::new(0),
        }))
    }

    /// Does `work` over and over until `over`.
    fn run(&'static self, work: &(dyn Fn(u64) + Sync), over: &AtomicBool) {
        /// Says that the thread has ended, by a panic too.
        struct End(&'static Worker);
        impl Drop for End {
            fn drop(&mut self) {
                self.0.state.store(ENDED, Ordering::Release);
            }
        }

        let _end = End(self);
        OWN.with(|own| own.store(ptr::from_ref(self).cast_mut(), Ordering::Relaxed));
        // SAFETY: it has no conditions.
        self.thread.store(unsafe { libc::pthread_self() }, Ordering::Relaxed);
        while !over.load(Ordering::Relaxed) {
            work(self.turns.load(Ordering::Relaxed));
            // Release: pairs with the Acquire in `turns`. A thread that sees a turn sees the number
            // too.
            self.turns.fetch_add(1, Ordering::Release);
        }
    }

    fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    /// Stops the worker where it is. False if it has ended.
    fn stop(&self) -> bool {
        loop {
            // It stands where it stood if it has not left the handler since.
            if self.has_become(LEAVING, STOPPED) {
                return true;
            }
            if !self.has_become(RUNNING, ASKED) {
                return false;
            }
            // SAFETY: it is a thread of this process that has not been joined, as `play` keeps its
            // handle.
            let sent = unsafe { libc::pthread_kill(self.thread.load(Ordering::Relaxed), libc::SIGUSR1) };
            assert_eq!(sent, 0, "no signal can be sent: {}", io::Error::from_raw_os_error(sent));
            if !self.wait_until(|| self.state.load(Ordering::Acquire) != ASKED) {
                return false;
            }
            if !self.has_become(MISSED, RUNNING) {
                return self.state.load(Ordering::Acquire) == STOPPED;
            }
            // It was in the allocator, and is asked again a moment later.
            (0..200).for_each(|_| hint::spin_loop());
        }
    }

    fn let_go(&self) {
        self.has_become(STOPPED, LEAVING);
        // Where a stop has failed the signal may still be on its way.
        self.has_become(ASKED, RUNNING);
    }

    fn has_become(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Waits until `done`. False if that never happens.
    fn wait_until(&self, done: impl Fn() -> bool) -> bool {
        let since = Instant::now();
        while !done() {
            if self.state.load(Ordering::Acquire) == ENDED || since.elapsed() > PATIENCE {
                return false;
            }
            thread::sleep(Duration::from_micros(20));
        }
        true
    }
}

/// Takes the signal for the whole process.
fn take_the_signal() {
    // SAFETY: all fields of a `sigaction` may be 0.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = stand_still as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: both pointers are valid or null, and the handler calls only what a handler may.
    let taken = unsafe { libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut()) };
    assert_eq!(taken, 0, "no handler can be installed: {}", io::Error::last_os_error());
}

/// Waits, in the place where the signal met this thread, until the worker is let go.
///
/// It uses atomics and sleeps, both of which a signal handler may do.
extern "C" fn stand_still(_: libc::c_int) {
    let own = OWN.with(|own| own.load(Ordering::Relaxed));
    // SAFETY: it is null, or a worker that was leaked.
    let Some(worker) = (unsafe { own.as_ref() }) else { return };
    let met = if allocator::is_in() { MISSED } else { STOPPED };
    if !worker.has_become(ASKED, met) || met == MISSED {
        return;
    }
    // SAFETY: the location of `errno` is valid for as long as its thread is. The interrupted code
    // may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    let nap = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
    while !worker.has_become(LEAVING, RUNNING) {
        // SAFETY: `nap` is valid, and nothing is asked about the rest of the time.
        unsafe { libc::nanosleep(&nap, ptr::null_mut()) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Random numbers by splitmix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ z >> 31) % end
    }
}
