//! Reads values of Thrift's binary protocol; never past the end, never deeper than allowed.
use crate::thrift::refusal::Refusal;

/// How deep the structs and containers of a call may be nested: those of the interface need five.
pub const MAX_DEPTH: u8 = 64;
/// How many elements the containers of a call may have together: each becomes a value that takes far more memory than its
/// bytes, of which an empty struct has one.
pub const MAX_ELEMENTS: usize = 100_000;

pub const STOP: u8 = 0;
pub const BOOL: u8 = 2;
pub const BYTE: u8 = 3;
pub const DOUBLE: u8 = 4;
pub const I16: u8 = 6;
pub const I32: u8 = 8;
pub const I64: u8 = 10;
pub const STRING: u8 = 11;
pub const STRUCT: u8 = 12;
pub const MAP: u8 = 13;
pub const SET: u8 = 14;
pub const LIST: u8 = 15;

/// The bytes of a string or of a body: where they are in their message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    start: u32,
    length: u32,
}

impl Span {
    pub fn of(self, message: &[u8]) -> &[u8] {
        let start = self.start as usize;
        message.get(start..start + self.len()).unwrap_or_default()
    }

    pub fn len(self) -> usize {
        self.length as usize
    }
}

/// A position in a message.
pub struct MessageReader<'a> {
    message: &'a [u8],
    at: usize,
    depth_left: u8,
    elements_left: usize,
}

impl<'a> MessageReader<'a> {
    /// `start`: where the struct of the arguments begins.
    pub fn new(message: &'a [u8], start: usize, max_depth: u8) -> Result<Self, Refusal> {
        if i32::try_from(message.len()).is_err() || start > message.len() {
            let length = message.len();
            return Err(Refusal::Message(format!(
                "expected arguments from byte {start} of at most 2,147,483,647, got {length} bytes"
            )));
        }
        Ok(Self { message, at: start, depth_left: max_depth, elements_left: MAX_ELEMENTS })
    }

    /// Steps into a struct: its fields follow, until `next_field` returns None.
    #[inline]
    pub fn begin_struct(&mut self) -> Result<(), Refusal> {
        let Some(left) = self.depth_left.checked_sub(1) else {
            return Err(self.refused("it is nested too deep"));
        };
        self.depth_left = left;
        Ok(())
    }

    /// (type, id) of the next field. None: the struct ends.
    #[inline]
    pub fn next_field(&mut self) -> Result<Option<(u8, i16)>, Refusal> {
        let [kind] = self.fixed()?;
        if kind == STOP {
            self.end_container();
            return Ok(None);
        }
        Ok(Some((kind, i16::from_be_bytes(self.fixed()?))))
    }

