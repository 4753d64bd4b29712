//! What is done about one account: when it is told of, when it is looked at again, and what holds while nobody answers.

use std::cmp::Reverse;
use std::sync::Arc;

use super::{Account, Counts, Event, MAX_BALANCE, MICRO, MILLI, NEVER, NOWHERE, Protocol, Rule, Terms, WhenAway};

impl Protocol {
    /// Looks at what was spent, and decides whether that is to be told now, with the next tick, or later.
    pub(super) fn visit(&mut self, place: u32, now: u64) {
        let (interval, closing) = (self.settings.interval, self.closing);
        let prompt = self.round_trip + interval * 15 / 100;
        let away = self.is_away(place, now);
        let Some((account, counts)) = self.account_and_counts(place) else { return };
        let rule = account.ledger.quota().rule();
        let (window, longest) = (account.ledger.quota().window() * MICRO, rule.longest_life() * MICRO);

        let is_over = now >= account.deadline || closing;
        account.skip_dates(now);
        let keep = if is_over { 0 } else { MAX_BALANCE };
        collect(account, |balance| balance.min(keep), now, window, interval, counts);
        account.ledger.keep_until(now + window + 2 * longest);
        if is_over && matches!(rule, Rule::Bucket { .. }) {
            // The bucket may have made up for these: they would be put back twice.
            account.returned = 0;
        }
        account.measure(now, interval);
        // Whatever this node does meanwhile, only the authority can tell that it makes sense of the key again.
        let retries = account.is_broken && now >= account.retry_at && (account.need > 0 || account.has_news());
        if away {
            self.help_itself(place, now);
        }
        let Some(account) = self.account(place) else { return };

        let target = account.target(interval, longest);
        let low = account.demand_in(prompt);
        let is_idle = now >= account.idle_from(interval);
        let is_low =
            target > 0 && account.put <= low && now >= account.denied_until && account.put < target && !is_idle;
        let is_idle = is_idle && account.put > 0;
        let is_much = account.put > target.saturating_mul(2).saturating_add(1) && now >= account.hold_until;
        let date_at = account.date_at.min(account.deadline.saturating_sub(2 * interval));
        let is_late = account.used > 0 && now >= date_at && !account.away;
        // What a bucket lease that was replaced has left is out of the bucket until it is told.
        let is_replaced = account.returned > 0 && matches!(rule, Rule::Bucket { .. });
        let urgent =
            account.need > account.put || account.overdraft > 0 || (is_low && !account.away) || is_late || is_replaced;
        let due = urgent
            || retries
            || closing
            || account.returned > 0
            || (account.away && !away)
            || (account.away_used > 0 && !account.away)
            || ((is_idle || is_much) && !account.away);
        let waits = account.is_broken && now < account.retry_at && !closing;
        let is_some = account.has_news() || account.put > 0 || account.need > 0 || is_low || retries;

        if due && is_some && !waits && !account.is_sent {
            self.queue(place, urgent || closing);
        }
        self.set_timer(place, now);
    }

    /// When the account is to be looked at again, if nothing happens before.
    pub(super) fn set_timer(&mut self, place: u32, now: u64) {
        let (interval, closing, silent_since) = (self.settings.interval, self.closing, self.breaker.silent_since());
        let Some(account) = self.account(place) else { return };
        let rule = account.ledger.quota().rule();
        let (window, longest) = (account.ledger.quota().window() * MICRO, rule.longest_life() * MICRO);
        let mut at = NEVER;
        if account.put > 0 {
            at = at.min(account.deadline);
            let idle = account.idle_from(interval);
            if idle > now && !account.away {
                at = at.min(idle);
            }
        }
        let waits = account.is_broken && now < account.retry_at;
        if account.used > 0 && !account.is_sent && !account.is_queued && !waits && !account.away {
            at = at.min(account.date_at.min(account.deadline.saturating_sub(2 * interval)));
        }
        if account.denied_until > now && account.demand_in(interval * 3 / 2) > 1 {
            at = at.min(account.denied_until);
        }
        if let Some(since) = silent_since
            && (account.need > 0 || account.is_watched)
            && !account.away
        {
            at = at.min(since + longest);
        }
        if waits && account.has_news() {
            at = at.min(account.retry_at);
        }
        if at == NEVER && !account.is_sent && !account.is_queued && !account.has_news() {
            // Nothing is going on. What is known is kept for as long as it matters.
            let keep_until = account.used_at.max(account.heard_at).max(account.denied_until) + window + longest;
            if now >= keep_until || closing {
                self.forget(place);
            } else if account.far_timer == 0 {
                account.far_timer = keep_until;
                self.timers.push(Reverse((keep_until, place)));
            }
        } else if at < NEVER {
            self.look_at(place, if at > now { at } else { now + MILLI });
        }
    }

    /// Has the account looked at, at that instant or before.
    pub(super) fn look_at(&mut self, place: u32, at: u64) {
        let Some(account) = self.account(place) else { return };
        if account.timer == 0 || at < account.timer {
            account.timer = at;
            self.timers.push(Reverse((at, place)));
        }
    }

    pub(super) fn forget(&mut self, place: u32) {
        let Some(account) = self.accounts.get_mut(place as usize).and_then(Option::take) else { return };
        self.counts.broken_keys -= u64::from(account.is_broken);
        account.ledger.set_place(NOWHERE);
        self.free.push(place);
        self.counts.accounts -= 1;
    }

