"""The HTTP port of `pinlater run`: /healthz and /readyz for orchestrators, /metrics for Prometheus.

Promises one short answer for each connection. No answer needs a call on a server. Risks: the port has no login; keep it
in your network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

from pinlater.model.errors import InvalidArgument

log: Final = logging.getLogger("pinlater.worker")

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PLAIN_TYPE: Final = "text/plain; charset=utf-8"
#: A client that has not sent its request after this time is disconnected.
REQUEST_S: Final = 5.0
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Not Allowed", 503: "Service Unavailable"}


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    text: str
    type: str = PLAIN_TYPE


#: For each path, the function that makes the answer.
Answers = Mapping[str, Callable[[], Answer]]


def probe(wrong: str) -> Answer:
    """The answer of a probe. wrong: the reason why the probe fails; "" if it passes."""
    return Answer(503, f"{wrong}\n") if wrong else Answer(200, "ok\n")


def parse_address(text: object) -> tuple[str | None, int]:
    """Reads HOST:PORT, [::1]:9100 or :9100 (every address). Raises InvalidArgument."""
    host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise InvalidArgument(f"http: expected HOST:PORT, such as 127.0.0.1:9100, got {text!r}")
    return host.strip("[]") or None, int(port)


@asynccontextmanager
async def serving(address: str, answers: Answers) -> AsyncIterator[None]:
    """Answers GET requests. address: HOST:PORT. With port 0 the system chooses a port, and the log names it."""
    host, port = parse_address(address)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                request = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode("latin-1").split(" ")
                writer.write(_response(_answer(request, answers)))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # cancelled when the loop ends
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    try:
        server = await asyncio.start_server(answer, host, port)
    except OSError as error:
        raise InvalidArgument(f"http: cannot listen on {address}: {error}") from None
    log.info("http on port %d: %s", server.sockets[0].getsockname()[1], ", ".join(answers))
    async with server:
        yield


def _answer(request: list[str], answers: Answers) -> Answer:
    if len(request) != 3 or not request[2].startswith("HTTP/"):
        return Answer(400, "expected an HTTP request\n")
    method, path, _ = request
    found = answers.get(path.partition("?")[0])
    if found is None:
        return Answer(404, f"expected one of {', '.join(answers)}\n")
    return found() if method == "GET" else Answer(405, "expected GET\n")


def _response(answer: Answer) -> bytes:
    body = answer.text.encode()
    head = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "",
        "",
    ]
    return "\r\n".join(head).encode() + body
