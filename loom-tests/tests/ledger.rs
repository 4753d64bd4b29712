//! A key's account with a global quota under every interleaving: what requests take against what the background thread
//! looks at, renews and acknowledges.
//!
//! The ledger and the dirty queue are the library's own, on loom's atomics; the thread's sums are those of `protocol.rs`,
//! by lease and without its saturation. What loom leaves unchecked:
//!
//! - No load of a model shows a store that comes later. That a request can't read terms of an epoch to come and still
//!   change the word of the present one stands on the written reason in `ledger.rs`.
//! - A compare-and-swap sees the last value only, and a weak one never fails without cause.
//! - Nor does any other read-modify-write miss a value, so that `need`, which is only changed by such, is found whatever
//!   its ordering.
//! - Epochs that come round.
#![allow(clippy::expect_used, reason = "a helper that meets the unexpected stops the model")]

use std::sync::Arc;
use std::time::Duration;

use loom_tests::Race;
use loom_tests::sync::Mutex;
use tollgate::global::{Answer, Batch, Body, GlobalQuota, Reply, WireName};
use tollgate::internal::{Answered, Dirty, Ledger, Protocol, Settings, Spent, Terms};

/// More leases than any model has.
const LEASES: usize = 4;

/// More than any balance.
const ALL: u32 = u32::MAX;

/// Beyond every instant.
const NEVER: u64 = u64::MAX;

/// A ledger of which nothing is known, with so much overdraft at first.
fn ledger(overdraft: u32) -> Ledger {
    let quota = GlobalQuota::sliding_window(1_000, Duration::from_secs(60)).overdraft(overdraft);
    let quota = quota.compile("plan", Duration::from_millis(100)).expect("a quota that makes sense");
    Ledger::new(WireName(1), quota)
}

/// A lease until then, and no overdraft.
const fn until(deadline: u64) -> Terms {
    Terms { deadline, ..Terms::unknown(0) }
}

/// A ledger with a lease of so many units, and what the thread knows of it.
fn leased(terms: Terms, put: u32) -> (Arc<Ledger>, Account) {
    let (ledger, mut account) = (Arc::new(ledger(0)), Account::default());
    account.renew(&ledger, terms, 0, put, 0);
    (ledger, account)
}

/// What the background thread makes of a ledger.
#[derive(Default)]
struct Account {
    /// Units in the balance, as far as it knows.
    put: u32,
    lease: usize,
    /// Units used of each lease.
    used: [u32; LEASES],
    withdrawn: u32,
    /// What was put in, in all.
    added: u32,
    overdraft: u32,
    acknowledged: u32,
    need: u32,
}

impl Account {
    fn note_used(&mut self, left: u32) {
        let used = self.put.checked_sub(left);
        self.used[self.lease] += used.expect("what was accounted for as used does not come back");
    }

    fn collect(&mut self, ledger: &Ledger, keep: u32) {
        let found = ledger.collect(|balance| balance.min(keep));
        self.note_used(found.balance + found.withdrawn);
        self.put = found.balance;
        self.withdrawn += found.withdrawn;
        assert!(self.overdraft <= found.overdraft, "nobody else acknowledges");
        self.overdraft = found.overdraft;
        self.need = self.need.max(ledger.wanted().need);
    }

    /// Puts in the next lease, which its room tells from others, and whether its number is even.
    fn renew(&mut self, ledger: &Ledger, terms: Terms, withdraw: u32, add: u32, acknowledged: u32) {
        let lease = self.lease + 1;
        let terms = Terms { room: lease as u32, away: lease.is_multiple_of(2), ..terms };
        let renewed = ledger.renew(terms, withdraw, add, acknowledged);
        let withdrawn = withdraw.min(renewed.before);
        assert_eq!(renewed.balance, renewed.before - withdrawn + add);
        self.note_used(renewed.before);
        self.withdrawn += withdrawn;
        self.added += add;
        self.overdraft -= acknowledged;
        self.acknowledged += acknowledged;
        self.put = renewed.balance;
        self.lease = lease;
    }

