//! A keyed limiter against the obvious one: a plain map with a limiter of one bucket for every key, which forgets
//! nothing and shares nothing.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tollgate::{Builder, Decision, DirectLimiter, Limiter, Now, Quota, Sharded, Stores};

use super::{Admission, assert_bound};

/// One thing to do to a keyed limiter in virtual time.
#[derive(Clone, Debug)]
pub(crate) enum KeyedStep {
    /// Move the clock on by so many nanoseconds.
    Forward(u64),
    /// Move the clock back by so many nanoseconds, to the origin at most.
    Back(u64),
    /// Take so many units of a key.
    Take(u8, u64),
    /// Give back one of the takes since the clock last went backwards, if there is one.
    Refund(usize),
    /// Give back the latest take of a key that is still held, or the oldest.
    RefundOf(u8, Held),
    /// Give a key its whole burst again.
    Reset(u8),
}

/// Which take of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    Latest,
    Oldest,
}

/// Hashes of which the low bits, by which keys share what their refunds need, are all different or all the same.
#[derive(Clone, Debug)]
pub(crate) struct LowBits {
    shared: bool,
}

#[derive(Debug)]
pub(crate) struct Last {
    shared: bool,
    hash: u64,
}

impl BuildHasher for LowBits {
    type Hasher = Last;

    fn build_hasher(&self) -> Last {
        Last { shared: self.shared, hash: 0 }
    }
}

impl Hasher for Last {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let spread = u64::from(*byte + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) & !0xFFF;
            self.hash = if self.shared { spread } else { spread | u64::from(*byte) };
        }
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

/// Plays `steps` on a limiter with room for `max_keys`. While there was room, the clock ran forwards, and no two keys
/// shared what their refunds need, every answer is that of the obvious limiter; and always, what each key keeps between
/// two resets is within the bound.
pub(crate) fn play_keyed(quota: Quota, max_keys: u64, shared: bool, steps: &[KeyedStep]) {
    let builder = keyed(quota, shared).shards(2).max_keys(max_keys);
    play_on(quota, builder.build().ok(), !shared, max_keys, steps);
}

/// The same on a fixed store that expects `keys`, where all keys share what their refunds need.
pub(crate) fn play_fixed(quota: Quota, keys: u64, shared: bool, steps: &[KeyedStep]) {
    play_on(quota, keyed(quota, shared).fixed(keys).build().ok(), false, u64::MAX, steps);
}

fn keyed(quota: Quota, shared: bool) -> Builder<u8, LowBits, Sharded> {
    Limiter::builder().quota(quota).keys::<u8>().hasher(LowBits { shared })
}

/// `apart` says that no two keys share what their refunds need.
fn play_on<T: Stores<u8, LowBits>>(
    quota: Quota,
    limiter: Option<Limiter<u8, LowBits, T>>,
    apart: bool,
    max_keys: u64,
    steps: &[KeyedStep],
) {
    let Some(limiter) = limiter else { return };
    let obvious = || DirectLimiter::new(quota).expect("what one limiter takes, the other takes");
    let mut map: HashMap<u8, DirectLimiter> = HashMap::new();
    // Of each key since its last reset. One that was given back costs 0.
    let mut admitted: HashMap<u8, Vec<Admission>> = HashMap::new();
    let mut refundable = Vec::new();
    let mut now = 0_u64;
    // Until the first refund that is not at the instant of its take, where it is worth less if others share its word.
    let mut alike = true;

    for step in steps {
        let instant = Now::since_origin(Duration::from_nanos(now)).expect("steps end before the last instant");
        match *step {
            KeyedStep::Forward(nanos) => now = now.saturating_add(nanos).min(super::END),
            KeyedStep::Back(nanos) => {
                now = now.saturating_sub(nanos);
                // What was dropped as idle is full from that instant on, and not before.
                alike = false;
                refundable.clear();
            }
            KeyedStep::Take(key, cost) => {
                let peeked = limiter.peek_cost_at(&key, cost, instant);
                let decision = limiter.check_cost_at(&key, cost, instant);
                assert_eq!(peeked.is_allowed(), decision.is_allowed(), "peek at {key} in {now} ns of {quota}");
                let expected = map.entry(key).or_insert_with(obvious).check_cost_at(cost, instant);
                alike &= limiter.stats().overflow == 0;
                if alike {
                    assert_eq!(decision.to_string(), expected.to_string(), "{key} in {now} ns of {quota}");
                }
                if let (Decision::Allow(allow), true) = (decision, cost > 0) {
                    let of_key = admitted.entry(key).or_default();
                    let twin = if let Decision::Allow(twin) = expected { Some(twin) } else { None };
                    refundable.push((key, of_key.len(), allow, twin));
                    of_key.push(Admission { at: now, cost });
                }
            }
            KeyedStep::Refund(_) | KeyedStep::RefundOf(..) => {
                let of_key = |of: u8| {
                    let held = refundable.iter().enumerate().filter(move |(_, (key, ..))| *key == of);
                    held.map(|(which, (_, index, ..))| (*index, which))
                };
                let which = match *step {
                    KeyedStep::RefundOf(key, Held::Latest) => of_key(key).max().map(|(_, which)| which),
                    KeyedStep::RefundOf(key, Held::Oldest) => of_key(key).min().map(|(_, which)| which),
                    KeyedStep::Refund(which) => which.checked_rem(refundable.len()),
                    _ => None,
                };
                if let Some(which) = which {
                    let (key, index, allow, twin) = refundable.swap_remove(which);
                    limiter.refund_at(&key, allow, instant);
                    if let (Some(twin), Some(direct)) = (twin, map.get(&key)) {
                        direct.refund_at(twin, instant);
                    }
                    if let Some(admission) = admitted.get_mut(&key).and_then(|of_key| of_key.get_mut(index)) {
                        alike &= apart || admission.at == now;
                        admission.cost = 0;
                    }
                }
            }
            KeyedStep::Reset(key) => {
                // A key in overflow has nothing of its own to reset.
                if limiter.reset(&key) || alike {
                    if let Some(of_key) = admitted.insert(key, Vec::new()) {
                        assert_bound(quota, &of_key);
                    }
                    refundable.retain(|(of, ..)| *of != key);
                    // Of no other key of a set is anything given back after a reset.
                    alike &= apart || refundable.is_empty();
                    map.insert(key, obvious());
                }
            }
        }
        assert!(limiter.stats().keys <= max_keys);
    }
    admitted.values().for_each(|of_key| assert_bound(quota, of_key));
}
