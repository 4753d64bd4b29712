//! What goes wrong, what is lost by it, and what has to be well in the end.

use tollgate::global::Rule;
use tollgate::internal::Answered;

use super::super::node::{Caller, Node, key_of, name_of};
use super::super::scenario::{Fault, MICRO, Manner};
use super::{Admission, Event, From, Loss, World};

impl World<'_> {
    pub(super) fn go_wrong(&mut self, place: usize) {
        let (_, fault) = &self.scenario.faults[place];
        let (time, until) = (self.time, self.time + fault.lasts());
        self.trace(|| format!("{fault:?}"));
        match *fault {
            Fault::Crash { node, back_after } => {
                self.nodes[node].up = false;
                self.plan(time + back_after, Event::Restart(node));
            }
            Fault::Pause { node, lasts: _ } => {
                // Somebody has read the clock, and takes when all goes on.
                let key = self.chance.below(self.log.len() as u64) as usize;
                let id = self.fresh_id();
                let caller =
                    Caller { id, node, key, cost: 1, manner: Manner::Leaves, came: time, tries: 0, is_in_line: false };
                self.attempt_at(caller, time);
                self.nodes[node].paused_until = self.nodes[node].paused_until.max(until);
                self.nodes[node].wake_at = u64::MAX;
                self.arm(node, until);
            }
            Fault::Stall { node, .. } => {
                self.nodes[node].stalled_until = self.nodes[node].stalled_until.max(until);
                self.nodes[node].wake_at = u64::MAX;
                self.arm(node, until);
            }
            Fault::Forget { node } => self.nodes[node].forget(time),
            Fault::Cut { nodes, .. } => {
                for (node, cut_until) in self.cut_until.iter_mut().enumerate() {
                    if nodes >> (node % 64) & 1 != 0 {
                        *cut_until = until.max(*cut_until);
                    }
                }
            }
            Fault::Outage { how, .. } => self.outage = (until, how),
            Fault::Slow { by, .. } => self.slow = (until, by),
            Fault::Lossy { loss, .. } => self.lossy = (until, loss),
            Fault::LosesTail { tail } => {
                for (name, units) in self.store.lose(tail, time) {
                    if let Some(key) = key_of(name, self.log.len()) {
                        self.losses.push(Loss { key, at: time, units, leap: 0 });
                    }
                }
            }
            Fault::Flush => {
                for key in 0..self.log.len() {
                    self.note_loss_of_all(key);
                }
                self.store.flush();
            }
            Fault::Evict { key } => {
                self.note_loss_of_all(key);
                self.store.evict(name_of(key));
            }
            Fault::Step { by } => {
                for key in 0..self.log.len() {
                    let units = self.leased(key);
                    let leap = by.max(0) as u64 * MICRO;
                    if leap > 0 {
                        self.losses.push(Loss { key, at: time, units, leap });
                    }
                }
                self.store.set_clock(by);
            }
        }
    }

    pub(super) fn note_loss_of_all(&mut self, key: usize) {
        let units = self.store.counted(name_of(key), self.time);
        self.losses.push(Loss { key, at: self.time, units, leap: 0 });
    }

    /// Units that the nodes hold and may still spend.
    pub(super) fn leased(&self, key: usize) -> u64 {
        let of = |node: &Node| {
            let answer = node.ledgers[key].as_ref()?.peek(0, node.clock.ticks(self.time));
            match answer {
                Answered::Lease { left, away: false, .. } => Some(u64::from(left)),
                _ => None,
            }
        };
        self.nodes.iter().filter(|node| node.up).filter_map(of).sum()
    }

    /// All that may be spent is charged.
    pub(super) fn look_at_escrow(&mut self) {
        for key in 0..self.log.len() {
            let shared = self.scenario.quota_of(key);
            if !matches!(shared.rule, Rule::Window { smooth: false, .. }) {
                continue;
            }
            let leased = self.leased(key);
            let counted = self.store.counted(name_of(key), self.time);
            if leased > counted {
                self.fault = Some(format!("key {key}: {leased} units are leased and {counted} are charged"));
            }
        }
    }

    /// Traffic is over, and all was told.
    pub(super) fn check_settled(&self) -> Result<(), String> {
        let loses = self.scenario.loses();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.up) {
            if node.protocol.unsettled() > 0 || !node.protocol.is_settled() {
                return Err(format!("node {index} is not done: {:#?}", node.protocol));
            }
            let mut in_all = 0;
            for (key, log) in self.log.iter().enumerate() {
                let own = |admission: &&Admission| admission.node == node.id && admission.from != From::Authority;
                let admitted: u64 = log.iter().filter(own).map(|admission| admission.units).sum();
                let told = self.store.told.get(&(node.id, name_of(key))).copied().unwrap_or(0);
                if told != admitted && !loses {
                    return Err(format!("node {index} admitted {admitted} of key {key}, and told of {told}"));
                }
                in_all += admitted;
            }
            let counts = node.protocol.counts;
            if counts.leased + counts.overdraft + counts.admitted_away != in_all {
                return Err(format!("node {index} admitted {in_all}, and counts {counts:?}"));
            }
        }
        Ok(())
    }

    /// Nothing was heard of any key for long, so nothing is known of any.
    pub(super) fn check_forgotten(&self) -> Result<(), String> {
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.up) {
            if node.protocol.counts.accounts > 0 {
                return Err(format!("node {index} still knows {:#?}", node.protocol));
            }
            let now = node.clock.ticks(self.time);
            if let Some(ledger) = node.ledgers.iter().flatten().find(|ledger| ledger.is_dirty() || !ledger.is_idle(now))
            {
                return Err(format!("node {index} can't forget {ledger:?}"));
            }
        }
        Ok(())
    }
}
