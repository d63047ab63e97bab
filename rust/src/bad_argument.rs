//! An argument that is refused: what was expected and what came.
use std::fmt::Display;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Becomes a Python `TypeError` or `ValueError`; the layer above translates those.
#[derive(Debug, PartialEq, Eq)]
pub enum BadArgument {
    Type(String),
    Value(String),
}

impl BadArgument {
    /// The same refusal, with its position in front.
    pub fn at(self, position: impl Display) -> Self {
        match self {
            Self::Type(message) => Self::Type(format!("{position}: {message}")),
            Self::Value(message) => Self::Value(format!("{position}: {message}")),
        }
    }
}

impl From<BadArgument> for PyErr {
    fn from(refusal: BadArgument) -> Self {
        match refusal {
            BadArgument::Type(message) => PyTypeError::new_err(message),
            BadArgument::Value(message) => PyValueError::new_err(message),
        }
    }
}
