//! `ackDequeuedJobs`, and the acks that ride on `dequeueJobs`: their call, and the script's arguments of several calls.
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyFrozenSet, PyString};

use crate::ack_batch::{AckBatch, Acks};
use crate::ack_item::{AckItem, Outcome, Target};
use crate::bad_argument::BadArgument;
use crate::descriptor::{Descriptor, read_id};
use crate::limits::{MAX_TIME_MS, NO_TOKEN};
use crate::shard_index::ShardIndex;
use crate::thrift::reader::{I64, LIST, MessageReader, STRING, Span};
use crate::thrift::refusal::Refusal;
use crate::thrift::request::{FIRST_ITEMS, read_call, required, source_text, status_text, text};

/// The acks of a call. It keeps the message, of which its statuses are parts.
///
/// `source`: cut to 255 bytes. `count`: the jobs that can be acked; one that is named twice counts twice.
#[pyclass(frozen, module = "pinlater._core")]
#[derive(Debug)]
pub struct AckCall {
    #[pyo3(get)]
    source: Py<PyString>,
    #[pyo3(get)]
    queue: Py<PyString>,
    message: Py<PyBytes>,
    /// The names of shards, in the order they first appear.
    shards: Vec<String>,
    /// Those that succeeded come first.
    items: Vec<CallAck>,
    /// How many of them succeeded.
    #[pyo3(get)]
    succeeded: usize,
    size: usize,
}

/// An ack of a job that can exist.
#[derive(Debug)]
struct CallAck {
    /// Its shard: of the call's.
    target: Target,
    outcome: Outcome,
    delay_ms: u64,
    status: Span,
}

/// What a request says, as it came.
pub struct AckRequest {
    queue: Span,
    succeeded: Vec<AckInfo>,
    failed: Vec<AckInfo>,
}

struct AckInfo {
    descriptor: Span,
    status: Span,
    delay_ms: u64,
}

/// A call of `ackDequeuedJobs`, of which the arguments begin at `start`.
///
/// `BadMessage` as of `check_message`, `MissingField` without a required field, `ValueError` that begins
/// `succeeded job <n>: ` or `failed job <n>: ` for a malformed descriptor. Jobs that cannot exist, and jobs of another
/// queue, are left out. What cannot be kept is changed: a delay is 0 to 2**44 - 1, a status is cut to 3,000 bytes.
#[pyfunction]
pub fn read_ack(message: &Bound<'_, PyBytes>, start: usize) -> PyResult<AckCall> {
    let (source, request) = read_call(message.as_bytes(), start, read_request)?;
    let source = source_text(message.py(), source.of(message.as_bytes()));
    Ok(AckCall::new(&request, message, &source)?)
}

#[pymethods]
impl AckCall {
    #[getter]
    pub fn count(&self) -> usize {
        self.items.len()
    }

    /// Bytes of their statuses, as they came.
    #[getter]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The names of all shards that its descriptors name, also of jobs that were left out.
    fn shards(&self) -> Vec<&str> {
        self.shards.iter().map(String::as_str).collect()
    }

    /// A number for each of its jobs. Calls without a common number have no job in common.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        let queue = self.queue.to_str(py)?;
        let hash = |shard: &String| {
            let mut hasher = DefaultHasher::new();
            (queue, shard).hash(&mut hasher);
            hasher.finish()
        };
        let hashes: Vec<u64> = self.shards.iter().map(hash).collect();
        PyFrozenSet::new(py, self.items.iter().map(|item| hashes[item.target.shard] ^ item.target.id))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<AckCall of {} jobs of {}>", self.items.len(), self.queue.to_str(py)?))
    }
}

/// How many jobs of these calls succeeded, and how many failed.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands a list over by value")]
pub fn count_acks(calls: Vec<Bound<'_, AckCall>>) -> (usize, usize) {
    let succeeded = calls.iter().map(|call| call.get().succeeded).sum();
    let count: usize = calls.iter().map(|call| call.get().items.len()).sum();
    (succeeded, count - succeeded)
}

