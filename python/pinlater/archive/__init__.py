"""The archive: pending jobs leave Redis for MySQL and come back, exactly once."""
