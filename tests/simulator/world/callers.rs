//! Those who ask, and what they do about the answer.

use std::sync::Arc;

use tollgate::global::Body;
use tollgate::internal::Answered;

use super::super::node::{Caller, MOST_WAITING, NEWS_WITHIN, name_of};
use super::super::scenario::{MILLI, Manner, SECOND, Shape, Spread};
use super::{Admission, Event, From, MOST_IN_LINE, World};

impl World<'_> {
    pub(super) fn plan_arrival(&mut self, key: usize) {
        let about = &self.scenario.keys[key];
        let most = match about.shape {
            Shape::Steady => 1.0,
            Shape::Bursts => 10.0,
        };
        let mut at = self.time;
        loop {
            at += self.chance.wait(1e9 / (about.rate * most)) + 1;
            let now = match about.shape {
                Shape::Steady => 1.0,
                Shape::Bursts if at % (20 * SECOND) < 2 * SECOND => 10.0,
                Shape::Bursts => 0.2,
            };
            if now == most || self.chance.happens(now / most) {
                break;
            }
        }
        if at < self.scenario.end {
            self.plan(at, Event::Arrive(key));
        }
    }

    pub(super) fn arrive(&mut self, key: usize) {
        self.plan_arrival(key);
        let about = &self.scenario.keys[key];
        let nodes = self.nodes.len() as u64;
        let node = match about.spread {
            Spread::Even => self.chance.below(nodes),
            Spread::Skewed if !self.chance.one_in(10) => 0,
            Spread::Skewed => self.chance.below(nodes),
            Spread::Moving(every) => self.time / every % nodes,
        };
        let cost = if about.costs.len() == 1 { about.costs[0] } else { self.chance.pick(&about.costs) };
        let (node, id) = (node as usize, self.fresh_id());
        if !self.nodes[node].up || self.nodes[node].is_paused(self.time) {
            return;
        }
        self.arrivals[key].push((self.time, cost));
        if about.exact > 0 && self.chance.below(100) < about.exact {
            let rule = self.scenario.quota_of(key).rule;
            self.nodes[node].protocol.ask(id, name_of(key), rule, Body::Exact { cost });
            if self.chance.one_in(4) {
                let incarnation = self.nodes[node].id;
                self.plan(self.time + 20 * MILLI, Event::TakeBack { node, id: incarnation, number: id });
            }
            self.arm(node, self.time);
            return;
        }
        self.attempt(Caller {
            id,
            node,
            key,
            cost,
            manner: about.manner,
            came: self.time,
            tries: 0,
            is_in_line: false,
        });
    }

    pub(super) fn attempt(&mut self, caller: Caller) {
        // Now and then somebody reads the clock and is stopped for a while before it takes.
        let late = if self.chance.one_in(200) { self.chance.below(50 * MILLI) } else { 0 };
        self.attempt_at(caller, self.time.saturating_sub(late));
    }

    /// Tries, `at` being when the caller read its node's clock.
    pub(super) fn attempt_at(&mut self, caller: Caller, at: u64) {
        let Caller { node: index, key, cost, .. } = caller;
        let (scenario, time) = (self.scenario, self.time);
        let node = &mut self.nodes[index];
        if !node.up {
            return;
        }
        if node.is_paused(time) {
            let at = node.paused_until;
            self.plan(at, Event::Try(caller));
            return;
        }
        let ledger = node.ledger(scenario, key);
        let holds = ledger.peek(0, node.clock.ticks(time));
        if node.protocol.is_silent() && !matches!(holds, Answered::Lease { away: true, .. }) {
            // What it gives itself goes by that, until it is heard again.
            node.nodes_heard = node.protocol.nodes().unwrap_or(1);
        }
        let at = at.max(node.clock.time_of(0));
        // What is taken of a lease that is over was admitted when the clock was read, and all else when it was taken: it may
        // have been granted in between.
        let is_over = !matches!(holds, Answered::Lease { .. });
        let spent = ledger.spend(cost, node.clock.ticks(at));
        let at = if is_over && matches!(spent.answer, Answered::Lease { .. }) { at } else { time };
        if spent.news {
            node.push(Arc::clone(&ledger));
        }
        let from = match spent.answer {
            Answered::Lease { away: true, .. } => Some(From::Away { nodes: node.nodes_heard }),
            Answered::Lease { .. } => Some(From::Lease),
            Answered::Overdraft { .. } => Some(From::Overdraft),
            _ => None,
        };
        if spent.urgent {
            self.arm(index, time);
        } else if spent.news {
            let at = self.nodes[index].next_regular(time);
            self.arm(index, at);
        }
        self.trace(|| format!("node {index} key {key} spends {cost}: {:?}", spent.answer));
        match from {
            Some(from) => self.admit(caller, at, from, spent.answer),
            None => self.refuse(caller, spent.answer),
        }
    }

    pub(super) fn admit(&mut self, caller: Caller, at: u64, from: From, answer: Answered) {
        let Caller { node, key, cost, .. } = caller;
        let id = self.nodes[node].id;
        self.longest_wait = self.longest_wait.max(self.time - caller.came);
        self.log[key].push(Admission { at, units: u64::from(cost), node: id, from });
        if from == From::Lease && self.chance.below(100) < self.scenario.keys[key].refunds {
            let (entry, after) = (self.log[key].len() - 1, self.chance.below(200 * MILLI));
            self.plan(self.time + after, Event::Refund { node, id, key, entry, units: cost, answer });
        }
    }

    pub(super) fn refund(&mut self, node: usize, id: u64, key: usize, entry: usize, units: u32, answer: Answered) {
        if self.nodes[node].id != id || !self.nodes[node].up {
            return;
        }
        let Some(ledger) = &self.nodes[node].ledgers[key] else { return };
        if ledger.unspend(units, answer) {
            self.log[key][entry].units = 0;
        }
    }

    pub(super) fn refuse(&mut self, mut caller: Caller, answer: Answered) {
        let time = self.time;
        let quota = self.scenario.quota_of(caller.key);
        caller.tries += 1;
        let patience = quota.window + quota.life;
        match (caller.manner, answer) {
            (Manner::Retries, _) if caller.tries > 3 => {}
            (Manner::Retries | Manner::Waits, Answered::Full { until, .. }) => {
                let at = self.nodes[caller.node].clock.time_of(until).max(time + MILLI);
                let line = &mut self.lines[caller.key];
                if at < caller.came.saturating_add(patience) && time < self.scenario.end && *line < MOST_IN_LINE {
                    *line += 1;
                    caller.is_in_line = true;
                    self.plan(at, Event::Try(caller));
                }
            }
            (Manner::Retries, Answered::NoLease { .. }) => self.plan(time + 3 * MILLI, Event::Try(caller)),
            (Manner::Waits | Manner::Asks, Answered::NoLease { .. }) => {
                if time >= self.scenario.end || time > caller.came + patience {
                    return;
                }
                let node = &mut self.nodes[caller.node];
                let waiting = node.waiting.entry(caller.key).or_default();
                if waiting.len() >= MOST_WAITING {
                    return;
                }
                waiting.push(caller);
                if time >= node.stalled_until {
                    let (ledger, now) = (node.ledger(self.scenario, caller.key), node.clock.ticks(time));
                    node.protocol.watch(&ledger, now);
                }
                self.arm(caller.node, time);
                let patience = NEWS_WITHIN << caller.tries.min(5);
                self.plan(time + patience, Event::Impatient { node: caller.node, key: caller.key, id: caller.id });
            }
            _ => {}
        }
    }

    pub(super) fn grow_impatient(&mut self, node: usize, key: usize, id: u64) {
        let Some(waiting) = self.nodes[node].waiting.get_mut(&key) else { return };
        let Some(place) = waiting.iter().position(|caller| caller.id == id) else { return };
        let caller = waiting.remove(place);
        self.attempt(caller);
    }
}
