//! A claim: what one dequeue gave one worker.
use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::arguments::shown;
use crate::bad_argument::BadArgument;
use crate::descriptor::{queue_name, shard_name};
use crate::job::Job;
use crate::limits::{MAX_PRIORITY, NO_TOKEN, SEQUENCE_BITS};
use crate::packed::big_endian;
use crate::reader::Reader;
use crate::record::Record;
use crate::records::Records;

/// Elements of a reply before the lists of records.
const FIXED_ELEMENTS: usize = 7;
/// The greatest number of a limit.
const MOST_LIMITED: u8 = b'4';
/// Of an index in the jobs block: the job has crashed before.
const CRASHED: u16 = 0x8000;

/// The jobs of a claim and what its shard has left. `token` is empty if nothing was claimed or it was a dry run.
///
/// `count`: of the jobs. `jobs`: made when asked for. `left`: jobs that are due but not taken, a priority. `due_in_ms`: how long
/// until the next scheduled job is due; 0 if there is none, or if another worker waits for it. `limited`: what keeps jobs
/// from being claimed, a number of `CLAIM_LIMITS` in `model/limits.py`; 0: nothing. `crashed`: some of the jobs have
/// crashed before.
#[pyclass(frozen, module = "pinlater._core")]
#[derive(Debug)]
pub struct Claim {
    #[pyo3(get)]
    token: Py<PyBytes>,
    #[pyo3(get)]
    left: Vec<u32>,
    #[pyo3(get)]
    due_in_ms: u64,
    #[pyo3(get)]
    limited: u8,
    pub queue: Py<PyString>,
    #[pyo3(get)]
    pub shard: Py<PyString>,
    taken: Vec<Taken>,
    /// One a job taken; each can be read.
    records: Records,
    jobs: OnceLock<Py<PyList>>,
}

#[pymethods]
impl Claim {
    #[getter]
    pub fn count(&self) -> usize {
        self.taken.len()
    }

    #[getter]
    fn crashed(&self) -> bool {
        self.taken.iter().any(|taken| taken.crashed)
    }

    #[getter]
    fn jobs(&self, py: Python<'_>) -> PyResult<Py<PyList>> {
        if let Some(jobs) = self.jobs.get() {
            return Ok(jobs.clone_ref(py));
        }
        let jobs = self.make_jobs(py)?;
        Ok(self.jobs.get_or_init(|| jobs).clone_ref(py))
    }

    /// How long the job in the middle waited from its enqueue to this claim, in milliseconds; None if that was no first
    /// attempt, or if there is none.
    #[getter]
    fn first_wait_ms(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let middle = self.taken.len() / 2;
        let Some(job) = self.parts().nth(middle) else { return Ok(None) };
        let job = job?;
        let claimed_ms = big_endian(self.token.as_bytes(py)) >> SEQUENCE_BITS;
        let is_first = job.attempts_remaining >= job.attempts_allowed;
        Ok(is_first.then(|| claimed_ms.saturating_sub(job.id >> SEQUENCE_BITS)))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "<Claim of {} jobs token={} left={:?} due_in_ms={} limited={}>",
            self.count(),
            shown(self.token.bind(py)),
            self.left,
            self.due_in_ms,
            self.limited
        )
    }
}

/// A job of a claim.
pub struct ClaimedJob<'a> {
    pub priority: u8,
    pub id: u64,
    pub body: &'a [u8],
    pub attempts_allowed: u16,
    pub attempts_remaining: u16,
    crashed: bool,
}