    /// Looks at the ledger if it is told to, which has to be enough: all that was taken is then known, each unit once and of
    /// the lease it was taken from, and what is not used is still there.
    fn settle(&mut self, ledger: &Ledger, taken: &Taken) {
        if ledger.is_dirty() {
            self.collect(ledger, ALL);
        }
        assert_eq!((self.used, self.acknowledged + self.overdraft), (taken.leases, taken.overdraft));
        assert_eq!(self.added, self.used.iter().sum::<u32>() + self.withdrawn + self.put);
        let left = ledger.collect(|_| 0);
        assert_eq!((left.withdrawn, left.overdraft), (self.put, self.overdraft));
    }
}

/// What requests were told.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Taken {
    /// Units taken of each lease.
    leases: [u32; LEASES],
    overdraft: u32,
    refused: u32,
    /// How often the ledger had to go on a queue, and on the one that does not wait.
    news: u32,
    urgent: u32,
}

impl Taken {
    fn take(&mut self, ledger: &Ledger, cost: u32, now: u64) -> Answered {
        let Spent { answer, news, urgent } = ledger.spend(cost, now);
        match answer {
            Answered::Lease { room: lease, away, .. } => {
                assert_eq!(away, lease % 2 == 0, "terms of two leases");
                self.leases[lease as usize] += cost;
            }
            Answered::Overdraft { .. } => self.overdraft += cost,
            Answered::Full { .. } | Answered::NoLease { .. } => self.refused += cost,
        }
        self.news += u32::from(news);
        self.urgent += u32::from(urgent);
        answer
    }

    /// Takes a unit at each of these instants.
    fn at<const N: usize>(ledger: &Ledger, instants: [u64; N]) -> Self {
        let mut taken = Self::default();
        for now in instants {
            taken.take(ledger, 1, now);
        }
        taken
    }

    fn and(self, other: Self) -> Self {
        let mut leases = self.leases;
        leases.iter_mut().zip(other.leases).for_each(|(units, more)| *units += more);
        Self {
            leases,
            overdraft: self.overdraft + other.overdraft,
            refused: self.refused + other.refused,
            news: self.news + other.news,
            urgent: self.urgent + other.urgent,
        }
    }

    /// Of leases.
    fn leased(&self) -> u32 {
        self.leases.iter().sum()
    }
}

/// The thread looks, has what it found acknowledged and puts more in, while more is taken of the lease and beyond. In the
/// end it has been told of each unit once, by a look that it was asked for. Twice in a row, and with two who take.
#[test]
fn what_was_spent_is_accounted_for_once() {
    const TERMS: Terms = Terms { deadline: 100, ..Terms::unknown(2) };
    fn report(account: &mut Account, ledger: &Ledger) {
        account.collect(ledger, ALL);
        account.renew(ledger, TERMS, 0, 1, account.overdraft);
    }
    Race::model_within(4, |race| {
        let (ledger, mut account) = leased(TERMS, 1);
        let (taken, mut account) = race.run(
            &ledger,
            |ledger| Taken::at(ledger, [50; 3]),
            move |ledger| {
                report(&mut account, ledger);
                account
            },
        );
        assert_eq!(taken.refused, 0);
        account.settle(&ledger, &taken);
    });
    Race::model_within(4, |race| {
        let (ledger, mut account) = leased(TERMS, 1);
        let (taken, mut account) = race.run(
            &ledger,
            |ledger| Taken::at(ledger, [50; 2]),
            move |ledger| {
                report(&mut account, ledger);
                report(&mut account, ledger);
                account
            },
        );
        account.settle(&ledger, &taken);
    });
    Race::model_within(2, |race| {
        let (ledger, mut account) = leased(TERMS, 1);
        let (one, two, ()) = race.run_three(
            &ledger,
            |ledger| Taken::at(ledger, [50; 2]),
            |ledger| Taken::at(ledger, [50; 1]),
            |ledger| report(&mut account, ledger),
        );
        account.settle(&ledger, &one.and(two));
    });
}

