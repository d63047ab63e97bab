//! Acks and releases, packed as one script call takes them.
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::ack_item::{AckItem, Outcome, Target};
use crate::job_spec::push_status;
use crate::limits::{MAX_BATCH, NO_TOKEN};
use crate::packed::{u16_bytes, u48_bytes};
use crate::records::Records;
use crate::shard_index::ShardIndex;

/// Bit of an ack's flags: leave a tombstone.
const TOMBSTONE: u8 = 1;
/// Bit of an ack's flags: the source of a job without a token does not matter.
const ANY_SOURCE: u8 = 2;
/// Bytes of the sources of a batch: their length has two bytes.
const MAX_SOURCES_BYTES: usize = 0xFFFF;

/// Acks or releases of one shard, at most 1,000; formats: `docs/design.md`, "Ack" and "Release".
///
/// `positions`: of the ids' jobs in the caller's request. `tokenless`: an id has no token, so the ack must name its
/// source. `sources`: those of a batch of calls. `fails`: some of the jobs failed. A release has no flags (0), no
/// statuses and no outcome.
#[pyclass(frozen, get_all, module = "pinlater._core")]
#[derive(Debug)]
pub struct AckBatch {
    queue: String,
    shard: String,
    flags: Py<PyBytes>,
    groups: Py<PyBytes>,
    sources: Py<PyBytes>,
    statuses: Py<PyBytes>,
    ids: Py<Records>,
    positions: Vec<usize>,
    tokenless: bool,
    fails: bool,
}

#[pymethods]
impl AckBatch {
    fn __repr__(&self) -> String {
        format!("<AckBatch of {} jobs of {}/{}>", self.positions.len(), self.queue, self.shard)
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
    acks.pack(succeeded.py(), flags, &[], pack_ack_group, most)
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
        let outcome = Outcome::Succeeded;
        releases.add(AckItem { target, outcome, delay_ms: 0, status: String::new(), position, source: 0 });
    }
    releases.pack(jobs.py(), 0, &[], pack_release_group, most)
}

/// The items of a call, a list a shard, each job once.
#[derive(Default)]
pub struct Acks {
    pub shards: ShardIndex,
    of_shards: Vec<ShardAcks>,
    /// How many items the first shard has room for from its start.
    room: usize,
    read: usize,
}

/// The items of one shard, and what finds a job that was named before.
struct ShardAcks {
    items: Vec<AckItem>,
    /// Of each id the position of its first item.
    first: HashMap<u64, usize, RandomState>,
    /// Of the jobs of ids that were named more than once, by priority and id.
    claims: HashMap<(u8, u64), NamedClaims, RandomState>,
}

/// The claims that a job was named with.
struct NamedClaims {
    first: NamedClaim,
    others: HashSet<NamedClaim, RandomState>,
}

/// The claim that an item means: by its token, or without one by the number of its source.
type NamedClaim = (u64, usize);

impl Acks {
    /// Makes room for so many items of the first shard, which is most often the only one.
    pub fn reserve(&mut self, count: usize) {
        self.room = count;
    }

    /// Its target's shard: of `shards`.
    pub fn add(&mut self, item: AckItem) {
        self.read += 1;
        let shard = item.target.shard;
        if shard == self.of_shards.len() {
            let room = if shard == 0 { self.room } else { 0 };
            self.of_shards.push(ShardAcks::with_capacity(room));
        }
        self.of_shards[shard].add(item);
    }

    /// `sources`: what the numbers of the items' sources stand for; 255 bytes each at most. Empty: of no item.
    fn pack(
        self,
        py: Python<'_>,
        flags: u8,
        sources: &[&str],
        pack_group: PackGroup,
        most: usize,
    ) -> PyResult<Vec<AckBatch>> {
        let mut batches = Vec::new();
        let longest = sources.iter().map(|source| source.len()).max().unwrap_or(0);
        let most = most.min(MAX_SOURCES_BYTES / (1 + longest)).clamp(1, MAX_BATCH);
        for ((queue, shard), mut acks) in self.shards.into_pairs().into_iter().zip(self.of_shards) {
            for chunk in acks.items.chunks_mut(most) {
                let block = number_sources(chunk, sources);
                batches.push(pack_batch(py, (&queue, &shard), chunk, flags, &block, pack_group)?);
            }
        }
        Ok(batches)
    }

