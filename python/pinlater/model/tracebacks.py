"""Tracebacks of errors in the user's code, without PinLater's frames.

Promises that only the user's files, and files that they call, are shown.
"""

from __future__ import annotations

import importlib
import os
import traceback
from itertools import dropwhile
from pathlib import Path
from types import FrameType
from typing import Final

_OURS: Final = str(Path(__file__).parents[1]) + os.sep
_LIBRARY: Final = Path(importlib.__file__).parent.parent
#: Library code between PinLater and the user's code.
_BETWEEN: Final = (str(_LIBRARY / "importlib"), str(_LIBRARY / "contextlib.py"), str(_LIBRARY / "asyncio"))
_FROZEN: Final = "<frozen importlib"
_LOOP: Final = "uvloop"


def is_ours(frame: FrameType) -> bool:
    """Whether the frame runs code of this package."""
    return frame.f_code.co_filename.startswith(_OURS)


def in_users_code(error: BaseException) -> bool:
    """Whether the error passed through the user's code."""
    names = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not all(name.startswith((_OURS, _FROZEN)) or _is_between(name) for name in names)


def of_user(error: BaseException) -> str:
    """The traceback as Python prints it, with causes, but without the frames before the user's code."""
    whole = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = whole
    while part is not None:
        frames = [frame for frame in part.stack if not frame.filename.startswith((_OURS, _FROZEN))]
        part.stack[:] = dropwhile(lambda frame: _is_between(frame.filename), frames)
        part = part.__cause__ or part.__context__
    return "".join(whole.format())


def _is_between(file: str) -> bool:
    return file.startswith(_BETWEEN) or _LOOP in Path(file).parts
