"""The original's file of rates: how it is read, and which queues get which rate, also while it changes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from pinlater import AsyncClient, Client
from pinlater.model.errors import InvalidArgument
from pinlater.model.limits import Rate
from pinlater.running.background import in_background
from pinlater.server.queue_config_file import QueueConfigFile, RateKeeper, parse_rates, shown
from tests.conftest import FreshServer
from tests.support.servers import Server
from tests.support.thrift_clients import ThriftpyPeer
from tests.support.thrift_server import ThriftServer

DEADLINE_S = 30.0
SOON_S = 0.02
CONTEXT = {"source": "test"}


def document(**rates: Any) -> str:
    entries = [{"name": name, "queueConfig": {"maxJobsPerSecond": rate}} for name, rate in rates.items()]
    return json.dumps({"queues": entries})


def rate_of(value: Any) -> Rate | None:
    return parse_rates(document(mail=value).encode(), "queues.json")["mail"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (100, "100/s"),
        (0.5, "30/m"),
        (0, "0/s"),
        (0.0, "0/s"),
        (1.5, "90/m"),
        (1_000_000, "1000000/s"),
        (1e-6, "1/1000000s"),
    ],
)
def test_a_rate(value: float, expected: str) -> None:
    assert rate_of(value) == Rate.of(expected)


@pytest.mark.parametrize(
    ("value", "said"),
    [(100, "100/s"), (0.5, "0.5/s"), (1.5, "1.5/s"), (0, "0/s"), (10**9, "none"), (1 / 3, "0.333333333/s")],
)
def test_a_log_line_has_the_number_of_the_file(value: float, said: str) -> None:
    assert shown(rate_of(value)) == said


@pytest.mark.parametrize(("text", "said"), [("5/m", "5/m"), ("30/m", "0.5/s")])
def test_a_rate_that_somebody_else_set_is_readable(text: str, said: str) -> None:
    assert shown(Rate.of(text)) == said


@pytest.mark.parametrize("value", [33.333333333333336, 1 / 3, 99999.99999999999, 1e-6 / 3, 0.1 + 0.2])
def test_a_number_with_many_digits_is_rounded_down(value: float) -> None:
    rate = rate_of(value)
    assert rate is not None
    found = Fraction(rate.count, rate.per_ms) * 1000
    assert found <= Fraction(value)
    assert found > Fraction(value) * Fraction(999_999, 1_000_000)


def test_more_than_any_queue_gets_is_no_limit() -> None:
    assert rate_of(1_000_001) is None
    assert rate_of(1.7976931348623157e308) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "queues.json is not JSON: "),
        ("[" * 100_000, "queues.json: expected JSON of a few levels"),
        ("[]", "queues.json: the document: expected an object with queues, got []"),
        ("{}", "queues.json: queues: expected a list, got nothing"),
        ('{"queus": []}', "the document: unknown key 'queus'; did you mean 'queues'? expected one of queues"),
        ('{"queues": [1]}', "queues[0]: expected an object with name, queueConfig, got 1"),
        ('{"queues": [{"name": "a"}]}', "queues[0].queueConfig: expected an object with maxJobsPerSecond, got nothing"),
        (
            '{"queues": [{"name": "a", "queueConfig": {"maxJobsPerSec": 1}}]}',
            "queues[0].queueConfig: unknown key 'maxJobsPerSec'; did you mean 'maxJobsPerSecond'?",
        ),
        (document(**{"a-b": 1}), "queues[0].name: queue name: expected 1 to 255 letters"),
        (document(mail="1/s"), 'queues[0].queueConfig.maxJobsPerSecond: expected jobs a second, 0 or more, got "1/s"'),
        (document(a=1, mail=-1), "queues[1].queueConfig.maxJobsPerSecond: expected jobs a second, 0 or more, got -1"),
        (document(mail=True), "maxJobsPerSecond: expected jobs a second, 0 or more, got true"),
        (document(mail=float("nan")), "maxJobsPerSecond: expected jobs a second, 0 or more, got NaN"),
        (document(mail=1e-9), "maxJobsPerSecond: expected 0, or at least one job in 49 days, got 1e-09"),
        (
            document(mail=1)[:-2] + "," + document(mail=2)[12:],
            "queues[1].name: expected a name that no other queue has",
        ),
    ],
)
def test_a_mistake_names_its_path(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_rates(text.encode(), "queues.json")
    assert said in str(raised.value)


def test_other_settings_of_a_queue_are_ignored_as_by_the_original() -> None:
    text = '{"queues": [{"name": "mail", "queueConfig": {"maxJobsPerSecond": 5, "owner": "growth", "alert": {}}}]}'
    assert parse_rates(text.encode(), "queues.json") == {"mail": Rate.of("5/s")}


class Rates:
    """A file of rates that a keeper gives to queues. changes: the log lines, in their order."""

    def __init__(self, server: Server, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.url, self.path = server.url, path
        self._caplog = caplog
        caplog.set_level(logging.INFO)

    def write(self, **rates: Any) -> None:
        self.path.write_text(document(**rates))

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[AsyncClient]:
        """Keeps the rates beside the block. Gives the client."""
        file = QueueConfigFile(str(self.path), interval_s=SOON_S)
        file.read()
        async with AsyncClient(self.url, timeout_s=1.0) as client:
            file.start()
            try:
                async with in_background(RateKeeper(client, file, retry_s=SOON_S).run()):
                    yield client
            finally:
                await file.stop()

    async def logged(self, text: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while text not in self._caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(SOON_S)


@pytest.fixture
def rates(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Rates:
    return Rates(server, tmp_path / "queues.json", caplog)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def test_queues_follow_the_file(rates: Rates, client: Client) -> None:
    for name in ("mail", "slow", "other"):
        client.create_queue(name)
    client.configure_queue("slow", rate="2/s", burst=7)
    client.configure_queue("other", rate="9/s")

    async def follow() -> None:
        rates.write(mail=100, slow=2)
        async with rates.kept():
            await rates.logged("queue mail: its rate is 100/s now, it was none")
            rates.write(mail=0)
            await rates.logged("queue mail: its rate is 0/s now, it was 100/s")
            await rates.logged("queue slow: its rate is none now, it was 2/s")
            rates.write()
            await rates.logged("queue mail: its rate is none now, it was 0/s")

    asyncio.run(follow())
    assert client.queue_config("mail").rate is client.queue_config("slow").rate is None
    assert client.queue_config("other").rate == Rate.of("9/s")


def test_what_is_so_already_is_not_set_again(rates: Rates, client: Client, server: Server) -> None:
    client.create_queue("mail")
    client.configure_queue("mail", rate="5/s", burst=3)
    client.create_queue("last")

    async def follow() -> None:
        rates.write(mail=5, last=1)
        async with rates.kept():
            await rates.logged("queue last: its rate is 1/s now")

    asyncio.run(follow())
    config = client.queue_config("mail")
    assert (config.rate, config.burst) == (Rate.of("5/s"), 3)


def test_a_wrong_version_changes_nothing(rates: Rates, client: Client) -> None:
    client.create_queue("mail")

    async def follow() -> None:
        rates.write(mail=5)
        async with rates.kept() as keeper:
            await rates.logged("queue mail: its rate is 5/s now")
            rates.path.write_text("{")
            await rates.logged(f"{rates.path} is not JSON")
            assert (await keeper.queue_config("mail")).rate == Rate.of("5/s")
            rates.write(mail=6)
            await rates.logged("queue mail: its rate is 6/s now, it was 5/s")

    asyncio.run(follow())


def test_an_operator_keeps_what_the_file_has_not_set(rates: Rates, client: Client) -> None:
    client.create_queue("mail")
    client.create_queue("mark")

    async def follow() -> None:
        rates.write(mail=5, mark=1)
        async with rates.kept():
            await rates.logged("queue mail: its rate is 5/s now")
            await rates.logged("queue mark: its rate is 1/s now")
            client.configure_queue("mail", rate="8/s")
            rates.write(mark=2)
            await rates.logged("queue mark: its rate is 2/s now")

    asyncio.run(follow())
    assert client.queue_config("mail").rate == Rate.of("8/s")


def test_a_queue_that_is_created_later_gets_its_rate(rates: Rates, client: Client) -> None:
    async def follow() -> None:
        rates.write(mail=5)
        async with rates.kept():
            await rates.logged("queue mail does not exist yet; its rate will be 5/s")
            client.create_queue("mail")
            await rates.logged("queue mail: its rate is 5/s now, it was none")

    asyncio.run(follow())


def test_a_rate_that_a_queue_refuses_leaves_the_others_alone(rates: Rates, client: Client) -> None:
    client.create_queue("mail")
    client.configure_queue("mail", rate="1/s", burst=1_000_000)
    client.create_queue("other")

    async def follow() -> None:
        rates.write(mail=1e-6, other=1)
        async with rates.kept():
            await rates.logged("queue mail: its rate was not set: burst: expected")
            await rates.logged("queue other: its rate is 1/s now")

    asyncio.run(follow())
    assert client.queue_config("mail").rate == Rate.of("1/s")


def test_a_redis_that_does_not_answer_is_tried_again(
    fresh_server: FreshServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = fresh_server()
    rates = Rates(server, tmp_path / "queues.json", caplog)
    with Client(server.url) as client:
        client.create_queue("mail")

    async def follow() -> None:
        rates.write(mail=5)
        server.stop()
        async with rates.kept():
            await rates.logged("queue mail: its rate is not set yet")
            server.start()
            async with AsyncClient(server.url) as client:
                await client.create_queue("mail")  # this server keeps nothing
            await rates.logged("queue mail: its rate is 5/s now")

    asyncio.run(follow())


def test_create_queue_of_the_service_gives_the_rate_of_the_file_as_it_is_now(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "queues.json"
    path.write_text(document(mail=5))
    with ThriftServer({"1": server.url}, queue_config_file=str(path)) as service, Client(server.url) as client:
        peer = ThriftpyPeer(service.port)
        peer.call("createQueue", context=CONTEXT, name="mail")
        peer.call("createQueue", context=CONTEXT, name="free")
        path.write_text(document(late=0.5))
        peer.call("createQueue", context=CONTEXT, name="late")
        path.write_text("wrong")
        peer.call("createQueue", context=CONTEXT, name="later")
        peer.close()
        found = {name: client.queue_config(name).rate for name in client.queue_names()}
    assert found == {"mail": Rate.of("5/s"), "free": None, "late": Rate.of("0.5/s"), "later": None}


def test_without_a_file_there_is_no_rate() -> None:
    file = QueueConfigFile("")
    file.read()
    assert file.latest() == {}
