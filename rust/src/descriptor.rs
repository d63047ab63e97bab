//! A job's descriptor, `queue:s<shard>:p<priority>:<id>`: written, read strictly.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::arguments::{grouped, integer, quoted, text};
use crate::bad_argument::BadArgument;
use crate::limits::{MAX_ID, MAX_POSITIONS, MAX_PRIORITY, MAX_QUEUE_BYTES, MAX_SHARD_BYTES};
use crate::packed::Decimal;

/// Any number of so many digits fits 64 bits.
const MAX_DIGITS: usize = 19;

/// What a descriptor says; ids order jobs by their time.
#[derive(Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    pub queue: &'a str,
    pub shard: &'a str,
    pub priority: u8,
    pub id: u64,
}

impl<'a> Descriptor<'a> {
    /// Strict: what it reads, `write` gives back byte for byte.
    pub fn parse(descriptor: &'a str) -> Result<Self, BadArgument> {
        Self::read(descriptor).map_err(|wrong| {
            BadArgument::Value(format!(
                "job descriptor: expected \"queue:s<shard>:p<priority>:<id>\", got {}: {wrong}",
                quoted(descriptor)
            ))
        })
    }

    fn read(descriptor: &'a str) -> Result<Self, &'static str> {
        let mut parts = descriptor.split(':');
        let (Some(queue), Some(shard), Some(priority), Some(id), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("it does not have four parts");
        };
        let shard = shard.strip_prefix('s').filter(|name| is_shard(name));
        let priority =
            priority.strip_prefix('p').and_then(|digits| decimal(digits.as_bytes(), u64::from(MAX_PRIORITY)));
        Ok(Self {
            queue: Some(queue).filter(|name| is_queue(name)).ok_or("the queue is not [A-Za-z0-9_]{1,255}")?,
            shard: shard.ok_or("the shard is not s[A-Za-z0-9_-]{1,32}")?,
            priority: priority
                .and_then(|priority| u8::try_from(priority).ok())
                .ok_or("the priority is not p1 to p100")?,
            id: read_id(id.as_bytes()).ok_or("the id is not a decimal number from 1 to 2**63 - 1")?,
        })
    }

    /// Whether it has the form of a descriptor, whatever its queue and its numbers; then its shard's name.
    pub fn shard_in(descriptor: &'a str) -> Option<&'a str> {
        let mut parts = descriptor.split(':').skip(1);
        let (shard, priority, id) = (parts.next()?, parts.next()?, parts.next()?);
        let whole = parts.next().is_none() && is_number(priority.strip_prefix('p')?) && is_number(id);
        shard.strip_prefix('s').filter(|name| whole && is_shard(name))
    }

    pub fn write(&self) -> String {
        format!("{}:s{}:p{}:{}", self.queue, self.shard, self.priority, self.id)
    }
}

/// A descriptor. `ValueError` for a name, priority or id that no descriptor has.
#[pyfunction]
pub fn format_descriptor(
    queue: &Bound<'_, PyAny>,
    shard: &Bound<'_, PyAny>,
    priority: &Bound<'_, PyAny>,
    id: &Bound<'_, PyAny>,
) -> PyResult<String> {
    let (queue, shard) = (queue_name(queue)?, shard_name(shard)?);
    let (priority, id) = (priority_of(priority)?, integer("id", id, 1, MAX_ID)?);
    Ok(Descriptor { queue, shard, priority, id }.write())
}

/// The descriptors of `count` jobs whose ids follow one another from `first_id`.
/// `priorities`: one for all, or a byte a job.
#[pyfunction]
pub fn format_descriptors<'py>(
    queue: &Bound<'py, PyAny>,
    shard: &Bound<'py, PyAny>,
    priorities: &Bound<'py, PyAny>,
    first_id: &Bound<'py, PyAny>,
    count: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyString>>> {
    let py = queue.py();
    let (queue, shard) = (queue_name(queue)?, shard_name(shard)?);
    let count = integer("count", count, 0, MAX_POSITIONS as u64)?;
    let first_id = integer("first_id", first_id, 1, MAX_ID - count.saturating_sub(1))?;
    let mut priority_at = priorities_of(priorities, count)?;
    let mut line = format!("{queue}:s{shard}:p");
    let stem = line.len();
    let mut descriptors = Vec::new();
    for (position, id) in (first_id..first_id + count).enumerate() {
        line.truncate(stem);
        line.push_str(Decimal::of(priority_at(position).into()).as_str());
        line.push(':');
        line.push_str(Decimal::of(id).as_str());
        descriptors.push(PyString::new(py, &line));
    }
    Ok(descriptors)
}

/// (queue, shard, priority, id) of a descriptor. `ValueError` that names the wrong part, `TypeError` for no str.
#[pyfunction]
pub fn parse_descriptor<'py>(
    text: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyString>, Bound<'py, PyString>, u8, u64)> {
    let descriptor = Descriptor::parse(crate::arguments::text("job descriptor", text)?)?;
    let py = text.py();
    let (queue, shard) = (PyString::new(py, descriptor.queue), PyString::new(py, descriptor.shard));
    Ok((queue, shard, descriptor.priority, descriptor.id))
}

/// A queue's name: `[A-Za-z0-9_]{1,255}`.
pub fn queue_name<'a>(name: &'a Bound<'_, PyAny>) -> Result<&'a str, BadArgument> {
    let name = text("queue", name)?;
    if is_queue(name) {
        return Ok(name);
    }
    Err(BadArgument::Value(format!(
        "queue: expected 1 to {MAX_QUEUE_BYTES} of A-Z, a-z, 0-9 and _, got {}",
        quoted(name)
    )))
}

/// A shard's name: `[A-Za-z0-9_-]{1,32}`.
pub fn shard_name<'a>(name: &'a Bound<'_, PyAny>) -> Result<&'a str, BadArgument> {
    let name = text("shard", name)?;
    if is_shard(name) {
        return Ok(name);
    }
    Err(BadArgument::Value(format!(
        "shard: expected 1 to {MAX_SHARD_BYTES} of A-Z, a-z, 0-9, _ and -, got {}",
        quoted(name)
    )))
}

/// The last part of a descriptor.
pub fn read_id(digits: &[u8]) -> Option<u64> {
    decimal(digits, MAX_ID)
}

/// A priority: 1 to 100.
pub fn priority_of(priority: &Bound<'_, PyAny>) -> Result<u8, BadArgument> {
    integer("priority", priority, 1, MAX_PRIORITY)
}

fn priorities_of(priorities: &Bound<'_, PyAny>, count: u64) -> Result<impl FnMut(usize) -> u8, BadArgument> {
    let each = match priorities.downcast::<PyBytes>() {
        Err(_) => vec![priority_of(priorities)?],
        Ok(each) if each.as_bytes().len() as u64 != count => {
            return Err(BadArgument::Value(format!(
                "priorities: expected a byte a job, {} bytes, got {}",
                grouped(count),
                grouped(each.as_bytes().len() as u64)
            )));
        }
        Ok(each) => each.as_bytes().to_vec(),
    };
    if let Some(wrong) = each.iter().find(|priority| !(1..=MAX_PRIORITY).contains(priority)) {
        return Err(BadArgument::Value(format!("priorities: expected 1 to {MAX_PRIORITY}, got {wrong}")));
    }
    let one = priorities.downcast::<PyBytes>().is_err();
    Ok(move |position| if one { each[0] } else { each[position] })
}

fn is_queue(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=MAX_QUEUE_BYTES).contains(&name.len()) && name.bytes().all(allowed)
}

