//! `dequeueJobs`: its call and its answer.
use std::ops::Range;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyString};

use crate::claim::Claim;
use crate::job::Job;
use crate::packed::Decimal;
use crate::thrift::ack::{self, AckCall, AckRequest};
use crate::thrift::reader::{BOOL, DOUBLE, I32, MAP, MessageReader, STRING, STRUCT, Span};
use crate::thrift::refusal::Refusal;
use crate::thrift::request::{read_call, required, source_text, text};
use crate::thrift::writer::{Answer, Stem};

const METHOD: &str = "dequeueJobs";

/// A call of `dequeueJobs`.
///
/// `source`: cut to 255 bytes. `limit` and `coverage`: as they came. `acks`: those that ride on it; their source is its own.
#[pyclass(frozen, get_all, module = "pinlater._core")]
#[derive(Debug)]
pub struct DequeueCall {
    source: Py<PyString>,
    queue: Py<PyString>,
    limit: i32,
    dry_run: bool,
    coverage: f64,
    acks: Option<Py<AckCall>>,
}

struct DequeueRequest {
    queue: Span,
    limit: i32,
    acks: Option<AckRequest>,
    dry_run: bool,
    coverage: f64,
}

/// A call of `dequeueJobs`, of which the arguments begin at `start`. Raises as `read_ack`.
#[pyfunction]
pub fn read_dequeue(message: &Bound<'_, PyBytes>, start: usize) -> PyResult<DequeueCall> {
    let (py, bytes) = (message.py(), message.as_bytes());
    let (source, request) = read_call(bytes, start, read_request)?;
    let source = source_text(py, source.of(bytes));
    let acks = match &request.acks {
        Some(acks) => Some(Py::new(py, AckCall::new(acks, message, &source)?)?),
        None => None,
    };
    Ok(DequeueCall {
        source: source.unbind(),
        queue: text(py, request.queue.of(bytes)).unbind(),
        limit: request.limit,
        dry_run: request.dry_run,
        coverage: request.coverage,
        acks,
    })
}

#[pymethods]
impl DequeueCall {
    /// Whether it can share a claim: it takes jobs of all shards, no more than a claim has (`most`), and its acks are of the
    /// same queue and of these shards.
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 hands a list over by value")]
    fn is_of(&self, py: Python<'_>, shards: Vec<PyBackedStr>, most: i32) -> PyResult<bool> {
        let is_plain = (1..=most).contains(&self.limit) && self.coverage >= 1.0 && !self.dry_run;
        if !is_plain {
            return Ok(false);
        }
        self.acks.as_ref().map_or(Ok(true), |acks| acks.get().is_of(py, self.queue.to_str(py)?, &shards))
    }

    /// How many jobs it names, at least 1: the more of those that it asks for and those that it acks.
    #[getter]
    fn jobs(&self) -> usize {
        let acks = self.acks.as_ref().map_or(0, |acks| acks.get().count());
        acks.max(usize::try_from(self.limit).unwrap_or(0)).max(1)
    }

    /// Bytes of the statuses of its acks.
    #[getter]
    fn size(&self) -> usize {
        self.acks.as_ref().map_or(0, |acks| acks.get().size())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<DequeueCall of {} jobs of {}>", self.limit, self.queue.to_str(py)?))
    }
}

fn read_request(reader: &mut MessageReader<'_>) -> Result<DequeueRequest, Refusal> {
    let (mut queue, mut limit, mut acks, mut dry_run, mut coverage) = (None, None, None, false, 1.0);
    reader.begin_struct()?;
    while let Some(field) = reader.next_field()? {
        match field {
            (STRING, 1) => queue = Some(reader.string()?),
            (I32, 2) => limit = Some(reader.i32()?),
            (STRUCT, 3) => acks = Some(ack::read_request(reader)?),
            (BOOL, 4) => dry_run = reader.bool()?,
            (DOUBLE, 5) => coverage = reader.double()?,
            (kind, _) => reader.skip(kind)?,
        }
    }
    let (queue, limit) = (required(queue, "request.queueName")?, required(limit, "request.limit")?);
    Ok(DequeueRequest { queue, limit, acks, dry_run, coverage })
}

