//! Strings that came together, such as the records of a claim, without an object for each.
use std::ops::Range;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList};

use crate::limits::MAX_BATCH;

/// A sequence of bytes. Immutable, and not hashable.
#[pyclass(frozen, sequence, module = "pinlater._core")]
#[derive(Clone, Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<usize>,
}

#[pymethods]
impl Records {
    fn __len__(&self) -> usize {
        self.ends.len()
    }

    /// Whether another sequence has the same strings.
    fn __eq__(&self, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        if other.len().ok() != Some(self.len()) {
            return Ok(false);
        }
        for (record, theirs) in self.iter().zip(other.try_iter()?) {
            if theirs?.downcast::<PyBytes>().ok().map(PyBytesMethods::as_bytes) != Some(record) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn __repr__(&self) -> String {
        format!("<Records: {} strings, {} bytes>", self.len(), self.bytes.len())
    }

    /// The bytes of each.
    fn sizes(&self) -> Vec<usize> {
        self.iter().map(<[u8]>::len).collect()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.iter().map(|record| PyBytes::new(py, record)).collect::<Vec<_>>())?.try_iter()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, position: isize) -> PyResult<Bound<'py, PyBytes>> {
        let count = self.ends.len();
        let from_end =
            if position < 0 { count.wrapping_add_signed(position) } else { position.unsigned_abs() };
        match self.get(from_end) {
            Some(record) => Ok(PyBytes::new(py, record)),
            None => Err(PyIndexError::new_err(format!("expected a position below {count}, got {position}"))),
        }
    }
}

impl Records {
    /// Room for so many records, and bytes of them all.
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(count.min(MAX_BATCH)) }
    }

    pub fn push(&mut self, record: &[u8]) {
        self.push_parts(&[record]);
    }

    /// Appends one record of several parts.
    pub fn push_parts(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.ends.push(self.bytes.len());
    }

    /// The bytes of all.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, position: usize) -> Option<&[u8]> {
        let end = *self.ends.get(position)?;
        let start = position.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(start..end)
    }

    /// A copy of those at these positions, which must be there.
    pub fn part(&self, positions: Range<usize>) -> Self {
        let start = positions.start.checked_sub(1).map_or(0, |before| self.ends[before]);
        let ends: Vec<usize> = self.ends[positions].iter().map(|end| end - start).collect();
        let size = ends.last().copied().unwrap_or(0);
        Self { bytes: self.bytes[start..start + size].to_vec(), ends }
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let record = &self.bytes[start..*end];
            start = *end;
            record
        })
    }
}
