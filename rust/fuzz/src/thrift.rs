//! Frames of the Thrift service, read as the server reads them: through `pinlater._core`, in a Python inside.
//!
//! Checked of each frame: nothing panics, and what is refused is refused by a `ValueError` with a text. The memory that is
//! asked for is bounded by the frame's bytes. The reading of a call agrees with the check of the whole message. Jobs come
//! back out of their records as they were, and batches have the jobs of their call.
#![no_main]
mod asked;

use std::ffi::c_int;

use libfuzzer_sys::fuzz_target;
use pyo3::exceptions::PyValueError;
use pyo3::ffi::{PyImport_AppendInittab, PyObject};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyString};

use asked::{count_python, counted};

extern crate _core;

/// Bytes of a strict head beside the name, with the frame's length: a version, the length of the name, a sequence.
const HEAD_BYTES: usize = 16;
/// Limits of a queue that takes every body and priority.
const WIDEST: (usize, u8) = (i32::MAX as usize, 100);
/// Jobs a script call takes.
const MOST_JOBS: usize = 1_000;
/// Memory that any call may ask for, whatever its frame: an error with its text.
const FEW_BYTES: usize = 4_096;
/// Memory for each byte of a frame.
const EACH_BYTE: usize = 32;
/// Characters of an error's text.
const LONGEST_TEXT: usize = 1_000;

unsafe extern "C" {
    safe fn PyInit__core() -> *mut PyObject;
}

static CORE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

fuzz_target!(init: start(), |frame: &[u8]| check(frame));

fn start() {
    // SAFETY: no Python runs yet.
    let added: c_int = unsafe { PyImport_AppendInittab(c"_core".as_ptr(), Some(PyInit__core)) };
    assert_eq!(added, 0);
    Python::attach(|py| {
        CORE.get_or_init(py, || py.import("_core").expect("the module").unbind());
        // what is made once is made before anything is counted
        check(b"");
        count_python();
    });
}

fn check(frame: &[u8]) {
    Python::attach(|py| {
        let core = Core { module: CORE.get(py).expect("a start").bind(py).clone(), frame_bytes: frame.len() };
        core.check(&PyBytes::new(py, frame)).unwrap_or_else(|error| panic!("{error}"));
    });
}

/// The module under test.
struct Core<'py> {
    module: Bound<'py, PyModule>,
    frame_bytes: usize,
}

/// A refusal that was looked at.
struct Refused {
    is_bad_message: bool,
}

type Outcome<'py> = Result<Bound<'py, PyAny>, Refused>;

impl<'py> Core<'py> {
    fn check(&self, frame: &Bound<'py, PyBytes>) -> PyResult<()> {
        let start = start_of(frame.as_bytes());
        let (checked, asked) = counted(|| self.module.getattr("check_message")?.call1((frame, start)));
        assert!(asked <= FEW_BYTES, "check_message asks for {asked} bytes");
        let checked = self.outcome(checked)?;
        let (read, asked) = counted(|| self.module.getattr("read_hot_call")?.call1((frame,)));
        self.check_memory("read_hot_call", asked);
        match (self.outcome(read)?, checked) {
            (Ok(found), _) if found.is_none() => Ok(()),
            (Ok(found), Ok(_)) => self.check_call(&found.get_item(1)?),
            (Ok(_), Err(_)) => panic!("a message that is refused was read"),
            (Err(refused), Ok(_)) if refused.is_bad_message => panic!("a good message was refused"),
            (Err(_), _) => Ok(()),
        }
    }

    fn check_call(&self, call: &Bound<'py, PyAny>) -> PyResult<()> {
        match call.get_type().name()?.to_str()? {
            "EnqueueCall" => self.check_enqueue(call),
            "AckCall" => self.check_ack(call),
            _ => {
                let acks = call.getattr("acks")?;
                if acks.is_none() { Ok(()) } else { self.check_ack(&acks) }
            }
        }
    }

