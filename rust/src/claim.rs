//! A claim: what one dequeue gave one worker.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::arguments::shown;
use crate::bad_argument::BadArgument;
use crate::descriptor::{queue_name, shard_name};
use crate::job::Job;
use crate::limits::{MAX_PRIORITY, NO_TOKEN};
use crate::packed::big_endian;
use crate::reader::Reader;
use crate::record::Record;

/// Elements of a reply before the lists of records.
const FIXED_ELEMENTS: usize = 7;
/// The greatest number of a limit.
const MOST_LIMITED: u8 = b'4';
/// Of an index in the jobs block: the job has crashed before.
const CRASHED: u16 = 0x8000;

/// The jobs of a claim and what its shard has left. `token` is empty if nothing was claimed or it was a dry run.
///
/// `left`: jobs that are due but not taken, a priority. `due_in_ms`: how long until the next scheduled job is due; 0 if there is
/// none, or if another worker waits for it. `limited`: what keeps jobs from being
/// claimed, a number of `CLAIM_LIMITS` in `model/limits.py`; 0: nothing. `crashed`: some of the jobs have crashed before.
#[pyclass(frozen, module = "pinlater._core")]
#[derive(Debug)]
pub struct Claim {
    #[pyo3(get)]
    token: Py<PyBytes>,
    #[pyo3(get)]
    jobs: Py<PyList>,
    #[pyo3(get)]
    left: Vec<u32>,
    #[pyo3(get)]
    due_in_ms: u64,
    #[pyo3(get)]
    limited: u8,
    #[pyo3(get)]
    crashed: bool,
}

#[pymethods]
impl Claim {
    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "<Claim of {} jobs token={} left={:?} due_in_ms={} limited={}>",
            self.jobs.bind(py).len(),
            shown(self.token.bind(py)),
            self.left,
            self.due_in_ms,
            self.limited
        )
    }
}

/// Reads a claim's reply, as hiredis gives it: `docs/design.md`, "Claim reply". `ValueError` if it is malformed.
#[pyfunction]
pub fn decode_claim(
    reply: &Bound<'_, PyList>,
    queue: &Bound<'_, PyAny>,
    shard: &Bound<'_, PyAny>,
) -> PyResult<Claim> {
    queue_name(queue)?;
    shard_name(shard)?;
    if reply.len() < FIXED_ELEMENTS {
        let count = reply.len();
        return Err(malformed(format!("expected at least {FIXED_ELEMENTS} elements, got {count}")).into());
    }
    let token = sized(reply, 2, "token", &[0, 8])?;
    let ids = read_ids(bytes_at(reply, 3, "jobs block")?.as_bytes())?;
    let left = read_left(bytes_at(reply, 4, "left")?.as_bytes())?;
    let origin = Origin::new(queue.downcast()?, shard.downcast()?, &token);
    Ok(Claim {
        jobs: read_jobs(reply, &origin, &ids)?.unbind(),
        token: token.unbind(),
        left,
        due_in_ms: big_endian(sized(reply, 5, "due in", &[6])?.as_bytes()),
        limited: read_limited(&bytes_at(reply, 6, "limited")?)?,
        crashed: ids.iter().any(|taken| taken.crashed),
    })
}

/// A job as the jobs block has it.
struct Taken {
    priority: u8,
    id: u64,
    /// None: all that the record allows.
    attempts_remaining: Option<u16>,
    crashed: bool,
}

/// What the jobs of a claim share.
struct Origin<'a, 'py> {
    queue: &'a Bound<'py, PyString>,
    shard: &'a Bound<'py, PyString>,
    token: Bound<'py, PyBytes>,
}

impl<'a, 'py> Origin<'a, 'py> {
    /// A dry run has no token. Its jobs have `NO_TOKEN`.
    fn new(
        queue: &'a Bound<'py, PyString>,
        shard: &'a Bound<'py, PyString>,
        token: &Bound<'py, PyBytes>,
    ) -> Self {
        let token = if token.as_bytes().is_empty() {
            PyBytes::new(queue.py(), &NO_TOKEN.to_be_bytes())
        } else {
            token.clone()
        };
        Self { queue, shard, token }
    }

