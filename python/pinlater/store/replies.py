"""Error replies of one connection, and those among them that make a driver leave the node.

Promises that a driver notices such an error without a look at each answer.
"""

from __future__ import annotations

from typing import Final

import pinlater._core as _core
from pinlater.model.urls import hide_user
from pinlater.store.effects import ReplyError

#: First words of errors of a node that is no primary, that still starts, or that does not know this connection's user
#: any more. Another connection to the same address may lead to a node that serves us.
LEAVE_CODES: Final = ("READONLY", "MASTERDOWN", "UNBLOCKED", "LOADING", "NOAUTH")


class ErrorReplies:
    """Makes a ReplyError of each error reply, without our user's name. leave: one had a code of LEAVE_CODES."""

    __slots__ = ("leave",)

    def __init__(self) -> None:
        self.leave = False

    def __call__(self, text: str) -> ReplyError:
        self.leave = self.leave or text.startswith(LEAVE_CODES)
        return ReplyError(hide_user(text))

    def reader(self) -> _core.ReplyReader:
        """A reader of replies."""
        return _core.ReplyReader(self)