    pub fn bool(&mut self) -> Result<bool, Refusal> {
        match self.fixed()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.refused(&format!("expected a bool (0 or 1), got {other}"))),
        }
    }

    #[inline]
    pub fn i8(&mut self) -> Result<i8, Refusal> {
        Ok(i8::from_be_bytes(self.fixed()?))
    }

    pub fn i32(&mut self) -> Result<i32, Refusal> {
        Ok(i32::from_be_bytes(self.fixed()?))
    }

    pub fn i64(&mut self) -> Result<i64, Refusal> {
        Ok(i64::from_be_bytes(self.fixed()?))
    }

    pub fn double(&mut self) -> Result<f64, Refusal> {
        Ok(f64::from_be_bytes(self.fixed()?))
    }

    #[inline]
    pub fn string(&mut self) -> Result<Span, Refusal> {
        let length = u32::from_be_bytes(self.fixed()?);
        // a message has fewer than 2**31 bytes, so its positions have 32 bits
        let start = u32::try_from(self.at).unwrap_or_default();
        self.take(length as usize)?;
        Ok(Span { start, length })
    }

    /// Steps into a list of structs: so many follow, then `end_container`. None: it is a list of something else, which
    /// was stepped over.
    pub fn begin_structs(&mut self) -> Result<Option<usize>, Refusal> {
        self.begin_struct()?;
        let (element, count) = self.list()?;
        if element == STRUCT || count == 0 {
            return Ok(Some(count));
        }
        self.skip_elements(element, count)?;
        self.end_container();
        Ok(None)
    }

    pub fn end_container(&mut self) {
        self.depth_left += 1;
    }

    /// Steps over a value that nobody reads.
    pub fn skip(&mut self, kind: u8) -> Result<(), Refusal> {
        match kind {
            BOOL => self.bool().map(drop),
            STRING => self.string().map(drop),
            STRUCT => self.skip_struct(),
            MAP | SET | LIST => self.skip_container(kind),
            _ => match fixed_bytes(kind) {
                Some(bytes) => self.take(bytes),
                None => Err(self.refused(&format!("expected a type of Thrift, got {kind}"))),
            },
        }
    }

    fn skip_struct(&mut self) -> Result<(), Refusal> {
        self.begin_struct()?;
        while let Some((kind, _)) = self.next_field()? {
            self.skip(kind)?;
        }
        Ok(())
    }

    fn skip_container(&mut self, kind: u8) -> Result<(), Refusal> {
        self.begin_struct()?;
        if kind == MAP {
            let [key, value] = self.fixed()?;
            let count = self.count(|| Some(least_bytes(key)? + least_bytes(value)?))?;
            for _ in 0..count {
                self.skip(key)?;
                self.skip(value)?;
            }
        } else {
            let (element, count) = self.list()?;
            self.skip_elements(element, count)?;
        }
        self.end_container();
        Ok(())
    }

    fn skip_elements(&mut self, element: u8, count: usize) -> Result<(), Refusal> {
        match fixed_bytes(element) {
            Some(bytes) => self.take(count * bytes),
            None => (0..count).try_for_each(|_| self.skip(element)),
        }
    }

    /// (type, count) of the elements of a list or set. So many can be there.
    fn list(&mut self) -> Result<(u8, usize), Refusal> {
        let [kind] = self.fixed()?;
        Ok((kind, self.count(|| least_bytes(kind))?))
    }

    /// How many elements a container has. `least`: the bytes that each has at least; None for an unknown type.
    fn count(&mut self, least: impl Fn() -> Option<usize>) -> Result<usize, Refusal> {
        let count = u32::from_be_bytes(self.fixed()?) as usize;
        // the types of an empty container do not matter
        if count == 0 {
            return Ok(0);
        }
        let Some(least) = least() else { return Err(self.refused("it is a container of an unknown type")) };
        let left = self.left();
        if count > left / least {
            return Err(self.refused(&format!("expected {count} elements, got {left} bytes")));
        }
        let Some(elements_left) = self.elements_left.checked_sub(count) else {
            return Err(self.refused(&format!("expected up to {MAX_ELEMENTS} elements of all containers")));
        };
        self.elements_left = elements_left;
        Ok(count)
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let Some((taken, _)) = self.message[self.at..].split_first_chunk() else {
            return Err(self.cut_off(N));
        };
        self.at += N;
        Ok(*taken)
    }

    #[inline]
    fn take(&mut self, count: usize) -> Result<(), Refusal> {
        if count > self.left() {
            return Err(self.cut_off(count));
        }
        self.at += count;
        Ok(())
    }

    fn left(&self) -> usize {
        self.message.len() - self.at
    }

    #[cold]
    fn cut_off(&self, count: usize) -> Refusal {
        self.refused(&format!("expected {count} more bytes, got {}", self.left()))
    }

    #[cold]
    fn refused(&self, why: &str) -> Refusal {
        Refusal::Message(format!("message: byte {} of {}: {why}", self.at, self.message.len()))
    }
}

/// The bytes of a value whose type has but one length. A bool is none: its value is looked at.
fn fixed_bytes(kind: u8) -> Option<usize> {
    match kind {
        BYTE => Some(1),
        I16 => Some(2),
        I32 => Some(4),
        DOUBLE | I64 => Some(8),
        _ => None,
    }
}

/// The bytes that a value of a type has at least.
fn least_bytes(kind: u8) -> Option<usize> {
    match kind {
        BOOL | STRUCT => Some(1),
        STRING => Some(4),
        SET | LIST => Some(5),
        MAP => Some(6),
        _ => fixed_bytes(kind),
    }
}
