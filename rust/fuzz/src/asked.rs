//! Counts the bytes of memory that Rust and Python ask for.
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that were asked for since the start, also those that were given back since. What grows counts by its growth in
/// Rust, and as a whole in Python.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// What a piece of work returns, and the bytes that it asks for.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = ASKED.load(Relaxed);
    let value = work();
    (value, ASKED.load(Relaxed) - before)
}

fn ask(bytes: usize) {
    ASKED.fetch_add(bytes, Relaxed);
}

pub struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator does everything.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ask(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ask(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ask(size.saturating_sub(layout.size()));
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        unsafe { System.dealloc(old, layout) }
    }
}

/// Python's `PyMemAllocatorEx`. It is no part of the limited API, so PyO3 has none.
#[repr(C)]
struct PythonAllocator {
    context: *mut c_void,
    malloc: extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: extern "C" fn(*mut c_void, *mut c_void),
}

/// `PYMEM_DOMAIN_MEM` and `PYMEM_DOMAIN_OBJ`: buffers and objects.
const DOMAINS: [c_int; 2] = [1, 2];

unsafe extern "C" {
    fn PyMem_GetAllocator(domain: c_int, allocator: *mut PythonAllocator);
    fn PyMem_SetAllocator(domain: c_int, allocator: *mut PythonAllocator);
}

/// Counts what Python asks for from now on. Python runs, and this thread is attached to it.
pub fn count_python() {
    for domain in DOMAINS {
        let real =
            Box::leak(Box::new(PythonAllocator { context: null_mut(), malloc, calloc, realloc, free }));
        let mut counting =
            PythonAllocator { context: (&raw mut *real).cast(), malloc, calloc, realloc, free };
        // SAFETY: both are as Python has them, and `real` is never given back.
        unsafe {
            PyMem_GetAllocator(domain, real);
            PyMem_SetAllocator(domain, &raw mut counting);
        }
    }
}

/// Python's own allocator.
fn real(context: *mut c_void) -> &'static PythonAllocator {
    // SAFETY: Python hands over what it got in `count_python`.
    unsafe { &*context.cast() }
}

extern "C" fn malloc(context: *mut c_void, size: usize) -> *mut c_void {
    ask(size);
    (real(context).malloc)(real(context).context, size)
}

extern "C" fn calloc(context: *mut c_void, count: usize, size: usize) -> *mut c_void {
    ask(count * size);
    (real(context).calloc)(real(context).context, count, size)
}

extern "C" fn realloc(context: *mut c_void, old: *mut c_void, size: usize) -> *mut c_void {
    ask(size);
    (real(context).realloc)(real(context).context, old, size)
}

extern "C" fn free(context: *mut c_void, old: *mut c_void) {
    (real(context).free)(real(context).context, old);
}
