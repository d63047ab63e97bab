//! A claimed job.
use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::arguments::{bytes_like, integer, shown, shown_body};
use crate::bad_argument::BadArgument;
use crate::descriptor::{Descriptor, priority_of, queue_name, shard_name};
use crate::limits::{MAX_ATTEMPTS, MAX_ID, SEQUENCE_BITS};
use crate::packed::big_endian;

/// Bytes of a token.
const TOKEN_BYTES: usize = 8;

/// A claimed job: its body, and what an ack needs to name it. Immutable; two are equal if descriptor and token are.
///
/// The jobs of a claim share their queue, shard and token objects. `token` is eight zero bytes if there is none.
#[pyclass(frozen, module = "pinlater._core")]
#[derive(Debug)]
pub struct Job {
    #[pyo3(get)]
    pub queue: Py<PyString>,
    #[pyo3(get)]
    pub shard: Py<PyString>,
    #[pyo3(get)]
    pub priority: u8,
    #[pyo3(get)]
    pub id: u64,
    #[pyo3(get)]
    pub body: Py<PyBytes>,
    #[pyo3(get)]
    pub token: Py<PyBytes>,
    #[pyo3(get)]
    pub attempts_allowed: u16,
    #[pyo3(get)]
    pub attempts_remaining: u16,
    /// A worker that had claimed it earlier died, or let its lease run out.
    #[pyo3(get)]
    pub crashed: bool,
}

#[pymethods]
impl Job {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "a job has these parts; only claims and tests build one")]
    fn new(
        queue: &Bound<'_, PyAny>,
        shard: &Bound<'_, PyAny>,
        priority: &Bound<'_, PyAny>,
        id: &Bound<'_, PyAny>,
        body: &Bound<'_, PyAny>,
        token: &Bound<'_, PyAny>,
        attempts_allowed: &Bound<'_, PyAny>,
        attempts_remaining: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let py = queue.py();
        Ok(Self {
            queue: PyString::new(py, queue_name(queue)?).unbind(),
            shard: PyString::new(py, shard_name(shard)?).unbind(),
            priority: priority_of(priority)?,
            id: integer("id", id, 1, MAX_ID)?,
            body: bytes_like("body", body)?.unbind(),
            token: PyBytes::new(py, &token_of(token)?.to_be_bytes()).unbind(),
            attempts_allowed: integer("attempts_allowed", attempts_allowed, 1, MAX_ATTEMPTS)?,
            attempts_remaining: integer("attempts_remaining", attempts_remaining, 0, MAX_ATTEMPTS)?,
            crashed: false,
        })
    }

    /// `queue:s<shard>:p<priority>:<id>`, made when asked for.
    #[getter]
    fn descriptor(&self, py: Python<'_>) -> PyResult<String> {
        Ok(Descriptor {
            queue: self.queue.to_str(py)?,
            shard: self.shard.to_str(py)?,
            priority: self.priority,
            id: self.id,
        }
        .write())
    }

    /// Which attempt this is, from 1.
    #[getter]
    fn attempt(&self) -> u32 {
        u32::from(self.attempts_allowed.saturating_sub(self.attempts_remaining)) + 1
    }

    /// When it was enqueued, by Redis's clock: the time part of its id.
    #[getter]
    fn created_ms(&self) -> u64 {
        self.id >> SEQUENCE_BITS
    }

    /// When it was claimed, by Redis's clock: the time part of its token; 0 without one.
    #[getter]
    fn claimed_ms(&self, py: Python<'_>) -> u64 {
        self.token_number(py) >> SEQUENCE_BITS
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(self.identity(py)? == other.get().identity(py)?)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<u64> {
        let mut hasher = DefaultHasher::new();
        self.identity(py)?.hash(&mut hasher);
        Ok(hasher.finish())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (descriptor, attempt) = (self.descriptor(py)?, self.attempt());
        let body = shown_body(self.body.bind(py));
        Ok(format!("<Job {descriptor} attempt {attempt} of {} body={body}>", self.attempts_allowed))
    }
}

impl Job {
    /// The token as a number; 0 is none.
    pub fn token_number(&self, py: Python<'_>) -> u64 {
        big_endian(self.token.as_bytes(py))
    }

    fn identity<'a>(&'a self, py: Python<'a>) -> PyResult<(u64, u64, u8, &'a str, &'a str)> {
        let (queue, shard) = (self.queue.to_str(py)?, self.shard.to_str(py)?);
        Ok((self.id, self.token_number(py), self.priority, queue, shard))
    }
}

/// A token's number: of 8 bytes.
pub fn token_of(token: &Bound<'_, PyAny>) -> Result<u64, BadArgument> {
    let bytes = bytes_like("token", token)?;
    if bytes.as_bytes().len() == TOKEN_BYTES {
        return Ok(big_endian(bytes.as_bytes()));
    }
    Err(BadArgument::Value(format!("token: expected {TOKEN_BYTES} bytes, got {}", shown(token))))
}
