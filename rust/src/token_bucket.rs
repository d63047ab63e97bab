//! Tokens of a limited queue that this process may use; the caller brings the clock.
use pyo3::prelude::*;

use crate::arguments::integer;
use crate::bad_argument::BadArgument;

/// The largest number of tokens, and the latest time in ms: a signed number of 64 bits holds them.
const MOST: u64 = (1 << 63) - 1;
/// Most tokens that a flow collects: with any `per_ms`, that many tokens have fewer than 2^53 units.
const MOST_BURST: u64 = 1_000_000;

/// Tokens that a process may use: of a grant, which ends, or of a rate that flows in.
///
/// A new one is empty. Times are ms of any one monotonic clock. A time behind the latest one seen counts as the latest.
/// `ValueError` for a number out of range, `TypeError` for what is no int; a refused call changes nothing.
#[pyclass(module = "pinlater._core")]
#[derive(Debug)]
pub struct TokenBucket {
    supply: Supply,
    latest_ms: u64,
}

#[pymethods]
impl TokenBucket {
    #[new]
    fn new() -> Self {
        Self { supply: Supply::Grant(Grant::default()), latest_ms: 0 }
    }

    /// Holds these `n` tokens until then (exclusive), instead of all that it held; nothing flows in any more.
    fn grant(&mut self, n: &Bound<'_, PyAny>, until_ms: &Bound<'_, PyAny>) -> PyResult<()> {
        let (n, until_ms) = (number("n", n)?, number("until_ms", until_ms)?);
        self.supply = Supply::Grant(Grant { granted: n, left: n, until_ms });
        self.pass_until(self.latest_ms);
        Ok(())
    }

    /// From now on `count` tokens flow in every `per_ms`, up to `burst`; 0 of them are a pause, in which `take` gives none.
    ///
    /// Starts empty after a grant, which it drops. A flow that changes keeps its tokens and its part of a token, up
    /// to `burst`; what the new rate cannot express exactly is rounded down.
    fn flow(
        &mut self,
        count: &Bound<'_, PyAny>,
        per_ms: &Bound<'_, PyAny>,
        burst: &Bound<'_, PyAny>,
        now_ms: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let count = integer("count", count, 0, u64::from(u32::MAX))?;
        let per_ms = integer("per_ms", per_ms, 1, u64::from(u32::MAX))?;
        let burst = integer("burst", burst, 1, MOST_BURST)?;
        self.pass_until(number("now_ms", now_ms)?);
        let units = self.supply.units_at(per_ms).min(burst * per_ms);
        self.supply = Supply::Flow(Flow { count, per_ms, burst, units });
        Ok(())
    }

    /// Takes up to `n` tokens; returns how many.
    fn take(&mut self, n: &Bound<'_, PyAny>, now_ms: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (n, now_ms) = (number("n", n)?, number("now_ms", now_ms)?);
        self.pass_until(now_ms);
        Ok(match &mut self.supply {
            Supply::Grant(grant) => grant.take(n),
            Supply::Flow(flow) if flow.count == 0 => 0,
            Supply::Flow(flow) => flow.take(n),
        })
    }

    /// Returns `n` unused tokens: at most up to what was granted (less what `empty` took), or up to the burst.
    fn give_back(&mut self, n: &Bound<'_, PyAny>) -> PyResult<()> {
        let n = number("n", n)?;
        match &mut self.supply {
            Supply::Grant(grant) => grant.left = grant.left.saturating_add(n).min(grant.granted),
            Supply::Flow(flow) => flow.add(n.saturating_mul(flow.per_ms)),
        }
        Ok(())
    }

    /// Takes all whole tokens, in a pause too; returns how many.
    fn empty(&mut self, now_ms: &Bound<'_, PyAny>) -> PyResult<u64> {
        self.pass_until(number("now_ms", now_ms)?);
        Ok(match &mut self.supply {
            Supply::Grant(grant) => grant.empty(),
            Supply::Flow(flow) => flow.take(MOST),
        })
    }

    /// The ms until `take(n)` gives n. `None`: it never does without another grant or flow.
    fn wait_ms(&mut self, n: &Bound<'_, PyAny>, now_ms: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        let (n, now_ms) = (number("n", n)?, number("now_ms", now_ms)?);
        self.pass_until(now_ms);
        Ok(match &self.supply {
            Supply::Grant(grant) => (n <= grant.left).then_some(0),
            Supply::Flow(flow) => flow.wait_ms(n, self.latest_ms - now_ms),
        })
    }

    /// Tokens held as of the last call.
    #[getter]
    fn held(&self) -> u64 {
        match &self.supply {
            Supply::Grant(grant) => grant.left,
            Supply::Flow(flow) => flow.whole(),
        }
    }

    fn __repr__(&self) -> String {
        format!("<TokenBucket of {} tokens>", self.held())
    }
}

impl TokenBucket {
    /// Ends a grant whose time is over, or lets flow in what is due since the latest time.
    fn pass_until(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.latest_ms);
        self.latest_ms += passed_ms;
        match &mut self.supply {
            Supply::Grant(grant) if self.latest_ms >= grant.until_ms => *grant = Grant::default(),
            Supply::Grant(_) => (),
            Supply::Flow(flow) => flow.add(passed_ms.saturating_mul(flow.count)),
        }
    }
}

/// Where the tokens come from.
#[derive(Debug)]
enum Supply {
    Grant(Grant),
    Flow(Flow),
}

impl Supply {
    /// What a flow of another `per_ms` starts with: what this flow holds, in units of the other one, rounded down.
    fn units_at(&self, per_ms: u64) -> u64 {
        match self {
            Self::Grant(_) => 0,
            Self::Flow(flow) => flow.whole() * per_ms + flow.units % flow.per_ms * per_ms / flow.per_ms,
        }
    }
}

/// Tokens until a time; the default is an ended one.
#[derive(Debug, Default)]
struct Grant {
    granted: u64,
    left: u64,
    until_ms: u64,
}

impl Grant {
    fn take(&mut self, n: u64) -> u64 {
        let taken = n.min(self.left);
        self.left -= taken;
        taken
    }

    /// What is emptied is no longer granted, so a `give_back` cannot return it once more.
    fn empty(&mut self) -> u64 {
        self.granted -= self.left;
        self.take(MOST)
    }
}

/// Tokens that flow in. A token costs `per_ms` units and each ms adds `count` units, so nothing is ever rounded.
#[derive(Debug)]
struct Flow {
    count: u64,
    per_ms: u64,
    burst: u64,
    units: u64,
}

impl Flow {
    /// A number of units that saturated is above any burst.
    fn add(&mut self, units: u64) {
        self.units = self.units.saturating_add(units).min(self.burst * self.per_ms);
    }

    fn whole(&self) -> u64 {
        self.units / self.per_ms
    }

    fn take(&mut self, n: u64) -> u64 {
        let taken = n.min(self.whole());
        self.units -= taken * self.per_ms;
        taken
    }

    /// `behind_ms`: how far the clock stands behind the latest time; nothing flows in until it has caught up.
    fn wait_ms(&self, n: u64, behind_ms: u64) -> Option<u64> {
        let most = if self.count == 0 { 0 } else { self.burst };
        if n > most {
            return None;
        }
        let missing = (n * self.per_ms).saturating_sub(self.units);
        Some(if missing == 0 { 0 } else { behind_ms + missing.div_ceil(self.count) })
    }
}

fn number(name: &str, value: &Bound<'_, PyAny>) -> Result<u64, BadArgument> {
    integer(name, value, 0, MOST)
}
