//! Where keys lie in a cluster: in one of 16,384 slots, by the part of the key in braces, its *tag*.

/// How many slots a cluster has.
const SLOTS: u16 = 1 << 14;

/// What tags are made of.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// For each of `shards` shards a tag, all keys with which are in one slot. The slots of all shards are spread evenly, so that
/// the servers of a cluster, which have a range of them each, have about as many shards each.
///
/// They depend on the number of shards and nothing else, so that all nodes find the same.
pub(super) fn tags(shards: u16) -> Vec<String> {
    let shards = usize::from(shards.max(1));
    let ranges = shards.min(SLOTS.into());
    let mut found = vec![None; ranges];
    let mut missing = ranges;
    for number in 0.. {
        if missing == 0 {
            break;
        }
        let tag = digits(number);
        let range = usize::from(slot(tag.as_bytes())) * ranges / usize::from(SLOTS);
        if let Some(place @ None) = found.get_mut(range) {
            *place = Some(tag);
            missing -= 1;
        }
    }
    (0..shards).filter_map(|shard| found[shard * ranges / shards].clone()).collect()
}

/// The slot of a tag.
fn slot(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8)
            .fold(crc ^ (u16::from(*byte) << 8), |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    });
    crc % SLOTS
}

/// The numbers 0, 1, .. as strings of one digit, then of two, and so on: each string once.
fn digits(number: usize) -> String {
    let mut rest = number;
    let mut digits = String::new();
    loop {
        digits.push(char::from(DIGITS[rest % DIGITS.len()]));
        rest /= DIGITS.len();
        if rest == 0 {
            return digits;
        }
        rest -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn slots_are_those_of_the_servers() {
        // As `CLUSTER KEYSLOT` says.
        for (tag, expected) in [("123456789", 12_739), ("foo", 12_182), ("bar", 5_061), ("", 0)] {
            assert_eq!(slot(tag.as_bytes()), expected, "{tag}");
        }
    }

    #[test]
    fn no_tag_comes_twice() {
        let all: HashSet<_> = (0..100_000).map(digits).collect();
        assert_eq!(all.len(), 100_000);
        assert_eq!([0, 35, 36, 37].map(digits), ["0", "z", "00", "10"]);
    }

    #[test]
    fn shards_are_spread_over_the_slots() {
        for shards in [1, 2, 3, 16, 64, 100, 256, 4_096, SLOTS] {
            let tags = tags(shards);
            assert_eq!(tags.len(), usize::from(shards));
            for (shard, tag) in tags.iter().enumerate() {
                let range = usize::from(slot(tag.as_bytes())) * usize::from(shards) / usize::from(SLOTS);
                assert_eq!(range, shard, "{tag} of {shards} shards");
            }
        }
        // More shards than slots share them.
        let many = tags(u16::MAX);
        assert_eq!((many.len(), many.iter().collect::<HashSet<_>>().len()), (65_535, 16_384));
        assert_eq!(tags(0), tags(1));
    }
}
