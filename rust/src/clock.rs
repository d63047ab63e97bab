//! The clock by which leases are judged: time in which the machine was suspended counts, as a lease runs out on its
//! server meanwhile. The twin of `model/clocks.py`.
//!
//! Risks: where the system has no such clock, suspended time does not count.

#![allow(unsafe_code)] // std has no CLOCK_BOOTTIME

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A time of this clock: how long after its beginning.
pub type Moment = Duration;

/// By `CLOCK_BOOTTIME`; where the system has no such clock, by the monotonic clock.
pub fn now() -> Moment {
    since_boot().unwrap_or_else(monotonic)
}

#[cfg(target_os = "linux")]
fn since_boot() -> Option<Moment> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec, and the call keeps no pointer to it.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) } != 0;
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    if failed { None } else { Some(Duration::new(seconds.ok()?, nanoseconds.ok()?)) }
}

#[cfg(not(target_os = "linux"))]
fn since_boot() -> Option<Moment> {
    None
}

fn monotonic() -> Moment {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGINNING.elapsed()
}
