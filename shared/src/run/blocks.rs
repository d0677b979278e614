//! The allocator of servers that make and drop many small blocks: the system's, behind a cache of freed blocks in each
//! thread.
//!
//! An object that is written is a tree of a thousand strings and maps for a moment. The system's allocator keeps seven
//! freed blocks of a size for a thread and locks for the rest; here a thread keeps what one tree needs, so that the next
//! one is made of it without a lock. What a thread keeps is bounded, and goes back to the system when the thread ends.

#![allow(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

/// From one class to the next; the system aligns to it.
const STEP: usize = 16;
/// The size of the smallest class. Before each block the system keeps a word of its own and rounds up both together: these
/// are the sizes that leave nothing unused.
const SMALLEST: usize = 24;
const CLASSES: usize = 64;
/// Larger blocks are the system's business.
const LARGEST: usize = size_of_class(CLASSES - 1);
/// Bytes of one size that a thread keeps.
const MOST_OF_ONE: usize = 128 << 10;
/// Bytes that a thread keeps of all sizes.
const MOST: usize = 512 << 10;

/// See the module.
#[derive(Debug)]
pub struct Blocks;

/// A freed block: the next one of its size stands in it.
struct Free {
    next: *mut Free,
}

struct FreeLists {
    first: [Cell<*mut Free>; CLASSES],
    /// Bytes in each list.
    of_one: [Cell<usize>; CLASSES],
    /// Bytes in all.
    all: Cell<usize>,
}

thread_local! {
    static KEPT: FreeLists = const {
        FreeLists { first: [const { Cell::new(ptr::null_mut()) }; CLASSES], of_one: [const { Cell::new(0) }; CLASSES], all: Cell::new(0) }
    };
}

// Inlined although this crate is optimised for size: nothing is called as often.

/// Size class of a layout; `None` for one that is not pooled.
#[inline(always)]
fn class(layout: Layout) -> Option<usize> {
    let size = layout.size();
    (size > 0 && size <= LARGEST && layout.align() <= STEP).then(|| size.saturating_sub(SMALLEST).div_ceil(STEP))
}

const fn size_of_class(class: usize) -> usize {
    SMALLEST + class * STEP
}

/// Layout that the system allocates for a size class.
fn whole(class: usize) -> Layout {
    // SAFETY: the alignment is a power of two and the size is small.
    unsafe { Layout::from_size_align_unchecked(size_of_class(class), STEP) }
}

impl FreeLists {
    #[inline(always)]
    fn take(&self, class: usize) -> *mut u8 {
        let block = self.first[class].get();
        if !block.is_null() {
            // SAFETY: what is in a list is a block of its class that nobody else has; `put` wrote its link.
            self.first[class].set(unsafe { (*block).next });
            let size = size_of_class(class);
            self.of_one[class].set(self.of_one[class].get() - size);
            self.all.set(self.all.get() - size);
        }
        block.cast()
    }

    /// False when there is no room.
    #[inline(always)]
    fn put(&self, class: usize, block: *mut u8) -> bool {
        let size = size_of_class(class);
        if self.of_one[class].get() + size > MOST_OF_ONE || self.all.get() + size > MOST {
            return false;
        }
        let block = block.cast::<Free>();
        // SAFETY: a block is at least SMALLEST bytes large and aligned to STEP, and its last owner has given it up.
        unsafe { block.write(Free { next: self.first[class].get() }) };
        self.first[class].set(block);
        self.of_one[class].set(self.of_one[class].get() + size);
        self.all.set(self.all.get() + size);
        true
    }
}

impl Drop for FreeLists {
    fn drop(&mut self) {
        for class in 0..CLASSES {
            loop {
                let block = self.take(class);
                if block.is_null() {
                    break;
                }
                // SAFETY: it came from the system with this layout.
                unsafe { System.dealloc(block, whole(class)) };
            }
        }
    }
}

