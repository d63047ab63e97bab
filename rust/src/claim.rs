//! A claim: what one dequeue gave one worker.
use std::ops::Range;
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

/// Elements of a reply before the lists of records: sequence, highest id, head.
const FIXED_ELEMENTS: usize = 3;
/// The greatest number of a limit.
const MOST_LIMITED: u8 = 4;
/// Bytes of a sequence, of a highest id, and of a token.
const SEQUENCE_BYTES: usize = 4;
const ID_BYTES: usize = 8;
const TOKEN_BYTES: usize = 8;
/// Bytes of the time until the next job is due.
const DUE_IN_BYTES: usize = 6;
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
    records: Py<Records>,
    jobs: OnceLock<Py<PyList>>,
}

#[pymethods]
impl Claim {
    #[getter]
    pub fn count(&self) -> usize {
        self.taken.len()
    }

    /// Bytes of the records of its jobs.
    #[getter]
    fn size(&self) -> usize {
        self.records.get().bytes()
    }

    #[getter]
    fn crashed(&self) -> bool {
        self.taken.iter().any(|taken| taken.crashed)
    }

    /// Claims of its jobs in order, each of so many of them as long as there are some.
    ///
    /// Each has records of its own: whoever keeps one keeps no job of the others. What they say beside their jobs is that
    /// of this claim.
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 hands a list over by value")]
    fn split(&self, py: Python<'_>, limits: Vec<usize>) -> PyResult<Vec<Self>> {
        let mut start = 0_usize;
        let part = |limit: &usize| {
            let own = start..self.count().min(start.saturating_add(*limit));
            start = own.end;
            self.part(py, own)
        };
        limits.iter().map(part).collect()
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
        let (Some(taken), Some(record)) = (self.taken.get(middle), self.records.get().get(middle)) else {
            return Ok(None);
        };
        let job = ClaimedJob::of(taken, record)?;
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

impl<'a> ClaimedJob<'a> {
    fn of(taken: &Taken, record: &'a [u8]) -> PyResult<Self> {
        let record = Record::read(record)?;
        Ok(Self {
            priority: taken.priority,
            id: taken.id,
            body: record.body,
            attempts_allowed: record.attempts_allowed,
            attempts_remaining: taken.attempts_remaining.unwrap_or(record.attempts_allowed),
            crashed: taken.crashed,
        })
    }
}

impl Claim {
    /// A claim of some of its jobs.
    fn part(&self, py: Python<'_>, own: Range<usize>) -> PyResult<Self> {
        let records = if own.len() == self.count() {
            self.records.clone_ref(py)
        } else {
            Py::new(py, self.records.get().part(own.clone()))?
        };
        Ok(Self {
            token: if own.is_empty() { PyBytes::new(py, b"").unbind() } else { self.token.clone_ref(py) },
            left: self.left.clone(),
            due_in_ms: self.due_in_ms,
            limited: self.limited,
            queue: self.queue.clone_ref(py),
            shard: self.shard.clone_ref(py),
            taken: self.taken[own].to_vec(),
            records,
            jobs: OnceLock::new(),
        })
    }

    /// Its jobs, in order.
    pub fn parts(&self) -> impl Iterator<Item = PyResult<ClaimedJob<'_>>> {
        self.taken.iter().zip(self.records.get().iter()).map(|(taken, record)| ClaimedJob::of(taken, record))
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

/// Reads a claim's reply, `[sequence, highest id, head, lists of records…]`: `docs/design.md`, "Claim reply". `ValueError`
/// if it is malformed.
#[pyfunction]
pub fn decode_claim(
    reply: &Bound<'_, PyList>,
    queue: &Bound<'_, PyAny>,
    shard: &Bound<'_, PyAny>,
) -> PyResult<Claim> {
    let names = ClaimNames::read(queue, shard)?;
    if reply.len() < FIXED_ELEMENTS {
        let count = reply.len();
        return Err(malformed(format!("expected at least {FIXED_ELEMENTS} elements, got {count}")).into());
    }
    let head = reply.get_item(FIXED_ELEMENTS - 1)?;
    let Ok(head) = head.downcast::<PyBytes>() else {
        return Err(malformed(format!("head: expected bytes, got {}", shown(&head))).into());
    };
    let lists: Vec<_> = reply.iter().skip(FIXED_ELEMENTS).collect();
    read_claim(head.as_bytes(), &lists, &names)
}

/// The claims of the answers to several calls, and the highest id that the answers name; `b""`: they name none.
///
/// `sequences`: of the calls. In the place of a claim there is None for an answer that is no reply to its call, and
/// the `ValueError` of a reply that is malformed.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands a list over by value")]
#[allow(clippy::type_complexity, reason = "a tuple of Python's")]
pub fn read_claims<'py>(
    py: Python<'py>,
    answers: Vec<Bound<'py, PyAny>>,
    sequences: Vec<Bound<'py, PyBytes>>,
    queue: &Bound<'py, PyAny>,
    shard: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyBytes>, Vec<Option<Bound<'py, PyAny>>>)> {
    let names = ClaimNames::read(queue, shard)?;
    let (mut highest, mut claims) = (Vec::new(), Vec::with_capacity(answers.len()));
    for (answer, sequence) in answers.iter().zip(&sequences) {
        let (first, lists) = elements(answer)?;
        let Some((id, head)) =
            first.as_ref().and_then(|first| reply_to(first.as_bytes(), sequence.as_bytes()))
        else {
            claims.push(None);
            continue;
        };
        if id > highest.as_slice() {
            highest = id.to_vec();
        }
        claims.push(Some(match read_claim(head, &lists, &names) {
            Ok(claim) => Bound::new(py, claim)?.into_any(),
            Err(error) => error.into_value(py).into_bound(py).into_any(),
        }));
    }
    Ok((PyBytes::new(py, &highest), claims))
}

/// The string that an answer begins with, and the lists behind it. None: it does not begin with a string.
#[allow(clippy::type_complexity, reason = "a string and what follows it")]
fn elements<'py>(
    answer: &Bound<'py, PyAny>,
) -> PyResult<(Option<Bound<'py, PyBytes>>, Vec<Bound<'py, PyAny>>)> {
    let Ok(list) = answer.downcast::<PyList>() else {
        return Ok((answer.downcast::<PyBytes>().ok().cloned(), Vec::new()));
    };
    let first = if list.is_empty() { None } else { list.get_item(0)?.downcast_into::<PyBytes>().ok() };
    Ok((first, list.iter().skip(1).collect()))
}

/// The highest id and the head of the reply to a call. None: it is none.
fn reply_to<'a>(first: &'a [u8], sequence: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (named, rest) = first.split_at_checked(SEQUENCE_BYTES)?;
    if named != sequence {
        return None;
    }
    rest.split_at_checked(ID_BYTES)
}

