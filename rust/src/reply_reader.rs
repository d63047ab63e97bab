//! Replies of a Redis server (RESP 2): received bytes to values.
//!
//! Promises: each byte is looked at a fixed number of times, however the bytes are cut, and no memory is taken for what a
//! length only announces. Risks: a connection must not be switched to RESP 3, whose types are errors here.
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString};

use crate::records::Records;

create_exception!(pinlater._core, BadReply, PyValueError, "The bytes are no reply of RESP 2.");

/// The end of a line, and of a bulk string.
const LINE_END: &[u8] = b"\r\n";
/// A line has a type, and a number or a message: so many bytes at most.
const MAX_LINE: usize = 1 << 20;
/// Arrays in one another: so many at most.
const MAX_DEPTH: usize = 8;

/// Cuts what a connection receives into replies. Not for several threads at a time.
///
/// `make_error`: makes the value of an error reply from its text.
#[pyclass(module = "pinlater._core")]
pub struct ReplyReader {
    make_error: Py<PyAny>,
    /// The beginning of a reply that is not complete.
    received: Vec<u8>,
    scan: Scan,
}

#[pymethods]
impl ReplyReader {
    #[new]
    fn new(make_error: Py<PyAny>) -> Self {
        Self { make_error, received: Vec::new(), scan: Scan::default() }
    }

    /// The replies that are complete with these bytes. `BadReply`; then the reader is of no more use.
    ///
    /// A string is bytes, an array a list, and nothing None. An array of strings in an array is `Records`.
    fn read<'py>(&mut self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let replies = PyList::empty(py);
        if self.received.is_empty() {
            let read = self.scan.read_all(data, &replies, &self.make_error)?;
            self.received.extend_from_slice(&data[read..]);
        } else {
            self.received.extend_from_slice(data);
            let read = self.scan.read_all(&self.received, &replies, &self.make_error)?;
            self.received.drain(..read);
        }
        Ok(replies)
    }

    /// Checks that nothing came behind the last reply that was asked for: `count` of `replies`. `BadReply` if something
    /// did; then what is too much is taken out of `replies`.
    fn end(&self, replies: &Bound<'_, PyList>, count: usize) -> PyResult<()> {
        if replies.len() == count && self.received.is_empty() {
            return Ok(());
        }
        replies.del_slice(count, replies.len())?;
        Err(bad(&format!("expected {count} replies, got more")))
    }
}

/// How far the first reply of some bytes was looked at.
#[derive(Default)]
struct Scan {
    at: usize,
    /// Elements that are to come, of each open array.
    open: Vec<usize>,
}

impl Scan {
    /// Appends the complete replies. Returns where the first other one begins.
    fn read_all(
        &mut self,
        bytes: &[u8],
        replies: &Bound<'_, PyList>,
        make_error: &Py<PyAny>,
    ) -> PyResult<usize> {
        let mut start = 0;
        // what was looked at before is built once its end is found; a new reply is most likely complete
        while self.at == start || self.finds_end(bytes)? {
            let mut builder = Builder { bytes, at: start, make_error };
            match builder.value(replies.py(), 0) {
                Ok(reply) => replies.append(reply)?,
                Err(Stop::Bad(error)) => return Err(error),
                Err(Stop::CutOff) => {
                    self.finds_end(bytes)?;
                    break;
                }
            }
            start = builder.at;
            self.at = start;
        }
        self.at -= start;
        Ok(start)
    }

    /// Whether a reply ends here; `at` is its end then.
    fn finds_end(&mut self, bytes: &[u8]) -> PyResult<bool> {
        loop {
            let Some((kind, number, next)) = read_line(bytes, self.at)? else { return Ok(false) };
            let end = match kind {
                b'$' => next + length(number)?.map_or(0, |length| length.saturating_add(LINE_END.len())),
                _ => next,
            };
            if end > bytes.len() {
                return Ok(false);
            }
            self.at = end;
            let elements = if kind == b'*' { length(number)?.unwrap_or(0) } else { 0 };
            if elements > 0 {
                if self.open.len() == MAX_DEPTH {
                    return Err(too_deep());
                }
                self.open.push(elements);
            } else if self.ends_element() {
                return Ok(true);
            }
        }
    }

    /// Counts an element. Returns whether the reply ends with it.
    fn ends_element(&mut self) -> bool {
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return false;
            }
            self.open.pop();
        }
        true
    }
}

/// Why no value is made.
enum Stop {
    CutOff,
    Bad(PyErr),
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Self::Bad(error)
    }
}

/// Makes the value of a reply.
struct Builder<'a> {
    bytes: &'a [u8],
    at: usize,
    make_error: &'a Py<PyAny>,
}

