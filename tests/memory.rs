//! Memory follows the keys.

mod counting;

use std::time::Duration;

use counting::in_use;
use tollgate::{Limiter, Now, Quota};

/// One test, so that nothing else allocates meanwhile.
#[test]
fn memory_follows_the_keys() {
    const MILLION: u64 = 1_000_000;
    let at = |seconds| Now::since_origin(Duration::from_secs(seconds)).expect("an early instant");
    let limiter = Limiter::new(Quota::per_second(1)).expect("a quota that makes sense");
    let come = |keys: std::ops::Range<u64>, seconds| {
        for key in keys {
            assert!(limiter.check_at(&format!("key-{key:016}"), at(seconds)).is_allowed());
        }
    };

    let empty = in_use();
    come(0..MILLION, 0);
    let full = in_use() - empty;
    assert!(full < 150 * MILLION as usize, "{full} bytes for a million keys");

    // One million after another, and no more than there is room for one and a table that is about to grow.
    for generation in 1..3 {
        come(generation * MILLION..(generation + 1) * MILLION, 10 * generation);
        let now = in_use() - empty;
        assert!(now < full * 5 / 4, "{now} bytes in generation {generation}, {full} in the first");
    }

    // A quiet time: half as many come each time, and see twice as many off.
    for (halving, newcomers) in [(1, 510_000), (2, 260_000), (3, 130_000), (4, 65_000)] {
        come(halving * 10 * MILLION..halving * 10 * MILLION + newcomers, 1_000 * halving);
    }
    assert!(limiter.len() < 80_000, "{} keys", limiter.len());
    let quiet = in_use() - empty;
    assert!(quiet < full / 4, "{quiet} bytes after a quiet time, {full} for a million");

    drop(limiter);
    assert!(in_use() < empty, "{} bytes left behind", in_use() - empty);
}
