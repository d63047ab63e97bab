"""The admin pages over real HTTP: what they answer, and how they start and stop."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from pinlater.model.errors import InvalidArgument
from pinlater.running.probes import METRICS_TYPE, Answer, Answers, probe
from pinlater.server.admin import bind_pages, serving_pages

ADDRESS = "127.0.0.1:0"
PAGES: Answers = {
    "/stats.txt": lambda: Answer(200, "counters:\n"),
    "/metrics": lambda: Answer(200, "# é\n", METRICS_TYPE),
    "/readyz": lambda: probe("it starts"),
    "/broken": lambda: Answer(1 // 0, ""),
}


class Got(NamedTuple):
    status: int
    text: str
    type: str | None


def get(port: int, path: str, method: str = "GET") -> Got:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return Got(response.status, response.read().decode(), response.getheader("content-type"))
    finally:
        connection.close()


def with_pages(ask: Callable[[int], Any]) -> Any:
    """What a function of the port returns while the pages are served, in a thread of its own."""

    async def run() -> Any:
        async with serving_pages(bind_pages(ADDRESS), PAGES) as port:
            return await asyncio.to_thread(ask, port)

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # that of a supervisor
        return runner.run(run())


def test_a_page_is_what_its_function_returns() -> None:
    assert with_pages(lambda port: get(port, "/stats.txt")) == (200, "counters:\n", "text/plain; charset=utf-8")
    assert with_pages(lambda port: get(port, "/metrics?x=1")) == (200, "# é\n", METRICS_TYPE)
    assert with_pages(lambda port: get(port, "/readyz")) == (503, "it starts\n", "text/plain; charset=utf-8")


def test_another_path_names_those_there_are() -> None:
    expected = "expected one of /stats.txt, /metrics, /readyz, /broken\n"
    for path in ("/", "/stats", "/stats.txt/", "//"):
        assert with_pages(partial(get, path=path))[:2] == (404, expected)


def test_another_method_is_refused() -> None:
    assert with_pages(lambda port: get(port, "/stats.txt", "POST")).status == 405
    assert with_pages(lambda port: get(port, "/stats.txt", "HEAD"))[:2] == (200, "")


def test_a_page_that_raises_leaves_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    def ask(port: int) -> tuple[int, int]:
        return get(port, "/broken").status, get(port, "/stats.txt").status

    assert with_pages(ask) == (500, 200)
    assert "ZeroDivisionError" in caplog.text


def test_no_http_at_all_is_answered_and_closed() -> None:
    def ask(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(b"\x00\x00\x00\x10garbage\r\n\r\n")
            return connection.recv(100)

    assert with_pages(ask).startswith(b"HTTP/1.1 400 ")


def test_a_stop_closes_connections_that_wait_and_frees_the_port() -> None:
    async def run() -> None:
        async with serving_pages(bind_pages(ADDRESS), PAGES) as port:
            idle, half = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            half[1].write(b"GET /stats.txt HT")
            assert await asyncio.to_thread(get, port, "/readyz")
        assert await idle[0].read() == await half[0].read() == b""
        for _, writer in (idle, half):
            writer.close()
            await writer.wait_closed()
        async with serving_pages(bind_pages(f"127.0.0.1:{port}"), PAGES) as again:
            assert again == port

    asyncio.run(run())


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (
            "127.0.0.1:{port}",
            "http: cannot listen on 127.0.0.1:{port}: Address already in use; name another port, or none",
        ),
        ("192.0.2.1:1", "http: cannot listen on 192.0.2.1:1: Cannot assign requested address"),
        ("no such host:1", "http: cannot listen on no such host:1: "),
        ("9999", "http: expected HOST:PORT, such as 127.0.0.1:9100, got '9999'"),
    ],
)
def test_an_address_that_cannot_be_had(address: str, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidArgument) as raised:
            bind_pages(address.format(port=port))
    assert said.format(port=port) in str(raised.value)


def test_every_address_by_an_empty_host(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def run() -> Got:
        async with serving_pages(bind_pages(":0"), PAGES) as port:
            return await asyncio.to_thread(get, port, "/stats.txt")

    assert asyncio.run(run()).status == 200
    assert "admin pages on every address, port " in caplog.text
