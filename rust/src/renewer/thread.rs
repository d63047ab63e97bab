//! The thread of a renewer, and what it shares with the Python side.
//!
//! Promises: the lock is held for short computations only, never for I/O; the thread never takes the GIL, so a caller
//! may take the lock with the GIL held; with nothing held the thread sleeps until woken.
//! Risks: one call is under way at a time: a server that hangs delays every queue until the timeout.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{self, Moment};

use super::connection::{Connection, Socket, Target};
use super::held::{Backoff, Call, Outcome, Queue, Token};

/// A sleep does not end in suspended time (its clock is the monotonic one), so the thread looks this often at its own.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// What the thread and the Python side share.
#[derive(Default)]
pub struct Shared {
    state: Mutex<State>,
    /// The thread waits here.
    pub wake: Condvar,
    /// `wait_renewed` waits here.
    pub answered: Condvar,
}

#[derive(Default)]
pub struct State {
    pub queues: Vec<Queue>,
    pub lost: VecDeque<(u16, Token)>,
    /// When the thread will look again by itself; None while only `wake` wakes it.
    pub wakes_at: Option<Moment>,
    backoff: Backoff,
    socket: Option<Socket>,
    pub closing: bool,
    pub connected: bool,
    pub renewals: u64,
    pub tokens_renewed: u64,
    pub failures: u64,
    pub last_error: String,
}

enum Next {
    Call(Call),
    Sleep(Option<Moment>),
}

impl State {
    pub fn queue(&mut self, handle: u16) -> Result<&mut Queue, String> {
        let count = self.queues.len();
        let queue = self.queues.get_mut(usize::from(handle));
        queue.ok_or_else(|| format!("expected a queue handle below {count}, came {handle}"))
    }

    /// A call that is due, or until when to sleep (None: until woken).
    fn next(&mut self, now: Moment) -> Next {
        let Some((queue, due_at)) = self.first_due() else {
            return Next::Sleep(None);
        };
        let due_at = self.backoff.after(due_at);
        if due_at > now {
            return Next::Sleep(Some(due_at));
        }
        let held = self.queues.get_mut(usize::from(queue));
        let call = held.and_then(|held| held.take_call(queue, now));
        call.map_or(Next::Sleep(Some(now)), Next::Call) // nothing was due after all: look again
    }

    /// The queue to look at first, and when.
    fn first_due(&self) -> Option<(u16, Moment)> {
        let wakes =
            self.queues.iter().zip(0..).filter_map(|(queue, handle)| Some((handle, queue.wake_at()?)));
        wakes.min_by_key(|(_, wake_at)| *wake_at)
    }

    fn settle(&mut self, call: &Call, outcome: Outcome, now: Moment) {
        let lost =
            self.queues.get_mut(usize::from(call.queue)).map(|queue| queue.settle(call, &outcome, now));
        self.lost.extend(lost.into_iter().flatten().map(|token| (call.queue, token)));
        self.connected = !matches!(outcome, Outcome::Broken(_));
        match outcome {
            Outcome::Renewed(refused) => {
                self.renewals += 1;
                self.tokens_renewed += call.tokens.len().saturating_sub(refused.len()) as u64;
                self.backoff.clear();
            }
            Outcome::Gone => self.backoff.clear(),
            Outcome::Refused(error) => self.fail(error),
            Outcome::Broken(error) => {
                self.backoff.fail(now);
                self.socket = None;
                self.fail(error);
            }
        }
    }

    fn fail(&mut self, error: String) {
        self.failures += 1;
        self.last_error = error;
    }
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn close(&self) {
        let mut state = self.lock();
        state.closing = true;
        if let Some(socket) = state.socket.take() {
            socket.shut_down();
        }
        self.wake.notify_one();
        self.answered.notify_all();
    }

    /// Blocks until a call is due; None once closing.
    fn next_call(&self) -> Option<Call> {
        let mut state = self.lock();
        while !state.closing {
            let now = clock::now();
            state.wakes_at = match state.next(now) {
                Next::Call(call) => {
                    state.wakes_at = Some(now); // awake: whoever holds need not wake it
                    return Some(call);
                }
                Next::Sleep(until) => until,
            };
            state = self.sleep(state, now);
        }
        None
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>, now: Moment) -> MutexGuard<'a, State> {
        let Some(until) = state.wakes_at else {
            return self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        let length = until.saturating_sub(now).min(LONGEST_SLEEP);
        let slept = self.wake.wait_timeout(state, length);
        slept.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Take the second handle of a new connection's socket, so that `close` can end its waits.
    fn register(&self, socket: Socket) -> Result<(), String> {
        let mut state = self.lock();
        if state.closing {
            return Err("closed while connecting".to_owned());
        }
        state.socket = Some(socket);
        Ok(())
    }
}

/// The thread: one call at a time until `close`.
pub fn run(shared: &Shared, target: &Target) {
    let mut connection = None;
    while let Some(call) = shared.next_call() {
        let outcome = match open(&mut connection, shared, target) {
            Ok(connection) => connection.renew(target, &call),
            Err(error) => Outcome::Broken(error),
        };
        if matches!(outcome, Outcome::Broken(_)) {
            connection = None;
        }
        shared.lock().settle(&call, outcome, clock::now());
        shared.answered.notify_all();
    }
}

fn open<'a>(
    held: &'a mut Option<Connection>,
    shared: &Shared,
    target: &Target,
) -> Result<&'a mut Connection, String> {
    let connection = match held.take() {
        Some(connection) => connection,
        None => Connection::open(target, |socket| shared.register(socket))?,
    };
    Ok(held.insert(connection))
}
