"""Tracebacks of errors that come from the user's code, without our part of them.

Promises what the user can read: files of theirs and of what they call. Risks: none known.
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
#: What stands between us and the user's code.
_BETWEEN: Final = (str(_LIBRARY / "importlib"), str(_LIBRARY / "contextlib.py"), str(_LIBRARY / "asyncio"))
_FROZEN: Final = "<frozen importlib"
_LOOP: Final = "uvloop"


def is_ours(frame: FrameType) -> bool:
    """Whether it runs code of this package."""
    return frame.f_code.co_filename.startswith(_OURS)


def in_users_code(error: BaseException) -> bool:
    """Whether the user's code is on the way from here to where it was raised."""
    names = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not all(name.startswith((_OURS, _FROZEN)) or _leads_there(name) for name in names)


def of_user(error: BaseException) -> str:
    """The traceback as Python prints it, causes included, without our frames and those that lead to the user's."""
    told = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = told
    while one is not None:
        frames = [frame for frame in one.stack if not frame.filename.startswith((_OURS, _FROZEN))]
        one.stack[:] = dropwhile(lambda frame: _leads_there(frame.filename), frames)
        one = one.__cause__ or one.__context__
    return "".join(told.format())


def _leads_there(file: str) -> bool:
    return file.startswith(_BETWEEN) or _LOOP in Path(file).parts
