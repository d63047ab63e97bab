"""Modules that a room uses although they stand in a room above it: they are registered by name.

Promises that a registered module is imported when it is first used, and not before.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

_modules: Final = dict[str, str]()


def register(name: str, module: str) -> None:
    """From now on `registered(name)` gives the module of this import path."""
    _modules[name] = module


def registered(name: str) -> Any:
    """The module registered under a name, imported; None if there is none."""
    module = _modules.get(name)
    return None if module is None else importlib.import_module(module)


def registered_names() -> list[str]:
    """All names, in the order of their registration."""
    return list(_modules)
