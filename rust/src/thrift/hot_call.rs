//! A whole frame: which of the hot calls it has, and that call.
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::thrift::ack::read_ack;
use crate::thrift::dequeue::read_dequeue;
use crate::thrift::enqueue::read_enqueue;

/// Where a strict head has its parts: behind the frame's length a version and a type, then the length of the name.
const KIND: std::ops::Range<usize> = 4..8;
const NAME_LENGTH: std::ops::Range<usize> = 8..12;
const NAME: usize = 12;
/// A strict head, version 1: a call.
const CALL: [u8; 4] = [0x80, 0x01, 0x00, 0x01];
const SEQUENCE_BYTES: usize = 4;

/// Whether these bytes are one whole frame. `limit`: bytes of a frame at most, without its length.
#[pyfunction]
pub fn is_frame(data: &[u8], limit: usize) -> bool {
    let Some((length, message)) = data.split_first_chunk() else { return false };
    (1..=limit).contains(&message.len()) && u32::from_be_bytes(*length) as usize == message.len()
}

/// The sequence of the hot call in a frame, and the call. None: it is another call, or has another head.
///
/// Raises as the function that reads the call.
#[pyfunction]
pub fn read_hot_call<'py>(frame: &Bound<'py, PyBytes>) -> PyResult<Option<(i32, Bound<'py, PyAny>)>> {
    let Some((name, sequence, start)) = read_head(frame.as_bytes()) else { return Ok(None) };
    let py = frame.py();
    let call = match name {
        b"enqueueJobs" => Bound::new(py, read_enqueue(frame, start)?)?.into_any(),
        b"dequeueJobs" => Bound::new(py, read_dequeue(frame, start)?)?.into_any(),
        b"ackDequeuedJobs" => Bound::new(py, read_ack(frame, start)?)?.into_any(),
        _ => return Ok(None),
    };
    Ok(Some((sequence, call)))
}

/// The name of the method, the sequence, and where the arguments begin.
fn read_head(frame: &[u8]) -> Option<(&[u8], i32, usize)> {
    if frame.get(KIND)? != CALL {
        return None;
    }
    let length = u32::from_be_bytes(frame.get(NAME_LENGTH)?.try_into().ok()?) as usize;
    let end = NAME.checked_add(length)?;
    let sequence = frame.get(end..end.checked_add(SEQUENCE_BYTES)?)?.try_into().ok()?;
    Some((&frame[NAME..end], i32::from_be_bytes(sequence), end + SEQUENCE_BYTES))
}