impl<'a> Builder<'a> {
    fn value<'py>(&mut self, py: Python<'py>, depth: usize) -> Result<Bound<'py, PyAny>, Stop> {
        let (kind, rest) = self.line()?;
        match kind {
            b'$' => match length(rest)? {
                Some(length) => Ok(PyBytes::new(py, self.bulk(length)?).into_any()),
                None => Ok(py.None().into_bound(py)),
            },
            b'*' => match length(rest)? {
                Some(count) => self.array(py, count, depth),
                None => Ok(py.None().into_bound(py)),
            },
            b':' => Ok(PyInt::new(py, integer(rest)?).into_any()),
            b'+' => Ok(PyBytes::new(py, rest).into_any()),
            _ => {
                let text = PyString::new(py, &String::from_utf8_lossy(rest));
                Ok(self.make_error.bind(py).call1((text,))?)
            }
        }
    }

    fn array<'py>(&mut self, py: Python<'py>, count: usize, depth: usize) -> Result<Bound<'py, PyAny>, Stop> {
        if depth == MAX_DEPTH {
            return Err(too_deep().into());
        }
        if depth > 0 {
            if let Some(records) = self.records(count)? {
                return Ok(Bound::new(py, records)?.into_any());
            }
        }
        let list = PyList::empty(py);
        for _ in 0..count {
            list.append(self.value(py, depth + 1)?)?;
        }
        Ok(list.into_any())
    }

    /// None: not all of the elements are strings, or there are none.
    fn records(&mut self, count: usize) -> Result<Option<Records>, Stop> {
        let start = self.at;
        let (mut records, mut line, mut length) = (Records::default(), &b""[..], 0);
        for position in 0..count {
            // most strings are as long as the one before, and begin with the same line
            if position > 0 && self.bytes[self.at..].starts_with(line) {
                self.at += line.len();
            } else {
                let line_start = self.at;
                let (kind, rest) = self.line()?;
                let Some(found) = (if kind == b'$' { self::length(rest)? } else { None }) else {
                    self.at = start;
                    return Ok(None);
                };
                (line, length) = (&self.bytes[line_start..self.at], found);
            }
            let record = self.bulk(length)?;
            if position == 0 {
                let most = self.bytes.len() - self.at + record.len(); // what is not there yet gets no memory
                records = Records::with_capacity(count, most.min(count.saturating_mul(record.len())));
            }
            records.push(record);
        }
        Ok((count > 0).then_some(records))
    }

    fn line(&mut self) -> Result<(u8, &'a [u8]), Stop> {
        let (kind, rest, next) = read_line(self.bytes, self.at)?.ok_or(Stop::CutOff)?;
        self.at = next;
        Ok((kind, rest))
    }

    fn bulk(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let (start, end) = (self.at, self.at.saturating_add(length));
        let line_end = self.bytes.get(end..end.saturating_add(LINE_END.len())).ok_or(Stop::CutOff)?;
        if line_end != LINE_END {
            return Err(bad("expected a string that ends with a line, got more bytes").into());
        }
        self.at = end + LINE_END.len();
        Ok(&self.bytes[start..end])
    }
}

/// The type of a line, the rest of it, and where the next line begins. None: it is not complete.
fn read_line(bytes: &[u8], at: usize) -> PyResult<Option<(u8, &[u8], usize)>> {
    let rest = &bytes[at..];
    let Some(end) = rest.iter().take(MAX_LINE).position(|byte| *byte == b'\r') else {
        if rest.len() >= MAX_LINE {
            return Err(bad(&format!("expected a line of at most {MAX_LINE} bytes, got a longer one")));
        }
        return Ok(None);
    };
    match (rest.first(), rest.get(end + 1)) {
        (_, None) => Ok(None),
        (Some(kind @ (b'$' | b'*' | b':' | b'+' | b'-')), Some(b'\n')) => {
            Ok(Some((*kind, &rest[1..end], at + end + LINE_END.len())))
        }
        (kind, _) => Err(bad(&format!("expected a line of RESP 2, got one that begins with {kind:02x?}"))),
    }
}

/// A length; None for -1, which stands for nothing.
fn length(digits: &[u8]) -> PyResult<Option<usize>> {
    let number = integer(digits)?;
    match usize::try_from(number) {
        Ok(length) if length <= isize::MAX as usize / 2 => Ok(Some(length)),
        _ if number == -1 => Ok(None),
        _ => Err(bad(&format!("expected a length, got {number}"))),
    }
}

fn integer(digits: &[u8]) -> PyResult<i64> {
    let (sign, plain) = match digits {
        [b'-', plain @ ..] => (-1, plain),
        plain => (1, plain),
    };
    let add = |number: i64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| sign * i64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    };
    let number = plain.iter().try_fold(0, add).filter(|_| !plain.is_empty());
    number.ok_or_else(|| bad(&format!("expected a number, got {}", String::from_utf8_lossy(digits))))
}

fn too_deep() -> PyErr {
    bad(&format!("expected arrays at most {MAX_DEPTH} deep, got a deeper one"))
}

fn bad(why: &str) -> PyErr {
    BadReply::new_err(format!("reply: {why}"))
}
