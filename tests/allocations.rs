//! A check of a known key allocates nothing. A file of its own, for the allocator counts for the whole process.
#![allow(unsafe_code, reason = "an allocator can't be written without; this one counts and hands on to the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use tollgate::{Decision, DirectLimiter, Limiter, Quota};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes on to the system's allocator with its arguments unchanged, and what that returns is returned.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps `GlobalAlloc::alloc`'s conditions, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from `System.alloc` with this layout, as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1);
    let limiter = Limiter::new(Quota::per_hour(10)).expect("a quota that makes sense");
    assert!(allocations(|| assert!(limiter.check("a new key").is_allowed())) > 0);
}

#[test]
fn a_check_of_a_known_key_allocates_nothing() {
    let quota = Quota::per_hour(1_000);
    let direct = DirectLimiter::new(quota).expect("a quota that makes sense");
    let keyed = Limiter::new(quota).expect("a quota that makes sense");
    let numbers = Limiter::builder().quota(quota).keys::<u64>().build().expect("a quota that makes sense");
    let owned = String::from("known");
    assert!(keyed.check("known").is_allowed() && numbers.check(&7).is_allowed());

    let count = allocations(|| {
        for _ in 0..2_000 {
            for decision in [direct.check(), keyed.check("known"), keyed.check(&owned), numbers.check(&7)] {
                black_box((decision.remaining(), decision.retry_after(), decision.reset_after()));
            }
            black_box((keyed.peek("known").is_allowed(), keyed.peek("unknown").is_allowed()));
            if let Decision::Allow(allow) = keyed.check("known") {
                keyed.refund("known", allow);
            }
        }
    });
    assert_eq!(count, 0);
    assert!(keyed.check("known").is_denied());
}
