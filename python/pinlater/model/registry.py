"""Modules that a lower room uses, registered by name by a higher room.

Promises that a registered module is imported at its first use, not before.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

_modules: Final = dict[str, str]()


def register(name: str, module: str) -> None:
    """Makes `registered(name)` return the module of this import path."""
    _modules[name] = module


def registered(name: str) -> Any:
    """Imports and returns the module registered under a name; None if there is none."""
    module = _modules.get(name)
    return None if module is None else importlib.import_module(module)


def registered_names() -> list[str]:
    """All names, in the order of their registration."""
    return list(_modules)
