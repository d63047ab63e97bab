//! `enqueueJobs`: its call, the script's arguments of several calls, its answer.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::arguments::{grouped, integer};
use crate::bad_argument::BadArgument;
use crate::descriptor::shard_name;
use crate::job_spec::{JobOptions, JobSpec, Limits, PackedJobs, label};
use crate::limits::{
    DEFAULT_ATTEMPTS, DEFAULT_PRIORITY, MAX_ATTEMPTS, MAX_BATCH, MAX_ID, MAX_PRIORITY, MAX_STATUS_BYTES,
    MAX_TIME_MS,
};
use crate::new_job::NewJob;
use crate::packed::Decimal;
use crate::records::Records;
use crate::thrift::reader::{BYTE, I32, I64, LIST, MessageReader, STRING, STRUCT, Span};
use crate::thrift::refusal::Refusal;
use crate::thrift::request::{FIRST_ITEMS, read_call, required, source_text, status_text, text};
use crate::thrift::writer::{Answer, Stem};

const METHOD: &str = "enqueueJobs";
/// Bytes of a descriptor beside its queue's name, with its length: most have fewer.
const DESCRIPTOR_BYTES: usize = 40;

/// A call of `enqueueJobs`. It keeps the message, of which its bodies and statuses are parts.
///
/// `source`: cut to 255 bytes. `count`: its jobs. `size`: the bytes of their bodies and statuses.
#[pyclass(frozen, module = "pinlater._core")]
#[derive(Debug)]
pub struct EnqueueCall {
    #[pyo3(get)]
    source: Py<PyString>,
    #[pyo3(get)]
    queue: Py<PyString>,
    message: Py<PyBytes>,
    jobs: Vec<CallJob>,
    #[pyo3(get)]
    size: usize,
    largest_body: usize,
    /// The least and the greatest priority of its jobs.
    priorities: (i16, i16),
}

/// A job as a call has it.
#[derive(Debug)]
struct CallJob {
    body: Span,
    status: Span,
    /// 0: now
    run_after_ms: u64,
    attempts: u16,
    /// As it came: a signed byte.
    priority: i16,
}

/// A call of `enqueueJobs`, of which the arguments begin at `start`.
///
/// `BadMessage` as of `check_message`, `MissingField` without a required field. What cannot be kept is changed: a
/// run-after time before 0 is now, and one past 2**44 - 1 that; attempts are 1 to 65,535; a status is cut to 3,000 bytes.
#[pyfunction]
pub fn read_enqueue(message: &Bound<'_, PyBytes>, start: usize) -> PyResult<EnqueueCall> {
    let (py, bytes) = (message.py(), message.as_bytes());
    let (source, (queue, jobs)) = read_call(bytes, start, read_request)?;
    let priorities = jobs.iter().map(|job| job.priority);
    Ok(EnqueueCall {
        source: source_text(py, source.of(bytes)).unbind(),
        queue: text(py, queue.of(bytes)).unbind(),
        size: jobs.iter().map(|job| job.body.len() + job.status.len().min(MAX_STATUS_BYTES)).sum(),
        largest_body: jobs.iter().map(|job| job.body.len()).max().unwrap_or(0),
        priorities: (priorities.clone().min().unwrap_or(1), priorities.max().unwrap_or(1)),
        jobs,
        message: message.clone().unbind(),
    })
}

#[pymethods]
impl EnqueueCall {
    #[getter]
    fn count(&self) -> usize {
        self.jobs.len()
    }

    /// The same jobs, for a call that is sent in parts. `PriorityNotSupported` if one has no priority of any queue.
    fn jobs(&self, py: Python<'_>) -> PyResult<Vec<NewJob>> {
        let message = self.message.as_bytes(py);
        let make = |(position, job): (usize, &CallJob)| {
            let priority = job.priority(MAX_PRIORITY).map_err(|refusal| self.at(position, refusal))?;
            let body = PyBytes::new(py, job.body.of(message)).unbind();
            let status = status_text(job.status.of(message)).into_owned();
            Ok(NewJob::of_parts(body, priority, job.run_after_ms, job.attempts, status))
        };
        self.jobs.iter().enumerate().map(make).collect()
    }