/// A ledger goes on the queue once for as long as nobody looks, and once more, on the one that does not wait, by whoever takes
/// the last unit.
#[test]
fn there_is_news_once_a_look() {
    for (put, news, urgent) in [(3, 1, 0), (2, 2, 1)] {
        Race::model_within(3, move |race| {
            let (ledger, mut account) = leased(until(100), put);
            let take = |ledger: &Arc<Ledger>| Taken::at(ledger, [50]);
            let (one, two, ()) = race.run_three(&ledger, take, take, |_| {});
            let taken = one.and(two);
            assert_eq!((taken.news, taken.urgent), (news, urgent));
            account.settle(&ledger, &taken);
        });
        Race::model(move |race| {
            let (ledger, mut account) = leased(until(100), put);
            let take = |ledger: &Arc<Ledger>| Taken::at(ledger, [50; 2]);
            let (taken, mut account) = race.run(&ledger, take, move |ledger| {
                account.collect(ledger, ALL);
                account
            });
            let looked_between = account.used[1] == 1;
            assert_eq!((taken.news, taken.urgent), (if looked_between { 2 } else { news }, urgent));
            account.settle(&ledger, &taken);
        });
    }
}

/// Deadlines of leases that follow one another.
const LATER: [u64; LEASES] = [0, 100, 200, 300];
const EARLIER: [u64; LEASES] = [0, 300, 200, 100];

/// What the thread may do to a ledger. Both may begin an epoch, and write over the terms of the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Look,
    Renew,
}

/// The lease is looked at and renewed, once or twice in a row, so that the terms that a request is about to read are
/// written over. Who takes a unit takes it before the deadline of the lease that it is charged to, and is told that
/// lease's terms; the thread finds as many used of each. Whoever has read the clock between two deadlines is in the lease
/// with the later one or in none. Where nothing is left of the old lease, who takes goes the long way.
#[test]
fn a_unit_is_spent_under_the_terms_of_its_own_lease() {
    fn run(race: Race, deadlines: [u64; LEASES], put: u32, withdraw: u32, steps: &'static [Step], now: u64) {
        let (ledger, mut account) = leased(until(deadlines[1]), put);
        let take = move |ledger: &Arc<Ledger>| {
            let mut taken = Taken::default();
            for _ in 0..3 - steps.len() {
                if let Answered::Lease { room: lease, .. } = taken.take(ledger, 1, now) {
                    assert!(now < deadlines[lease as usize], "at {now} of the lease {lease}");
                }
            }
            taken
        };
        let (taken, mut account) = race.run(&ledger, take, move |ledger| {
            for step in steps {
                match step {
                    Step::Look => account.collect(ledger, ALL),
                    Step::Renew => account.renew(ledger, until(deadlines[account.lease + 1]), withdraw, 1, 0),
                }
            }
            account
        });
        assert_eq!(taken.overdraft, 0);
        account.settle(&ledger, &taken);
    }
    const STEPS: [&[Step]; 4] =
        [&[Step::Renew], &[Step::Renew, Step::Renew], &[Step::Look, Step::Renew], &[Step::Renew, Step::Look]];
    for (deadlines, put, withdraw) in
        [(LATER, 2, 0), (LATER, 2, ALL), (LATER, 0, 0), (EARLIER, 2, 0), (EARLIER, 2, ALL)]
    {
        for steps in STEPS {
            for now in [150, 250] {
                Race::model_within(2, move |race| run(race, deadlines, put, withdraw, steps, now));
            }
        }
    }
}

/// What was admitted without a lease is told, the batch is lost, and told again with what has come meanwhile. As long as
/// it is not acknowledged, all of it together is within the allowance; and what is acknowledged is what was told, so that
/// as much may be admitted again, and no more.
#[test]
fn overdraft_that_is_not_acknowledged_stays_within_its_allowance() {
    const ALLOWANCE: u32 = 2;
    fn report(account: &mut Account, ledger: &Ledger) -> u32 {
        account.collect(ledger, ALL);
        assert!(account.overdraft <= ALLOWANCE);
        account.overdraft
    }
    for before in 1..=ALLOWANCE {
        Race::model_within(2, move |race| {
            let (ledger, mut account) = (Arc::new(ledger(ALLOWANCE)), Account::default());
            let mut taken = Taken::default();
            (0..before).for_each(|_| _ = taken.take(&ledger, 1, 50));
            let (more, mut account) = race.run(
                &ledger,
                |ledger| Taken::at(ledger, [50]),
                move |ledger| {
                    let lost = report(&mut account, ledger);
                    let told = report(&mut account, ledger);
                    assert!(before <= lost && lost <= told);
                    account.renew(ledger, Terms::unknown(ALLOWANCE), 0, 0, told);
                    account
                },
            );
            let taken = taken.and(more);
            assert!(taken.overdraft <= ALLOWANCE + account.acknowledged);
            account.settle(&ledger, &taken);
            assert!(account.overdraft <= ALLOWANCE);
            // All that is not owed is there again.
            let free = Taken::at(&ledger, [50; 3]).overdraft;
            assert_eq!(free, ALLOWANCE - account.overdraft);
        });
    }
    // The thread answers while two are at the allowance.
    Race::model_within(2, |race| {
        let (ledger, mut account) = (Arc::new(ledger(1)), Account::default());
        let take = |ledger: &Arc<Ledger>| Taken::at(ledger, [50]);
        let (one, two, ()) = race.run_three(&ledger, take, take, |ledger| {
            let told = report(&mut account, ledger);
            account.renew(ledger, Terms::unknown(1), 0, 0, told);
        });
        let taken = one.and(two);
        assert!((1..=1 + account.acknowledged).contains(&taken.overdraft), "{taken:?}");
        account.settle(&ledger, &taken);
    });
}

