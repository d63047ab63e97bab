"""Tests of tasks without a server: the harness, on a store in memory."""

from pinlater.memory.server import MemoryServer
from pinlater.testing.drain import Enqueued, Ran
from pinlater.testing.harness import Harness, MovableClock

__all__ = ["Enqueued", "Harness", "MemoryServer", "MovableClock", "Ran"]
