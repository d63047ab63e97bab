"""Passwords stay out of everything that PinLater prints.

Promises: no error, log line, JSON document, traceback (with its causes) or finding of the doctor has a part of the
password, for URLs that work, are refused, and cannot be read.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pinlater import AsyncClient, Client, PinLater
from pinlater.cli.settings import Settings
from pinlater.model.errors import InvalidArgument, PinLaterError
from pinlater.running.options import RunOptions
from pinlater.tasks.app import parts_of
from pinlater.worker.worker import Worker
from tests.support.cli_runs import Run, run
from tests.support.servers import Server, free_port

__all__ = ["run"]  # a fixture

#: Each stands on another side of what may split a URL.
CANARIES = ("CANARY", "canary", "TWEET")
#: No client can be made from these.
BROKEN = [
    "redis://:CANARY/canary@127.0.0.1:{port}",
    "redis://:CANARY#canary@127.0.0.1:{port}",
    "redis://:CANARY?canary@127.0.0.1:{port}",
    "redis://:CANARY?canary=TWEET@127.0.0.1:{port}",
    "redis://:12/CANARY@127.0.0.1:{port}",
    "redis://:12?CANARY@127.0.0.1:{port}",
    "redis://:CANARY@127.0.0.1:{port},redis://:canary@127.0.0.1:{port}",
    "redis://127.0.0.1:{port},redis://:canary",
    "rediss//:CANARY@127.0.0.1:{port}",
    "http://:CANARY@127.0.0.1:{port}",
    "redis://127.0.0.1:{port}?Password=CANARY",
    "redis://127.0.0.1:{port}?password=CANARY&canary=TWEET",
    "redis://127.0.0.1:{port}?pass%77ord=CANARY&canary=TWEET",
    "redis://127.0.0.1:{port}?socket_timeout=CANARY",
    "redis://:CANARY",
    "redis://[CANARY@127.0.0.1",
    "embedded://./x,redis://:CANARY@127.0.0.1:{port}",
    "embedded://?fsync=always,redis://:CANARY@127.0.0.1:{port}",
    "memory://x/redis://:CANARY@127.0.0.1:{port}",
    "redis://127.0.0.1:{port}/0&password=CANARY",
    "redis://127.0.0.1:{port}/0;password=CANARY",
    "redis://127.0.0.1:{port}/password=CANARY",
    "redis://127.0.0.1:{port}/0:CANARY",
    "redis://127.0.0.1:{port}/CANARY",
    "redis://127.0.0.1&password=CANARY",
    "unix:///nowhere/x;password=CANARY",
    "unix:///nowhere/x&password=CANARY",
    "embedded://:CANARY",
    "embedded://./x?private&password=CANARY",
    "embedded://./x?CANARY",
    "CANARY",
]
#: These are read; their password is refused, or no server is there.
REFUSED = [
    "redis://TWEET:CANARY@127.0.0.1:{port}/0",
    "redis://:CAN@CANARY@127.0.0.1:{port}/0",
    "redis://127.0.0.1:{port}?password=CANARY&username=TWEET",
    "unix://TWEET@/nowhere/redis.sock?password=CANARY",
]


def check(*texts: str) -> None:
    for text in texts:
        assert not any(canary in text for canary in CANARIES), text


def printed(error: BaseException | None) -> Iterator[str]:
    """An error and all that led to it, whether or not a traceback shows that."""
    while error is not None:
        yield from (str(error), repr(error), *traceback.format_exception_only(error))
        error = error.__cause__ or error.__context__


def raised(call: Callable[[], object]) -> None:
    with pytest.raises(PinLaterError) as caught:
        call()
    check(*printed(caught.value))


@pytest.mark.parametrize("url", BROKEN)
def test_errors_about_urls_that_cannot_be_used(url: str) -> None:
    url = url.format(port=free_port())
    for call in (
        lambda: Client(url),
        lambda: AsyncClient(url),
        lambda: Client(shards={"1": url}),
        lambda: Client(f"1={url}"),
        lambda: Client([url]),  # type: ignore[arg-type]
        lambda: Client(shards=[url]),  # type: ignore[arg-type]
        lambda: Client(shards={"1": url.encode()}),  # type: ignore[dict-item]
        lambda: parts_of(PinLater(url)).clients.sync(),
        lambda: RunOptions(app="x:y", url=[url]),  # type: ignore[arg-type]
        lambda: RunOptions(app="x:y", shards={"1": [url]}),  # type: ignore[dict-item]
    ):
        raised(call)
    if "//" in url:
        raised(lambda: Client(shards={url: "redis://127.0.0.1"}))


def test_an_error_says_how_to_write_a_password() -> None:
    with pytest.raises(InvalidArgument, match=r"'redis://\*\*\*'.* in a password is %2F, %3F, %23 or %40"):
        Client("redis://:CANARY/x@host")


@pytest.mark.parametrize("url", REFUSED)
def test_errors_and_logs_of_servers_that_refuse_or_are_gone(
    url: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for port in (server.port, free_port()):
        named = url.format(port=port)
        with Client(named, timeout_s=0.2) as client:
            for call in (client.create_queue, client.count, client.delete_queue):
                raised(lambda: call("mail"))  # noqa: B023
            raised(lambda: client.enqueue("mail", b""))
            check(repr(client.settings), repr(client.session), str(client.session.shards), repr(client))
        asyncio.run(_work_for_a_while(named))
    check(repr(Settings(url=named, shards={"1": {"url": named}})), repr(RunOptions(app="x:y", url=named)))
    assert caplog.records
    check(caplog.text)


def test_a_missing_permission_does_not_name_the_user(server: Server, run: Run) -> None:
    server.call("ACL", "SETUSER", "CANARY", "reset", "on", ">pw", "-@all", "+client|setname", "+info", "~pl:*")
    url = f"redis://CANARY:pw@127.0.0.1:{server.port}"
    try:
        with Client(url) as client:
            for call in (client.create_queue, client.count, client.dequeue):
                raised(lambda: call("mail"))  # noqa: B023
            raised(lambda: client.dequeue("mail", wait=0.1))
            raised(client.queue_names)
        asyncio.run(_work_for_a_while(url))
        for arguments in (("doctor",), ("doctor", "--queue", "mail"), ("queue", "ls"), ("--json", "queue", "ls")):
            check(*map(str, run("--url", url, *arguments)))
            check(*map(str, run("-v", "--url", url, *arguments)))
    finally:
        server.call("ACL", "DELUSER", "CANARY")


async def _work_for_a_while(url: str) -> None:
    async with AsyncClient(url, timeout_s=0.2) as client:
        with pytest.raises(PinLaterError) as caught:
            await Worker(client, "mail", lambda _: None).run(burst=True)
        check(*printed(caught.value))


@pytest.mark.parametrize("url", [*BROKEN, *REFUSED])
def test_what_commands_print(
    url: str, server: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url.format(port=server.port)
    monkeypatch.chdir(tmp_path)
    elsewhere = [
        ("queue", "ls", url),
        ("queue", "create", url),
        (url,),
        ("run", url),
        ("worker", "mail", url),
        ("run", "--queues", url),
        ("--timeout", url),
        ("job", "lookup", url),
    ]
    for arguments in (
        ("--url", url, "doctor"),
        ("--url", url, "--json", "doctor"),
        ("--url", url, "--json", "version"),
        ("--shard", url, "queue", "ls"),
        ("--shard", f"1={url}", "--json", "queue", "ls"),
        ("-v", "--url", url, "job", "enqueue", "mail", "x"),
        *(elsewhere if "//" in url else []),  # a word alone is no URL
    ):
        check(*map(str, run("--timeout", "0.5", *arguments)))
    for text in (
        f'url = "{url}"',
        f'shards = "{url}"',
        f'[shards]\n1 = "{url}"',
        f"url = [{url}",
    ):
        (tmp_path / "pinlater.toml").write_text(text)
        monkeypatch.delenv("PINLATER_URL", raising=False)
        check(*map(str, run("--timeout", "0.5", "queue", "ls")), *map(str, run("run", "x:y")))
    (tmp_path / "pinlater.toml").unlink()
    (tmp_path / "app_of_test.py").write_text(
        "from pinlater import PinLater\nfrom pinlater.tasks.app import parts_of\n"
        f"app = PinLater({url!r})\nparts_of(app).clients.sync()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    check(*map(str, run("run", "app_of_test:app", "--burst")))
    monkeypatch.setenv("PINLATER_DEBUG", "1")
    for debugged in (("--url", url, "queue", "ls"), *(elsewhere if "//" in url else [])):
        with suppress(SystemExit):
            try:
                run("--timeout", "0.5", *debugged)
            except Exception as error:
                check(*printed(error))