/// The queue and the shard of claims.
struct ClaimNames<'a, 'py> {
    queue: &'a Bound<'py, PyString>,
    shard: &'a Bound<'py, PyString>,
}

impl<'a, 'py> ClaimNames<'a, 'py> {
    fn read(queue: &'a Bound<'py, PyAny>, shard: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        queue_name(queue)?;
        shard_name(shard)?;
        Ok(Self { queue: queue.downcast()?, shard: shard.downcast()? })
    }
}

/// The claim of the head of a reply, and of the lists of records behind it.
fn read_claim(head: &[u8], lists: &[Bound<'_, PyAny>], names: &ClaimNames<'_, '_>) -> PyResult<Claim> {
    let py = names.queue.py();
    let (head, simple_record) = ClaimHead::read(head, lists.is_empty())?;
    let records = match simple_record {
        Some(record) => {
            let mut records = Records::with_capacity(1, record.len());
            add_record(&mut records, record, 1)?;
            Py::new(py, records)?
        }
        None => read_records(py, lists, head.taken.len())?,
    };
    Ok(Claim {
        token: PyBytes::new(py, head.token).unbind(),
        left: head.left,
        due_in_ms: head.due_in_ms,
        limited: head.limited,
        queue: names.queue.clone().unbind(),
        shard: names.shard.clone().unbind(),
        taken: head.taken,
        records,
        jobs: OnceLock::new(),
    })
}

/// What a reply says before its records.
struct ClaimHead<'a> {
    token: &'a [u8],
    left: Vec<u32>,
    due_in_ms: u64,
    limited: u8,
    taken: Vec<Taken>,
}

