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
        // two digits a division
        while rest >= 100 {
            let [.., pair] = (rest % 100).to_be_bytes();
            first -= 2;
            digits[first..first + 2].copy_from_slice(&[b'0' + pair / 10, b'0' + pair % 10]);
            rest /= 100;
        }
        let [.., pair] = rest.to_be_bytes();
        first -= 1;
        digits[first] = b'0' + pair % 10;
        if pair >= 10 {
            first -= 1;
            digits[first] = b'0' + pair / 10;
        }
        Self { digits, first }
    }

    /// Adds 1 to a number below `u64::MAX`: in most cases that changes one digit.
    pub fn increment(&mut self) {
        let mut at = self.digits.len();
        while at > self.first {
            at -= 1;
            if self.digits[at] < b'9' {
                self.digits[at] += 1;
                return;
            }
            self.digits[at] = b'0';
        }
        self.first = self.first.saturating_sub(1);
        self.digits[self.first] = b'1';
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.digits[self.first..]
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}
