//! Descriptors grouped by the shard that has them, for lookups.
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::text;
use crate::bad_argument::BadArgument;
use crate::descriptor::Descriptor;
use crate::limits::MAX_BATCH;
use crate::shard_index::ShardIndex;

/// (queue, shard, priorities: a byte a job, ids: 8 bytes each, positions in the input)
type DescriptorGroup<'py> = (String, String, Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>, Vec<usize>);

struct Item {
    priority: u8,
    id: u64,
    position: usize,
}

/// Groups of at most 1,000 a (queue, shard), in the order they first appear; the input's order is kept within one.
#[pyfunction]
pub fn group_descriptors<'py>(descriptors: &Bound<'py, PyAny>) -> PyResult<Vec<DescriptorGroup<'py>>> {
    let mut shards = ShardIndex::default();
    let mut items: Vec<Vec<Item>> = Vec::new();
    for (position, value) in descriptors.try_iter()?.enumerate() {
        let value = value?;
        let descriptor = parse(&value).map_err(|refusal| refusal.at(format_args!("job {position}")))?;
        let shard = shards.position(descriptor.queue, descriptor.shard);
        if shard == items.len() {
            items.push(Vec::new());
        }
        items[shard].push(Item { priority: descriptor.priority, id: descriptor.id, position });
    }
    let mut groups = Vec::new();
    for ((queue, shard), items) in shards.into_pairs().iter().zip(&items) {
        groups.extend(items.chunks(MAX_BATCH).map(|chunk| group(descriptors.py(), queue, shard, chunk)));
    }
    Ok(groups)
}

fn parse<'a>(value: &'a Bound<'_, PyAny>) -> Result<Descriptor<'a>, BadArgument> {
    Descriptor::parse(text("job descriptor", value)?)
}

fn group<'py>(py: Python<'py>, queue: &str, shard: &str, items: &[Item]) -> DescriptorGroup<'py> {
    let priorities: Vec<u8> = items.iter().map(|item| item.priority).collect();
    let ids = items.iter().map(|item| PyBytes::new(py, &item.id.to_be_bytes())).collect();
    let positions = items.iter().map(|item| item.position).collect();
    (queue.to_owned(), shard.to_owned(), PyBytes::new(py, &priorities), ids, positions)
}
