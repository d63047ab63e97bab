//! A job to enqueue.
use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::arguments::{Given, bytes_like, check_length, integer, shown, shown_body, text};
use crate::bad_argument::BadArgument;
use crate::descriptor::priority_of;
use crate::job_spec::JobOptions;
use crate::limits::{
    DEFAULT_ATTEMPTS, DEFAULT_PRIORITY, MAX_ATTEMPTS, MAX_KEY_BYTES, MAX_STATUS_BYTES, MAX_TIME_MS,
};

/// A job to enqueue: a body and what is asked for it. Immutable.
///
/// `body` is any bytes-like object, copied. `run_after_ms` (a time, 0 = now) or `delay_ms` (from Redis's clock), not
/// both. `key` places jobs that have the same one on the same shard; it is not stored.
#[pyclass(frozen, module = "pinlater._core")]
#[derive(Debug)]
pub struct NewJob {
    #[pyo3(get)]
    pub body: Py<PyBytes>,
    #[pyo3(get)]
    pub priority: u8,
    #[pyo3(get)]
    run_after_ms: Option<u64>,
    #[pyo3(get)]
    delay_ms: Option<u64>,
    #[pyo3(get)]
    pub attempts: u16,
    #[pyo3(get)]
    pub status: String,
    key: Option<Vec<u8>>,
}

#[pymethods]
impl NewJob {
    #[new]
    #[pyo3(
        signature = (body, *, priority=Given(None), run_after_ms=None, delay_ms=None, attempts=Given(None),
                     status=Given(None), key=None),
        text_signature = "(body, *, priority=1, run_after_ms=None, delay_ms=None, attempts=2, status='', key=None)"
    )]
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 hands optional arguments over by value")]
    fn new(
        body: &Bound<'_, PyAny>,
        priority: Given<'_>,
        run_after_ms: Option<Bound<'_, PyAny>>,
        delay_ms: Option<Bound<'_, PyAny>>,
        attempts: Given<'_>,
        status: Given<'_>,
        key: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let time = |name, value: Option<Bound<'_, PyAny>>| {
            value.map(|value| integer(name, &value, 0, MAX_TIME_MS)).transpose()
        };
        let (run_after_ms, delay_ms) = (time("run_after_ms", run_after_ms)?, time("delay_ms", delay_ms)?);
        if let (Some(run_after_ms), Some(delay_ms)) = (run_after_ms, delay_ms) {
            return Err(both_times(run_after_ms, delay_ms).into());
        }
        Ok(Self {
            body: bytes_like("body", body)?.unbind(),
            priority: priority.0.map_or(Ok(DEFAULT_PRIORITY), |value| priority_of(&value))?,
            run_after_ms,
            delay_ms,
            attempts: attempts
                .0
                .map_or(Ok(DEFAULT_ATTEMPTS), |value| integer("attempts", &value, 1, MAX_ATTEMPTS))?,
            status: status.0.map_or(Ok(String::new()), |value| status_of(&value))?,
            key: key.map(|value| key_of(&value)).transpose()?,
        })
    }

    /// The placement key's bytes; a str given was encoded as UTF-8.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.key.as_ref().map(|key| PyBytes::new(py, key))
    }

    /// The same with another body.
    fn with_body(&self, body: &Bound<'_, PyAny>) -> PyResult<Self> {
        let body = bytes_like("body", body)?.unbind();
        Ok(Self { body, status: self.status.clone(), key: self.key.clone(), ..*self })
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, Self>) -> bool {
        self.parts(py) == other.get().parts(py)
    }

    fn __hash__(&self, py: Python<'_>) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.parts(py).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let mut parts = vec![shown_body(self.body.bind(py)), format!("priority={}", self.priority)];
        parts.extend(self.run_after_ms.map(|time_ms| format!("run_after_ms={time_ms}")));
        parts.extend(self.delay_ms.map(|delay_ms| format!("delay_ms={delay_ms}")));
        parts.push(format!("attempts={}", self.attempts));
        if !self.status.is_empty() {
            parts.push(format!("status={}", shown(&PyString::new(py, &self.status))));
        }
        parts.extend(self.key(py).map(|key| format!("key={}", shown(&key))));
        format!("NewJob({})", parts.join(", "))
    }
}

/// A job for each body, all with the same options: those of `NewJob`, checked once.
#[pyfunction]
#[pyo3(signature = (bodies, **options))]
pub fn new_jobs<'py>(
    bodies: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Vec<Bound<'py, NewJob>>> {
    let py = bodies.py();
    let first = py.get_type::<NewJob>().call((PyBytes::new(py, b""),), options)?.downcast_into::<NewJob>()?;
    let mut jobs = Vec::new();
    for body in bodies.try_iter()? {
        jobs.push(Bound::new(py, first.get().with_body(&body?)?)?);
    }
    Ok(jobs)
}

type Parts<'a> = (&'a [u8], u8, Option<u64>, Option<u64>, u16, &'a str, Option<&'a [u8]>);

impl NewJob {
    /// Of parts that are within the limits. `run_after_ms`: 0 is now.
    pub fn of_parts(
        body: Py<PyBytes>,
        priority: u8,
        run_after_ms: u64,
        attempts: u16,
        status: String,
    ) -> Self {
        let run_after_ms = Some(run_after_ms).filter(|time_ms| *time_ms > 0);
        Self { body, priority, run_after_ms, delay_ms: None, attempts, status, key: None }
    }

    pub fn options(&self) -> JobOptions<'_> {
        let when = match (self.run_after_ms, self.delay_ms) {
            (Some(time_ms), _) if time_ms > 0 => (1, time_ms),
            (_, Some(delay_ms)) if delay_ms > 0 => (2, delay_ms),
            _ => (0, 0),
        };
        JobOptions { priority: self.priority, when, attempts: self.attempts, status: &self.status }
    }

    fn parts<'a>(&'a self, py: Python<'a>) -> Parts<'a> {
        let body = self.body.as_bytes(py);
        let key = self.key.as_deref();
        (body, self.priority, self.run_after_ms, self.delay_ms, self.attempts, &self.status, key)
    }
}

/// A custom status: at most 3,000 bytes of UTF-8.
pub fn status_of(status: &Bound<'_, PyAny>) -> Result<String, BadArgument> {
    let status = text("status", status)?;
    check_length("status", status.len(), 0, MAX_STATUS_BYTES)?;
    Ok(status.to_owned())
}

fn key_of(key: &Bound<'_, PyAny>) -> Result<Vec<u8>, BadArgument> {
    let bytes = if key.is_instance_of::<PyString>() {
        text("key", key)?.as_bytes().to_vec()
    } else {
        bytes_like("key", key)?.as_bytes().to_vec()
    };
    check_length("key", bytes.len(), 1, MAX_KEY_BYTES)?;
    Ok(bytes)
}

fn both_times(run_after_ms: u64, delay_ms: u64) -> BadArgument {
    BadArgument::Value(format!(
        "expected run_after_ms or delay_ms, got both: run_after_ms={run_after_ms}, delay_ms={delay_ms}"
    ))
}
