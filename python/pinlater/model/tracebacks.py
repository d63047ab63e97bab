"""Tracebacks of errors in the user's code, without PinLater's frames.

Promises that only the user's files, and files that they call, are shown.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import traceback
from collections.abc import Iterator
from itertools import chain, dropwhile
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, TypeAlias

#: What `logging` takes as exc_info.
ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

_OURS: Final = str(Path(__file__).parents[1]) + os.sep
_LIBRARY: Final = Path(importlib.__file__).parent.parent
#: Library code between PinLater and the user's code.
_BETWEEN: Final = (str(_LIBRARY / "importlib"), str(_LIBRARY / "contextlib.py"), str(_LIBRARY / "asyncio"))
_FROZEN: Final = "<frozen importlib"
_LOOP: Final = "uvloop"


def is_ours(frame: FrameType) -> bool:
    """Whether the frame runs code of this package."""
    return frame.f_code.co_filename.startswith(_OURS)


def exc_info_of(error: BaseException, function: object = None) -> ExcInfo:
    """exc_info of an error, from the first call of the user's function on.

    If the function did not run, it begins at the first frame of the user's code. If there is none, an error of
    PinLater's own and a timeout have no frames: their line says all. Any other error keeps them, as it may be a bug of
    PinLater. The errors that this one was raised from, or while they were handled, lose the same.
    """
    seen, part = {id(error)}, error.__cause__ or error.__context__
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        part.__traceback__ = _from_users(part, function)
        part = part.__cause__ or part.__context__
    return type(error), error, _from_users(error, function)


def _from_users(error: BaseException, function: object) -> TracebackType | None:
    steps = list(_steps(error.__traceback__))
    code = getattr(function, "__code__", None)
    own = [step for step in steps if step.tb_frame.f_code is code]
    found = next(chain(own, dropwhile(_is_before_users, steps)), None)
    return error.__traceback__ if found is None and not _says_all(error) else found


def _says_all(error: BaseException) -> bool:
    """Whether the line of an error, or its cause, says all that the user may know."""
    expected = (TimeoutError, asyncio.CancelledError)
    return type(error).__module__.startswith("pinlater.") or isinstance(error, expected) or error.__cause__ is not None


def _is_before_users(step: TracebackType) -> bool:
    return _is_outside(step.tb_frame.f_code.co_filename)


def _steps(step: TracebackType | None) -> Iterator[TracebackType]:
    while step is not None:
        yield step
        step = step.tb_next


def in_users_code(error: BaseException) -> bool:
    """Whether the error passed through the user's code."""
    names = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not all(map(_is_outside, names))


def of_user(error: BaseException) -> str:
    """The traceback as Python prints it, with causes, but without the frames before the user's code."""
    whole = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = whole
    while part is not None:
        frames = [frame for frame in part.stack if not frame.filename.startswith((_OURS, _FROZEN))]
        part.stack[:] = dropwhile(lambda frame: _is_between(frame.filename), frames)
        part = part.__cause__ or part.__context__
    return "".join(whole.format())


def _is_outside(file: str) -> bool:
    """Whether the file, as far as this tells, is none of the user's."""
    return file.startswith((_OURS, _FROZEN)) or _is_between(file)


def _is_between(file: str) -> bool:
    return file.startswith(_BETWEEN) or _LOOP in Path(file).parts
