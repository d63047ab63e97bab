//! Numbers the (queue, shard) pairs of a call in the order they appear.
use std::collections::HashMap;

/// Up to so many pairs are found by a look at each of them: that costs less than a map.
const FEW: usize = 8;

/// Pairs seen so far.
#[derive(Default)]
pub struct ShardIndex {
    pairs: Vec<(String, String)>,
    /// Of more than a few pairs.
    positions: HashMap<String, HashMap<String, usize>>,
    last: usize,
}

impl ShardIndex {
    /// The number of a pair. Most calls are about one shard, so the last pair is tried first.
    pub fn position(&mut self, queue: &str, shard: &str) -> usize {
        if let Some((last_queue, last_shard)) = self.pairs.get(self.last) {
            if last_shard == shard && last_queue == queue {
                return self.last;
            }
        }
        self.last = self.find(queue, shard).unwrap_or_else(|| self.add(queue, shard));
        self.last
    }

    /// The pairs, in the order of their numbers.
    pub fn into_pairs(self) -> Vec<(String, String)> {
        self.pairs
    }

    fn find(&self, queue: &str, shard: &str) -> Option<usize> {
        if self.pairs.len() <= FEW {
            return self.pairs.iter().position(|pair| pair.1 == shard && pair.0 == queue);
        }
        self.positions.get(queue)?.get(shard).copied()
    }

    fn add(&mut self, queue: &str, shard: &str) -> usize {
        let position = self.pairs.len();
        self.pairs.push((queue.to_owned(), shard.to_owned()));
        let unmapped = if position > FEW { position } else { 0 };
        let mapped = if position < FEW { 0 } else { self.pairs.len() };
        for at in unmapped..mapped {
            let (queue, shard) = self.pairs[at].clone();
            self.positions.entry(queue).or_default().insert(shard, at);
        }
        position
    }
}
