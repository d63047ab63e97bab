//! Regular expressions over bodies.
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use regex::bytes::{Regex, RegexBuilder};

/// The longest pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 4096;
/// What a compiled pattern may take. A match costs at most its states times the bytes of the body: about a second for
/// a mebibyte and the worst pattern.
const MAX_COMPILED_BYTES: usize = 32 * 1024;
/// What a match may keep of the states that it has seen.
const MAX_CACHE_BYTES: usize = 1024 * 1024;

/// A regular expression that is looked for in bodies: in time linear in the body, whatever the pattern.
///
/// It works on bytes: a class and a dot mean single bytes, and letters, digits and cases are those of ASCII. A character
/// outside ASCII stands for its bytes in UTF-8.
#[pyclass(frozen, module = "pinlater._core")]
pub struct BodyPattern {
    regex: Regex,
}

#[pymethods]
impl BodyPattern {
    /// `ValueError` names what is wrong with the pattern, or that it is too large.
    #[new]
    fn new(pattern: &str) -> PyResult<Self> {
        if pattern.len() > MAX_PATTERN_BYTES {
            let bytes = pattern.len();
            return Err(refused(&format!("at most {MAX_PATTERN_BYTES} bytes, got {bytes}")));
        }
        let built = RegexBuilder::new(pattern)
            .unicode(false)
            .size_limit(MAX_COMPILED_BYTES)
            .dfa_size_limit(MAX_CACHE_BYTES)
            .build();
        let regex = built.map_err(|error| match error {
            regex::Error::CompiledTooBig(most) => {
                refused(&format!("one that compiles to {most} bytes at most"))
            }
            wrong => refused(&format!("a regular expression: {wrong}")),
        })?;
        Ok(Self { regex })
    }

    /// Whether the pattern is found anywhere in the body.
    fn matches(&self, body: &[u8]) -> bool {
        self.regex.is_match(body)
    }
}

fn refused(expected: &str) -> PyErr {
    PyValueError::new_err(format!("pattern: expected {expected}"))
}