// SAFETY: a block is the system's, of at least the size and alignment asked for; between `dealloc` and `alloc` it is in the
// list of one thread only. Layouts map to classes the same way in all methods, so that the system gets back what it gave.
unsafe impl GlobalAlloc for Blocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(layout) else {
            // SAFETY: the caller's.
            return unsafe { System.alloc(layout) };
        };
        // A thread that is ending keeps nothing.
        let kept = KEPT.try_with(|kept| kept.take(class)).unwrap_or(ptr::null_mut());
        if !kept.is_null() {
            return kept;
        }
        // SAFETY: the size is not zero.
        unsafe { System.alloc(whole(class)) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class(layout) else {
            // SAFETY: the caller's.
            return unsafe { System.dealloc(block, layout) };
        };
        if !KEPT.try_with(|kept| kept.put(class, block)).unwrap_or(false) {
            // SAFETY: that is how `alloc` asked for it.
            unsafe { System.dealloc(block, whole(class)) };
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class(layout).is_none() {
            // SAFETY: the caller's.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: it is as large as that.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's word is that the size, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (class(layout), class(wanted)) {
            // SAFETY: the caller's; neither is of a class.
            (None, None) => unsafe { System.realloc(block, layout, size) },
            (old, new) if old == new => block,
            _ => {
                // SAFETY: both blocks are at least as large as what is copied, and not the same.
                unsafe {
                    let moved = self.alloc(wanted);
                    if !moved.is_null() {
                        ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                    moved
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).expect("a layout")
    }

    #[test]
    fn a_freed_block_is_given_again_to_its_size_only() {
        // SAFETY: every block is used and freed with the layout it was made with.
        unsafe {
            let first = Blocks.alloc(layout(40));
            Blocks.dealloc(first, layout(40));
            let other = Blocks.alloc(layout(80));
            let again = Blocks.alloc(layout(25));
            assert_ne!(other, first);
            assert_eq!(again, first, "25 and 40 bytes are of one class");
            Blocks.dealloc(other, layout(80));
            Blocks.dealloc(again, layout(25));
        }
    }

    #[test]
    fn growing_keeps_what_is_in_it() {
        // SAFETY: as above.
        unsafe {
            let mut block = Blocks.alloc(layout(8));
            block.write_bytes(7, 8);
            let mut size = 8;
            for next in [12, 16, 17, 500, 1024, 1025, 5000, 900, 8] {
                block = Blocks.realloc(block, layout(size), next);
                assert_eq!(std::slice::from_raw_parts(block, 8), [7; 8], "{size} to {next}");
                size = next;
            }
            Blocks.dealloc(block, layout(size));
        }
    }

    #[test]
    fn zeroed_is_zero_although_it_was_used() {
        // SAFETY: as above.
        unsafe {
            let used = Blocks.alloc(layout(64));
            used.write_bytes(0xff, 64);
            Blocks.dealloc(used, layout(64));
            let zeroed = Blocks.alloc_zeroed(layout(64));
            assert_eq!(std::slice::from_raw_parts(zeroed, 64), [0; 64]);
            Blocks.dealloc(zeroed, layout(64));
        }
    }

    #[test]
    fn what_a_thread_keeps_is_bounded() {
        let kept = std::thread::spawn(|| {
            for size in [16, 600, 1024] {
                // SAFETY: as above.
                let blocks: Vec<*mut u8> = (0..20_000).map(|_| unsafe { Blocks.alloc(layout(size)) }).collect();
                blocks.into_iter().for_each(|b| unsafe { Blocks.dealloc(b, layout(size)) });
            }
            KEPT.with(|kept| (kept.all.get(), kept.of_one[0].get()))
        });
        let (all, smallest) = kept.join().expect("the thread ended");
        assert!(all <= MOST && smallest <= MOST_OF_ONE && all > MOST_OF_ONE, "{all} {smallest}");
    }
}