    /// Raises what `pack_enqueues` would raise for this call alone: `PriorityNotSupported`, or `ValueError` for a body
    /// that is too large. The message begins `job 3 of 10: `, or `job: ` if there is one.
    fn check(&self, body_limit: usize, priorities: u8) -> PyResult<()> {
        let limits = Limits { body_bytes: body_limit, priorities };
        if self.is_within(&limits) {
            return Ok(());
        }
        for (position, job) in self.jobs.iter().enumerate() {
            job.check(&limits).map_err(|refusal| self.at(position, refusal))?;
        }
        Ok(())
    }

    /// Whether the call can join others in one script call: it has jobs, no more than `most_jobs` and `most_bytes`, and
    /// `check` would take each.
    fn fits(&self, body_limit: usize, priorities: u8, most_jobs: usize, most_bytes: usize) -> bool {
        let limits = Limits { body_bytes: body_limit, priorities };
        (1..=most_jobs).contains(&self.jobs.len()) && self.size <= most_bytes && self.is_within(&limits)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<EnqueueCall of {} jobs to {}>", self.jobs.len(), self.queue.to_str(py)?))
    }
}

impl EnqueueCall {
    fn write_answer<'py>(
        &self,
        py: Python<'py>,
        sequence: i32,
        shard: &str,
        first_id: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let queue = self.queue.to_str(py)?;
        let mut answer = begin_answer(sequence, self.jobs.len(), queue.len());
        let mut id = Decimal::of(first_id);
        let mut position = 0;
        for group in self.jobs.chunk_by(|a, b| a.priority == b.priority) {
            let priority = group[0].priority(MAX_PRIORITY).map_err(|refusal| self.at(position, refusal))?;
            let mut stem = Stem::new(queue, shard, priority);
            for _ in group {
                answer.descriptor(&mut stem, id.as_bytes());
                id.increment();
            }
            position += group.len();
        }
        end_answer(py, answer)
    }
}

/// The framed answers of calls whose jobs were enqueued one behind the other, and how many jobs these are.
///
/// `sequences`: of the calls. `first_id`: of the first job.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands lists over by value")]
pub fn enqueue_answers<'py>(
    py: Python<'py>,
    calls: Vec<Bound<'py, EnqueueCall>>,
    sequences: Vec<i32>,
    shard: &Bound<'py, PyAny>,
    first_id: &Bound<'py, PyAny>,
) -> PyResult<(Vec<Bound<'py, PyBytes>>, u64)> {
    let shard = shard_name(shard)?;
    let count: u64 = calls.iter().map(|call| call.get().jobs.len() as u64).sum();
    let first_id: u64 = integer("first_id", first_id, 1, MAX_ID - count)?;
    let mut next_id = first_id;
    let mut answers = Vec::with_capacity(calls.len());
    for (call, sequence) in calls.iter().map(Bound::get).zip(sequences) {
        answers.push(call.write_answer(py, sequence, shard, next_id)?);
        next_id += call.jobs.len() as u64;
    }
    Ok((answers, count))
}

/// Packs the jobs of calls, one behind the other, as `pack_jobs` does; 1,000 jobs at most.
///
/// Positions in messages are those of the jobs in their call. Raises as `EnqueueCall.check`.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands a list over by value")]
pub fn pack_enqueues<'py>(
    py: Python<'py>,
    calls: Vec<Bound<'py, EnqueueCall>>,
    body_limit: usize,
    priorities: u8,
) -> PyResult<PackedJobs<'py>> {
    let limits = Limits { body_bytes: body_limit, priorities };
    let count: usize = calls.iter().map(|call| call.get().jobs.len()).sum();
    if count > MAX_BATCH {
        return Err(too_many(count).into());
    }
    let mut spec = JobSpec::default();
    let bytes = calls.iter().map(|call| call.get().size + 4 * call.get().jobs.len()).sum();
    let mut records = Records::with_capacity(count, bytes);
    for call in calls.iter().map(Bound::get) {
        call.check(body_limit, priorities)?;
        let message = call.message.as_bytes(py);
        for (position, job) in call.jobs.iter().enumerate() {
            let priority = job.priority(priorities).map_err(|refusal| call.at(position, refusal))?;
            let status = status_text(job.status.of(message));
            let options = JobOptions { priority, when: job.when(), attempts: job.attempts, status: &status };
            spec.add(records.len(), job.body.of(message), &options, &limits)?.add_to(&mut records);
        }
    }
    spec.finish(py, records)
}

/// The framed answer of a call that was sent in parts: the descriptors of its jobs.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands a list over by value")]
pub fn enqueue_answer<'py>(
    py: Python<'py>,
    sequence: i32,
    descriptors: Vec<Bound<'py, PyString>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut answer = begin_answer(sequence, descriptors.len(), 0);
    for descriptor in &descriptors {
        answer.string(descriptor.to_str()?.as_bytes());
    }
    end_answer(py, answer)
}

