//! Which values a codec carries, and brings back as they were.
//!
//! A subclass of a plain type is plain (text with marks, an `OrderedDict`): its base comes back. An `Enum` is not, and
//! neither is a tuple, because a list would come back.
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

/// Deeper values are left to the codec, which refuses them.
const MOST_DEPTH: usize = 500;

static DATETIME: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static ENUM: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The first value in a call's arguments that its codec does not bring back as it was; None if there is none.
///
/// `binary`: the codec carries bytes, dates with a zone, and tuples as keys (msgpack).
#[pyfunction]
pub fn first_not_plain<'py>(
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
    binary: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let search = Search { binary };
    for value in args.iter_borrowed() {
        if let Some(found) = search.value(&value, 0)? {
            return Ok(Some(found));
        }
    }
    if kwargs.is_empty() {
        return Ok(None);
    }
    for (_, value) in kwargs {
        if let Some(found) = search.value(&value, 0)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

struct Search {
    binary: bool,
}

impl Search {
    fn value<'py>(&self, value: &Bound<'py, PyAny>, depth: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
        if value.is_exact_instance_of::<PyString>()
            || value.is_exact_instance_of::<PyInt>()
            || value.is_none()
            || value.is_exact_instance_of::<PyBool>()
            || value.is_exact_instance_of::<PyFloat>()
            || depth > MOST_DEPTH
        {
            return Ok(None);
        }
        if let Ok(list) = value.downcast::<PyList>() {
            return self.list(list, depth);
        }
        if let Ok(dict) = value.downcast::<PyDict>() {
            return self.dict(dict, depth);
        }
        Ok(if self.is_other_plain(value)? { None } else { Some(value.clone()) })
    }

    fn list<'py>(&self, list: &Bound<'py, PyList>, depth: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
        for item in list {
            if let Some(found) = self.value(&item, depth + 1)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn dict<'py>(&self, dict: &Bound<'py, PyDict>, depth: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
        for (key, value) in dict {
            if let Some(found) = self.key(&key, depth + 1)? {
                return Ok(Some(found));
            }
            if let Some(found) = self.value(&value, depth + 1)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Only msgpack has keys that are not text; JSON refuses them by itself.
    fn key<'py>(&self, key: &Bound<'py, PyAny>, depth: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
        let tuple = match key.downcast_exact::<PyTuple>() {
            Ok(tuple) if self.binary && depth <= MOST_DEPTH => tuple,
            _ => return self.value(key, depth),
        };
        for item in tuple {
            if let Some(found) = self.key(&item, depth + 1)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The rarer types: bytes, dates with a zone, and subclasses of the common ones.
    fn is_other_plain(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.binary && (value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyByteArray>()) {
            return Ok(true);
        }
        let py = value.py();
        if self.binary && value.get_type().is(DATETIME.import(py, "datetime", "datetime")?) {
            return Ok(!value.getattr(intern!(py, "tzinfo"))?.is_none());
        }
        let basic = value.is_instance_of::<PyString>()
            || value.is_instance_of::<PyInt>()
            || value.is_instance_of::<PyFloat>();
        Ok(basic && !value.is_instance(ENUM.import(py, "enum", "Enum")?)?)
    }
}
