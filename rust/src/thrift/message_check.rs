//! Looks through the arguments of any method before a library reads them.
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::thrift::reader::{MAX_DEPTH, MessageReader, STRUCT};

/// Checks the struct of arguments that begins at `start`: what is behind it does not matter. It keeps nothing.
///
/// `BadMessage` for what is cut off, for an unknown type, a bool that is neither 0 nor 1, a container with more elements
/// than bytes are left, for more than 100,000 elements of all containers, and for more than `max_depth` structs and
/// containers in one another.
#[pyfunction]
#[pyo3(signature = (message, start, max_depth=MAX_DEPTH))]
pub fn check_message(message: &Bound<'_, PyBytes>, start: usize, max_depth: u8) -> PyResult<()> {
    Ok(MessageReader::new(message.as_bytes(), start, max_depth)?.skip(STRUCT)?)
}
