//! A rate limit; the caller brings the clock.
use pyo3::prelude::*;

use crate::bad_argument::BadArgument;

/// Part of a token that counts as a whole one: after exactly `wait_s` the sum may be short by rounding.
const ROUNDING: f64 = 1e-9;
/// Seconds of rate that the default burst holds.
const DEFAULT_BURST_S: f64 = 1.0;

/// Tokens that flow in at `rate_per_s` up to `burst`, and start full. A rate of 0 is a pause.
///
/// `burst` (at least 1) is a second's worth by default, and then follows the rate. `now_s` is of any one clock;
/// while it stands behind the latest time seen nothing flows in. `ValueError` for a rate, burst, number or time that is
/// NaN, infinite or negative.
#[pyclass(module = "pinlater._core")]
#[derive(Debug)]
pub struct TokenBucket {
    #[pyo3(get)]
    rate_per_s: f64,
    #[pyo3(get)]
    burst: f64,
    burst_follows: bool,
    tokens: f64,
    latest_s: Option<f64>,
}

#[pymethods]
impl TokenBucket {
    #[new]
    #[pyo3(signature = (rate_per_s, burst=None))]
    fn new(rate_per_s: f64, burst: Option<f64>) -> PyResult<Self> {
        check("rate_per_s", rate_per_s, 0.0)?;
        let full = burst.unwrap_or_else(|| default_burst(rate_per_s));
        check("burst", full, 1.0)?;
        Ok(Self { rate_per_s, burst: full, burst_follows: burst.is_none(), tokens: full, latest_s: None })
    }

    /// Takes up to `n` tokens; returns how many.
    fn take(&mut self, n: i64, now_s: f64) -> PyResult<i64> {
        let n = check_count(n)?;
        self.refill(now_s)?;
        let granted = n.min(self.whole_tokens());
        self.tokens = (self.tokens - as_tokens(granted)).max(0.0);
        Ok(granted)
    }

    /// Returns `n` unused tokens to the bucket.
    fn give_back(&mut self, n: i64) -> PyResult<()> {
        self.tokens = (self.tokens + as_tokens(check_count(n)?)).min(self.burst);
        Ok(())
    }

    /// Seconds until `take(n)` gives n; infinite while paused, or if n is more than the burst.
    fn wait_s(&mut self, n: i64, now_s: f64) -> PyResult<f64> {
        let n = as_tokens(check_count(n)?);
        self.refill(now_s)?;
        if self.rate_per_s == 0.0 || n > self.burst {
            return Ok(f64::INFINITY);
        }
        let missing = n - self.tokens;
        Ok(if missing <= ROUNDING { 0.0 } else { missing / self.rate_per_s })
    }

    /// Changes the rate from now on.
    fn set_rate(&mut self, rate_per_s: f64, now_s: f64) -> PyResult<()> {
        check("rate_per_s", rate_per_s, 0.0)?;
        self.refill(now_s)?;
        self.rate_per_s = rate_per_s;
        if self.burst_follows {
            self.burst = default_burst(rate_per_s);
            self.tokens = self.tokens.min(self.burst);
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("TokenBucket(rate_per_s={}, burst={})", self.rate_per_s, self.burst)
    }
}

impl TokenBucket {
    fn refill(&mut self, now_s: f64) -> Result<(), BadArgument> {
        if !now_s.is_finite() {
            return Err(BadArgument::Value(format!("now_s: expected a finite number, got {now_s}")));
        }
        let latest_s = self.latest_s.map_or(now_s, |latest_s| latest_s.max(now_s));
        // Bounded, as an infinite time of a rate of 0 is no number.
        let passed_s = (latest_s - self.latest_s.unwrap_or(latest_s)).min(f64::MAX);
        self.tokens = (self.tokens + passed_s * self.rate_per_s).min(self.burst);
        self.latest_s = Some(latest_s);
        Ok(())
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "a cast from float saturates, which is right for a count"
    )]
    fn whole_tokens(&self) -> i64 {
        if self.rate_per_s == 0.0 { 0 } else { (self.tokens + ROUNDING) as i64 }
    }
}

fn default_burst(rate_per_s: f64) -> f64 {
    (rate_per_s * DEFAULT_BURST_S).max(1.0)
}

fn check(name: &str, value: f64, least: f64) -> Result<(), BadArgument> {
    if value.is_finite() && value >= least {
        return Ok(());
    }
    Err(BadArgument::Value(format!("{name}: expected a finite number, {least} or more, got {value}")))
}

fn check_count(n: i64) -> Result<i64, BadArgument> {
    if n >= 0 {
        return Ok(n);
    }
    Err(BadArgument::Value(format!("n: expected 0 or more tokens, got {n}")))
}

#[allow(clippy::cast_precision_loss, reason = "a count above 2**53 is beyond any burst")]
fn as_tokens(n: i64) -> f64 {
    n as f64
}