/// The framed answer with these jobs. Without jobs, both of its maps are unset.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands a list over by value")]
pub fn dequeue_answer<'py>(
    py: Python<'py>,
    sequence: i32,
    jobs: Vec<Bound<'py, Job>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut answered = Vec::with_capacity(jobs.len());
    for job in jobs.iter().map(Bound::get) {
        answered.push(AnsweredJob {
            queue: job.queue.to_str(py)?,
            shard: job.shard.to_str(py)?,
            priority: job.priority,
            id: job.id,
            body: job.body.as_bytes(py),
            attempts: (job.attempts_allowed, job.attempts_remaining),
        });
    }
    write_answer(py, sequence, &answered)
}

/// The framed answer with the jobs of a claim.
#[pyfunction]
pub fn claim_answer<'py>(
    py: Python<'py>,
    sequence: i32,
    claim: &Bound<'py, Claim>,
) -> PyResult<Bound<'py, PyBytes>> {
    let claim = claim.get();
    let (queue, shard) = (claim.queue.to_str(py)?, claim.shard.to_str(py)?);
    let mut jobs = Vec::with_capacity(claim.count());
    for job in claim.parts() {
        let job = job?;
        let attempts = (job.attempts_allowed, job.attempts_remaining);
        jobs.push(AnsweredJob { queue, shard, priority: job.priority, id: job.id, body: job.body, attempts });
    }
    write_answer(py, sequence, &jobs)
}

/// A job as the answer has it.
struct AnsweredJob<'a> {
    queue: &'a str,
    shard: &'a str,
    priority: u8,
    id: u64,
    body: &'a [u8],
    /// Allowed and remaining.
    attempts: (u16, u16),
}

fn write_answer<'py>(
    py: Python<'py>,
    sequence: i32,
    jobs: &[AnsweredJob<'_>],
) -> PyResult<Bound<'py, PyBytes>> {
    let size: usize = jobs.iter().map(|job| job.body.len() + 2 * job.queue.len()).sum();
    let mut answer = Answer::new(METHOD, sequence, size + 160 * jobs.len() + 64);
    answer.field(STRUCT, 0);
    if !jobs.is_empty() {
        let descriptors = write_bodies(&mut answer, jobs);
        write_metadata(&mut answer, jobs, descriptors);
    }
    answer.stop();
    answer.stop();
    answer.finish(py)
}

/// Returns where the descriptors are.
fn write_bodies(answer: &mut Answer, jobs: &[AnsweredJob<'_>]) -> Vec<Range<usize>> {
    let mut descriptors = Vec::with_capacity(jobs.len());
    answer.field(MAP, 1);
    answer.map(STRING, STRING, jobs.len());
    for group in jobs.chunk_by(AnsweredJob::has_stem_of) {
        let mut stem = Stem::new(group[0].queue, group[0].shard, group[0].priority);
        let mut digits = Decimal::of(group[0].id);
        let mut last = group[0].id;
        for job in group {
            // ids that were given together follow each other
            if last.checked_add(1) == Some(job.id) {
                digits.increment();
            } else if job.id != last {
                digits = Decimal::of(job.id);
            }
            last = job.id;
            descriptors.push(answer.descriptor(&mut stem, digits.as_bytes()));
            answer.string(job.body);
        }
    }
    descriptors
}

impl AnsweredJob<'_> {
    /// Whether the descriptors begin alike.
    fn has_stem_of(&self, other: &Self) -> bool {
        let same = |a: &str, b: &str| std::ptr::eq(a, b) || a == b;
        self.priority == other.priority && same(self.shard, other.shard) && same(self.queue, other.queue)
    }
}

fn write_metadata(answer: &mut Answer, jobs: &[AnsweredJob<'_>], descriptors: Vec<Range<usize>>) {
    answer.field(MAP, 2);
    answer.map(STRING, STRUCT, jobs.len());
    for (job, descriptor) in jobs.iter().zip(descriptors) {
        let (allowed, remaining) = job.attempts;
        answer.repeat(descriptor);
        answer.i32_fields([(1, allowed.into()), (2, remaining.into())]);
    }
}
