"""Loads an app by the name "module:app", and finds that name for an app.

Promises that a task process imports the app by the name under which its worker found it.
"""

from __future__ import annotations

import sys

from pinlater.model.errors import InvalidArgument
from pinlater.tasks.app import PinLater
from pinlater.tasks.functions import module_name
from pinlater.worker.load_object import load_object


def load_app(name: str) -> PinLater:
    """Imports the app that "module:app" names, with the current directory on the path.

    Raises InvalidArgument or AppFailed.
    """
    app: PinLater = load_object(name, "app", PinLater)
    app.import_name = name
    return app


def import_name(app: PinLater) -> str:
    """The name "module:app" by which another process can import the app. Raises InvalidArgument if there is none."""
    if app.import_name is None:
        app.import_name = _found_name(app)
    return app.import_name


def _found_name(app: PinLater) -> str:
    """The app as a variable of a module that has tasks of it."""
    for task in app.tasks.values():
        module = getattr(task.function, "__module__", None) or ""
        for name, value in vars(sys.modules.get(module, object)).items():
            if value is app:
                return f"{module_name(module)}:{name}"
    raise InvalidArgument('runs_in="process": expected the app as a variable of a module that has tasks of it')
