//! Messages, and whoever they reach.

use std::sync::Arc;

use tollgate::global::{AuthorityError, Batch, Body, Reply};

use super::super::node::key_of;
use super::super::scenario::{How, MILLI, SECOND};
use super::{Admission, Event, From, World};

impl World<'_> {
    pub(super) fn delay(&mut self) -> u64 {
        self.scenario.network.least + self.chance.wait(self.scenario.network.more)
    }

    pub(super) fn is_lost(&mut self, node: usize) -> bool {
        let loss = if self.time < self.lossy.0 { self.lossy.1 } else { self.scenario.network.loss };
        self.time < self.cut_until[node] || self.chance.happens(loss)
    }

    pub(super) fn send(&mut self, node: usize, batch: &Arc<Batch>) {
        if self.chance.happens(self.scenario.network.duplicates) {
            let late = if self.chance.one_in(4) { self.chance.below(2 * SECOND) } else { self.chance.below(5 * MILLI) };
            self.plan(self.time + late, Event::ToAuthority(node, Arc::clone(batch)));
        }
        if !self.is_lost(node) {
            let at = self.time + self.delay();
            self.plan(at, Event::ToAuthority(node, Arc::clone(batch)));
        }
    }

    pub(super) fn reach_authority(&mut self, index: usize, batch: &Arc<Batch>) {
        if self.time < self.cut_until[index] {
            return;
        }
        let out = self.time < self.outage.0;
        let how = self.outage.1;
        if out && (how == How::Silence || self.chance.one_in(2)) {
            if how == How::Errors {
                self.answer(index, batch, Err(AuthorityError::new("out of order")));
            }
            return;
        }
        let (reply, is_first) = match self.store.carry_out(batch, self.time) {
            Ok(reply) => reply,
            Err(fault) => {
                self.fault = Some(fault);
                return;
            }
        };
        self.trace(|| format!("authority answers node {index} {}: {reply:?}", batch.number));
        if is_first && let Reply::Done { answers, .. } = &reply {
            for (record, answer) in batch.records.iter().zip(answers) {
                if let (Body::Exact { .. }, Some(key)) = (&record.body, key_of(record.name, self.log.len()))
                    && answer.granted > 0
                {
                    let units = u64::from(answer.granted);
                    self.log[key].push(Admission { at: self.time, units, node: batch.node, from: From::Authority });
                }
            }
        }
        let reply = if out { Err(AuthorityError::new("carried out, and then out of order")) } else { Ok(reply) };
        self.answer(index, batch, reply);
    }

    pub(super) fn answer(&mut self, node: usize, batch: &Batch, reply: Result<Reply, AuthorityError>) {
        if self.is_lost(node) {
            return;
        }
        let slow = if self.time < self.slow.0 { self.slow.1 } else { 0 };
        let at = self.time + self.delay() + slow;
        let Batch { node: id, shard, number, .. } = *batch;
        if self.chance.happens(self.scenario.network.duplicates) {
            let at = at + self.chance.below(SECOND);
            self.plan(at, Event::ToNode { node, id, shard, number, reply: reply.clone() });
        }
        self.plan(at, Event::ToNode { node, id, shard, number, reply });
    }

    pub(super) fn reach_node(
        &mut self,
        index: usize,
        id: u64,
        shard: u16,
        number: u64,
        reply: Result<Reply, AuthorityError>,
    ) {
        let node = &mut self.nodes[index];
        if node.id != id || !node.up {
            return;
        }
        let until = node.paused_until.max(node.stalled_until);
        if self.time < until {
            let at = until + self.chance.below(MILLI);
            self.plan(at, Event::ToNode { node: index, id, shard, number, reply });
            return;
        }
        node.protocol.on_reply(shard, number, reply, node.clock.ticks(self.time));
        self.work(index);
    }
}
