//! Packed integers: big-endian, unsigned, without padding.

/// The number that at most 8 bytes stand for.
pub fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The low 6 bytes of a number: a u48.
pub fn u48_bytes(number: u64) -> [u8; 6] {
    let [_, _, rest @ ..] = number.to_be_bytes();
    rest
}

/// The low 2 bytes of a count or position that a check keeps below 65,536.
pub fn u16_bytes(number: usize) -> [u8; 2] {
    let [.., high, low] = number.to_be_bytes();
    [high, low]
}
