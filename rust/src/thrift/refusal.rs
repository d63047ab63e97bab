//! The kinds of refusal that the server answers differently.
use std::fmt::Display;

use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::bad_argument::BadArgument;

create_exception!(
    pinlater._core,
    BadMessage,
    PyValueError,
    "The bytes are no message of Thrift's binary protocol, or break a limit of it."
);
create_exception!(pinlater._core, MissingField, PyValueError, "A required field is not there.");
create_exception!(
    pinlater._core,
    PriorityNotSupported,
    PyValueError,
    "A job has a priority that its queue does not have."
);

/// Becomes an error of Python. All are `ValueError`s.
#[derive(Debug)]
pub enum Refusal {
    Message(String),
    Missing(String),
    Priority(String),
    Argument(BadArgument),
}

impl Refusal {
    /// The same refusal, with its position in front.
    pub fn at(self, position: impl Display) -> Self {
        match self {
            Self::Message(message) => Self::Message(format!("{position}: {message}")),
            Self::Missing(message) => Self::Missing(format!("{position}: {message}")),
            Self::Priority(message) => Self::Priority(format!("{position}: {message}")),
            Self::Argument(argument) => Self::Argument(argument.at(position)),
        }
    }
}

impl From<BadArgument> for Refusal {
    fn from(argument: BadArgument) -> Self {
        Self::Argument(argument)
    }
}

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Message(message) => BadMessage::new_err(message),
            Refusal::Missing(message) => MissingField::new_err(message),
            Refusal::Priority(message) => PriorityNotSupported::new_err(message),
            Refusal::Argument(argument) => argument.into(),
        }
    }
}