    fn job(&self, taken: &Taken, record: &Record<'_>) -> PyResult<Bound<'py, Job>> {
        let py = self.queue.py();
        let job = Job {
            queue: self.queue.clone().unbind(),
            shard: self.shard.clone().unbind(),
            priority: taken.priority,
            id: taken.id,
            body: PyBytes::new(py, record.body).unbind(),
            token: self.token.clone().unbind(),
            attempts_allowed: record.attempts_allowed,
            attempts_remaining: taken.attempts_remaining.unwrap_or(record.attempts_allowed),
            crashed: taken.crashed,
        };
        Bound::new(py, job)
    }
}

/// A block for each priority: `u8 priority, u16 n, n x id, u16 m, m x (u16 index, u16 attempts left)`. An index may have the
/// bit `CRASHED`.
fn read_ids(block: &[u8]) -> Result<Vec<Taken>, BadArgument> {
    let mut reader = Reader::new("claim reply: jobs block", block);
    let mut taken = Vec::with_capacity(block.len() / 8);
    while !reader.is_at_end() {
        let priority = reader.u8()?;
        if !(1..=MAX_PRIORITY).contains(&priority) {
            return Err(malformed(format!(
                "jobs block: expected a priority from 1 to {MAX_PRIORITY}, got {priority}"
            )));
        }
        let count = usize::from(reader.u16()?);
        let first = taken.len();
        let ids = reader.take(8 * count)?;
        taken.extend(ids.chunks_exact(8).map(|id| Taken {
            priority,
            id: big_endian(id),
            attempts_remaining: None,
            crashed: false,
        }));
        let exceptions = usize::from(reader.u16()?);
        for exception in reader.take(4 * exceptions)?.chunks_exact(4) {
            let marked = u16::from_be_bytes([exception[0], exception[1]]);
            let index = usize::from(marked & !CRASHED);
            let Some(job) = taken[first..].get_mut(index) else {
                return Err(malformed(format!("jobs block: expected an index below {count}, got {index}")));
            };
            job.attempts_remaining = Some(u16::from_be_bytes([exception[2], exception[3]]));
            job.crashed = marked & CRASHED != 0;
        }
    }
    Ok(taken)
}

fn read_left(packed: &[u8]) -> Result<Vec<u32>, BadArgument> {
    if packed.len() % 4 != 0 {
        return Err(malformed(format!("left: expected 4 bytes a priority, got {} bytes", packed.len())));
    }
    Ok(packed.chunks_exact(4).map(|left| u32::from_be_bytes([left[0], left[1], left[2], left[3]])).collect())
}

fn read_limited(digit: &Bound<'_, PyBytes>) -> Result<u8, BadArgument> {
    match digit.as_bytes() {
        [digit @ b'0'..=MOST_LIMITED] => Ok(digit - b'0'),
        _ => Err(malformed(format!("limited: expected a digit, 0 to 4, got {}", shown(digit)))),
    }
}

/// The jobs of the lists of records that end a reply, one a job taken.
fn read_jobs<'py>(
    reply: &Bound<'py, PyList>,
    origin: &Origin<'_, 'py>,
    taken: &[Taken],
) -> PyResult<Bound<'py, PyList>> {
    let mut jobs = Vec::with_capacity(taken.len());
    for list in reply.iter().skip(FIXED_ELEMENTS) {
        let list = list
            .downcast::<PyList>()
            .map_err(|_| malformed(format!("records: expected a list, got {}", shown(&list))))?;
        for record in list {
            let position = jobs.len();
            let Some(taken) = taken.get(position) else {
                return Err(
                    malformed(format!("expected {position} records, as there are ids, got more")).into()
                );
            };
            let record = record.downcast::<PyBytes>().map_err(|_| {
                malformed(format!("record {position}: expected bytes, got {}", shown(&record)))
            })?;
            let record = Record::read(record.as_bytes())
                .map_err(|refusal| refusal.at(format_args!("claim reply: job {position}")))?;
            jobs.push(origin.job(taken, &record)?);
        }
    }
    if jobs.len() < taken.len() {
        let (ids, records) = (taken.len(), jobs.len());
        return Err(malformed(format!("expected {ids} records, as there are ids, got {records}")).into());
    }
    PyList::new(reply.py(), jobs)
}

fn bytes_at<'py>(
    reply: &Bound<'py, PyList>,
    index: usize,
    what: &str,
) -> Result<Bound<'py, PyBytes>, BadArgument> {
    match reply.get_item(index).map(Bound::downcast_into::<PyBytes>) {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(other)) => {
            Err(malformed(format!("{what}: expected bytes, got {}", shown(&other.into_inner()))))
        }
        Err(_) => Err(malformed(format!("{what}: expected bytes, got nothing"))),
    }
}

fn sized<'py>(
    reply: &Bound<'py, PyList>,
    index: usize,
    what: &str,
    lengths: &[usize],
) -> Result<Bound<'py, PyBytes>, BadArgument> {
    let bytes = bytes_at(reply, index, what)?;
    if lengths.contains(&bytes.as_bytes().len()) {
        return Ok(bytes);
    }
    let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
    Err(malformed(format!("{what}: expected {} bytes, got {}", lengths.join(" or "), shown(&bytes))))
}

fn malformed(what: String) -> BadArgument {
    BadArgument::Value(what).at("claim reply")
}
