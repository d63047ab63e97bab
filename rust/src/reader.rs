//! Reads packed big-endian integers and byte runs; never past the end.
use crate::bad_argument::BadArgument;
use crate::packed::big_endian;

/// A position in packed bytes.
pub struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// `what` names the bytes in messages.
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes, at: 0 }
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], BadArgument> {
        let rest = &self.bytes[self.at..];
        let Some((taken, _)) = rest.split_at_checked(count) else {
            return Err(BadArgument::Value(format!(
                "{}: expected {count} more bytes at byte {} of {}, got {}",
                self.what,
                self.at,
                self.bytes.len(),
                rest.len()
            )));
        };
        self.at += count;
        Ok(taken)
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// An unsigned integer of `width` bytes, at most 8.
    pub fn number(&mut self, width: usize) -> Result<u64, BadArgument> {
        Ok(big_endian(self.take(width)?))
    }

    pub fn u8(&mut self) -> Result<u8, BadArgument> {
        Ok(self.take(1)?[0])
    }

    pub fn u16(&mut self) -> Result<u16, BadArgument> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}
