//! Integers as bytes: big-endian, unsigned, without padding; and as decimal digits.

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

/// A number's digits: several times as fast as `core::fmt`, in what is written for each job.
pub struct Decimal {
    digits: [u8; 20],
    first: usize,
}

impl Decimal {
    pub fn of(number: u64) -> Self {
        let mut digits = [0_u8; 20];
        let mut first = digits.len();
        let mut rest = number;
        loop {
            first -= 1;
            digits[first] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                return Self { digits, first };
            }
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.digits[self.first..]
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}
