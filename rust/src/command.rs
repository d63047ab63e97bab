//! Commands as bytes on the wire.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};

use crate::packed::Decimal;

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

    /// The whole command, packed: the head's arguments, then these.
    fn command<'py>(&self, arguments: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let mut rest = Vec::with_capacity(1024);
        let count = write_arguments(&mut rest, arguments)?;
        let mut start = Vec::with_capacity(MAX_HEAD_BYTES);
        write_head(&mut start, b'*', self.count + count);
        let parts = [start.as_slice(), &self.packed, &rest];
        PyBytes::new_with(arguments.py(), parts.iter().map(|part| part.len()).sum(), |mut bytes| {
            for part in parts {
                let (here, after) = bytes.split_at_mut(part.len());
                here.copy_from_slice(part);
                bytes = after;
            }
            Ok(())
        })
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
        write_argument(packed, &argument?)?;
        count += 1;
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

fn write_bulk(packed: &mut Vec<u8>, bytes: &[u8]) {
    write_head(packed, b'$', bytes.len());
    packed.extend_from_slice(bytes);
    packed.extend_from_slice(b"\r\n");
}

/// A marker and a count: `*3\r\n`.
fn write_head(packed: &mut Vec<u8>, marker: u8, count: usize) {
    packed.push(marker);
    packed.extend_from_slice(Decimal::of(count as u64).as_bytes());
    packed.extend_from_slice(b"\r\n");
}