    pub(super) fn queue(&mut self, place: u32, urgent: bool) {
        let Some(account) = self.account(place) else { return };
        let (shard, was_queued) = (usize::from(account.shard), account.is_queued);
        account.is_queued = true;
        if let Some(shard) = self.shards.get_mut(shard) {
            if !was_queued {
                shard.queue.push_back(place);
            }
            shard.urgent |= urgent;
        }
    }

    /// Whether this node has to decide for itself, since the authority has not answered for the life of a lease.
    pub(super) fn is_away(&self, place: u32, now: u64) -> bool {
        let Some(Some(account)) = self.accounts.get(place as usize) else { return false };
        let longest = account.ledger.quota().rule().longest_life() * MICRO;
        let is_silent = self.breaker.silent_since().is_some_and(|since| now >= since + longest);
        // A key that is broken is asked about again in time.
        let is_broken = account.is_broken && now < account.retry_at;
        (is_broken || is_silent) && !self.closing
    }

    /// Gives a key what holds while the authority is away.
    pub(super) fn help_itself(&mut self, place: u32, now: u64) {
        let (interval, nodes) = (self.settings.interval, self.nodes);
        let probe_at = self.breaker.probe_at().max(now + interval);
        let Some((account, counts)) = self.account_and_counts(place) else { return };
        let quota = Arc::clone(account.ledger.quota());
        let (window, longest) = (quota.window() * MICRO, quota.rule().longest_life() * MICRO);
        let target = account.target(interval, longest).max(account.need);
        // What is left of a lease holds until its deadline, and what is enough for now is enough.
        if (account.put > 0 && !account.away) || (account.need == 0 && account.put >= target.div_ceil(2)) {
            return;
        }
        let share = match quota.when_away() {
            WhenAway::Deny => 0,
            WhenAway::Allow => MAX_BALANCE,
            WhenAway::Local => {
                let nodes = quota.nodes().or(nodes).unwrap_or(1).max(1);
                (quota.limit() / nodes).saturating_sub(account.own.sum(now, window))
            }
        };
        let free = share.saturating_sub(account.put);
        let wanted = if quota.when_away() == WhenAway::Allow { share } else { target };
        let grant = wanted.saturating_sub(account.put).min(free);
        let is_full = account.put + grant < account.need.max(1);
        let is_told = account.away && now < account.deadline && (now < account.denied_until || !is_full);
        if grant == 0 && is_told {
            account.need = 0;
            return;
        }
        // Own use slides by an eighth of the window; with `Deny` nothing changes before the next try.
        let wait = if quota.when_away() == WhenAway::Deny { probe_at } else { now + window / 8 };
        // Whoever asked for more is still refused.
        let known = if account.away && now < account.denied_until { account.denied_until } else { 0 };
        let denied_until = if is_full { wait } else { known };
        let terms = Terms {
            deadline: now + longest,
            denied_until,
            room: if denied_until > 0 { account.put + grant } else { 0 },
            overdraft: 0,
            overdraft_from: NEVER,
            low: if denied_until > 0 { 0 } else { (account.put + grant) / 4 },
            away: true,
        };
        (account.away, account.need) = (true, 0);
        account.denied_until = terms.denied_until;
        account.deadline = terms.deadline;
        account.hold_until = terms.deadline;
        renew(account, terms, Change { add: grant, ..Change::default() }, now, window, counts);
        self.tell_watchers(place);
    }

    pub(super) fn tell_watchers(&mut self, place: u32) {
        let Some(account) = self.account(place) else { return };
        if std::mem::take(&mut account.is_watched) {
            let ledger = Arc::clone(&account.ledger);
            self.events.push(Event::Changed(ledger));
        }
    }
}

/// Looks at what was spent, and leaves what `keep` says in the balance.
pub(super) fn collect(
    account: &mut Account,
    keep: impl Fn(u32) -> u32,
    now: u64,
    window: u64,
    interval: u64,
    counts: &mut Counts,
) {
    let found = account.ledger.collect(keep);
    let wanted = account.ledger.wanted();
    account.settle(found.balance + found.withdrawn, now, window, counts);
    account.put = found.balance;
    account.note_withdrawn(found.withdrawn);
    if !account.away && account.deadline > 0 && now >= account.deadline {
        counts.stranded += u64::from(found.withdrawn);
    }
    note_overdraft(account, found.overdraft, now, window, counts);
    account.need = account.need.max(wanted.need);
    counts.full += u64::from(wanted.full);
    counts.missed += u64::from(wanted.missed);
    account.note_refused(wanted.full.saturating_add(wanted.missed), now, interval);
}

fn note_overdraft(account: &mut Account, overdraft: u32, now: u64, window: u64, counts: &mut Counts) {
    let more = overdraft.saturating_sub(account.overdraft);
    account.overdraft = overdraft;
    if more > 0 {
        counts.overdraft += u64::from(more);
        account.note_admitted(more, now, window);
    }
}

/// What changes in a ledger when new terms begin.
#[derive(Clone, Copy, Default)]
pub(super) struct Change {
    pub(super) withdraw: u32,
    pub(super) add: u32,
    pub(super) acknowledged: u32,
}

/// Begins new terms, and notes what was used of the balance until then. Returns how much was withdrawn.
pub(super) fn renew(
    account: &mut Account,
    terms: Terms,
    change: Change,
    now: u64,
    window: u64,
    counts: &mut Counts,
) -> u32 {
    let Change { withdraw, add, acknowledged } = change;
    let renewed = account.ledger.renew(terms, withdraw, add, acknowledged);
    account.settle(renewed.before, now, window, counts);
    account.overdraft = account.overdraft.saturating_sub(acknowledged);
    account.put = renewed.balance;
    withdraw.min(renewed.before)
}