fn is_shard(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=MAX_SHARD_BYTES).contains(&name.len()) && name.bytes().all(allowed)
}

/// Decimal digits, of any number, with or without a sign.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// A decimal number from 1 to `most`, without sign or leading zeros.
fn decimal(digits: &[u8], most: u64) -> Option<u64> {
    if digits.len() > MAX_DIGITS || digits.first() == Some(&b'0') {
        return None;
    }
    let (mut number, mut rest) = (0, digits);
    while let Some((eight, others)) = rest.split_first_chunk() {
        number = 100_000_000 * number + eight_digits(*eight)?;
        rest = others;
    }
    for digit in rest {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = 10 * number + u64::from(digit);
    }
    Some(number).filter(|number| (1..=most).contains(number))
}

/// The number that eight digits stand for, by a few operations on all of them at once.
fn eight_digits(digits: [u8; 8]) -> Option<u64> {
    const ALL: u64 = 0x0101_0101_0101_0101;
    let word = u64::from_le_bytes(digits);
    // a digit's upper half is 3, also when 6 is added to it
    let upper_halves = (word & (0xF0 * ALL)) | ((word.wrapping_add(0x06 * ALL) & (0xF0 * ALL)) >> 4);
    if upper_halves != 0x33 * ALL {
        return None;
    }
    let ones = word & (0x0F * ALL);
    let pairs = (ones * 10 + (ones >> 8)) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_FFFF_0000_FFFF;
    Some((fours * 10_000 + (fours >> 32)) & 0xFFFF_FFFF)
}
