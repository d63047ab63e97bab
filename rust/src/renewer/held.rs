//! Which leases are held, and which of them are due: state without I/O and without a clock of its own.
//!
//! Promises: a token is due a third of its lease after it was held or last renewed, or the first time when the caller
//! says; a call carries all due tokens of one queue, up to `MAX_TOKENS`; a queue whose calls are refused backs off
//! alone; a job that is past its limit moves from its claim's lease to one of its own, which is not renewed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;

/// Tokens in one call: the scripts refuse more than 1,000 elements, jobs past their limit among them.
const MAX_TOKENS: usize = 1_000;
/// A lease is renewed when 1/3 of it has passed: two more tries fit before it ends.
const DUE_PART: u32 = 3;
/// A token due within 1/12 of its lease joins a call that goes out anyway, so that leases drift into step.
const EARLY_PART: u32 = 12;
/// Pause after the first failure, doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between tries: a fifteenth of the default lease.
const LAST_PAUSE: Duration = Duration::from_secs(2);

pub type Token = [u8; 8];
pub type JobId = [u8; 8];

/// A running job as the script takes it: priority, id, token.
pub type Item = [u8; 17];

/// One renewal to send: claims of `queue` and jobs that get a lease of their own, 1 to 1,000 in all, due at `taken_at`.
pub struct Call {
    pub queue: u16,
    pub keys: Arc<[Vec<u8>]>,
    pub sequence: u32,
    pub tokens: Vec<Token>,
    /// A job of each of the tokens' claims.
    pub jobs: Vec<Item>,
    /// The jobs past their limit.
    pub own: Vec<Item>,
    pub own_ids: Vec<JobId>,
    /// The longest lease among them: no renewal may leave less than the caller counts on.
    pub lease_ms: u128,
    pub taken_at: Moment,
}

/// What became of a call.
pub enum Outcome {
    /// Renewed, but for the tokens at these positions, which the server no longer knows.
    Renewed(Vec<usize>),
    /// The server does not know the queue: nothing of it is held any more.
    Gone,
    /// The server refused this queue's call: the error.
    Refused(String),
    /// There is no working connection: the error.
    Broken(String),
}

/// Pauses between tries; not waiting when made.
#[derive(Default)]
pub struct Backoff {
    retry_at: Option<Moment>,
    pause: Option<Duration>,
}

impl Backoff {
    pub fn fail(&mut self, now: Moment) {
        let pause = self.pause.map_or(FIRST_PAUSE, |last| (last * 2).min(LAST_PAUSE));
        *self = Self { retry_at: Some(now + pause), pause: Some(pause) };
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// `wanted`, or later if a pause is on.
    pub fn after(&self, wanted: Moment) -> Moment {
        self.retry_at.map_or(wanted, |retry_at| wanted.max(retry_at))
    }
}

struct Lease {
    /// One of its jobs.
    job: Item,
    length: Duration,
    due_at: Moment,
    /// A job left it for a lease of its own. It may have been the last one: that the server does not know the token any
    /// more is no news then.
    parted: bool,
}

/// A running job that may be kept by its claim's lease until `ends_at`.
struct Limit {
    priority: u8,
    token: Token,
    ends_at: Moment,
}

/// The leases of one queue-shard.
pub struct Queue {
    keys: Arc<[Vec<u8>]>,
    sequence: u32,
    leases: HashMap<Token, Lease>,
    limits: HashMap<JobId, Limit>,
    /// No lease is due before this (it may be early: drops do not move it). None when nothing is held.
    due_at: Option<Moment>,
    /// No limit ends before this, likewise.
    limit_at: Option<Moment>,
    backoff: Backoff,
}

impl Queue {
    pub fn new(keys: Vec<Vec<u8>>) -> Self {
        let backoff = Backoff::default();
        Self {
            keys: keys.into(),
            sequence: 0,
            leases: HashMap::new(),
            limits: HashMap::new(),
            due_at: None,
            limit_at: None,
            backoff,
        }
    }

    pub fn held(&self) -> usize {
        self.leases.len()
    }

    /// Hold the lease of a claim, by one of its jobs, from `now` on; returns when it is due. `first`: how soon, if not as
    /// later.
    pub fn hold(
        &mut self,
        priority: u8,
        id: JobId,
        token: Token,
        length: Duration,
        first: Option<Duration>,
        now: Moment,
    ) -> Moment {
        let due_at = now + first.unwrap_or(length / DUE_PART);
        let job = item(priority, id, token);
        self.leases.insert(token, Lease { job, length, due_at, parted: false });
        self.due_at = Some(self.due_at.map_or(due_at, |earliest| earliest.min(due_at)));
        due_at
    }

