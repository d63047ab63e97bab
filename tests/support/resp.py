"""RESP for a proxy: the end of a message, and the words of a request.

Promises: RESP2 and RESP3, any nesting, input that stops at any byte.
Risks: each arrival scans the message from its start. Streamed RESP3 types, which no server sends, are unknown.
"""

from __future__ import annotations

Command = list[bytes]


def message_end(buffer: bytes | bytearray) -> int | None:
    """The end of the first RESP message (2 or 3) in `buffer`; None while it is incomplete."""
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
            wanted += 2 * int(line) + 1  # an attribute comes before its value
        elif kind in b"$=!" and int(line) >= 0:
            position += int(line) + 2
    return position if position <= len(buffer) else None


def parse_command(message: bytes) -> Command:
    """The arguments of one complete request: an array of bulk strings, as every client library sends."""
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