/// When the key is found full, or the allowance smaller, what was admitted before is still owed, and counts.
#[test]
fn an_allowance_that_shrinks_counts_what_is_owed() {
    Race::model(|race| {
        let (ledger, mut account) = (Arc::new(ledger(2)), Account::default());
        let (taken, mut account) = race.run(
            &ledger,
            |ledger| Taken::at(ledger, [50; 2]),
            move |ledger| {
                account.collect(ledger, ALL);
                let full = Terms { denied_until: 300, overdraft_from: 300, ..Terms::unknown(1) };
                account.renew(ledger, full, 0, 0, account.overdraft);
                account
            },
        );
        assert!(Taken::at(&ledger, [100]).refused == 1);
        account.settle(&ledger, &taken);
        let owed = account.overdraft;
        assert_eq!(Taken::at(&ledger, [300; 2]).overdraft, 1_u32.saturating_sub(owed));
    });
}

/// The lease is over, and the thread takes out what is left of it while some of it is still being spent, by whoever read
/// the clock before the deadline. Nobody else gets any; each unit is spent or withdrawn, and never both.
#[test]
fn a_unit_that_is_withdrawn_is_not_spent() {
    Race::model(|race| {
        let (ledger, mut account) = leased(until(100), 2);
        let (taken, mut account) = race.run(
            &ledger,
            |ledger| Taken::at(ledger, [99, 100, 99]),
            move |ledger| {
                account.collect(ledger, 0);
                account
            },
        );
        assert_eq!(taken.leased() + account.withdrawn, 2);
        assert!(taken.refused >= 1);
        account.settle(&ledger, &taken);
    });
    // More than the demand is given back, and the rest of the lease goes on.
    Race::model(|race| {
        let (ledger, mut account) = leased(until(100), 3);
        let (taken, mut account) = race.run(
            &ledger,
            |ledger| Taken::at(ledger, [99; 2]),
            move |ledger| {
                account.collect(ledger, 1);
                account.renew(ledger, until(200), 0, 1, 0);
                account
            },
        );
        account.settle(&ledger, &taken);
    });
    // The thread and its next lease against one who is late and one who is not.
    Race::model_within(2, |race| {
        let (ledger, mut account) = leased(until(100), 1);
        let (one, two, ()) = race.run_three(
            &ledger,
            |ledger| Taken::at(ledger, [99]),
            |ledger| Taken::at(ledger, [150]),
            |ledger| {
                account.collect(ledger, 0);
                account.renew(ledger, until(200), ALL, 1, 0);
            },
        );
        assert_eq!(two.leases[1], 0);
        account.settle(&ledger, &one.and(two));
    });
}

