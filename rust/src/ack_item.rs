//! What one ack or release is about, as callers write it.
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::arguments::{integer, shown, text};
use crate::bad_argument::BadArgument;
use crate::descriptor::Descriptor;
use crate::job::{Job, token_of};
use crate::limits::{MAX_TIME_MS, NO_TOKEN};
use crate::new_job::status_of;
use crate::shard_index::ShardIndex;

/// What became of a job: also the wire's `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Succeeded = 0,
    Failed = 1,
}

/// The job that is meant.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Of the call's `ShardIndex`.
    pub shard: usize,
    pub priority: u8,
    pub id: u64,
    /// The claim's; 0 if the caller has none.
    pub token: u64,
}

/// A target and what became of it.
pub struct AckItem {
    pub target: Target,
    pub outcome: Outcome,
    pub delay_ms: u64,
    pub status: String,
    /// In the caller's request.
    pub position: usize,
    /// The number of the source that claimed it, for a target without a token. A batch has fewer than 65,536.
    pub source: usize,
}

impl Target {
    /// Of a `Job`, a descriptor or a (descriptor, token) pair.
    pub fn read(value: &Bound<'_, PyAny>, shards: &mut ShardIndex) -> Result<Self, BadArgument> {
        if let Ok(job) = value.downcast::<Job>() {
            return Self::of_job(job, shards);
        }
        if value.is_instance_of::<PyString>() {
            return Self::of_descriptor(value, NO_TOKEN, shards);
        }
        let pair = value.downcast::<PyTuple>().ok().and_then(|pair| pair.extract().ok());
        let Some((descriptor, token)) = pair else { return Err(not_a_target(value)) };
        let (descriptor, token): (Bound<'_, PyAny>, Option<Bound<'_, PyAny>>) = (descriptor, token);
        let token = token.map_or(Ok(NO_TOKEN), |token| token_of(&token))?;
        Self::of_descriptor(&descriptor, token, shards)
    }

    fn of_job(job: &Bound<'_, Job>, shards: &mut ShardIndex) -> Result<Self, BadArgument> {
        let (py, job) = (job.py(), job.get());
        let (queue, shard) = (job.queue.bind(py).as_any(), job.shard.bind(py).as_any());
        let shard = shards.position(text("queue", queue)?, text("shard", shard)?);
        Ok(Self { shard, priority: job.priority, id: job.id, token: job.token_number(py) })
    }

    fn of_descriptor(
        value: &Bound<'_, PyAny>,
        token: u64,
        shards: &mut ShardIndex,
    ) -> Result<Self, BadArgument> {
        let descriptor = Descriptor::parse(text("job descriptor", value)?)?;
        let shard = shards.position(descriptor.queue, descriptor.shard);
        Ok(Self { shard, priority: descriptor.priority, id: descriptor.id, token })
    }
}

impl AckItem {
    /// Of a target, or of an ack: (target, status, delay in milliseconds).
    pub fn read(
        value: &Bound<'_, PyAny>,
        outcome: Outcome,
        position: usize,
        shards: &mut ShardIndex,
    ) -> Result<Self, BadArgument> {
        let ack = value.downcast::<PyTuple>().ok().and_then(|ack| ack.extract().ok());
        let Some((target, status, delay_ms)) = ack else {
            let target = Target::read(value, shards)?;
            return Ok(Self { target, outcome, delay_ms: 0, status: String::new(), position, source: 0 });
        };
        let (target, status, delay_ms): (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>) =
            (target, status, delay_ms);
        let delay_ms = integer("delay_ms", &delay_ms, 0, MAX_TIME_MS)?;
        if outcome == Outcome::Succeeded && delay_ms > 0 {
            return Err(BadArgument::Value(format!(
                "delay_ms: expected 0 (a job that succeeded does not run again), got {delay_ms}"
            )));
        }
        let (target, status) = (Target::read(&target, shards)?, status_of(&status)?);
        Ok(Self { target, outcome, delay_ms, status, position, source: 0 })
    }

    /// The claim that it means: its token, and the number of its source.
    pub fn claim(&self) -> (u64, usize) {
        (self.target.token, self.source)
    }

    /// What proves the right to end the job: the token of its claim, or the number of a source, which is below any token.
    pub fn proof(&self) -> u64 {
        self.target.token.max(self.source as u64)
    }
}

fn not_a_target(value: &Bound<'_, PyAny>) -> BadArgument {
    BadArgument::Type(format!(
        "expected a Job, a descriptor or a (descriptor, token) pair, got {}",
        shown(value)
    ))
}
