//! Commands as bytes on the wire.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};

use crate::packed::Decimal;
use crate::records::Records;

/// The end of a line, and of a string.
const LINE_END: &[u8] = b"\r\n";
/// A marker, 20 digits, a line's end.
const MAX_HEAD_BYTES: usize = 23;

/// The first arguments of a command, packed once for all calls that begin with them. Immutable.
#[pyclass(frozen, module = "pinlater._core")]
pub struct CommandHead {
    packed: Vec<u8>,
    count: usize,
}

#[pymethods]
impl CommandHead {
    #[new]
    fn new(arguments: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut packed = Vec::new();
        let count = write_arguments(&mut packed, arguments)?;
        Ok(Self { packed, count })
    }

    /// The whole command, packed: the head's arguments, then these. Of `Records` each string is an argument.
    fn command<'py>(&self, arguments: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        // the count is known last: its line is put right before the rest
        let mut packed = Vec::with_capacity(MAX_HEAD_BYTES + self.packed.len() + 1024);
        packed.resize(MAX_HEAD_BYTES, 0);
        packed.extend_from_slice(&self.packed);
        let count = write_arguments(&mut packed, arguments)?;
        let mut line = Vec::with_capacity(MAX_HEAD_BYTES);
        write_head(&mut line, b'*', self.count + count);
        let start = MAX_HEAD_BYTES - line.len();
        packed[start..MAX_HEAD_BYTES].copy_from_slice(&line);
        Ok(PyBytes::new(arguments.py(), &packed[start..]))
    }
}

/// Packs commands for one server, one after the other, as RESP arrays of bulk strings. A command that is bytes was
/// packed before.
#[pyfunction]
pub fn pack_commands<'py>(py: Python<'py>, commands: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Some(packed) = only_packed(commands) {
        return Ok(packed);
    }
    let mut packed = Vec::with_capacity(1024);
    for command in commands.try_iter()? {
        let command = command?;
        if let Ok(bytes) = command.cast::<PyBytes>() {
            packed.extend_from_slice(bytes.as_bytes());
            continue;
        }
        let command = command.cast_into::<PyTuple>()?;
        write_head(&mut packed, b'*', command.len());
        for argument in command.iter_borrowed() {
            write_argument(&mut packed, &argument)?;
        }
    }
    Ok(PyBytes::new(py, &packed))
}

/// The command that was packed before, where there is no other; it may be large.
fn only_packed<'py>(commands: &Bound<'py, PyAny>) -> Option<Bound<'py, PyBytes>> {
    let commands = commands.cast::<PyList>().ok().filter(|commands| commands.len() == 1)?;
    commands.get_item(0).ok()?.cast_into::<PyBytes>().ok()
}

/// Returns how many they were.
fn write_arguments(packed: &mut Vec<u8>, arguments: &Bound<'_, PyAny>) -> PyResult<usize> {
    let mut count = 0;
    for argument in arguments.try_iter()? {
        let argument = argument?;
        if let Ok(records) = argument.downcast::<Records>() {
            write_records(packed, records.get());
            count += records.get().len();
        } else {
            write_argument(packed, &argument)?;
            count += 1;
        }
    }
    Ok(count)
}

fn write_argument(packed: &mut Vec<u8>, argument: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Ok(bytes) = argument.cast::<PyBytes>() {
        write_bulk(packed, bytes.as_bytes());
    } else if let Ok(text) = argument.cast::<PyString>() {
        write_bulk(packed, text.to_str()?.as_bytes());
    } else if let Ok(number) = argument.cast_exact::<PyInt>() {
        write_bulk(packed, number.extract::<i64>()?.to_string().as_bytes());
    } else {
        let kind = argument.get_type().name()?;
        let message = format!("argument: expected bytes, str or int, got {kind}");
        return Err(PyTypeError::new_err(message));
    }
    Ok(())
}

/// Most of them have the same length.
fn write_records(packed: &mut Vec<u8>, records: &Records) {
    packed.reserve(records.bytes() + (MAX_HEAD_BYTES + LINE_END.len()) * records.len());
    // between two records: the end of one, and the head of the next
    let (mut between, mut length) = (LINE_END.to_vec(), None);
    for (position, record) in records.iter().enumerate() {
        if length != Some(record.len()) {
            length = Some(record.len());
            between.truncate(LINE_END.len());
            write_head(&mut between, b'$', record.len());
        }
        packed.extend_from_slice(if position == 0 { &between[LINE_END.len()..] } else { &between });
        packed.extend_from_slice(record);
    }
    if records.len() > 0 {
        packed.extend_from_slice(LINE_END);
    }
}

fn write_bulk(packed: &mut Vec<u8>, bytes: &[u8]) {
    write_head(packed, b'$', bytes.len());
    packed.extend_from_slice(bytes);
    packed.extend_from_slice(LINE_END);
}

/// A marker and a count: `*3\r\n`.
fn write_head(packed: &mut Vec<u8>, marker: u8, count: usize) {
    packed.push(marker);
    packed.extend_from_slice(Decimal::of(count as u64).as_bytes());
    packed.extend_from_slice(LINE_END);
}
