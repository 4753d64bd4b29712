//! What is said to the authority.

use std::sync::Arc;

use super::look::{Change, collect, renew};
use super::{
    About, Batch, Body, FORGOTTEN_AFTER, MAX_BALANCE, MAX_RECORDS, MICRO, Protocol, Record, Report, Rule, UnderWay,
};

impl Protocol {
    /// The next batch to be carried to the authority, if there is one.
    pub fn poll_batch(&mut self, now: u64) -> Option<Arc<Batch>> {
        for shard in 0..self.shards.len() {
            if !self.breaker.may_call(now) {
                return None;
            }
            if let Some(batch) = self.poll_shard(shard, now) {
                let is_probe = self.breaker.on_call();
                if let Some(way) = &mut self.shards[shard].under_way {
                    way.is_probe = is_probe;
                }
                self.counts.batches += 1;
                return Some(batch);
            }
        }
        None
    }

    pub(super) fn poll_shard(&mut self, shard: usize, now: u64) -> Option<Arc<Batch>> {
        if let Some(under_way) = &mut self.shards[shard].under_way {
            if !under_way.failed {
                return None;
            }
            under_way.failed = false;
            under_way.tries += 1;
            under_way.sent = now;
            self.counts.resends += 1;
            return Some(Arc::clone(&under_way.batch));
        }
        let interval = self.settings.interval;
        let this = &mut self.shards[shard];
        let has_repairs = !this.repairs.is_empty() || this.held_back.is_some();
        let has_others = !this.queue.is_empty() || !this.questions.is_empty();
        let is_time = now >= this.next_tick || (this.urgent && now >= this.sent + interval / 8);
        let is_due = has_repairs || (has_others && is_time);
        if !is_due {
            return None;
        }
        let (records, about, first_sent) = match (this.repairs.pop_front(), this.held_back.take()) {
            (Some(repairs), held_back) => {
                this.held_back = held_back;
                let about = vec![About::Repair; repairs.len()];
                (repairs, about, now)
            }
            (None, Some(held_back)) => held_back,
            (None, None) => {
                let (records, about) = self.collect_records(shard, now);
                (records, about, now)
            }
        };
        let this = &mut self.shards[shard];
        if records.is_empty() {
            return None;
        }
        if this.after.is_some() && now > this.sent + FORGOTTEN_AFTER {
            // What was said so long ago is not in the log any more.
            this.after = None;
        }
        this.number += 1;
        this.sent = now;
        let batch =
            Batch { node: self.settings.node, shard: shard as u16, number: this.number, after: this.after, records };
        let batch = Arc::new(batch);
        this.under_way = Some(UnderWay {
            batch: Arc::clone(&batch),
            about,
            first_sent,
            sent: now,
            tries: 0,
            failed: false,
            is_probe: false,
        });
        self.counts.records += batch.records.len() as u64;
        Some(batch)
    }

    /// Takes up to a batch of what the shard has to say.
    pub(super) fn collect_records(&mut self, shard: usize, now: u64) -> (Vec<Record>, Vec<About>) {
        let (mut records, mut about) = (Vec::new(), Vec::new());
        while let Some((number, record)) = self.shards[shard].questions.pop_front() {
            records.push(record);
            about.push(About::Question(number));
            if records.len() == MAX_RECORDS / 2 {
                // The other half is for those who may wait less.
                break;
            }
        }
        while records.len() < MAX_RECORDS {
            let Some(place) = self.shards[shard].queue.pop_front() else { break };
            if let Some((record, what)) = self.report(place, now) {
                records.push(record);
                about.push(what);
            }
        }
        let this = &mut self.shards[shard];
        if this.queue.is_empty() && this.questions.is_empty() {
            this.urgent = false;
            if now >= this.next_tick {
                // A tenth of an interval early or late, so that nodes do not fall into step.
                let interval = self.settings.interval;
                let next_tick = now + interval * 9 / 10 + self.chance() % (interval / 5).max(1);
                self.shards[shard].next_tick = next_tick;
            }
        } else {
            // The rest goes as soon as this is answered.
            this.urgent = true;
        }
        (records, about)
    }

    /// What is to be said of an account, and asked for.
    pub(super) fn report(&mut self, place: u32, now: u64) -> Option<(Record, About)> {
        let (interval, closing) = (self.settings.interval, self.closing);
        let prompt = self.round_trip + interval * 15 / 100;
        let (account, counts) = self.account_and_counts(place)?;
        let quota = Arc::clone(account.ledger.quota());
        let (rule, window) = (quota.rule(), quota.window() * MICRO);
        account.is_queued = false;
        account.measure(now, interval);
        let target = if closing { 0 } else { account.target(interval, rule.longest_life() * MICRO) };
        let is_idle = now >= account.idle_from(interval);
        let target = if is_idle { 0 } else { target };
        let keep = if closing || now >= account.deadline {
            0
        } else if account.away || now < account.hold_until {
            MAX_BALANCE
        } else {
            target.saturating_mul(2).saturating_add(u32::from(!is_idle))
        };
        // Down to what suits the demand, once it is too much.
        let keep = |balance: u32| if balance > keep { target.min(keep) } else { balance };
        collect(account, keep, now, window, interval, counts);
        // What is told can't be given back any more: only of the present epoch it can.
        let terms = account.ledger.terms();
        renew(account, terms, Change::default(), now, window, counts);

        let kept = if account.away { 0 } else { account.put };
        let needed = std::mem::take(&mut account.need);
        let mut need = needed.saturating_sub(kept);
        let mut want = target.saturating_sub(kept).max(need);
        if matches!(rule, Rule::Bucket { .. }) {
            // A new lease takes the place of the old one: it is of use only if it is larger.
            let is_low = target > kept && kept <= account.demand_in(prompt);
            need = if need > 0 || is_low { needed.max(kept + 1) } else { 0 };
            want = if need > 0 { target.max(need) } else { 0 };
        }
        if target > 0 && kept == 0 && account.granted_at > 0 && now < account.granted_at + interval {
            // The last lease ran dry at once.
            want = want.max((account.wanted * 2).min(target.saturating_mul(4).saturating_add(8)));
        }
        if closing {
            want = 0;
        }
        let want = want.min(MAX_BALANCE - kept).min(quota.limit());
        let need = need.min(want);
        let overdraft = account.overdraft;
        let report = Report {
            lease: if matches!(rule, Rule::Bucket { .. }) { account.returned_of } else { account.lease },
            used: std::mem::take(&mut account.used),
            kept,
            returned: std::mem::take(&mut account.returned),
            overdraft: overdraft.saturating_add(std::mem::take(&mut account.away_used)),
            need,
            want,
        };
        account.wanted = want;
        account.is_sent = true;
        let record = Record { name: account.ledger.name(), rule, body: Body::Report(report) };
        Some((record, About::Account { place, overdraft, kept }))
    }
}
