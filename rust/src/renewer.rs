//! `LeaseRenewer`: renews the leases of running jobs on a thread of its own.
//!
//! Promises: neither a busy event loop nor a C call that holds the GIL ends a lease, a stopped process does; with
//! nothing held it sends nothing; no error ends the thread, each is counted and tried again; after a suspend of the
//! machine it renews within a second what is due.
//! Risks: a lease ends when its server is away for more than two thirds of it. A token must be dropped before the ack
//! of its last job is sent, or a renewal that crosses it reports the token as lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::clock;

use self::connection::{Address, Target};
use self::held::{Queue, Token};
use self::thread::{Shared, State};
use self::tls::TlsOptions;

mod connection;
mod held;
mod resp;
mod thread;
mod tls;

/// Queue-shards of one renewer: the handle is the lane's slot, a u16 on the wire.
const MAX_QUEUES: usize = 1 << 16;
/// The longest timeout taken, seconds: beyond a day it is a mistake, and clocks would overflow.
const MAX_TIMEOUT_S: f64 = 86_400.0;

/// Renews held leases on a thread that needs no GIL.
///
/// `address`: `host:port` or `unix:/path`; `handshake`: RESP commands sent after each connect; `script`: source of
/// the renew script; `session`: 8 random bytes of this renewer alone (its lanes); `timeout_s`: for each read and write.
/// `tls`: `ca_certs`, `cert`, `key` (paths or None), `server_name`, `verify` ("required" or "none"), `check_hostname`.
/// The thread starts at once, the connection with the first renewal. Raises `ValueError` for what cannot work.
/// In a forked child everything but `close` raises `RuntimeError`.
#[pyclass(frozen, module = "pinlater._core")]
pub struct LeaseRenewer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    process_id: u32,
}

/// What a renewer has done so far; a snapshot.
#[pyclass(frozen, get_all, module = "pinlater._core")]
pub struct RenewerStats {
    /// Calls the server carried out.
    renewals: u64,
    /// Tokens of those calls that still had their lease.
    tokens_renewed: u64,
    /// Connects and calls that failed or were refused.
    failures: u64,
    /// The last of them; empty before the first, kept after a recovery.
    last_error: String,
    /// Whether the last try found a working connection.
    connected: bool,
    /// Tokens held now.
    held: usize,
}

#[pymethods]
impl LeaseRenewer {
    #[new]
    #[pyo3(signature = (address, handshake, script, session, *, tls=None, timeout_s=5.0))]
    fn new(
        address: &str,
        handshake: Vec<PyBackedBytes>,
        script: &[u8],
        session: &[u8],
        tls: Option<TlsOptions>,
        timeout_s: f64,
    ) -> PyResult<Self> {
        let target = Target {
            address: Address::parse(address).map_err(PyValueError::new_err)?,
            handshake: owned(handshake),
            script: script.to_vec(),
            session: eight_bytes("session", session)?,
            tls,
            timeout: timeout(timeout_s)?,
        };
        check(&target).map_err(PyValueError::new_err)?;
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = Builder::new()
            .name("lease-renewer".to_owned())
            .spawn(move || thread::run(&of_thread, &target))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)), process_id: std::process::id() })
    }

    /// A handle for the queue-shard whose renew script has these KEYS; `ValueError` past 65,536 of them.
    /// The keys do not change: name every priority that the queue may ever have, or renewals end with `CONFIG_CHANGED` once it has more.
    fn add_queue(&self, keys: Vec<PyBackedBytes>) -> PyResult<u16> {
        let mut state = self.open_state()?;
        let handle = u16::try_from(state.queues.len()).map_err(|_| {
            PyValueError::new_err(format!(
                "expected at most {MAX_QUEUES} queues of one renewer, came one more"
            ))
        })?;
        state.queues.push(Queue::new(owned(keys)));
        Ok(handle)
    }

    /// Keep the lease of a claim renewed from now on. `priority`, `id` and `token` (8 bytes each): one of its jobs, the first
    /// or any other; `lease_ms` is the lease's full length. It is first renewed after `first_ms`, or a third of that length.
    #[pyo3(signature = (queue, priority, id, token, lease_ms, first_ms=None))]
    fn hold(
        &self,
        queue: u16,
        priority: u8,
        id: &[u8],
        token: &[u8],
        lease_ms: u32,
        first_ms: Option<u32>,
    ) -> PyResult<()> {
        let (id, token) = (eight_bytes("id", id)?, eight_bytes("token", token)?);
        if lease_ms == 0 {
            return Err(PyValueError::new_err("expected a lease of at least 1 ms, came 0"));
        }
        let mut state = self.open_state()?;
        let length = Duration::from_millis(lease_ms.into());
        let held = state.queue(queue).map_err(PyValueError::new_err)?;
        let first = first_ms.map(|first_ms| Duration::from_millis(first_ms.into()));
        let due_at = held.hold(priority, id, token, length, first, clock::now());
        if state.wakes_at.is_none_or(|wakes_at| due_at < wakes_at) {
            self.shared.wake.notify_one();
        }
        Ok(())
    }

    /// Stop renewing `token`; no error if it is not held.
    fn drop(&self, queue: u16, token: &[u8]) -> PyResult<()> {
        let token = eight_bytes("token", token)?;
        let mut state = self.state()?;
        state.queue(queue).map_err(PyValueError::new_err)?.drop_token(token);
        Ok(())
    }

    /// From `after_s` on the job is not kept by its claim's lease: it gets one of its own, which ends by itself.
    /// `priority`, `id` and `token` (8 bytes each): the running job.
    fn limit(&self, queue: u16, priority: u8, id: &[u8], token: &[u8], after_s: f64) -> PyResult<()> {
        let (id, token) = (eight_bytes("id", id)?, eight_bytes("token", token)?);
        let after = Duration::try_from_secs_f64(after_s)
            .map_err(|_| PyValueError::new_err(format!("expected seconds, 0 or more, came {after_s}")))?;
        let mut state = self.open_state()?;
        let Some(ends_at) = clock::now().checked_add(after) else {
            return Ok(()); // never
        };
        state.queue(queue).map_err(PyValueError::new_err)?.limit(priority, id, token, ends_at);
        if state.wakes_at.is_none_or(|wakes_at| ends_at < wakes_at) {
            self.shared.wake.notify_one();
        }
        Ok(())
    }

    /// The job ended; no error if it has no limit.
    fn drop_limit(&self, queue: u16, id: &[u8]) -> PyResult<()> {
        let id = eight_bytes("id", id)?;
        let mut state = self.state()?;
        state.queue(queue).map_err(PyValueError::new_err)?.drop_limit(id);
        Ok(())
    }

    /// The (handle, token) pairs that the server no longer had since the last call. They are no longer held.
    fn take_lost(&self) -> PyResult<Vec<(u16, Token)>> {
        Ok(self.state()?.lost.drain(..).collect())
    }

    /// Totals since the start, and the present state.
    fn stats(&self) -> PyResult<RenewerStats> {
        let state = self.state()?;
        Ok(RenewerStats {
            renewals: state.renewals,
            tokens_renewed: state.tokens_renewed,
            failures: state.failures,
            last_error: state.last_error.clone(),
            connected: state.connected,
            held: state.queues.iter().map(Queue::held).sum(),
        })
    }

    /// Wait until `n` renewal calls in all have succeeded; False after `timeout_s` seconds or a close.
    /// The GIL is released, but signal handlers run only afterwards.
    fn wait_renewed(&self, py: Python<'_>, n: u64, timeout_s: f64) -> PyResult<bool> {
        self.check_process()?;
        let limit = timeout(timeout_s)?;
        Ok(py.detach(|| {
            let waiting = |state: &mut State| state.renewals < n && !state.closing;
            let waited = self.shared.answered.wait_timeout_while(self.shared.lock(), limit, waiting);
            waited.unwrap_or_else(PoisonError::into_inner).0.renewals >= n
        }))
    }

    /// End the thread and wait for it, at most for a connect under way; twice is fine. In a forked child: nothing.
    fn close(&self, py: Python<'_>) {
        if self.forked() {
            return;
        }
        self.shared.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread cannot panic, and a close has nothing to do with it if it did.
            let _ = py.detach(|| thread.join());
        }
    }
}

