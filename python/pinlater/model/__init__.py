"""Words and values: errors, jobs, settings of a queue. No module here does I/O."""
