//! Jobs to enqueue, packed as scripts take them.
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::{bytes_like, grouped};
use crate::bad_argument::BadArgument;
use crate::limits::{DEFAULT_ATTEMPTS, DEFAULT_PRIORITY, MAX_POSITIONS};
use crate::new_job::NewJob;
use crate::reader::u48_bytes;
use crate::record::Record;

/// (spec, statuses, records)
type PackedJobs<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>);

/// What a queue allows.
struct Limits {
    body_bytes: usize,
    levels: u8,
}

/// The spec and the statuses so far.
#[derive(Default)]
struct JobSpec {
    entries: Vec<(u8, u8, u64)>,
    statuses: Vec<u8>,
}

/// Packs jobs; formats: `docs/design.md`, "Job spec".
///
/// `body_limit`: bytes a body may have; `levels`: of the queue; `first`: the first job's position in the caller's
/// request, for messages. All is checked before anything is returned: `ValueError` or `TypeError` that begins
/// `job <position>: `.
#[pyfunction]
#[pyo3(signature = (jobs, body_limit, levels, first=0))]
pub fn pack_jobs<'py>(
    jobs: &Bound<'py, PyAny>,
    body_limit: usize,
    levels: u8,
    first: usize,
) -> PyResult<PackedJobs<'py>> {
    let py = jobs.py();
    let limits = Limits { body_bytes: body_limit, levels };
    let mut spec = JobSpec::default();
    let mut records = Vec::new();
    for (position, job) in jobs.try_iter()?.enumerate() {
        let at = |refusal: BadArgument| refusal.at(format_args!("job {}", first + position));
        let record = spec.add(&job?, position, &limits).map_err(at)?;
        records.push(record.write(py)?);
    }
    Ok((PyBytes::new(py, &spec.pack()), PyBytes::new(py, &spec.statuses), records))
}