    /// Its jobs, packed by `pack_enqueues`, and as `pack_jobs` packs those that it gives; each record read again.
    fn check_enqueue(&self, call: &Bound<'py, PyAny>) -> PyResult<()> {
        let (count, size): (usize, usize) = (number(call, "count")?, number(call, "size")?);
        assert!(count <= self.frame_bytes && size <= self.frame_bytes);
        let (body_limit, priorities) = WIDEST;
        let fits: bool = call.call_method1("fits", (body_limit, priorities, MOST_JOBS, size))?.extract()?;
        let (packed, asked) =
            counted(|| self.module.getattr("pack_enqueues")?.call1(([call], body_limit, priorities)));
        self.check_memory("pack_enqueues", asked);
        let Ok(packed) = self.outcome(packed)? else {
            assert!(!fits, "a call that fits was refused");
            return Ok(());
        };
        assert_eq!(fits, count > 0);
        let (jobs, asked) = counted(|| call.call_method0("jobs"));
        self.check_memory("jobs", asked);
        let jobs = jobs?;
        let again = self.module.getattr("pack_jobs")?.call1((&jobs, body_limit, priorities))?;
        assert!(packed.eq(again)?, "the same jobs were packed in two ways");
        let (jobs, records) = (jobs.downcast::<PyList>()?.clone(), packed.get_item(2)?);
        assert_eq!((jobs.len(), records.len()?), (count, count));
        for (job, record) in jobs.iter().zip(records.try_iter()?) {
            let record = record?;
            let parts = (job.getattr("attempts")?, job.getattr("priority")?, job.getattr("body")?);
            assert!(self.module.getattr("unpack_record")?.call1((record,))?.eq(parts)?, "another job");
        }
        Ok(())
    }

    /// Its batches.
    fn check_ack(&self, call: &Bound<'py, PyAny>) -> PyResult<()> {
        let (count, succeeded): (usize, usize) = (number(call, "count")?, number(call, "succeeded")?);
        assert!(succeeded <= count && count <= self.frame_bytes);
        assert!(number(call, "size")? <= self.frame_bytes);
        let (keys, asked) = counted(|| call.call_method0("keys"));
        self.check_memory("keys", asked);
        let (batches, asked) =
            counted(|| self.module.getattr("group_ack_calls")?.call1(([call], false, MOST_JOBS)));
        self.check_memory("group_ack_calls", asked);
        let mut ids = 0;
        for batch in batches?.try_iter()? {
            let found = batch?.getattr("ids")?.len()?;
            assert!((1..=MOST_JOBS).contains(&found));
            ids += found;
        }
        assert!((keys?.len()?..=count).contains(&ids), "{count} acks, {ids} jobs");
        Ok(())
    }

    fn check_memory(&self, what: &str, asked: usize) {
        let most = FEW_BYTES + EACH_BYTE * self.frame_bytes;
        assert!(asked <= most, "{what} asks for {asked} bytes, of a frame of {}", self.frame_bytes);
    }

    /// The value, or a refusal as it should be.
    fn outcome(&self, result: PyResult<Bound<'py, PyAny>>) -> PyResult<Outcome<'py>> {
        let error = match result {
            Ok(value) => return Ok(Ok(value)),
            Err(error) => error,
        };
        let py = self.module.py();
        if !error.is_instance_of::<PyValueError>(py) {
            return Err(error);
        }
        let text: Bound<'py, PyString> = error.value(py).str()?;
        assert!((1..=LONGEST_TEXT).contains(&text.len()?), "a text of {} characters", text.len()?);
        let is_bad_message = error.is_instance(py, &self.module.getattr("BadMessage")?);
        Ok(Err(Refused { is_bad_message }))
    }
}

fn number(call: &Bound<'_, PyAny>, name: &str) -> PyResult<usize> {
    call.getattr(name)?.extract()
}

/// Where the arguments begin, if the frame has a strict head; or its end.
fn start_of(frame: &[u8]) -> usize {
    let length = frame.get(8..12).and_then(|length| length.try_into().ok()).map_or(0, u32::from_be_bytes);
    (HEAD_BYTES + length as usize).min(frame.len())
}
