//! `pinlater._core`: the native part of PinLater. Bytes in, values out.
use pyo3::prelude::*;

#[pymodule]
mod _core {
    #[pymodule_export]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