/// Who takes, and gives back since another quota refuses, while the lease is renewed, withdrawn or looked at: the unit goes
/// back into the lease that it came from, before the thread has accounted for it as used, or it stays spent. So there are
/// never more units than were put in, and none is accounted for twice.
#[test]
fn a_unit_goes_back_into_the_lease_it_came_from() {
    fn take_and_give_back(ledger: &Arc<Ledger>) -> Taken {
        let mut taken = Taken::default();
        let answer = taken.take(ledger, 1, 50);
        if ledger.unspend(1, answer) {
            let Answered::Lease { room: lease, .. } = answer else { unreachable!("only leases take back") };
            taken.leases[lease as usize] -= 1;
        }
        taken
    }
    const THREAD: [fn(&mut Account, &Ledger); 4] = [
        |account, ledger| account.collect(ledger, ALL),
        |account, ledger| account.collect(ledger, 0),
        |account, ledger| account.renew(ledger, until(200), 0, 1, 0),
        |account, ledger| account.renew(ledger, until(200), ALL, 1, 0),
    ];
    for thread in THREAD {
        // Once at once, and once after a look.
        for looks in [0, 1] {
            Race::model_within(4, move |race| {
                let (ledger, mut account) = leased(until(100), 1);
                let (taken, mut account) = race.run(&ledger, take_and_give_back, move |ledger| {
                    (0..looks).for_each(|_| account.collect(ledger, ALL));
                    thread(&mut account, ledger);
                    account
                });
                account.settle(&ledger, &taken);
            });
        }
        Race::model_within(2, move |race| {
            let (ledger, mut account) = leased(until(100), 1);
            let take = |ledger: &Arc<Ledger>| Taken::at(ledger, [50]);
            let (one, two, ()) =
                race.run_three(&ledger, take_and_give_back, take, |ledger| thread(&mut account, ledger));
            account.settle(&ledger, &one.and(two));
        });
    }
}

/// Who is refused for want of a lease asks for one: the look that follows finds what was needed, or the ledger is dirty and
/// on the queue for the next.
#[test]
fn what_was_needed_is_found() {
    Race::model(|race| {
        let ledger = Arc::new(ledger(0));
        let (taken, mut account) = race.run(
            &ledger,
            |ledger| {
                let mut taken = Taken::default();
                taken.take(ledger, 2, 50);
                taken
            },
            |ledger| {
                let mut account = Account::default();
                account.collect(ledger, ALL);
                account
            },
        );
        assert_eq!((taken.refused, taken.news), (2, 1));
        assert!(account.need == 2 || ledger.is_dirty());
        account.settle(&ledger, &taken);
        assert_eq!(account.need, 2);
    });
    // The ledger is dirty already, so that nobody has news: the look that is still to come finds the need.
    Race::model(|race| {
        let (ledger, mut account) = leased(until(100), 1);
        let first = Taken::at(&ledger, [50]);
        let (taken, mut account) = race.run(
            &ledger,
            |ledger| Taken::at(ledger, [50; 1]),
            move |ledger| {
                account.collect(ledger, ALL);
                account
            },
        );
        account.settle(&ledger, &taken.and(first));
        assert_eq!((account.need, taken.refused), (1, 1));
    });
    Race::model_within(3, |race| {
        let (ledger, mut account) = (Arc::new(ledger(0)), Account::default());
        let need = |cost| {
            move |ledger: &Arc<Ledger>| {
                let mut taken = Taken::default();
                taken.take(ledger, cost, 50);
                taken
            }
        };
        let (one, two, ()) = race.run_three(&ledger, need(2), need(3), |ledger| account.collect(ledger, ALL));
        account.settle(&ledger, &one.and(two));
        assert_eq!(account.need, 3);
    });
}

/// The ledgers of a fleet, and the way from requests to the thread.
struct Fleet<const N: usize> {
    ledgers: [Arc<Ledger>; N],
    /// Which of them are known keys.
    known: Mutex<[bool; N]>,
    dirty: Dirty,
}

/// Balance and overdraft of the ledgers that the thread has looked at.
type Found<const N: usize> = [Option<(u32, u32)>; N];

impl<const N: usize> Fleet<N> {
    /// With room for one ledger on the queue.
    fn new() -> Arc<Self> {
        let ledgers = std::array::from_fn(|_| Arc::new(ledger(1)));
        Arc::new(Self { ledgers, known: Mutex::new([true; N]), dirty: Dirty::new(1) })
    }

    fn take(&self, which: usize) {
        let spent = self.ledgers[which].spend(1, 50);
        assert!(spent.answer.is_allowed());
        if spent.news {
            self.dirty.push(&self.ledgers[which]);
        }
    }

