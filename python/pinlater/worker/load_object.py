"""Loads what `module:name` names: a handler or an app.

Promises an error that names the part that is missing, and the nearest name that is there.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

from pinlater.model.errors import AppFailed, InvalidArgument
from pinlater.model.text import describe, did_you_mean
from pinlater.model.tracebacks import in_users_code

#: Of the error of a user's module, in a message.
ERROR_BYTES: Final = 1_000
#: What the part after the colon is, for messages.
_KINDS: Final = {"handler": "function", "app": "app"}
#: The name after the colon that a hint proposes.
_USUAL: Final = {"handler": "handle", "app": "app"}


def load_object(name: str, what: str, kind: type | None = None) -> Any:
    """What `module:name` names; modules of the current directory included.

    what: handler or app. kind: its class; errors name the objects of this class that the module has.
    Raises: InvalidArgument; AppFailed where the user's module raised.
    """
    try:
        return _object(name, what, kind)
    except Exception as error:
        if isinstance(error, InvalidArgument) and not in_users_code(error):
            raise
        text = describe(error, ERROR_BYTES)
        raise AppFailed(f"{what} {name!r}: its module can not be imported: {text}") from error


def _object(name: str, what: str, kind: type | None) -> Any:
    if "//" in name:  # a URL may have a password
        raise InvalidArgument(f"{what}: expected module:{_KINDS[what]}, got a URL (give it as --url)")
    module_name, colon, attributes = name.partition(":")
    if not colon or not module_name or not attributes or "/" in module_name or module_name[0] == ".":
        raise InvalidArgument(f"{what}: expected module:{_KINDS[what]}, got {name!r}{_hint(name, what)}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        hint = _hint(name, what) if module_name.endswith(".py") else ""
        raise InvalidArgument(f"{what} {name!r}: no module named {error.name!r}{hint}") from None
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            hint = did_you_mean(attribute, dir(found)) if kind is None else _of_kind(module_name, what, kind)
            said = f"{module_name} has no {attributes!r}"
            raise InvalidArgument(f"{what} {name!r}: {'; '.join(filter(None, (said, hint)))}") from None
    if kind is not None and not isinstance(found, kind):
        hint = _of_kind(module_name, what, kind)
        raise InvalidArgument(f"{what} {name!r}: expected a {kind.__name__}, got {found!r:.60}; {hint}")
    return found


def _of_kind(module_name: str, what: str, kind: type) -> str:
    """`mail has the app mail:app`: which objects of this class a module has."""
    found = [
        f"{module_name}:{name}" for name, value in vars(sys.modules[module_name]).items() if isinstance(value, kind)
    ]
    if not found:
        return f"{module_name} has no {kind.__name__}"
    return f"{module_name} has the {what}{'s' if len(found) > 1 else ''} {', '.join(found)}"


def _hint(name: str, what: str) -> str:
    """`; did you mean 'mail:app'?`, for a file or a module without a name; "" where there is no such guess."""
    file, _, attributes = name.partition(":")
    module_name = file.removeprefix("./").removesuffix(".py").replace("/", ".")
    if not all(part.isidentifier() for part in module_name.split(".")):
        return ""
    return f"; did you mean '{module_name}:{attributes or _USUAL[what]}'?"
