"""The engine: a worker claims jobs, runs them and ends them."""
