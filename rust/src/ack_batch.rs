//! Acks and releases, packed as one script call takes them.
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::ack_item::{AckItem, Outcome, Target};
use crate::job_spec::push_status;
use crate::limits::{MAX_BATCH, NO_TOKEN};
use crate::packed::{u16_bytes, u48_bytes};
use crate::shard_index::ShardIndex;

/// Bit of an ack's flags: leave a tombstone.
const TOMBSTONE: u8 = 1;

/// Acks or releases of one shard, at most 1,000; formats: `docs/design.md`, "Ack" and "Release".
///
/// `positions`: of the ids' jobs in the caller's request. `tokenless`: an id has no token, so the ack must name its
/// source. A release has no flags (0) and no statuses.
#[pyclass(frozen, get_all, module = "pinlater._core")]
#[derive(Debug)]
pub struct AckBatch {
    queue: String,
    shard: String,
    flags: Py<PyBytes>,
    groups: Py<PyBytes>,
    statuses: Py<PyBytes>,
    ids: Vec<Py<PyBytes>>,
    positions: Vec<usize>,
    tokenless: bool,
}

#[pymethods]
impl AckBatch {
    fn __repr__(&self) -> String {
        format!("<AckBatch of {} jobs of {}/{}>", self.ids.len(), self.queue, self.shard)
    }
}

/// Batches of at most `most` jobs a (queue, shard), in the order they first appear.
///
/// Items: a `Job`, a descriptor, a (descriptor, token) pair, or (one of these, status, delay in milliseconds). A job
/// named twice is acked once; succeeded wins. Positions count on from `succeeded` into `failed`.
/// `TypeError` or `ValueError` that begins `succeeded job <n>: ` or `failed job <n>: `.
#[pyfunction]
#[pyo3(signature = (succeeded, failed, tombstone=false, most=MAX_BATCH))]
pub fn group_acks(
    succeeded: &Bound<'_, PyAny>,
    failed: &Bound<'_, PyAny>,
    tombstone: bool,
    most: usize,
) -> PyResult<Vec<AckBatch>> {
    let mut acks = Acks::default();
    let lists = [(succeeded, Outcome::Succeeded, "succeeded job"), (failed, Outcome::Failed, "failed job")];
    for (list, outcome, name) in lists {
        for (index, value) in list.try_iter()?.enumerate() {
            let item = AckItem::read(&value?, outcome, acks.read, &mut acks.shards);
            acks.add(item.map_err(|refusal| refusal.at(format_args!("{name} {index}")))?);
        }
    }
    let flags = if tombstone { TOMBSTONE } else { 0 };
    Ok(acks.pack(succeeded.py(), flags, pack_ack_group, most))
}

/// Batches as of `group_acks`, without statuses and delays: jobs that are released as they were.
#[pyfunction]
#[pyo3(signature = (jobs, most=MAX_BATCH))]
pub fn group_releases(jobs: &Bound<'_, PyAny>, most: usize) -> PyResult<Vec<AckBatch>> {
    let mut releases = Acks::default();
    for (position, value) in jobs.try_iter()?.enumerate() {
        let target = Target::read(&value?, &mut releases.shards)
            .map_err(|refusal| refusal.at(format_args!("job {position}")))?;
        // The wire's release has no kind: one outcome for all keeps a priority one group.
        let outcome = Outcome::Failed;
        releases.add(AckItem { target, outcome, delay_ms: 0, status: String::new(), position });
    }
    Ok(releases.pack(jobs.py(), 0, pack_release_group, most))
}

/// The items of a call, a list a shard, each job once.
#[derive(Default)]
struct Acks {
    shards: ShardIndex,
    items: Vec<Vec<AckItem>>,
    seen: Seen,
    read: usize,
}

impl Acks {
    fn add(&mut self, item: AckItem) {
        self.read += 1;
        let shard = item.target.shard;
        if shard == self.items.len() {
            self.items.push(Vec::new());
        }
        if self.seen.is_new(&item.target) {
            self.items[shard].push(item);
        }
    }