    /// Looks at what is on the queue, and if that was full, at all known keys that are dirty.
    fn look(&self, found: &mut Found<N>) {
        let mut collect = |ledger: &Arc<Ledger>| {
            let which = self.ledgers.iter().position(|known| Arc::ptr_eq(known, ledger)).expect("one of these");
            let seen = ledger.collect(|balance| balance);
            found[which] = Some((seen.balance, seen.overdraft));
        };
        while let Some(ledger) = self.dirty.pop() {
            collect(&ledger);
        }
        if self.dirty.take_was_full() {
            let known = self.known.lock().expect("no model panics");
            self.ledgers
                .iter()
                .zip(*known)
                .filter(|(ledger, known)| *known && ledger.is_dirty())
                .for_each(|(ledger, _)| collect(ledger));
        }
    }

    /// Forgets a key if that makes no difference.
    fn sweep(&self, which: usize, now: u64) {
        let mut known = self.known.lock().expect("no model panics");
        known[which] = !self.ledgers[which].is_idle(now);
    }
}

/// More ledgers have news than fit on the queue. Who does not fit sets the flag, after the dirty bit; the thread takes the
/// flag back, and then looks at all that are dirty. So no ledger is left that was spent from, and neither found nor to be
/// found. Loom checks the order of the flag and the dirty bit as the memory model has it; the queue is a stand-in.
#[test]
fn a_ledger_that_does_not_fit_on_the_queue_is_found() {
    Race::model(|race| {
        let fleet = Fleet::<2>::new();
        let both = |fleet: &Arc<Fleet<2>>| (0..2).for_each(|which| fleet.take(which));
        let look = |fleet: &Arc<Fleet<2>>| {
            let mut found = [None; 2];
            fleet.look(&mut found);
            found
        };
        let ((), mut found) = race.run(&fleet, both, look);
        fleet.look(&mut found);
        assert_eq!(found, [Some((0, 1)); 2]);
    });
    Race::model_within(3, |race| {
        let (fleet, mut found) = (Fleet::<2>::new(), [None; 2]);
        race.run_three(&fleet, |fleet| fleet.take(0), |fleet| fleet.take(1), |fleet| fleet.look(&mut found));
        fleet.look(&mut found);
        assert_eq!(found, [Some((0, 1)); 2]);
    });
}

/// The same with two that do not fit at once, so that one flag stands for both.
#[test]
fn two_ledgers_that_do_not_fit_on_the_queue_are_found() {
    Race::model_within(3, |race| {
        let (fleet, mut found) = (Fleet::<3>::new(), [None; 3]);
        let two = |fleet: &Arc<Fleet<3>>| (0..2).for_each(|which| fleet.take(which));
        race.run_three(&fleet, two, |fleet| fleet.take(2), |fleet| fleet.look(&mut found));
        fleet.look(&mut found);
        assert_eq!(found, [Some((0, 1)); 3]);
    });
}

/// A key is forgotten where nobody can tell. While something is to be found in its ledger it is not: the ledger may have been
/// one that did not fit on the queue, and then it is found among the keys that are known.
#[test]
fn a_ledger_that_is_forgotten_holds_no_news() {
    Race::model(|race| {
        let (fleet, mut account) = (Fleet::<2>::new(), Account::default());
        fleet.take(0);
        account.renew(&fleet.ledgers[1], until(100), 0, 1, 0);
        fleet.take(1);
        let look = |fleet: &Arc<Fleet<2>>| {
            let mut found = [None; 2];
            fleet.look(&mut found);
            found
        };
        let ((), found) = race.run(&fleet, |fleet| fleet.sweep(1, 150), look);
        assert_eq!(found, [Some((0, 1)), Some((0, 0))]);
    });
}

/// Once there was overdraft, a key is not forgotten before the window is over, or it would have all its overdraft again. The
/// thread has to say so before it acknowledges the overdraft.
#[test]
fn a_ledger_that_is_forgotten_is_owed_nothing() {
    Race::model(|race| {
        let (ledger, mut account) = (Arc::new(ledger(1)), Account::default());
        let taken = Taken::at(&ledger, [50]);
        let (is_idle, mut account) = race.run(
            &ledger,
            |ledger| ledger.is_idle(150),
            move |ledger| {
                account.collect(ledger, ALL);
                ledger.keep_until(200);
                account.renew(ledger, Terms { overdraft_from: NEVER, ..Terms::unknown(1) }, 0, 0, 1);
                account
            },
        );
        assert_eq!((is_idle, ledger.is_idle(199), ledger.is_idle(200)), (false, false, true));
        account.settle(&ledger, &taken);
    });
}

