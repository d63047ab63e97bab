"""The admin pages of a server: /stats.txt, /metrics, /healthz and /readyz, over HTTP.

Promises that no page needs a call on a Redis, and that the end of the block ends the pages within STOP_S. Risks: there
is no login; keep the port inside your network.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pinlater.model.errors import InvalidArgument
from pinlater.running.probes import Answer, Answers, parse_address, probe
from pinlater.running.status import SupervisorStatus
from pinlater.server.samples import stats_page
from pinlater.store.shards import Session

log: Final = logging.getLogger("pinlater.server")

#: A stop waits so long for pages that are written.
STOP_S: Final = 2
#: A connection without a request is closed after so long.
IDLE_S: Final = 10
#: More connections at once get the status 503.
MOST_CONNECTIONS: Final = 100


def pages_of(status: SupervisorStatus, session: Session) -> Answers:
    """The pages of a supervisor. session: of a client that pings the shards."""
    answers = status.answers()
    return {
        "/stats.txt": lambda: Answer(200, stats_page(status.samples())),
        **answers,
        "/readyz": lambda: readiness(answers["/readyz"](), session),
    }


def readiness(of_processes: Answer, session: Session) -> Answer:
    """Whether a server can do work: a process serves, and a shard answers."""
    silent = [shard for shard in session.shards.values() if not shard.server.may_answer]
    if of_processes.status != 200 or not silent:
        return of_processes
    named = ", ".join(f"{shard.name} ({shard.server})" for shard in silent)
    if len(silent) == len(session.shards):
        return probe(f"not ready: no shard answers: {named}")
    return Answer(200, f"ok\nshards that do not answer: {named}\n")


def bind_pages(address: str) -> socket.socket:
    """A socket on which pages can be served. Raises InvalidArgument if the address can not be had.

    address: HOST:PORT. With port 0 the system chooses one.
    """
    host, port = parse_address(address)
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(where[:2], family=family)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error
        raise InvalidArgument(f"http: cannot listen on {address}: {why}; name another port, or none") from None


@asynccontextmanager
async def serving_pages(listening: socket.socket, pages: Answers) -> AsyncIterator[int]:
    """Serves pages beside the block, and closes the socket at its end. Gives the port. listening: of bind_pages()."""
    with listening:
        host, port = listening.getsockname()[:2]
        app = Starlette(routes=_routes(pages), exception_handlers={404: _not_found(pages)})
        app.router.redirect_slashes = False
        config = uvicorn.Config(
            app,
            lifespan="off",
            http="h11",
            ws="none",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=STOP_S,
        )
        server = _Server(config)
        task = asyncio.get_running_loop().create_task(server.serve([listening]), name="pinlater-admin")
        log.info(
            "admin pages on %s, port %d: %s",
            "every address" if ipaddress.ip_address(host).is_unspecified else host,
            port,
            ", ".join(pages),
        )
        try:
            yield port
        finally:
            server.should_exit = True
            await asyncio.wait([task], timeout=2 * STOP_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class _Server(uvicorn.Server):
    """Leaves the signals to the supervisor."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _routes(pages: Mapping[str, Callable[[], Answer]]) -> list[Route]:
    return [Route(path, _endpoint(page), methods=["GET"]) for path, page in pages.items()]


def _endpoint(page: Callable[[], Answer]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        found = page()
        return Response(found.text, found.status, media_type=found.type)

    return answer


def _not_found(pages: Answers) -> Callable[[Request, Exception], Response]:
    def answer(_: Request, __: Exception) -> Response:
        return PlainTextResponse(f"expected one of {', '.join(pages)}\n", 404)

    return answer