    fn pack(self, py: Python<'_>, flags: u8, pack_group: PackGroup, most: usize) -> Vec<AckBatch> {
        let mut batches = Vec::new();
        for ((queue, shard), mut items) in self.shards.into_pairs().into_iter().zip(self.items) {
            for chunk in items.chunks_mut(most.clamp(1, MAX_BATCH)) {
                batches.push(pack_batch(py, (&queue, &shard), chunk, flags, pack_group));
            }
        }
        batches
    }
}

/// The jobs named so far. The first one wins, so those that succeeded are read first.
///
/// A job has one claim at a time: the same id with another token is another claim of it, and Redis decides which is
/// current. Without a token it could be any claim, so it is the same job.
#[derive(Default)]
struct Seen {
    first_token: HashMap<(usize, u8, u64), u64>,
    more_tokens: HashSet<(usize, u8, u64, u64)>,
}

impl Seen {
    fn is_new(&mut self, target: &Target) -> bool {
        let Target { shard, priority, id, token } = *target;
        match self.first_token.entry((shard, priority, id)) {
            Entry::Vacant(free) => {
                free.insert(token);
                true
            }
            Entry::Occupied(first) if [token, NO_TOKEN].contains(first.get()) || token == NO_TOKEN => false,
            Entry::Occupied(_) => self.more_tokens.insert((shard, priority, id, token)),
        }
    }
}

/// Appends a group of items that have one priority and outcome.
type PackGroup = fn(&mut Vec<u8>, &[AckItem]);

fn pack_batch(
    py: Python<'_>,
    (queue, shard): (&str, &str),
    items: &mut [AckItem],
    flags: u8,
    pack_group: PackGroup,
) -> AckBatch {
    // By token too: a run costs 10 bytes and a script its steps, so that claims that are mixed up are sorted out here.
    items.sort_by_key(|item| (item.target.priority, item.outcome, item.target.token));
    let (mut groups, mut statuses) = (Vec::new(), Vec::new());
    for group in items.chunk_by(|a, b| (a.target.priority, a.outcome) == (b.target.priority, b.outcome)) {
        pack_group(&mut groups, group);
    }
    for (position, item) in items.iter().enumerate() {
        push_status(&mut statuses, position, &item.status);
    }
    AckBatch {
        queue: queue.to_owned(),
        shard: shard.to_owned(),
        flags: PyBytes::new(py, &[flags]).unbind(),
        groups: PyBytes::new(py, &groups).unbind(),
        statuses: PyBytes::new(py, &statuses).unbind(),
        ids: items.iter().map(|item| PyBytes::new(py, &item.target.id.to_be_bytes()).unbind()).collect(),
        positions: items.iter().map(|item| item.position).collect(),
        tokenless: items.iter().any(|item| item.target.token == NO_TOKEN),
    }
}

/// `u8 priority, u8 kind, u16 n, runs`, and for failed jobs `n x u48 delay ms`.
fn pack_ack_group(groups: &mut Vec<u8>, items: &[AckItem]) {
    groups.extend([items[0].target.priority, items[0].outcome as u8]);
    pack_runs(groups, items);
    if items[0].outcome == Outcome::Failed {
        groups.extend(items.iter().flat_map(|item| u48_bytes(item.delay_ms)));
    }
}

/// `u8 priority, u16 n, runs`.
fn pack_release_group(groups: &mut Vec<u8>, items: &[AckItem]) {
    groups.push(items[0].target.priority);
    pack_runs(groups, items);
}

/// `u16 n`, then runs of `token, u16 count` that add up to n.
fn pack_runs(groups: &mut Vec<u8>, items: &[AckItem]) {
    groups.extend(u16_bytes(items.len()));
    for run in items.chunk_by(|a, b| a.target.token == b.target.token) {
        groups.extend(run[0].target.token.to_be_bytes());
        groups.extend(u16_bytes(run.len()));
    }
}
