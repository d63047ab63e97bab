//! Answers: framed messages of Thrift's binary protocol.
use std::cell::RefCell;
use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::thrift::reader::{I32, STOP};

/// Bytes of a length: of a frame, or of a string.
const LENGTH_BYTES: usize = 4;
/// A strict head, version 1: a reply.
const REPLY: [u8; 4] = [0x80, 0x01, 0x00, 0x02];
/// Bytes around a method's name: of the frame, the head and the sequence.
const HEAD_BYTES: usize = 16;

/// Memory of up to so many bytes is kept for the next answer: what was written just now is still in the processor's cache.
const MOST_KEPT: usize = 256 * 1024;

thread_local! {
    static KEPT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// An answer that is being written.
pub struct Answer {
    bytes: Vec<u8>,
}

impl Answer {
    /// The frame and the head of a reply. `capacity`: bytes that are to follow.
    pub fn new(method: &str, sequence: i32, capacity: usize) -> Self {
        let mut bytes = KEPT.take();
        bytes.reserve(HEAD_BYTES + method.len() + capacity);
        bytes.extend([0; LENGTH_BYTES]);
        bytes.extend(REPLY);
        let mut answer = Self { bytes };
        answer.string(method.as_bytes());
        answer.bytes.extend(sequence.to_be_bytes());
        answer
    }

    pub fn field(&mut self, kind: u8, id: u8) {
        self.bytes.extend([kind, 0, id]);
    }

    pub fn i32(&mut self, number: i32) {
        self.bytes.extend(number.to_be_bytes());
    }

    /// The fields of a struct of two numbers, and its end.
    pub fn i32_fields(&mut self, [(a, first), (b, second)]: [(u8, i32); 2]) {
        let ([f0, f1, f2, f3], [s0, s1, s2, s3]) = (first.to_be_bytes(), second.to_be_bytes());
        self.bytes.extend_from_slice(&[I32, 0, a, f0, f1, f2, f3, I32, 0, b, s0, s1, s2, s3, STOP]);
    }

    /// A length or a count. `finish` refuses what has more than 31 bits.
    pub fn count(&mut self, count: usize) {
        self.i32(i32::try_from(count).unwrap_or(i32::MAX));
    }

    pub fn list(&mut self, element: u8, count: usize) {
        self.bytes.push(element);
        self.count(count);
    }

    pub fn map(&mut self, key: u8, value: u8, count: usize) {
        self.bytes.extend([key, value]);
        self.count(count);
    }

    pub fn string(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes.extend(bytes);
    }

    /// The descriptor of an id, by its digits. Returns where it is, with its length.
    pub fn descriptor(&mut self, stem: &mut Stem, digits: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(stem.before(digits.len()));
        self.bytes.extend_from_slice(digits);
        start..self.bytes.len()
    }

    /// What was written there, again.
    pub fn repeat(&mut self, written: Range<usize>) {
        self.bytes.extend_from_within(written);
    }

    pub fn stop(&mut self) {
        self.bytes.push(STOP);
    }

    /// The whole frame. `ValueError` if it is longer than a frame can be.
    pub fn finish(mut self, py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
        let Ok(length) = i32::try_from(self.bytes.len() - LENGTH_BYTES) else {
            return Err(PyValueError::new_err("answer: expected at most 2,147,483,647 bytes, got more"));
        };
        self.bytes[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        let frame = PyBytes::new(py, &self.bytes);
        if self.bytes.capacity() <= MOST_KEPT {
            self.bytes.clear();
            KEPT.set(self.bytes);
        }
        Ok(frame)
    }
}

/// What descriptors have before their ids: their length, then the same text.
pub struct Stem {
    bytes: Vec<u8>,
    digits: usize,
}

impl Stem {
    pub fn new(queue: &str, shard: &str, priority: u8) -> Self {
        let mut bytes = vec![0; LENGTH_BYTES];
        bytes.extend(format!("{queue}:s{shard}:p{priority}:").as_bytes());
        Self { bytes, digits: 0 }
    }

    /// The bytes before an id of so many digits.
    fn before(&mut self, digits: usize) -> &[u8] {
        if self.digits != digits {
            self.digits = digits;
            // names and digits are far shorter than 2**31
            let length = u32::try_from(self.bytes.len() - LENGTH_BYTES + digits).unwrap_or_default();
            self.bytes[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        }
        &self.bytes
    }
}

/// The framed answer of a method that returns nothing.
#[pyfunction]
pub fn void_answer<'py>(py: Python<'py>, method: &str, sequence: i32) -> PyResult<Bound<'py, PyBytes>> {
    let mut answer = Answer::new(method, sequence, 1);
    answer.stop();
    answer.finish(py)
}
