//! What all calls have: a context and a request, and texts that are cut.
use std::borrow::Cow;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::limits::{MAX_SOURCE_BYTES, MAX_STATUS_BYTES};
use crate::thrift::reader::{MAX_DEPTH, MessageReader, STRING, STRUCT, Span};
use crate::thrift::refusal::Refusal;

/// Elements of a list for which memory is taken before they are there.
pub const FIRST_ITEMS: usize = 64;

/// Reads a request, up to and with its end.
pub type ReadRequest<'a, T> = fn(&mut MessageReader<'a>) -> Result<T, Refusal>;

/// The source and the request of a call: arguments 1 and 2.
pub fn read_call<'a, T>(
    message: &'a [u8],
    start: usize,
    read_request: ReadRequest<'a, T>,
) -> Result<(Span, T), Refusal> {
    let mut reader = MessageReader::new(message, start, MAX_DEPTH)?;
    let (mut source, mut request) = (None, None);
    reader.begin_struct()?;
    while let Some(field) = reader.next_field()? {
        match field {
            (STRUCT, 1) => source = Some(read_source(&mut reader)?),
            (STRUCT, 2) => request = Some(read_request(&mut reader)?),
            (kind, _) => reader.skip(kind)?,
        }
    }
    Ok((required(source, "context")?, required(request, "request")?))
}

fn read_source(reader: &mut MessageReader<'_>) -> Result<Span, Refusal> {
    let mut source = None;
    reader.begin_struct()?;
    while let Some(field) = reader.next_field()? {
        match field {
            (STRING, 1) => source = Some(reader.string()?),
            (kind, _) => reader.skip(kind)?,
        }
    }
    required(source, "context.source")
}

/// A field that must be there.
pub fn required<T>(value: Option<T>, name: &str) -> Result<T, Refusal> {
    value.ok_or_else(|| {
        Refusal::Missing(format!("{name}: expected a value, as the field is required, got none"))
    })
}

/// Text; bytes that are no UTF-8 are replaced.
pub fn text<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyString> {
    PyString::new(py, &String::from_utf8_lossy(bytes))
}

/// A source, cut to what a claim descriptor takes.
pub fn source_text<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyString> {
    PyString::new(py, &cut_text(bytes, MAX_SOURCE_BYTES))
}

/// A custom status, cut to what a job takes.
pub fn status_text(bytes: &[u8]) -> Cow<'_, str> {
    cut_text(bytes, MAX_STATUS_BYTES)
}

/// The first bytes of a text, cut at the edge of a character; bytes that are no UTF-8 are replaced.
fn cut_text(bytes: &[u8], most: usize) -> Cow<'_, str> {
    if bytes.is_empty() {
        return Cow::Borrowed(""); // as most statuses are
    }
    // A replacement is as long as what it stands for, or longer. Of a character across the end, at most 3 bytes are left.
    let start = bytes.get(..most + 3).unwrap_or(bytes);
    let text = String::from_utf8_lossy(start);
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[..end]),
        Cow::Owned(text) => Cow::Owned(text[..end].to_owned()),
    }
}
