//! What a lookup or scan tells of a job.
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bad_argument::BadArgument;
use crate::reader::Reader;

/// pending, in progress, succeeded, failed.
const STATES: u8 = 4;

/// (state, priority, id, attempts allowed, attempts remaining, run-after ms, updated ms, crashes, status, claim, body)
type JobInfo<'py> = (u8, u8, u64, u16, u16, u64, u64, u16, String, String, Option<Bound<'py, PyBytes>>);

/// Reads `docs/design.md`, "Job info". Text that is not UTF-8 has its wrong bytes replaced; `body` is None if it was
/// not asked for. `ValueError` if it is malformed.
#[pyfunction]
pub fn unpack_info<'py>(py: Python<'py>, info: &[u8]) -> PyResult<JobInfo<'py>> {
    let mut reader = Reader::new("job info", info);
    let (state, priority, id) = (reader.u8()?, reader.u8()?, reader.number(8)?);
    if state >= STATES {
        return Err(BadArgument::Value(format!("job info: expected a state from 0 to 3, got {state}")).into());
    }
    let (allowed, remaining) = (reader.u16()?, reader.u16()?);
    let (run_after_ms, updated_ms, crashes) = (reader.number(6)?, reader.number(6)?, reader.u16()?);
    let (status, claim) = (text(&mut reader)?, text(&mut reader)?);
    let body = read_body(&mut reader)?.map(|body| PyBytes::new(py, body));
    Ok((state, priority, id, allowed, remaining, run_after_ms, updated_ms, crashes, status, claim, body))
}

fn text(reader: &mut Reader<'_>) -> Result<String, BadArgument> {
    let length = usize::from(reader.u16()?);
    Ok(String::from_utf8_lossy(reader.take(length)?).into_owned())
}

fn read_body<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a [u8]>, BadArgument> {
    let (has_body, rest) = (reader.u8()?, reader.rest());
    match (has_body, rest.len()) {
        (1, _) => Ok(Some(rest)),
        (0, 0) => Ok(None),
        (0, more) => Err(BadArgument::Value(format!("job info: expected no body, got {more} bytes"))),
        (flag, _) => Err(BadArgument::Value(format!("job info: expected has body 0 or 1, got {flag}"))),
    }
}
