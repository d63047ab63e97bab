//! Commands as bytes on the wire.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};

/// Packs commands for one server, one after the other, as RESP arrays of bulk strings.
#[pyfunction]
pub fn pack_commands<'py>(py: Python<'py>, commands: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut packed = Vec::with_capacity(1024);
    for command in commands.try_iter()? {
        let command = command?.cast_into::<PyTuple>()?;
        write_head(&mut packed, b'*', command.len());
        for argument in command.iter_borrowed() {
            write_argument(&mut packed, &argument)?;
        }
    }
    Ok(PyBytes::new(py, &packed))
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
    let mut digits = [0_u8; 20];
    let mut first = digits.len();
    let mut rest = count;
    loop {
        first -= 1;
        digits[first] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    packed.push(marker);
    packed.extend_from_slice(&digits[first..]);
    packed.extend_from_slice(b"\r\n");
}