    pub fn drop_token(&mut self, token: Token) {
        self.leases.remove(&token);
    }

    /// From `ends_at` on the job is not kept by the lease of its claim any more.
    pub fn limit(&mut self, priority: u8, id: JobId, token: Token, ends_at: Moment) {
        self.limits.insert(id, Limit { priority, token, ends_at });
        self.limit_at = Some(self.limit_at.map_or(ends_at, |earliest| earliest.min(ends_at)));
    }

    pub fn drop_limit(&mut self, id: JobId) {
        self.limits.remove(&id);
    }

    /// When to look at this queue next; None when nothing is held.
    pub fn wake_at(&self) -> Option<Moment> {
        let due_at = self.due_at.filter(|_| !self.leases.is_empty());
        let limit_at = self.limit_at.filter(|_| !self.limits.is_empty());
        due_at.into_iter().chain(limit_at).min().map(|first| self.backoff.after(first))
    }

    /// The next call, if a lease is due. Its leases stay due until `settle`.
    pub fn take_call(&mut self, queue: u16, now: Moment) -> Option<Call> {
        self.find_due();
        if self.wake_at().is_none_or(|wake_at| wake_at > now) {
            return None;
        }
        let joining = self.leases.iter().filter(|(_, lease)| lease.due_at <= now + lease.length / EARLY_PART);
        let chosen: Vec<_> = joining.take(MAX_TOKENS).collect();
        let over =
            self.limits.iter().filter(|(_, limit)| limit.ends_at <= now).take(MAX_TOKENS - chosen.len());
        let (own_ids, own) = over.map(|(id, limit)| (*id, item(limit.priority, *id, limit.token))).unzip();
        let (tokens, jobs) = chosen.iter().map(|(token, lease)| (**token, lease.job)).unzip();
        let lease_ms = chosen.iter().map(|(_, lease)| lease.length.as_millis()).max().unwrap_or_default();
        // Wraps after 4 billion renewals of one queue: more than a century at one a second.
        self.sequence = self.sequence.wrapping_add(1);
        Some(Call {
            queue,
            keys: Arc::clone(&self.keys),
            sequence: self.sequence,
            tokens,
            jobs,
            own_ids,
            own,
            lease_ms,
            taken_at: now,
        })
    }

    /// Apply a call's outcome; returns the tokens lost by it. A token dropped meanwhile is not lost.
    pub fn settle(&mut self, call: &Call, outcome: &Outcome, now: Moment) -> Vec<Token> {
        match outcome {
            Outcome::Renewed(refused) => {
                self.backoff.clear();
                let refused = refused.iter().filter_map(|at| call.tokens.get(*at)).copied();
                let ended = refused.filter_map(|token| Some((token, self.leases.remove(&token)?)));
                let lost = ended.filter(|(_, lease)| !lease.parted).map(|(token, _)| token).collect();
                self.part(call);
                self.move_due(call);
                lost
            }
            Outcome::Gone => {
                self.backoff.clear();
                self.due_at = None;
                self.limits.clear();
                self.leases.drain().map(|(token, _)| token).collect()
            }
            Outcome::Refused(_) => {
                self.backoff.fail(now);
                Vec::new()
            }
            Outcome::Broken(_) => Vec::new(),
        }
    }

    /// The call gave its jobs past their limit leases of their own, or refused them: they left their claim's lease before.
    fn part(&mut self, call: &Call) {
        for id in &call.own_ids {
            let limit = self.limits.remove(id);
            if let Some(lease) = limit.and_then(|limit| self.leases.get_mut(&limit.token)) {
                lease.parted = true;
            }
        }
    }

    fn move_due(&mut self, call: &Call) {
        for token in &call.tokens {
            if let Some(lease) = self.leases.get_mut(token) {
                lease.due_at = call.taken_at + lease.length / DUE_PART;
            }
        }
        self.find_due();
    }

    fn find_due(&mut self) {
        self.due_at = self.leases.values().map(|lease| lease.due_at).min();
        self.limit_at = self.limits.values().map(|limit| limit.ends_at).min();
    }
}

fn item(priority: u8, id: JobId, token: Token) -> Item {
    let mut item = [priority; 17];
    item[1..9].copy_from_slice(&id);
    item[9..].copy_from_slice(&token);
    item
}