impl EnqueueCall {
    /// Whether a queue with these limits takes all of its jobs.
    fn is_within(&self, limits: &Limits) -> bool {
        let (least, greatest) = self.priorities;
        self.largest_body <= limits.body_bytes && least >= 1 && greatest <= i16::from(limits.priorities)
    }

    fn at(&self, position: usize, refusal: Refusal) -> Refusal {
        refusal.at(label(position, Some(self.jobs.len())))
    }
}

impl CallJob {
    /// Its priority, if it is one of so many.
    fn priority(&self, priorities: u8) -> Result<u8, Refusal> {
        let limits = Limits { body_bytes: 0, priorities };
        match limits.check_priority(self.priority) {
            Err(BadArgument::Type(message) | BadArgument::Value(message)) => Err(Refusal::Priority(message)),
            Ok(()) => Ok(u8::try_from(self.priority).unwrap_or(priorities)),
        }
    }

    /// Its priority, if the queue takes the job.
    fn check(&self, limits: &Limits) -> Result<u8, Refusal> {
        limits.check_body(self.body.len())?;
        self.priority(limits.priorities)
    }

    /// As `JobOptions` has it.
    fn when(&self) -> (u8, u64) {
        (u8::from(self.run_after_ms > 0), self.run_after_ms)
    }
}

/// The queue and the jobs of a request.
fn read_request(reader: &mut MessageReader<'_>) -> Result<(Span, Vec<CallJob>), Refusal> {
    let (mut queue, mut jobs) = (None, None);
    reader.begin_struct()?;
    while let Some(field) = reader.next_field()? {
        match field {
            (STRING, 1) => queue = Some(reader.string()?),
            (LIST, 2) => jobs = read_jobs(reader)?.or(jobs),
            (kind, _) => reader.skip(kind)?,
        }
    }
    Ok((required(queue, "request.queueName")?, required(jobs, "request.jobs")?))
}

/// None: it is a list of something else.
fn read_jobs(reader: &mut MessageReader<'_>) -> Result<Option<Vec<CallJob>>, Refusal> {
    let Some(count) = reader.begin_structs()? else { return Ok(None) };
    let mut jobs = Vec::with_capacity(count.min(FIRST_ITEMS));
    for position in 0..count {
        jobs.push(read_job(reader).map_err(|refusal| refusal.at(label(position, Some(count))))?);
    }
    reader.end_container();
    Ok(Some(jobs))
}

fn read_job(reader: &mut MessageReader<'_>) -> Result<CallJob, Refusal> {
    let (mut body, mut status) = (None, Span::default());
    let (mut priority, mut run_after_ms, mut attempts) = (DEFAULT_PRIORITY.into(), 0, DEFAULT_ATTEMPTS);
    reader.begin_struct()?;
    while let Some(field) = reader.next_field()? {
        match field {
            (STRING, 1) => body = Some(reader.string()?),
            (BYTE, 2) => priority = reader.i8()?.into(),
            (I64, 3) => run_after_ms = u64::try_from(reader.i64()?).unwrap_or(0).min(MAX_TIME_MS),
            (I32, 4) => attempts = attempts_of(reader.i32()?),
            (STRING, 5) => status = reader.string()?,
            (kind, _) => reader.skip(kind)?,
        }
    }
    Ok(CallJob { body: required(body, "body")?, status, run_after_ms, attempts, priority })
}

fn attempts_of(number: i32) -> u16 {
    u16::try_from(number.max(1)).unwrap_or(MAX_ATTEMPTS)
}

fn begin_answer(sequence: i32, count: usize, queue_bytes: usize) -> Answer {
    let mut answer = Answer::new(METHOD, sequence, 16 + count * (queue_bytes + DESCRIPTOR_BYTES));
    answer.field(STRUCT, 0);
    answer.field(LIST, 1);
    answer.list(STRING, count);
    answer
}

fn end_answer(py: Python<'_>, mut answer: Answer) -> PyResult<Bound<'_, PyBytes>> {
    answer.stop();
    answer.stop();
    answer.finish(py)
}

fn too_many(count: usize) -> BadArgument {
    let (most, count) = (grouped(MAX_BATCH as u64), grouped(count as u64));
    BadArgument::Value(format!("expected at most {most} jobs of all calls, got {count}"))
}
