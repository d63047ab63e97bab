"""RESP as a proxy needs it: where a message ends, and the words of a request.

Promises: RESP2 and RESP3, any nesting, input that stops at any byte.
Risks: a message is scanned anew each time more of it arrives; streamed RESP3 types (no server sends them) are
unknown.
"""

from __future__ import annotations

Command = list[bytes]


def message_end(buffer: bytes | bytearray) -> int | None:
    """Where the first whole RESP message (2 or 3) of `buffer` ends; None while it is not all there."""
    position, wanted = 0, 1
    while wanted:
        line_end = buffer.find(b"\r\n", position)
        if line_end < 0:
            return None
        kind, line = buffer[position : position + 1], bytes(buffer[position + 1 : line_end])
        position = line_end + 2
        wanted -= 1
        if kind in b"*~>":
            wanted += max(int(line), 0)
        elif kind in b"%":
            wanted += 2 * int(line)
        elif kind in b"|":
            wanted += 2 * int(line) + 1  # an attribute comes before the value it is about
        elif kind in b"$=!" and int(line) >= 0:
            position += int(line) + 2
    return position if position <= len(buffer) else None


def parse_command(message: bytes) -> Command:
    """The arguments of one whole request (an array of bulk strings, as every client library sends)."""
    if not message.startswith(b"*"):
        return message.split()
    command: Command = []
    position = message.index(b"\r\n") + 2
    while position < len(message):
        line_end = message.index(b"\r\n", position)
        start, size = line_end + 2, int(message[position + 1 : line_end])
        command.append(message[start : start + size])
        position = start + size + 2
    return command
