"""Loads an app by the name "module:app" with the modules that it includes, and finds that name for an app.

Promises that a task process imports the app by the name under which its worker found it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any

from pinlater.model.errors import AppFailed, InvalidArgument
from pinlater.model.text import describe
from pinlater.tasks.app import PinLater, parts_of
from pinlater.tasks.functions import checked_modules, module_name
from pinlater.tasks.task import Task
from pinlater.worker.load_object import ERROR_BYTES, load_object


def load_app(name: str, include: Iterable[str] = ()) -> PinLater:
    """Imports the app that "module:app" names, and what it includes, with the current directory on the path.

    include: the names of modules that it includes too.
    Raises InvalidArgument or AppFailed.
    """
    app: PinLater = load_object(name, "app", PinLater)
    parts_of(app).import_name = name
    app.include = checked_modules([*app.include, *include])
    import_included(app)
    return app


def import_included(app: PinLater) -> None:
    """Imports the modules that the app includes. Raises InvalidArgument or AppFailed, which name the module."""
    for name in app.include:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
                raise InvalidArgument(f"include: module {name!r}: no module named {error.name!r}") from None
            text = describe(error, ERROR_BYTES)
            raise AppFailed(f"include: module {name!r} can not be imported: {text}") from error


def task_modules(app: PinLater) -> list[str]:
    """The names of the modules that have tasks of the app."""
    modules = {getattr(task.function, "__module__", None) or "" for task in app.tasks.values()}
    return sorted(map(module_name, modules - {""}))


def import_name(app: PinLater) -> str:
    """The name "module:app" by which another process can import the app. Raises InvalidArgument if there is none."""
    parts = parts_of(app)
    if parts.import_name is None:
        parts.import_name = _found_name(app)
    return parts.import_name


def app_name_of(task: Task[..., Any]) -> str:
    """The name "module:app" of a task's app, as far as the task's module shows it; else MODULE:APP."""
    for name, value in vars(sys.modules.get(task.function.__module__, object)).items():
        if isinstance(value, PinLater) and value.tasks.get(task.name) is task:
            return f"{module_name(task.function.__module__)}:{name}"
    return "MODULE:APP"


def _found_name(app: PinLater) -> str:
    """The app as a variable of a module that has tasks of it."""
    for task in app.tasks.values():
        module = getattr(task.function, "__module__", None) or ""
        for name, value in vars(sys.modules.get(module, object)).items():
            if value is app:
                return f"{module_name(module)}:{name}"
    raise InvalidArgument('runs_in="process": expected the app as a variable of a module that has tasks of it')