/// Batches of at most `most` jobs a (queue, shard), as `group_acks` makes them. Each job names the source of its call.
///
/// `positions`: of the jobs among those of all calls, as `AckCall` counts them: those that succeeded come first. A job that
/// one source names twice, in one call or in several, is acked once, as the first call says; in one call, succeeded wins.
/// A job that two sources name stands there for each of them: Redis knows whose it is. `any_source`: a job is ended
/// whoever claimed it, so all calls count as those of one source.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands a list over by value")]
pub fn group_ack_calls(
    py: Python<'_>,
    calls: Vec<Bound<'_, AckCall>>,
    any_source: bool,
    most: usize,
) -> PyResult<Vec<AckBatch>> {
    let mut acks = Acks::default();
    acks.reserve(calls.iter().map(|call| call.get().items.len()).sum());
    let (mut sources, mut numbers, mut first) = (Vec::new(), HashMap::new(), 0);
    for call in calls.iter().map(Bound::get) {
        let source = if any_source { "" } else { call.source.to_str(py)? };
        let number = *numbers.entry(source).or_insert_with(|| {
            sources.push(source);
            sources.len() - 1
        });
        call.add_to(&mut acks, first, number, py)?;
        first += call.items.len();
    }
    acks.pack_of_sources(py, &sources, any_source, most)
}

impl AckCall {
    pub fn new(
        request: &AckRequest,
        message: &Bound<'_, PyBytes>,
        source: &Bound<'_, PyString>,
    ) -> Result<Self, Refusal> {
        let bytes = message.as_bytes();
        let queue = text(message.py(), request.queue.of(bytes));
        let (items, shards) = read_items(request, bytes)?;
        Ok(Self {
            source: source.clone().unbind(),
            queue: queue.unbind(),
            message: message.clone().unbind(),
            shards,
            succeeded: items.iter().filter(|item| item.outcome == Outcome::Succeeded).count(),
            size: items.iter().map(|item| item.status.len()).sum(),
            items,
        })
    }

    /// Whether it has jobs that can be acked, all of this queue, and its descriptors name these shards alone.
    pub fn is_of(&self, py: Python<'_>, queue: &str, shards: &[PyBackedStr]) -> PyResult<bool> {
        let names_these = self.shards.iter().all(|name| shards.iter().any(|shard| **shard == **name));
        Ok(!self.items.is_empty() && names_these && self.queue.to_str(py)? == queue)
    }

    /// Adds its items. `first`: the position of the first one. `source`: its number.
    fn add_to(&self, acks: &mut Acks, first: usize, source: usize, py: Python<'_>) -> PyResult<()> {
        let (queue, message) = (self.queue.to_str(py)?, self.message.as_bytes(py));
        let mut numbers = vec![None; self.shards.len()];
        for (position, item) in (first..).zip(&self.items) {
            let name = &self.shards[item.target.shard];
            let shard = *numbers[item.target.shard].get_or_insert_with(|| acks.shards.position(queue, name));
            let target = Target { shard, ..item.target };
            let status = status_text(item.status.of(message)).into_owned();
            let (outcome, delay_ms) = (item.outcome, item.delay_ms);
            acks.add(AckItem { target, outcome, delay_ms, status, position, source });
        }
        Ok(())
    }
}

/// The acks of a request and the names of their shards.
fn read_items(request: &AckRequest, message: &[u8]) -> Result<(Vec<CallAck>, Vec<String>), Refusal> {
    let queue = String::from_utf8_lossy(request.queue.of(message));
    let mut targets = Targets { queue: &queue, shards: ShardIndex::default(), last: None };
    let mut items = Vec::with_capacity(request.succeeded.len() + request.failed.len());
    let lists = [
        (&request.succeeded, Outcome::Succeeded, "succeeded job"),
        (&request.failed, Outcome::Failed, "failed job"),
    ];
    for (list, outcome, name) in lists {
        for (index, info) in list.iter().enumerate() {
            let target = targets.read(info.descriptor.of(message));
            let target = target.map_err(|refusal| refusal.at(format_args!("{name} {index}")))?;
            let (delay_ms, status) = (info.delay_ms, info.status);
            items.extend(target.map(|target| CallAck { target, outcome, delay_ms, status }));
        }
    }
    Ok((items, targets.shards.into_pairs().into_iter().map(|(_, shard)| shard).collect()))
}