/// A tenth of a second in ticks, between reports.
const INTERVAL: u64 = 100_000_000 * 8;

/// The protocol itself, in place of [`Account`], and what it has told of.
struct Node {
    protocol: Protocol,
    told: u32,
}

impl Node {
    fn new() -> Self {
        let settings = Settings { node: 1, interval: INTERVAL, shards: 1, chance: 1 };
        Self { protocol: Protocol::new(settings, 0), told: 0 }
    }

    /// The batch that is due, and the answer to it: three units are granted where any are wanted, and so much is left.
    fn poll(&mut self, now: u64, room: u32) -> Option<(Arc<Batch>, Reply)> {
        self.protocol.on_tick(now);
        let batch = self.protocol.poll_batch(now)?;
        let answers = batch.records.iter().map(|record| {
            let Body::Report(report) = &record.body else { unreachable!("nothing else was asked") };
            self.told += report.used + report.overdraft;
            Answer {
                kept: report.kept,
                granted: if report.want > 0 { room.min(3) } else { 0 },
                room,
                ..Answer::default()
            }
        });
        let answers = answers.collect();
        Some((batch, Reply::Done { time: 1_000_000, nodes: 1, answers }))
    }

    fn answer(&mut self, (batch, reply): (Arc<Batch>, Reply), now: u64) {
        self.protocol.on_reply(batch.shard, batch.number, Ok(reply), now);
    }

    /// Looks at a ledger and tells of it.
    fn report(&mut self, ledger: &Arc<Ledger>, now: u64) {
        self.protocol.on_news(ledger, now);
        if let Some(told) = self.poll(now, 10) {
            self.answer(told, now);
        }
    }
}

fn admitted(ledger: &Ledger, now: u64) -> u32 {
    u32::from(ledger.spend(1, now).answer.is_allowed())
}

/// The protocol itself looks, reports and renews, while more is spent and given back, of overdraft and of a lease. When all
/// is settled it has told of each unit once.
#[test]
fn the_protocol_tells_of_each_unit_once() {
    fn spend_and_give_back(ledger: &Ledger, now: u64) -> u32 {
        let answer = ledger.spend(1, now).answer;
        u32::from(answer.is_allowed() && !ledger.unspend(1, answer))
    }
    for has_lease in [false, true] {
        Race::model_within(1, move |race| {
            let (ledger, mut node, mut now) = (Arc::new(ledger(1)), Node::new(), 2 * INTERVAL);
            let mut taken = admitted(&ledger, now);
            if has_lease {
                node.report(&ledger, now);
                taken += admitted(&ledger, now);
                now += INTERVAL;
            }
            let (more, mut node) = race.run(
                &ledger,
                move |ledger| if has_lease { spend_and_give_back(ledger, now) } else { admitted(ledger, now) },
                move |ledger| {
                    node.report(ledger, now);
                    node
                },
            );
            if ledger.is_dirty() {
                node.protocol.on_news(&ledger, now);
            }
            node.protocol.close(now);
            while !node.protocol.is_settled() {
                now += INTERVAL;
                let told = node.poll(now, 10).expect("something is to be told");
                node.answer(told, now);
            }
            assert_eq!(node.told, taken + more);
        });
    }
}

/// The protocol acknowledges overdraft: the key is not forgotten before that has left the window.
#[test]
fn the_protocol_keeps_what_it_acknowledges() {
    Race::model_within(3, |race| {
        let (ledger, mut node, now) = (Arc::new(ledger(1)), Node::new(), 2 * INTERVAL);
        assert_eq!(admitted(&ledger, now), 1);
        node.protocol.on_news(&ledger, now);
        let told = node.poll(now, 0).expect("there is overdraft to be told");
        let answer = move |_: &Arc<Ledger>| node.answer(told, now);
        let (is_idle, ()) = race.run(&ledger, move |ledger| ledger.is_idle(now), answer);
        assert!(!is_idle && !ledger.is_idle(now));
    });
}
