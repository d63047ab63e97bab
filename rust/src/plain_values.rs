//! Which values a codec carries, and brings back as they were.
//!
//! A subclass of a plain type is plain (text with marks, an `OrderedDict`): its base comes back. An `Enum` is not, and
//! neither is a tuple, because a list would come back.
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMemoryView, PyString, PyTuple, PyType,
};

/// Deeper values are left to the codec, which refuses them.
const MOST_DEPTH: usize = 500;
/// A function with `**kwargs` may be called in any number of shapes.
const MOST_SHAPES: usize = 16;

static DATETIME: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static ENUM: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Whether a codec brings back a value as it was.
///
/// `binary`: it carries bytes, dates with a zone, and tuples as keys (msgpack).
#[pyfunction]
#[pyo3(signature = (value, binary, /))]
pub fn is_plain_value(value: &Bound<'_, PyAny>, binary: bool) -> PyResult<bool> {
    Codec { binary }.carries(value, 0)
}

/// Knows the calls of a task that need no look by Python: their shape fits the function, and their values are plain.
#[pyclass(frozen, module = "pinlater._core")]
pub struct PlainCalls {
    codec: Codec,
    shapes: Mutex<Vec<Shape>>,
}

/// How many arguments a call has by position, and the names of the others.
struct Shape {
    positional: usize,
    names: Vec<Py<PyAny>>,
}

#[pymethods]
impl PlainCalls {
    #[new]
    fn new(binary: bool) -> Self {
        Self { codec: Codec { binary }, shapes: Mutex::default() }
    }

    /// Remembers that calls of this shape fit. The oldest of many shapes is forgotten.
    #[pyo3(signature = (args, kwargs, /))]
    fn fits(&self, args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) {
        let names = kwargs.keys().iter().map(Bound::unbind).collect();
        let mut shapes = self.shapes();
        if shapes.len() == MOST_SHAPES {
            shapes.remove(0);
        }
        shapes.push(Shape { positional: args.len(), names });
    }

    /// Whether the shape of a call is known to fit, and all its values are plain.
    #[pyo3(signature = (args, kwargs, /))]
    fn knows(&self, args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> PyResult<bool> {
        if !self.shapes().iter().any(|shape| shape.is_of(args, kwargs)) {
            return Ok(false);
        }
        for value in args.iter_borrowed() {
            if !self.codec.carries(&value, 0)? {
                return Ok(false);
            }
        }
        if kwargs.is_empty() {
            return Ok(true);
        }
        for (_, value) in kwargs {
            if !self.codec.carries(&value, 0)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl PlainCalls {
    /// Nothing panics while it is locked, and nothing of Python runs.
    fn shapes(&self) -> MutexGuard<'_, Vec<Shape>> {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shape {
    /// Names are interned, so the same name is the same object.
    fn is_of(&self, args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> bool {
        self.positional == args.len()
            && self.names.len() == kwargs.len()
            && kwargs.iter().zip(&self.names).all(|((name, _), known)| name.is(known))
    }
}

struct Codec {
    binary: bool,
}

impl Codec {
    fn carries(&self, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<bool> {
        if value.is_exact_instance_of::<PyString>()
            || value.is_exact_instance_of::<PyInt>()
            || value.is_none()
            || value.is_exact_instance_of::<PyBool>()
            || value.is_exact_instance_of::<PyFloat>()
            || depth > MOST_DEPTH
        {
            return Ok(true);
        }
        if let Ok(dict) = value.downcast::<PyDict>() {
            return self.carries_dict(dict, depth);
        }
        if let Ok(list) = value.downcast::<PyList>() {
            return self.carries_list(list, depth);
        }
        self.carries_rarer(value)
    }

    fn carries_list(&self, list: &Bound<'_, PyList>, depth: usize) -> PyResult<bool> {
        for item in list {
            if !self.carries(&item, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn carries_dict(&self, dict: &Bound<'_, PyDict>, depth: usize) -> PyResult<bool> {
        for (key, value) in dict {
            if !(self.carries_key(&key, depth + 1)? && self.carries(&value, depth + 1)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Only msgpack has keys that are not text; JSON refuses them by itself.
    fn carries_key(&self, key: &Bound<'_, PyAny>, depth: usize) -> PyResult<bool> {
        let tuple = match key.downcast_exact::<PyTuple>() {
            Ok(tuple) if self.binary && depth <= MOST_DEPTH => tuple,
            _ => return self.carries(key, depth),
        };
        for item in tuple {
            if !self.carries_key(&item, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The rarer types: bytes, dates with a zone, and subclasses of the common ones.
    fn carries_rarer(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let bytes = value.is_instance_of::<PyBytes>()
            || value.is_instance_of::<PyByteArray>()
            || value.is_instance_of::<PyMemoryView>();
        if self.binary && bytes {
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
