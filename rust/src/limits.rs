//! The numbers every side agrees on; `docs/design.md`, "Words and numbers", is their source.

/// Bytes of UTF-8 a custom status may have: one script argument stays small, as a thousand go in one call.
pub const MAX_STATUS_BYTES: usize = 3_000;
/// Lowest priority. A priority has five keys of its own, so there cannot be many.
pub const MAX_PRIORITY: u8 = 100;
/// Attempts a job may be allowed: two bytes in its record.
pub const MAX_ATTEMPTS: u16 = u16::MAX;
/// Milliseconds: the time part of an id has 44 bits, and a time that an id can not hold can not be ordered.
pub const MAX_TIME_MS: u64 = (1 << 44) - 1;
/// Jobs a script call takes; scripts refuse more by name.
pub const MAX_BATCH: usize = 1_000;
/// Jobs a native call takes: a status names its job's position in two bytes.
pub const MAX_POSITIONS: usize = 1 << 16;
/// Bytes of a placement key: it is hashed, never stored, so the limit only catches a body passed by mistake.
pub const MAX_KEY_BYTES: usize = 1_024;
/// Bytes of a queue's name, which is part of every key.
pub const MAX_QUEUE_BYTES: usize = 255;
/// Bytes of a shard's name, which is part of every key.
pub const MAX_SHARD_BYTES: usize = 32;
/// Bytes of a source, the claimer's part of a claim descriptor.
pub const MAX_SOURCE_BYTES: usize = 255;
/// Largest id: descriptors are read by languages whose integers are signed.
pub const MAX_ID: u64 = (1 << 63) - 1;
/// Bits of an id below its milliseconds.
pub const SEQUENCE_BITS: u32 = 19;
/// No token.
pub const NO_TOKEN: u64 = 0;
/// What a job gets when its caller does not say.
pub const DEFAULT_PRIORITY: u8 = 1;
/// What a job gets when its caller does not say: one retry.
pub const DEFAULT_ATTEMPTS: u16 = 2;