impl Claim {
    /// Its jobs, in order.
    pub fn parts(&self) -> impl Iterator<Item = PyResult<ClaimedJob<'_>>> {
        self.taken.iter().zip(self.records.iter()).map(|(taken, record)| {
            let record = Record::read(record)?;
            Ok(ClaimedJob {
                priority: taken.priority,
                id: taken.id,
                body: record.body,
                attempts_allowed: record.attempts_allowed,
                attempts_remaining: taken.attempts_remaining.unwrap_or(record.attempts_allowed),
                crashed: taken.crashed,
            })
        })
    }

    /// The jobs share their queue, shard and token objects. Those of a dry run have `NO_TOKEN`.
    fn make_jobs(&self, py: Python<'_>) -> PyResult<Py<PyList>> {
        let token = if self.token.as_bytes(py).is_empty() {
            PyBytes::new(py, &NO_TOKEN.to_be_bytes()).unbind()
        } else {
            self.token.clone_ref(py)
        };
        let make = |job: PyResult<ClaimedJob<'_>>| {
            let job = job?;
            Bound::new(
                py,
                Job {
                    queue: self.queue.clone_ref(py),
                    shard: self.shard.clone_ref(py),
                    priority: job.priority,
                    id: job.id,
                    body: PyBytes::new(py, job.body).unbind(),
                    token: token.clone_ref(py),
                    attempts_allowed: job.attempts_allowed,
                    attempts_remaining: job.attempts_remaining,
                    crashed: job.crashed,
                },
            )
        };
        let jobs = self.parts().map(make).collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(py, jobs)?.unbind())
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
    let jobs = read_ids(bytes_at(reply, 3, "jobs block")?.as_bytes())?;
    let left = read_left(bytes_at(reply, 4, "left")?.as_bytes())?;
    Ok(Claim {
        token: token.unbind(),
        left,
        due_in_ms: big_endian(sized(reply, 5, "due in", &[6])?.as_bytes()),
        limited: read_limited(&bytes_at(reply, 6, "limited")?)?,
        queue: queue.downcast::<PyString>()?.clone().unbind(),
        shard: shard.downcast::<PyString>()?.clone().unbind(),
        records: read_records(reply, jobs.len())?,
        taken: jobs,
        jobs: OnceLock::new(),
    })
}

/// A job as the jobs block has it.
#[derive(Debug)]
struct Taken {
    priority: u8,
    id: u64,
    /// None: all that the record allows.
    attempts_remaining: Option<u16>,
    crashed: bool,
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

/// The records of the lists that end a reply, one a job taken. Each of them can be read.
fn read_records(reply: &Bound<'_, PyList>, taken: usize) -> PyResult<Records> {
    if reply.len() == FIXED_ELEMENTS + 1 {
        if let Ok(list) = reply.get_item(FIXED_ELEMENTS)?.downcast::<Records>() {
            if list.get().len() == taken {
                return checked(list.get().clone());
            }
        }
    }
    let mut records = Records::with_capacity(taken, 0);
    for list in reply.iter().skip(FIXED_ELEMENTS) {
        if let Ok(list) = list.downcast::<Records>() {
            for record in list.get().iter() {
                add_record(&mut records, record, taken)?;
            }
            continue;
        }
        let list = list
            .downcast::<PyList>()
            .map_err(|_| malformed(format!("records: expected a list, got {}", shown(&list))))?;
        for record in list {
            let record = record.downcast::<PyBytes>().map_err(|_| {
                malformed(format!("record {}: expected bytes, got {}", records.len(), shown(&record)))
            })?;
            add_record(&mut records, record.as_bytes(), taken)?;
        }
    }
    if records.len() < taken {
        let count = records.len();
        return Err(malformed(format!("expected {taken} records, as there are ids, got {count}")).into());
    }
    Ok(records)
}

/// Of the only list of a reply, as most have one.
fn checked(records: Records) -> PyResult<Records> {
    for (position, record) in records.iter().enumerate() {
        check_record(position, record)?;
    }
    Ok(records)
}

fn check_record(position: usize, record: &[u8]) -> Result<(), BadArgument> {
    Record::read(record).map(drop).map_err(|refusal| refusal.at(format_args!("claim reply: job {position}")))
}

fn add_record(records: &mut Records, record: &[u8], taken: usize) -> Result<(), BadArgument> {
    let position = records.len();
    if position == taken {
        return Err(malformed(format!("expected {position} records, as there are ids, got more")));
    }
    check_record(position, record)?;
    records.push(record);
    Ok(())
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
