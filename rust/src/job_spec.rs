//! Jobs to enqueue, packed as scripts take them.
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::{bytes_like, grouped};
use crate::bad_argument::BadArgument;
use crate::limits::{DEFAULT_ATTEMPTS, DEFAULT_PRIORITY, MAX_POSITIONS};
use crate::new_job::NewJob;
use crate::packed::{u16_bytes, u48_bytes};
use crate::record::Record;
use crate::records::Records;

/// (spec, statuses, records)
pub type PackedJobs<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, Records>);

/// What a queue allows.
pub struct Limits {
    pub body_bytes: usize,
    pub priorities: u8,
}

/// What is asked for a job beside its body.
pub struct JobOptions<'a> {
    pub priority: u8,
    /// When to run it, as the wire has it: kind (0 now, 1 absolute, 2 delay) and milliseconds.
    pub when: (u8, u64),
    pub attempts: u16,
    pub status: &'a str,
}

impl JobOptions<'_> {
    /// Of a job of which only the body was given.
    const DEFAULT: Self =
        Self { priority: DEFAULT_PRIORITY, when: (0, 0), attempts: DEFAULT_ATTEMPTS, status: "" };
}

/// The spec and the statuses so far.
#[derive(Default)]
pub struct JobSpec {
    /// (priority, kind, ms) and how many jobs in a row have them
    runs: Vec<((u8, u8, u64), u16)>,
    statuses: Vec<u8>,
}

/// Packs jobs; formats: `docs/design.md`, "Job spec".
///
/// `body_limit`: bytes a body may have; `priorities`: of the queue; `first`: the first job's position in the caller's
/// request, and `total`: how many jobs that has (by default these), for messages. All is checked before anything is
/// returned: `ValueError` or `TypeError` that begins `job 3 of 10: `, counted from 1, or `job: ` if there is one.
#[pyfunction]
#[pyo3(signature = (jobs, body_limit, priorities, first=0, total=None))]
pub fn pack_jobs<'py>(
    jobs: &Bound<'py, PyAny>,
    body_limit: usize,
    priorities: u8,
    first: usize,
    total: Option<usize>,
) -> PyResult<PackedJobs<'py>> {
    let py = jobs.py();
    let limits = Limits { body_bytes: body_limit, priorities };
    let total = total.or_else(|| jobs.len().ok());
    let mut spec = JobSpec::default();
    let mut records = Records::default();
    for (position, item) in jobs.try_iter()?.enumerate() {
        let item = item?;
        let at = |refusal: BadArgument| {
            refusal.at(format_args!("{}", label(first.saturating_add(position), total)))
        };
        if position >= MAX_POSITIONS {
            return Err(at(too_many()).into());
        }
        let job = item.downcast::<NewJob>().ok().map(Bound::get);
        let body = match job {
            Some(job) => job.body.bind(py).clone(),
            None => bytes_like("body", &item).map_err(at)?,
        };
        let options = job.map_or(JobOptions::DEFAULT, NewJob::options);
        spec.add(position, body.as_bytes(), &options, &limits).map_err(at)?.add_to(&mut records);
    }
    spec.finish(py, records)
}

impl JobSpec {
    /// Checks a job and adds it.
    pub fn add<'a>(
        &mut self,
        position: usize,
        body: &'a [u8],
        job: &JobOptions<'_>,
        limits: &Limits,
    ) -> Result<Record<'a>, BadArgument> {
        limits.check_body(body.len())?;
        limits.check_priority(job.priority.into())?;
        let (kind, ms) = job.when;
        self.add_entry((job.priority, kind, ms));
        push_status(&mut self.statuses, position, job.status);
        Ok(Record { attempts_allowed: job.attempts, priority: job.priority, body })
    }

    /// The spec and the statuses, with the records of the jobs that were added.
    pub fn finish<'py>(&self, py: Python<'py>, records: Records) -> PyResult<PackedJobs<'py>> {
        let (spec, statuses) = (PyBytes::new(py, &self.pack()), PyBytes::new(py, &self.statuses));
        Ok((spec, statuses, Bound::new(py, records)?))
    }

    fn add_entry(&mut self, entry: (u8, u8, u64)) {
        match self.runs.last_mut() {
            Some((last, count)) if *last == entry && *count < u16::MAX => *count += 1,
            _ => self.runs.push((entry, 1)),
        }
    }

    /// 10 bytes a run.
    fn pack(&self) -> Vec<u8> {
        let mut spec = Vec::with_capacity(10 * self.runs.len());
        for ((priority, kind, ms), count) in &self.runs {
            spec.extend([*priority, *kind]);
            spec.extend(u48_bytes(*ms));
            spec.extend(count.to_be_bytes());
        }
        spec
    }
}

impl Limits {
    #[inline]
    pub fn check_body(&self, bytes: usize) -> Result<(), BadArgument> {
        if bytes <= self.body_bytes {
            return Ok(());
        }
        Err(BadArgument::Value(format!(
            "body: expected at most {} bytes (the queue's body limit), got {}",
            grouped(self.body_bytes as u64),
            grouped(bytes as u64)
        )))
    }

    /// A priority of any sign.
    #[inline]
    pub fn check_priority(&self, priority: i16) -> Result<(), BadArgument> {
        if (1..=i16::from(self.priorities)).contains(&priority) {
            return Ok(());
        }
        let priorities = self.priorities;
        Err(BadArgument::Value(format!(
            "priority: expected 1 to {priorities} (the priorities of the queue), got {priority}"
        )))
    }
}

/// A job of a request, for messages.
pub fn label(position: usize, total: Option<usize>) -> String {
    let number = position.saturating_add(1);
    match total {
        Some(1) => "job".to_owned(),
        Some(total) => format!("job {number} of {total}"),
        None => format!("job {number}"),
    }
}

fn too_many() -> BadArgument {
    BadArgument::Value(format!("expected at most {} jobs a call, got more", grouped(MAX_POSITIONS as u64)))
}

/// Appends a run of `u16 position, u16 length, bytes`; nothing for an empty status.
pub fn push_status(statuses: &mut Vec<u8>, position: usize, status: &str) {
    if status.is_empty() {
        return;
    }
    statuses.extend(u16_bytes(position));
    statuses.extend(u16_bytes(status.len()));
    statuses.extend(status.as_bytes());
}
