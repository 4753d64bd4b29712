//! An allocator that counts: the calls of each thread, and the bytes in use of all. It counts for the whole process, so
//! that whoever uses it has a file of its own.
#![allow(unsafe_code, reason = "an allocator can't be written without; this one counts and hands on to the system's")]
#![allow(dead_code, reason = "each user needs one of the counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// How often this thread has allocated.
pub(crate) fn calls() -> u64 {
    CALLS.get()
}

/// Bytes that are allocated and not freed.
pub(crate) fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

struct Counting;

// SAFETY: every call goes on to the system's allocator with its arguments unchanged, and what that returns is returned.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc::alloc`'s conditions, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `block` came from `System.alloc` with this layout, as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
