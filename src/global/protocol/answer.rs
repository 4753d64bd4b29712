//! What is made of the authority's answers.

use std::sync::Arc;

use super::look::{Change, renew};
use super::{
    About, Answer, AuthorityError, Body, CLOSED, Event, LONGEST_TIMEOUT, MAX_BALANCE, MAX_RECORDS, MICRO, MILLI, NEVER,
    Protocol, Record, Repairs, Reply, Rule, Shard, Terms, UnderWay,
};

impl Protocol {
    /// Takes in the answer to the batch of that shard and number.
    pub fn on_reply(&mut self, shard: u16, number: u64, reply: Result<Reply, AuthorityError>, now: u64) {
        let shard = usize::from(shard);
        let is_meant = |this: &Shard| this.under_way.as_ref().is_some_and(|way| way.batch.number == number);
        if !self.shards.get(shard).is_some_and(is_meant) {
            // An answer that came before is here once more.
            return;
        }
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                self.counts.errors += 1;
                let wait =
                    error.wait().map_or(0, |wait| crate::ticks::from_duration(wait).min(u128::from(NEVER)) as u64);
                if self.shards[shard].under_way.as_ref().is_some_and(|way| !way.failed) {
                    self.fail(shard, now, now.saturating_add(wait).min(now + LONGEST_TIMEOUT));
                }
                return;
            }
        };
        let Some(under_way) = self.shards[shard].under_way.take() else { return };
        self.slowest.note(now.saturating_sub(under_way.first_sent), now);
        if under_way.tries == 0 {
            self.measure_round_trip(now.saturating_sub(under_way.first_sent));
            self.patience = 0;
        } else {
            // Which of the tries this answers is not known: Karn's algorithm, RFC 6298.
            self.patience = self.patience.max(under_way.tries).min(6);
        }
        let silent_since = self.breaker.silent_since();
        if self.breaker.on_answer() {
            self.counts.away += silent_since.map_or(0, |since| now.saturating_sub(since));
            self.events.push(Event::Back);
            self.end_the_silence(now);
        }
        match reply {
            Reply::Done { time, nodes, answers } => {
                self.nodes = Some(nodes.max(1));
                self.shards[shard].after = Some(number);
                self.take_in(shard, &under_way, time, &answers, now);
            }
            Reply::Gap { have } => self.repair(shard, under_way, have, now),
            // The authority has carried out a later one, which this node never sent: its state comes from elsewhere. A
            // number beyond that is what it takes.
            Reply::Stale => {
                let this = &mut self.shards[shard];
                this.number += 1 << 16;
                this.after = None;
                let UnderWay { batch, about, first_sent, .. } = under_way;
                this.held_back = Some((batch.records.clone(), about, first_sent));
            }
        }
    }

    pub(super) fn measure_round_trip(&mut self, sample: u64) {
        // As TCP does it: RFC 6298.
        if self.round_trip == 0 {
            (self.round_trip, self.variation) = (sample, sample / 2);
        } else {
            self.variation = (3 * self.variation + self.round_trip.abs_diff(sample)) / 4;
            self.round_trip = (7 * self.round_trip + sample) / 8;
        }
    }

    /// The authority knows this node up to the number `have` only.
    pub(super) fn repair(&mut self, shard: usize, under_way: UnderWay, have: u64, now: u64) {
        let this = &mut self.shards[shard];
        let Repairs { records, repaired, lost } = this.log.since(have, this.after);
        self.counts.gaps += 1;
        self.counts.lost_batches += lost;
        self.counts.replayed_batches += repaired;
        self.counts.replayed_records += records.len() as u64;
        self.events.push(Event::Gap { shard: shard as u16, repaired, lost });
        // It knows nothing of this node at all, where that is 0.
        this.after = (have > 0).then_some(have);
        let UnderWay { batch, about, first_sent, .. } = under_way;
        let was_repair = about.iter().all(|about| matches!(about, About::Repair));
        // Repairs that were under way or waiting are in the log no more than what they repair.
        let unsent = std::mem::take(&mut this.repairs);
        this.repairs = records.chunks(MAX_RECORDS).map(<[Record]>::to_vec).collect();
        if was_repair {
            this.repairs.push_back(batch.records.clone());
        }
        this.repairs.extend(unsent);
        if !was_repair {
            // As it was: it was not carried out. Its leases are counted from when it is sent again.
            this.held_back = Some((batch.records.clone(), about, first_sent.max(now)));
        }
    }

    /// Takes in what the authority answered.
    pub(super) fn take_in(&mut self, shard: usize, under_way: &UnderWay, time: u64, answers: &[Answer], now: u64) {
        let records = under_way.batch.records.iter().zip(&under_way.about);
        let mut answers = answers.iter();
        let mut lost_keys = Vec::new();
        for (record, about) in records {
            // One that answers less than it was asked makes no sense of the rest.
            let answer = answers.next().copied().unwrap_or(Answer { failed: true, ..Answer::default() });
            self.shards[shard].log.push(under_way.batch.number, now, record, &answer, time);
            if answer.created && self.shards[shard].log.knows(record.name, under_way.batch.number, now) {
                lost_keys.push(record.name);
            }
            match *about {
                About::Account { place, overdraft, kept } => {
                    self.take_in_answer(place, record, (overdraft, kept), &answer, under_way.first_sent, time, now);
                }
                About::Question(number) => self.events.push(Event::Answered(number, answer)),
                About::Repair => {}
            }
        }
        if !lost_keys.is_empty() {
            self.counts.lost_keys += lost_keys.len() as u64;
            let this = &mut self.shards[shard];
            let repairs = this.log.take(&lost_keys, under_way.batch.number);
            if !repairs.is_empty() {
                self.counts.replayed_records += repairs.len() as u64;
                this.repairs.push_back(repairs);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all that one answer says, taken apart by its one caller")]
    pub(super) fn take_in_answer(
        &mut self,
        place: u32,
        record: &Record,
        (overdraft, kept): (u32, u32),
        answer: &Answer,
        first_sent: u64,
        time: u64,
        now: u64,
    ) {
        let (nodes, closing) = (self.nodes, self.closing);
        let (interval, round_trip) = (self.settings.interval, self.round_trip);
        let Body::Report(report) = &record.body else { return };
        let Some((account, counts)) = self.account_and_counts(place) else { return };
        let quota = Arc::clone(account.ledger.quota());
        let (rule, window) = (quota.rule(), quota.window() * MICRO);
        account.is_sent = false;
        if answer.failed {
            // Nothing was done: all of it is still to be told.
            account.used = account.used.saturating_add(report.used);
            account.returned = account.returned.saturating_add(report.returned);
            account.away_used = account.away_used.saturating_add(report.overdraft - overdraft);
            account.need = account.need.max(report.need);
            account.retry_at = now + rule.longest_life() * MICRO;
            if !std::mem::replace(&mut account.is_broken, true) {
                self.counts.broken_keys += 1;
                self.events.push(Event::Broken(record.name));
            }
            self.tell_watchers(place);
            self.visit(place, now);
            return;
        }
        let is_mended = std::mem::take(&mut account.is_broken);
        let life = rule.life_at(time) * MICRO;
        let margin = (2 * MILLI).max(life / 1_000);
        account.heard_at = now;
        if let Rule::Window { sub, .. } = rule {
            account.date_by(first_sent + (sub - time % sub) * MICRO, round_trip + interval / 4);
        } else {
            account.date_by(NEVER, 0);
        }
        account.room = answer.room;
        account.denied_until = match answer.retry_after {
            0 => 0,
            wait => now.saturating_add(wait.saturating_mul(MICRO)),
        };
        let low = account.demand_in(round_trip + interval * 15 / 100);
        let terms = Terms {
            deadline: (first_sent + life).saturating_sub(margin),
            denied_until: account.denied_until,
            room: answer.room,
            overdraft: quota.overdraft(nodes),
            // A window of the authority's, by a clock that may be fast.
            overdraft_from: if answer.room > 0 { 0 } else { now + window + window / 1_000 },
            low,
            away: false,
        };
        // A grant that comes when all is over is given back.
        let terms = if closing { CLOSED } else { terms };
        // Of what was kept some may not be charged any more. That is void where it is unspent; where it was spent, it is told
        // as if there had been no lease, since what is charged at the head now is not for it.
        let mut void = kept.saturating_sub(answer.kept);
        // In a bucket, a lease is not prolonged: a new one takes the place of the old one, and without one that goes on.
        let is_bucket = matches!(rule, Rule::Bucket { .. });
        let ends = account.away || (is_bucket && answer.granted > 0);
        let terms = if is_bucket && !ends && !closing { Terms { deadline: account.deadline, ..terms } } else { terms };
        let given_up = void.min(account.returned);
        account.returned -= given_up;
        void -= given_up;
        // A lease that this node gave itself ends here.
        let withdraw = if ends { MAX_BALANCE } else { void };
        let change = Change { withdraw, add: answer.granted, acknowledged: overdraft };
        let withdrawn = renew(account, terms, change, now, window, counts);
        let withdrawn = if account.away { 0 } else { withdrawn };
        if is_bucket && ends {
            account.note_withdrawn(withdrawn);
        }
        let uncharged = void.saturating_sub(withdrawn).min(account.used);
        account.used -= uncharged;
        account.away_used = account.away_used.saturating_add(uncharged);
        (account.away, account.deadline) = (false, terms.deadline);
        if !is_bucket || answer.granted > 0 {
            account.lease = rule.head_at(time);
        }
        if answer.granted > 0 {
            account.granted_at = now;
        }
        let is_slow = account.target(interval, rule.longest_life() * MICRO) == 0;
        account.hold_until = if is_slow && report.need > 0 && answer.granted > 0 { terms.deadline } else { 0 };
        self.counts.granted += u64::from(answer.granted);
        self.counts.returned += u64::from(report.returned);
        if answer.room == 0 && answer.granted == 0 {
            self.counts.overshoot += u64::from(report.overdraft);
        }
        if is_mended {
            self.counts.broken_keys -= 1;
            self.events.push(Event::Mended(record.name));
        }
        self.tell_watchers(place);
        self.visit(place, now);
    }
}
