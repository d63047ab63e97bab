"""What was done wrong, and what is said about it.

Promises: each message says what is wrong and what to do.
"""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinlater import Client, InvalidArgument, PinLater, ServerUnavailable
from pinlater.cli.command_base import DONE
from tests.support.cli_runs import Run, run
from tests.support.servers import Server, free_port

__all__ = ["run"]  # a fixture

SHOP = """
from pinlater import PinLater
shop, other, empty, number = PinLater(), PinLater(), PinLater(), 5

@shop.task(queue="mail")
def send(): ...

def handle(job): ...
"""
DESCRIPTOR = 'expected "queue:s<shard>:p<priority>:<id>", got "foo"'

#: The command line, and what its error says.
COMMANDS = [
    ("run shop_of_messages:ap", "shop_of_messages has no 'ap'; shop_of_messages has the apps shop_of_messages:shop, "),
    ("run shop_of_messages:number", "expected a PinLater, got 5; shop_of_messages has the apps shop_of_messages:shop"),
    ("run shop_of_messages:empty", "the app has no tasks: .*; import the modules that have them in the module of the "),
    ("run shop_of_messages:shop --queues mial", "queue 'mial': not found; did you mean 'mail'? --create creates it"),
    ("run shop_of_messages:shop --queues mail,mial --processes 2", "queue 'mial': not found; did you mean 'mail'?"),
    ("run shop_of_messages:shop --queues xyz", "queue 'xyz': not found; --create creates it"),
    ("worker shop_of_messages:handle --queue thubms", "queue 'thubms': not found; did you mean 'thumbs'? --create"),
    ("worker shop_of_messages:handle --queue mial --processes 2", "queue 'mial': not found; --create creates it"),
    ("archive --archive mysql://db", "no such option: --archive (.*); pinlater run and .* have it"),
    ("worker shop_of_messages:handle --queue thumbs --burst", "no such option: --burst (.*); pinlater run has it"),
    ("worker shop_of_messages:handle --queue thumbs --concurency 3", "no such option: .*; did you mean --concurrency?"),
    (
        "worker shop_of_messages:send --queue thumbs",
        "handler 'shop_of_messages:send': this is a task of app shop_of_messages:shop; `pinlater run shop_of_messages:",
    ),
    ("job enqueue thumbs x --priority 9", "error: job: priority: expected 1 to 3 (the priorities of the queue), got 9"),
    ("job lookup foo", DESCRIPTOR),
    ("job lookup thumbs:s1:p1:1 foo", DESCRIPTOR),
    ("job ls thumbs --state scheduled", "'--state': scheduled jobs are pending: --state pending --future"),
    ("job rm --queue thumbs --state scheduled", "'--state': scheduled jobs are pending: --state pending ("),
    ("queue create other --rate 5/fortnight", "error: rate: expected jobs in a time such as 100/s, 5/m, .*; got '5/f"),
    ("queue set thumbs --rate -1/s", "error: rate: expected jobs in a time such as 100/s, 5/m, .*; got '-1/s'"),
    (
        "queue set thumbs --rate 4611686018427387904/s",
        "error: rate: expected jobs in a time .*; got '461168601842738790",
    ),
    ("queue set thumbs --burst 5", "error: burst: expected a rate beside it, got a burst of 5 alone"),
    ("queue set thumbs --max-running -1", "error: max_running: expected an integer from 1 to 4,294,967,295, got -1"),
    ("queue set thumbs --max-running 5 --home 2", "error: home: expected one of the shards 1, got '2'"),
    ("queue pause thumbs --for 5fortnights", "'--for': expected a time such as 30s, 5m, 2h or 1d, or seconds, got '5f"),
    ("queue pause thumbs --for 0", "error: --for: expected a time above 0, such as 10m"),
    ("queue drain thums", "error: queue 'thums': not found; did you mean 'thumbs'?"),
]


def pattern(said: str) -> str:
    """A pattern in which only `.*` is special."""
    return ".*".join(map(re.escape, said.split(".*")))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop_of_messages.py").write_text(SHOP)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(("command", "said"), COMMANDS)
def test_what_a_command_says(run: Run, command: str, said: str) -> None:
    assert run("queue", "create", "thumbs").code == DONE
    ran = run(*command.split())
    assert ran.code != DONE
    [line] = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert re.search(pattern(said), line)
    assert {queue["queue"] for queue in run("queue", "ls", "--json").document} <= {"mail", "thumbs"}


@pytest.mark.usefixtures("shop")
def test_a_queue_that_is_asked_for_is_created(run: Run) -> None:
    assert run("run", "shop_of_messages:shop", "--burst").code == DONE
    assert run("run", "shop_of_messages:shop", "--burst", "--queues", "mial", "--create").code == DONE
    assert {queue["queue"] for queue in run("queue", "ls", "--json").document} == {"mail", "mial"}
    assert run("run", "shop_of_messages:shop", "--burst", "--queues", "mial").code == DONE  # it is there


@pytest.fixture(scope="module")
def web_server() -> Iterator[int]:
    """The port of an HTTP server."""
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def said_of(url: str) -> str:
    with Client(url, timeout_s=1.0) as client, pytest.raises(ServerUnavailable) as caught:
        client.queue_names()
    return str(caught.value)


def test_what_is_said_of_a_wrong_url(server: Server, web_server: int) -> None:
    host = f"127.0.0.1:{server.port}"
    number = "the number behind the last / of the URL is the database: take a lower one"
    assert f"DB index is out of range; {number}" in said_of(f"redis://{host}/9999")
    assert f"DB index is out of range; {number.replace('the last /', 'db=')}" in said_of(f"redis://{host}?db=9999")
    assert said_of(f"rediss://{host}").endswith("; if the port takes no TLS, the URL begins with redis://")
    assert "another kind of server answers there, such as one of HTTP" in said_of(f"redis://127.0.0.1:{web_server}")
    assert said_of(f"rediss://127.0.0.1:{web_server}").endswith(
        "if the port takes no TLS, the URL begins with redis://"
    )
    assert said_of(f"redis://127.0.0.1:{free_port()}").endswith("Connection refused")


def test_what_is_said_of_a_port_with_tls(tmp_path: Path) -> None:
    with Server("redis", tmp_path, tls=True) as server:
        said = said_of(server.url.replace("rediss", "redis"))
    assert said.endswith("; if the port takes TLS, the URL begins with rediss://")


@pytest.mark.parametrize("wrong", ["foo", "mail:1:p1:5", 5])
def test_a_wrong_descriptor_is_told_where_it_is_used(wrong: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^job descriptor: expected "):
        PinLater("redis://nowhere").handle(wrong)


def test_a_server_that_is_there_is_not_to_be_started(run: Run, server: Server) -> None:
    said = run("queue", "ls", "--url", f"redis://127.0.0.1:{server.port}/9999").err
    assert said.endswith("take a lower one, most servers have 0 to 15\n")
