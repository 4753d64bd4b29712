//! An allocator that knows which threads are in it.
//!
//! The system's allocator has locks, and a thread that frees what another has allocated may wait
//! for that one. That is no wait of the library's, so no thread is stopped while it is in the
//! allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

thread_local! {
    // An atomic, as a signal handler reads it. It has no destructor, so reading it there registers
    // nothing.
    static IS_IN: AtomicBool = const { AtomicBool::new(false) };
}

/// Whether this thread is in the allocator. Signal handlers may ask.
pub(crate) fn is_in() -> bool {
    IS_IN.with(|is_in| is_in.load(Ordering::Relaxed))
}

fn enter<T>(call: impl FnOnce() -> T) -> T {
    IS_IN.with(|is_in| {
        is_in.store(true, Ordering::Relaxed);
        // The handler runs on this thread, so it is enough that the compiler keeps the order.
        compiler_fence(Ordering::SeqCst);
        let result = call();
        compiler_fence(Ordering::SeqCst);
        is_in.store(false, Ordering::Relaxed);
        result
    })
}

struct Noted;

// SAFETY: every call goes on to the system's allocator with its arguments unchanged, and what that
// returns is returned.
unsafe impl GlobalAlloc for Noted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps `GlobalAlloc::alloc`'s conditions, which are the same.
        enter(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from `System` with this layout, as the caller promises.
        enter(|| unsafe { System.dealloc(block, layout) });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `block` came from `System` with this layout, as the caller promises.
        enter(|| unsafe { System.realloc(block, layout, size) })
    }
}

#[global_allocator]
static ALLOCATOR: Noted = Noted;