impl LeaseRenewer {
    fn forked(&self) -> bool {
        std::process::id() != self.process_id
    }

    /// Before any lock: in a forked child the thread is gone, and may have held it.
    fn check_process(&self) -> PyResult<()> {
        if !self.forked() {
            return Ok(());
        }
        let (here, there) = (std::process::id(), self.process_id);
        Err(PyRuntimeError::new_err(format!(
            "expected use in process {there}, came use in process {here}: forked without its thread, make a new one"
        )))
    }

    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        self.check_process()?;
        Ok(self.shared.lock())
    }

    fn open_state(&self) -> PyResult<MutexGuard<'_, State>> {
        let state = self.state()?;
        if state.closing {
            return Err(PyRuntimeError::new_err("expected an open LeaseRenewer, came use after close()"));
        }
        Ok(state)
    }
}

impl Drop for LeaseRenewer {
    /// Ends the thread without waiting for it: this may run at any point of the interpreter.
    fn drop(&mut self) {
        if !self.forked() {
            self.shared.close();
            return;
        }
        // A child's handle stands for a thread that is not there; not even detaching it is defined.
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        std::mem::forget(thread);
    }
}

fn check(target: &Target) -> Result<(), String> {
    if target.handshake.iter().any(|command| !command.starts_with(b"*") || !command.ends_with(b"\r\n")) {
        return Err(
            "expected RESP arrays as handshake commands, came other bytes (a secret, maybe)".to_owned()
        );
    }
    match (&target.tls, &target.address) {
        (Some(_), Address::Unix(path)) => {
            Err(format!("expected no tls with a unix socket, came tls for {}", path.display()))
        }
        (Some(tls), Address::Tcp(_)) => tls.check(),
        (None, _) => Ok(()),
    }
}

fn owned(items: Vec<PyBackedBytes>) -> Vec<Vec<u8>> {
    items.into_iter().map(|item| item.to_vec()).collect()
}

fn eight_bytes(what: &str, bytes: &[u8]) -> PyResult<[u8; 8]> {
    let expected =
        || PyValueError::new_err(format!("expected a {what} of 8 bytes, came {} bytes", bytes.len()));
    bytes.try_into().map_err(|_| expected())
}

fn timeout(seconds: f64) -> PyResult<Duration> {
    let duration =
        Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds > 0.0 && seconds <= MAX_TIMEOUT_S);
    duration.ok_or_else(|| {
        PyValueError::new_err(format!(
            "expected a timeout_s above 0 and up to {MAX_TIMEOUT_S}, came {seconds}"
        ))
    })
}
