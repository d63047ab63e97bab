//! The part of RESP 2 that a renewal needs: commands out, replies in.
//!
//! Promises: whatever bytes come, reading ends in a value or an error, never in a panic or a huge allocation.
//! Risks: RESP 3 types are errors; a connection must not be switched to them (`HELLO 3`).

use std::io::{self, BufRead, Read};

/// Longest line or bulk string accepted, bytes: HELLO's and a renewal's replies stay below 4 KiB.
const MAX_BYTES: usize = 1 << 20;
/// Longest array accepted, elements: HELLO's has 14.
const MAX_ELEMENTS: usize = 1024;
/// Deepest nesting accepted: HELLO lists modules (array in array in array).
const MAX_DEPTH: usize = 8;

/// One reply; a simple string and a bulk string are both `Text`.
#[derive(Debug, PartialEq)]
pub enum Reply {
    Text(Vec<u8>),
    Error(String),
    Integer(i64),
    Null,
    Array(Vec<Reply>),
}

/// One command as an array of bulk strings.
pub fn encode<'a>(arguments: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The next reply of `reader`.
pub fn read(reader: &mut impl BufRead) -> io::Result<Reply> {
    read_nested(reader, MAX_DEPTH)
}

fn read_nested(reader: &mut impl BufRead, depth: usize) -> io::Result<Reply> {
    let line = read_line(reader)?;
    let Some((kind, rest)) = line.split_first() else {
        return Err(malformed("expected a reply's type, came an empty line"));
    };
    match kind {
        b'+' => Ok(Reply::Text(rest.to_vec())),
        b'-' => Ok(Reply::Error(String::from_utf8_lossy(rest).into_owned())),
        b':' => number(rest).map(Reply::Integer),
        b'$' => read_bulk(reader, rest),
        b'*' => read_array(reader, rest, depth),
        other => Err(malformed(&format!("expected a RESP 2 reply, came type byte 0x{other:02x}"))),
    }
}

fn read_line(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    reader.take(MAX_BYTES as u64).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
    }
    if !line.ends_with(b"\r\n") {
        return Err(malformed("expected a line that ends in CR LF, came a cut or overlong one"));
    }
    line.truncate(line.len() - 2);
    Ok(line)
}

fn read_bulk(reader: &mut impl BufRead, length: &[u8]) -> io::Result<Reply> {
    let Some(length) = size(length, MAX_BYTES)? else {
        return Ok(Reply::Null);
    };
    let mut text = vec![0; length + 2];
    reader.read_exact(&mut text)?;
    text.truncate(length);
    Ok(Reply::Text(text))
}

fn read_array(reader: &mut impl BufRead, length: &[u8], depth: usize) -> io::Result<Reply> {
    let Some(length) = size(length, MAX_ELEMENTS)? else {
        return Ok(Reply::Null);
    };
    if depth == 0 {
        return Err(malformed(&format!("expected arrays at most {MAX_DEPTH} deep, came a deeper one")));
    }
    let items: io::Result<Vec<Reply>> = (0..length).map(|_| read_nested(reader, depth - 1)).collect();
    items.map(Reply::Array)
}

fn number(digits: &[u8]) -> io::Result<i64> {
    let parsed = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| malformed("expected a decimal number, came something else"))
}

/// A length up to `limit`; None for the null reply's -1.
fn size(digits: &[u8], limit: usize) -> io::Result<Option<usize>> {
    let value = number(digits)?;
    if value == -1 {
        return Ok(None);
    }
    let fitting = usize::try_from(value).ok().filter(|length| *length <= limit);
    fitting.map(Some).ok_or_else(|| malformed(&format!("expected a length of at most {limit}, came {value}")))
}

fn malformed(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
