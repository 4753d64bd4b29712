//! Callers who wait for the background thread to tell them something.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use futures_channel::oneshot;

use super::authority::Answer;
use super::ledger::Ledger;

/// What a caller is told by.
enum Tell {
    /// That there is something to look at.
    News(oneshot::Sender<()>),
    /// What the authority answered; nothing if it did not.
    Answer(oneshot::Sender<Answer>),
}

/// All who wait.
#[derive(Default)]
pub(super) struct Waiters {
    number: u64,
    tells: HashMap<u64, Tell>,
    /// By the address of a ledger, which is kept so that no other gets it.
    watches: HashMap<usize, (Arc<Ledger>, Vec<u64>)>,
    until: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Waiters {
    fn add(&mut self, tell: Tell, until: u64) -> u64 {
        self.number += 1;
        self.tells.insert(self.number, tell);
        self.until.push(Reverse((until, self.number)));
        self.number
    }

    /// Adds one who sleeps until an instant.
    pub(super) fn sleep(&mut self, until: u64, tell: oneshot::Sender<()>) {
        self.add(Tell::News(tell), until);
    }

    /// Adds one who waits for news of `ledger`, until an instant at the latest.
    pub(super) fn watch(&mut self, ledger: &Arc<Ledger>, until: u64, tell: oneshot::Sender<()>) {
        let number = self.add(Tell::News(tell), until);
        let (_, watches) =
            self.watches.entry(Arc::as_ptr(ledger).addr()).or_insert_with(|| (Arc::clone(ledger), Vec::new()));
        watches.push(number);
    }

    /// Adds one who waits for an answer, until an instant at the latest. Returns the number of the question.
    pub(super) fn ask(&mut self, until: u64, tell: oneshot::Sender<Answer>) -> u64 {
        self.add(Tell::Answer(tell), until)
    }

    /// There is news of `ledger`.
    pub(super) fn changed(&mut self, ledger: &Arc<Ledger>) {
        let Some((_, watches)) = self.watches.remove(&Arc::as_ptr(ledger).addr()) else { return };
        for number in watches {
            self.tell(number);
        }
    }

    /// The question of that number was answered.
    pub(super) fn answered(&mut self, number: u64, answer: Answer) {
        if let Some(Tell::Answer(tell)) = self.tells.remove(&number) {
            // Whoever asked may have gone.
            let _ = tell.send(answer);
        }
    }

    /// Tells those who wait until `now` or an earlier instant, and returns the questions among them.
    pub(super) fn expire(&mut self, now: u64) -> Vec<u64> {
        let mut questions = Vec::new();
        while let Some(Reverse((until, number))) = self.until.peek().copied() {
            if until > now {
                break;
            }
            self.until.pop();
            if matches!(self.tells.get(&number), Some(Tell::Answer(_))) {
                questions.push(number);
            }
            self.tell(number);
        }
        if self.until.is_empty() {
            self.watches.clear();
        }
        questions
    }

    fn tell(&mut self, number: u64) {
        if let Some(Tell::News(tell)) = self.tells.remove(&number) {
            let _ = tell.send(());
        }
    }

    /// When the next of them is to be told, if nothing happens before.
    pub(super) fn next_due(&self) -> u64 {
        self.until.peek().map_or(u64::MAX, |Reverse((until, _))| *until)
    }
}
