//! A job's record as Redis keeps it: `u8 format = 1, u16 attempts allowed, u8 priority, body`.
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bad_argument::BadArgument;
use crate::records::Records;

/// Bytes before the body.
const HEADER_BYTES: usize = 4;
/// The only format there is; another one was written by a newer release.
const FORMAT: u8 = 1;

/// A record's parts.
pub struct Record<'a> {
    pub attempts_allowed: u16,
    pub priority: u8,
    pub body: &'a [u8],
}

impl<'a> Record<'a> {
    pub fn read(bytes: &'a [u8]) -> Result<Self, BadArgument> {
        let [format, high, low, priority, body @ ..] = bytes else {
            return Err(BadArgument::Value(format!(
                "record: expected at least {HEADER_BYTES} bytes, got {}",
                bytes.len()
            )));
        };
        if *format != FORMAT {
            return Err(BadArgument::Value(format!("record: expected format {FORMAT}, got {format}")));
        }
        Ok(Self { attempts_allowed: u16::from_be_bytes([*high, *low]), priority: *priority, body })
    }

    /// Appends its bytes.
    pub fn add_to(&self, records: &mut Records) {
        let [high, low] = self.attempts_allowed.to_be_bytes();
        records.push_parts(&[&[FORMAT, high, low, self.priority], self.body]);
    }
}

/// The parts of a record: attempts allowed, priority, body. `ValueError` if it is too short or of another format.
#[pyfunction]
pub fn unpack_record<'py>(py: Python<'py>, record: &[u8]) -> PyResult<(u16, u8, Bound<'py, PyBytes>)> {
    let record = Record::read(record)?;
    Ok((record.attempts_allowed, record.priority, PyBytes::new(py, record.body)))
}
