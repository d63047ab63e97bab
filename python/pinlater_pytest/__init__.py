"""The pytest plugin: the fixture `pinlater_app`, an app on a fresh store in memory.

A package of its own, beside pinlater, so that a session of pytest that does not use it imports nothing but this file.
Risks: none of its own.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping

import pytest

if typing.TYPE_CHECKING:
    from pinlater import PinLater
    from pinlater.testing import Harness


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of pytest.ini, pyproject.toml …"""
    parser.addini("pinlater_app", "The app of the fixture pinlater_app, as module:app.")


@pytest.fixture
def pinlater_target(request: pytest.FixtureRequest) -> str | PinLater:
    """The app of `pinlater_app`, or its name, module:app: as the option pinlater_app says, unless it is overridden."""
    name: str = request.config.getini("pinlater_app")
    if not name:
        raise pytest.UsageError(
            "pinlater_app: expected the option pinlater_app = module:app in the configuration of pytest, "
            "or a fixture pinlater_target that returns the app"
        )
    return name


@pytest.fixture
def pinlater_shared() -> Mapping[type, typing.Any] | None:
    """What tasks of `pinlater_app` are given for Shared(type), by type: what the lifespan yields, unless overridden."""
    return None


@pytest.fixture
def pinlater_app(
    pinlater_target: str | PinLater, pinlater_shared: Mapping[type, typing.Any] | None
) -> Iterator[Harness]:
    """The app on a fresh store in memory: a pinlater.testing.Harness."""
    from pinlater.tasks.loading import load_app
    from pinlater.testing import Harness

    app = load_app(pinlater_target) if isinstance(pinlater_target, str) else pinlater_target
    with Harness(app, shared=pinlater_shared) as harness:
        yield harness