impl<'a> ClaimHead<'a> {
    /// `no_lists`: there are no records behind it. Beside the head the record of a simple job, which stands in the head.
    fn read(head: &'a [u8], no_lists: bool) -> Result<(Self, Option<&'a [u8]>), BadArgument> {
        let mut found = Self { token: b"", left: Vec::new(), due_in_ms: 0, limited: 0, taken: Vec::new() };
        if head.is_empty() {
            return Ok((found, None)); // a claim of one simple job that found none
        }
        let mut reader = Reader::new("claim reply: head", head);
        if no_lists && head.iter().take(TOKEN_BYTES).any(|byte| *byte != 0) {
            let (priority, id) = (priority_of(reader.u8()?)?, reader.number(ID_BYTES)?);
            found.token = reader.take(TOKEN_BYTES)?;
            found.taken.push(Taken { priority, id, attempts_remaining: None, crashed: false });
            return Ok((found, Some(reader.rest())));
        }
        let token = reader.take(TOKEN_BYTES)?;
        if token.iter().any(|byte| *byte != 0) {
            found.token = token;
        }
        found.due_in_ms = reader.number(DUE_IN_BYTES)?;
        found.limited = reader.u8()?;
        if found.limited > MOST_LIMITED {
            return Err(malformed(format!("limited: expected 0 to {MOST_LIMITED}, got {}", found.limited)));
        }
        let priorities = usize::from(reader.u8()?);
        found.left = reader.take(4 * priorities)?.chunks_exact(4).map(u32_of).collect();
        found.taken = read_ids(reader.rest())?;
        Ok((found, None))
    }
}

fn u32_of(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn priority_of(priority: u8) -> Result<u8, BadArgument> {
    if (1..=MAX_PRIORITY).contains(&priority) {
        return Ok(priority);
    }
    Err(malformed(format!("jobs block: expected a priority from 1 to {MAX_PRIORITY}, got {priority}")))
}

/// A job as the jobs block has it.
#[derive(Clone, Debug)]
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
        let priority = priority_of(reader.u8()?)?;
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

/// The records of the lists that end a reply, one a job taken. Each of them can be read.
fn read_records(py: Python<'_>, lists: &[Bound<'_, PyAny>], taken: usize) -> PyResult<Py<Records>> {
    if let [list] = lists {
        if let Ok(records) = list.downcast::<Records>() {
            if records.get().len() == taken {
                check_records(records.get())?;
                return Ok(records.clone().unbind());
            }
        }
    }
    let mut records = Records::with_capacity(taken, 0);
    for list in lists {
        if let Ok(list) = list.downcast::<Records>() {
            for record in list.get().iter() {
                add_record(&mut records, record, taken)?;
            }
            continue;
        }
        let list = list
            .downcast::<PyList>()
            .map_err(|_| malformed(format!("records: expected a list, got {}", shown(list))))?;
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
    Py::new(py, records)
}

/// Of the only list of a reply, as most have one.
fn check_records(records: &Records) -> Result<(), BadArgument> {
    records.iter().enumerate().try_for_each(|(position, record)| check_record(position, record))
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

fn malformed(what: String) -> BadArgument {
    BadArgument::Value(what).at("claim reply")
}