    /// Batches of acks whose items name the source that claimed them. `any_source`: it does not matter.
    pub fn pack_of_sources(
        self,
        py: Python<'_>,
        sources: &[&str],
        any_source: bool,
        most: usize,
    ) -> PyResult<Vec<AckBatch>> {
        let (flags, sources) = if any_source { (ANY_SOURCE, &[][..]) } else { (0, sources) };
        self.pack(py, flags, sources, pack_ack_group, most)
    }
}

/// Numbers the sources of a batch in the order they appear. Their block: `u8 length, bytes` each.
fn number_sources(items: &mut [AckItem], sources: &[&str]) -> Vec<u8> {
    let mut numbers = vec![None; sources.len()];
    let (mut block, mut next) = (Vec::new(), 0);
    for item in items {
        let Some(source) = sources.get(item.source) else {
            item.source = 0;
            continue;
        };
        item.source = *numbers[item.source].get_or_insert_with(|| {
            let [.., length] = source.len().to_be_bytes();
            block.push(length);
            block.extend(source.as_bytes());
            next += 1;
            next - 1
        });
    }
    block
}

impl ShardAcks {
    fn with_capacity(count: usize) -> Self {
        Self {
            items: Vec::with_capacity(count),
            first: HashMap::with_capacity_and_hasher(count, RandomState::default()),
            claims: HashMap::default(),
        }
    }

    /// Adds an item, unless its claim was named before. The first one wins, so those that succeeded are read first.
    ///
    /// A job has one claim at a time: the same id with another token, or of another source, is another claim of it, and Redis
    /// decides which is current. An item without a token and one with a token may mean the same claim, so they are one.
    fn add(&mut self, item: AckItem) {
        let Target { priority, id, .. } = item.target;
        match self.first.entry(id) {
            Entry::Vacant(free) => {
                free.insert(self.items.len());
            }
            Entry::Occupied(first) => {
                let first = &self.items[*first.get()];
                let named = item.claim();
                let first_claim = if first.target.priority == priority { first.claim() } else { named };
                let is_new = first.target.priority != priority && !self.claims.contains_key(&(priority, id));
                let claims = self
                    .claims
                    .entry((priority, id))
                    .or_insert_with(|| NamedClaims { first: first_claim, others: HashSet::default() });
                let has_token = |claim: NamedClaim| claim.0 != NO_TOKEN;
                let is_named = claims.first == named || has_token(claims.first) != has_token(named);
                if !is_new && (is_named || !claims.others.insert(named)) {
                    return;
                }
            }
        }
        self.items.push(item);
    }
}

/// Appends a group of items that have one priority and outcome.
type PackGroup = fn(&mut Vec<u8>, &[AckItem]);

fn pack_batch(
    py: Python<'_>,
    (queue, shard): (&str, &str),
    items: &mut [AckItem],
    flags: u8,
    sources: &[u8],
    pack_group: PackGroup,
) -> PyResult<AckBatch> {
    // By token too: a run costs 10 bytes and a script its steps, so that claims that are mixed up are sorted out here.
    items.sort_by_key(|item| (item.target.priority, item.outcome, item.proof()));
    let (mut groups, mut statuses) = (Vec::new(), Vec::new());
    for group in items.chunk_by(|a, b| (a.target.priority, a.outcome) == (b.target.priority, b.outcome)) {
        pack_group(&mut groups, group);
    }
    let mut ids = Records::with_capacity(items.len(), 8 * items.len());
    for (position, item) in items.iter().enumerate() {
        push_status(&mut statuses, position, &item.status);
        ids.push(&item.target.id.to_be_bytes());
    }
    Ok(AckBatch {
        queue: queue.to_owned(),
        shard: shard.to_owned(),
        flags: PyBytes::new(py, &[flags]).unbind(),
        groups: PyBytes::new(py, &groups).unbind(),
        sources: PyBytes::new(py, sources).unbind(),
        statuses: PyBytes::new(py, &statuses).unbind(),
        ids: Py::new(py, ids)?,
        positions: items.iter().map(|item| item.position).collect(),
        tokenless: items.iter().any(|item| item.target.token == NO_TOKEN),
        fails: items.iter().any(|item| item.outcome == Outcome::Failed),
    })
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
    for run in items.chunk_by(|a, b| a.proof() == b.proof()) {
        groups.extend(run[0].proof().to_be_bytes());
        groups.extend(u16_bytes(run.len()));
    }
}