/// Reads the descriptors of a request.
struct Targets<'a> {
    queue: &'a str,
    shards: ShardIndex,
    /// A descriptor up to its id, and what it says: most descriptors of a request begin alike.
    last: Option<(&'a [u8], Target)>,
}

impl<'a> Targets<'a> {
    /// None: the queue can have no job of this name.
    fn read(&mut self, descriptor: &'a [u8]) -> Result<Option<Target>, BadArgument> {
        if let Some(target) = self.read_as_last(descriptor) {
            return Ok(Some(target));
        }
        let text = String::from_utf8_lossy(descriptor);
        let found = match Descriptor::parse(&text) {
            Ok(found) => found,
            Err(refusal) => {
                let shard = Descriptor::shard_in(&text).ok_or(refusal)?;
                self.shards.position(self.queue, shard);
                return Ok(None);
            }
        };
        let shard = self.shards.position(self.queue, found.shard);
        if found.queue != self.queue {
            return Ok(None);
        }
        let target = Target { shard, priority: found.priority, id: found.id, token: NO_TOKEN };
        let stem = descriptor.iter().rposition(|byte| *byte == b':').map(|end| &descriptor[..=end]);
        self.last = stem.map(|stem| (stem, target));
        Ok(Some(target))
    }

    fn read_as_last(&self, descriptor: &[u8]) -> Option<Target> {
        let (stem, target) = self.last?;
        let id = read_id(descriptor.strip_prefix(stem)?)?;
        Some(Target { id, ..target })
    }
}

/// A `PinLaterJobAckRequest`.
pub fn read_request(reader: &mut MessageReader<'_>) -> Result<AckRequest, Refusal> {
    let (mut queue, mut succeeded, mut failed) = (None, Vec::new(), Vec::new());
    reader.begin_struct()?;
    while let Some(field) = reader.next_field()? {
        match field {
            (STRING, 1) => queue = Some(reader.string()?),
            (LIST, 2) => succeeded = read_infos(reader)?.unwrap_or(succeeded),
            (LIST, 3) => failed = read_infos(reader)?.unwrap_or(failed),
            (kind, _) => reader.skip(kind)?,
        }
    }
    Ok(AckRequest { queue: required(queue, "jobAckRequest.queueName")?, succeeded, failed })
}

/// None: it is a list of something else.
fn read_infos(reader: &mut MessageReader<'_>) -> Result<Option<Vec<AckInfo>>, Refusal> {
    let Some(count) = reader.begin_structs()? else { return Ok(None) };
    let mut infos = Vec::with_capacity(count.min(FIRST_ITEMS));
    for _ in 0..count {
        infos.push(read_info(reader)?);
    }
    reader.end_container();
    Ok(Some(infos))
}

fn read_info(reader: &mut MessageReader<'_>) -> Result<AckInfo, Refusal> {
    let (mut descriptor, mut status, mut delay_ms) = (None, Span::default(), 0);
    reader.begin_struct()?;
    while let Some(field) = reader.next_field()? {
        match field {
            (STRING, 1) => descriptor = Some(reader.string()?),
            (STRING, 2) => status = reader.string()?,
            (I64, 3) => delay_ms = u64::try_from(reader.i64()?).unwrap_or(0).min(MAX_TIME_MS),
            (kind, _) => reader.skip(kind)?,
        }
    }
    Ok(AckInfo { descriptor: required(descriptor, "jobDescriptor")?, status, delay_ms })
}
