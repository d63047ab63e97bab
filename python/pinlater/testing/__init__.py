"""Tests of tasks without a server: the harness, on a store in memory."""

from pinlater.testing.harness import *  # noqa: F403
from pinlater.testing.harness import __all__ as __all__
