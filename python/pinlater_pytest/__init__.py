"""The pytest plugin: the fixture `pinlater_app`, an app on a fresh store in memory.

It is a package of its own, so that a pytest session that does not use it imports nothing but this file.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping

import pytest

if typing.TYPE_CHECKING:
    from pinlater import PinLater
    from pinlater.testing import Harness


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option pinlater_app to pytest.ini, pyproject.toml …"""
    parser.addini("pinlater_app", "The app of the fixture pinlater_app, as module:app.")


@pytest.fixture
def pinlater_target(request: pytest.FixtureRequest) -> str | PinLater:
    """The app, or its name "module:app". Override it, or set the option pinlater_app."""
    name: str = request.config.getini("pinlater_app")
    if not name:
        raise pytest.UsageError(
            "pinlater_app: expected the option pinlater_app = module:app in the configuration of pytest, "
            "or a fixture pinlater_target that returns the app"
        )
    return name


@pytest.fixture
def pinlater_shared() -> Mapping[type, typing.Any] | None:
    """Objects for Shared(type), by type; None: those that the app's lifespan yields. Override it to change them."""
    return None


@pytest.fixture
def pinlater_app(
    pinlater_target: str | PinLater, pinlater_shared: Mapping[type, typing.Any] | None
) -> Iterator[Harness]:
    """A pinlater.testing.Harness: the app on a fresh store in memory."""
    from pinlater.tasks.loading import load_app
    from pinlater.testing import Harness

    app = load_app(pinlater_target) if isinstance(pinlater_target, str) else pinlater_target
    with Harness(app, shared=pinlater_shared) as harness:
        yield harness
