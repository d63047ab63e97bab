//! Checks of single arguments, and how a refused value is shown.
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyMemoryView, PyString};

use crate::bad_argument::BadArgument;

/// Characters of a refused value that a message shows: enough to recognise it, never a whole body.
const SHOWN_CHARS: usize = 80;

/// An argument that has a default, kept apart from one given as `None`.
pub struct Given<'py>(pub Option<Bound<'py, PyAny>>);

impl<'py> FromPyObject<'py> for Given<'py> {
    fn extract_bound(value: &Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(value.clone())))
    }
}

/// An int within `low..=high`; a bool or a float is not one.
pub fn integer<T>(name: &str, value: &Bound<'_, PyAny>, low: T, high: T) -> Result<T, BadArgument>
where
    T: Copy + PartialOrd + Into<u64> + for<'py> FromPyObject<'py>,
{
    let range = || format!("{} to {}", grouped(low.into()), grouped(high.into()));
    if !value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>() {
        return Err(BadArgument::Type(format!(
            "{name}: expected an int from {}, got {}",
            range(),
            shown(value)
        )));
    }
    match value.extract::<T>() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ => Err(BadArgument::Value(format!("{name}: expected {}, got {}", range(), shown(value)))),
    }
}

/// The very object if it is `bytes`, else a copy of what a bytes-like object holds.
pub fn bytes_like<'py>(name: &str, value: &Bound<'py, PyAny>) -> Result<Bound<'py, PyBytes>, BadArgument> {
    if let Ok(bytes) = value.downcast_exact::<PyBytes>() {
        return Ok(bytes.clone());
    }
    let hint =
        if value.is_instance_of::<PyString>() { "; encode it first, such as text.encode()" } else { "" };
    PyMemoryView::from(value)
        .and_then(|view| view.call_method0("tobytes"))
        .ok()
        .and_then(|copy| copy.downcast_into::<PyBytes>().ok())
        .ok_or_else(|| {
            BadArgument::Type(format!(
                "{name}: expected bytes, got {} {}{hint}",
                type_name(value),
                shown(value)
            ))
        })
}

/// Text that UTF-8 can encode.
pub fn text<'a>(name: &str, value: &'a Bound<'_, PyAny>) -> Result<&'a str, BadArgument> {
    let string = value.downcast::<PyString>().map_err(|_| {
        BadArgument::Type(format!("{name}: expected a str, got {} {}", type_name(value), shown(value)))
    })?;
    string.to_str().map_err(|_| {
        BadArgument::Value(format!("{name}: expected text that UTF-8 can encode, got {}", shown(value)))
    })
}

/// Text or bytes of at most `most` bytes.
pub fn check_length(name: &str, length: usize, least: usize, most: usize) -> Result<(), BadArgument> {
    if (least..=most).contains(&length) {
        return Ok(());
    }
    let range = if least == 0 {
        format!("at most {}", grouped(most as u64))
    } else {
        format!("{least} to {}", grouped(most as u64))
    };
    Err(BadArgument::Value(format!("{name}: expected {range} bytes, got {}", grouped(length as u64))))
}

/// A value as a message shows it: its repr, cut.
pub fn shown(value: &Bound<'_, PyAny>) -> String {
    match value.repr() {
        Ok(repr) => cut(&repr.to_string_lossy()),
        // Python refuses to print an int of thousands of digits.
        Err(_) => format!("a {} too long to show", type_name(value)),
    }
}

/// A body as a repr shows it: only its start is looked at, as it may be a mebibyte.
pub fn shown_body(body: &Bound<'_, PyBytes>) -> String {
    match body.as_bytes().get(..SHOWN_CHARS) {
        Some(start) => cut(&shown(&PyBytes::new(body.py(), start))),
        None => shown(body),
    }
}

/// Text as a message quotes it, cut.
pub fn quoted(text: &str) -> String {
    // one more than is shown: of a long text no copy is made
    let end = text.char_indices().nth(SHOWN_CHARS).map_or(text.len(), |(end, _)| end);
    cut(&format!("{:?}", &text[..end]))
}

/// A number with its thousands apart: 1,048,576.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}
