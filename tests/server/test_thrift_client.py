"""ThriftClient: what it sends, what it makes of answers, and what it does when connections and servers fail."""

from __future__ import annotations

import inspect
import os
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pinlater
from pinlater import (
    Ack,
    AsyncClient,
    Checkpoint,
    Client,
    ClientClosed,
    CountsByState,
    DequeueRefused,
    EnqueueRefused,
    InvalidArgument,
    Job,
    NewJob,
    NotOnThrift,
    OutcomeUnknown,
    PartialEnqueue,
    PartialOutcome,
    PinLaterError,
    QueueConfig,
    QueueNotFound,
    ServerError,
    ServerRefused,
    ServerUnavailable,
    State,
    ThriftClient,
)
from pinlater.server.frames import framed
from pinlater.server.interface import structs
from pinlater.server.messages import Failure
from pinlater.server.passwords import hash_password
from pinlater.server.thrift_connections import MAX_FREE
from pinlater.server.thrift_url import parse_thrift_url
from tests.support.certificates import Authority
from tests.support.servers import Server
from tests.support.thrift_fake import Asked, FakeServer, ordinary
from tests.support.thrift_server import ThriftServer

SOON_S = 0.2
PASSWORD = "open sesame"  # noqa: S105
HASHED = hash_password(PASSWORD)


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


def url_of(*servers: Any) -> str:
    return "thrift://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)


@pytest.fixture
def client(fake: FakeServer) -> Iterator[ThriftClient]:
    with ThriftClient(url_of(fake), source="shop:ada", timeout_s=5) as made:
        yield made


@pytest.fixture
def service(server: Server) -> Iterator[ThriftServer]:
    """A real server on two shards of one Redis, with a password."""
    with ThriftServer({"1": server.url, "2": server.url}, password_hash=HASHED) as running:
        yield running


@pytest.fixture
def mail(service: ThriftServer) -> Iterator[ThriftClient]:
    """A client of it. There is a queue `mail`."""
    with ThriftClient(url_of(service), source="shop:ada") as made:
        made.create_queue("mail")
        yield made


# --- URLs, and the choice of the client


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("thrift://a", [("a", 9010)]),
        ("thrift://a:1,b:2/", [("a", 1), ("b", 2)]),
        ("thrift://[::1]:7,10.0.0.1", [("::1", 7), ("10.0.0.1", 9010)]),
    ],
)
def test_urls(url: str, addresses: list[tuple[str, int]]) -> None:
    found = parse_thrift_url(url)
    assert (list(found.addresses), found.tls) == (addresses, None)


def test_a_url_with_tls() -> None:
    found = parse_thrift_url("thrifts://a,b:1")
    assert found.tls is not None
    assert found.tls.check_hostname
    assert [found.shown(at) for at in range(2)] == ["thrifts://a:9010", "thrifts://b:1"]


@pytest.mark.parametrize(
    "url",
    [
        "thrift://",
        "thrift://a:0",
        "thrift://a:65536",
        "thrift://a,",
        "thrift://secret@a",
        "thrift://ada:secret@a:1",
        "thrift://a/secret",
        "thrift://a?ca=secret",
        "thrift://a?x",
        "thrifts://a?key=secret",
        "thrifts://a#secret",
        "http://a",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(InvalidArgument, match="expected thrift://host:9010") as caught:
        ThriftClient(url)
    assert "secret" not in str(caught.value)


def test_a_file_of_certificates_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file"):
        ThriftClient(f"thrifts://a?ca={tmp_path}/none.pem")


def test_connect_chooses_by_the_url(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pinlater.connect("memory://", source="me", timeout_s=3) as client:
        assert isinstance(client, Client)
        assert (client.settings.source, client.settings.timeout_s) == ("me", 3)
    monkeypatch.setenv("PINLATER_URL", url_of(fake))
    with pinlater.connect(source="me") as found:
        assert isinstance(found, ThriftClient)
        assert found.queue_names() == ["mail"]
    assert fake.asked[0].arguments.context.source == "me"


def test_shards_are_not_for_thrift() -> None:
    with pytest.raises(InvalidArgument, match="expected thrift://a,b for several Thrift servers"):
        pinlater.connect("1=thrift://a,2=thrift://b")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_the_other_clients_name_connect(kind: type) -> None:
    with pytest.raises(InvalidArgument, match=r"got 'thrift://a:9010'; pinlater.connect\(\) takes it"):
        kind("thrift://a:9010")


def test_wrong_settings() -> None:
    wrong: dict[str, Any] = {"timeout_s": 0, "connect_timeout_s": 601, "read_timeout_s": "1", "source": ""}
    for name, value in wrong.items():
        with pytest.raises(InvalidArgument, match=name):
            ThriftClient("thrift://a", **{name: value})


# --- one interface


LACKING = {
    "change_shards": lambda client: client.change_shards({"1": "memory://"}),
    "configure_queue": lambda client: client.configure_queue("mail", paused=True),
    "drain_queue": lambda client: client.drain_queue("mail"),
    "pause_queue": lambda client: client.pause_queue("mail"),
    "peek": lambda client: client.peek("mail"),
    "purge": lambda client: client.purge("mail"),
    "queue_config": lambda client: client.queue_config("mail"),
    "queue_limits": lambda client: client.queue_limits("mail"),
    "release": lambda client: client.release([]),
    "renew": lambda client: client.renew([]),
    "reset_lost": lambda client: client.reset_lost("mail"),
    "resume_queue": lambda client: client.resume_queue("mail"),
    "retry_jobs": lambda client: client.retry_jobs([]),
    "run": lambda client: client.run(lambda _: None),
}
LACKING_ARGUMENTS: dict[str, Callable[[ThriftClient], object]] = {
    "config": lambda client: client.create_queue("mail", QueueConfig()),
    "descriptors": lambda client: client.delete_jobs(descriptors=["mail:s1:p1:1"]),
    "key": lambda client: client.enqueue("mail", b"", key="ada"),
    "the key of a job": lambda client: client.enqueue_many("mail", [b"", NewJob(b"", key="ada")]),
    "wait": lambda client: client.dequeue("mail", wait=1),
}


def public(kind: type) -> dict[str, list[str]]:
    found = inspect.getmembers(kind, callable)
    return {name: list(inspect.signature(each).parameters) for name, each in found if not name.startswith("_")}


def test_it_has_every_method_of_client() -> None:
    own, others = public(ThriftClient), public(Client)
    assert own.pop("delete_queue") == [*others.pop("delete_queue"), "password"]
    assert own == others


@pytest.mark.parametrize("name", public(Client))
def test_what_the_interface_lacks_says_what_to_use(name: str, client: ThriftClient, fake: FakeServer) -> None:
    if name not in LACKING:
        assert "NotOnThrift:" not in (getattr(ThriftClient, name).__doc__ or "")
        return
    with pytest.raises(NotOnThrift, match=rf"^{name}\(\) is not on the Thrift interface; use ") as caught:
        LACKING[name](client)
    assert caught.value.instead.startswith("use ")
    assert fake.asked == []


@pytest.mark.parametrize("name", LACKING_ARGUMENTS)
def test_arguments_that_the_interface_lacks(name: str, client: ThriftClient, fake: FakeServer) -> None:
    with pytest.raises(NotOnThrift, match=name):
        LACKING_ARGUMENTS[name](client)
    assert fake.asked == []


WRONG: list[Callable[[ThriftClient], object]] = [
    lambda client: client.create_queue("a-b"),
    lambda client: client.delete_queue("mail", password=None),  # type: ignore[arg-type]
    lambda client: client.enqueue("mail", b"", priority=0),
    lambda client: client.enqueue("mail", b"", attempts=0),
    lambda client: client.enqueue("mail", "text"),  # type: ignore[arg-type]
    lambda client: client.enqueue_many("mail", None),  # type: ignore[arg-type]
    lambda client: client.dequeue("mail", -1),
    lambda client: client.dequeue("no:queue"),
    lambda client: client.ack(succeeded=["mail:1"]),
    lambda client: client.ack(failed=[Ack("mail:s1:p1:1", "x" * 3001)]),
    lambda client: client.ack(failed=[Ack("mail:s1:p1:1", "", -1)]),
    lambda client: client.ack(failed=["mail:s1:p1:1"], source="x" * 256),
    lambda client: client.checkpoint(Checkpoint(job="mail:s1:p1:1", delay_ms=5)),
    lambda client: client.checkpoint(Checkpoint(job="mail:s1:p1:1", attempts=0)),
    lambda client: client.lookup(["mail"]),
    lambda client: client.lookup([7]),  # type: ignore[list-item]
    lambda client: client.count("mail", priority=0),
    lambda client: client.scan_page("mail", "succeeded", future=True),
    lambda client: client.scan_page("mail", limit=0),
    lambda client: next(client.scan("mail", "no state")),
    lambda client: client.retry_failed("mail", limit=-1),
    lambda client: client.retry_failed("mail", attempts=0),
    lambda client: client.delete_jobs("mail"),
    lambda client: client.delete_jobs("mail", "no state"),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_wrong_arguments_are_not_sent(at: int, client: ThriftClient, fake: FakeServer) -> None:
    with pytest.raises(InvalidArgument):
        WRONG[at](client)
    assert fake.asked == []


# --- on a real server


def test_the_life_of_jobs(mail: ThriftClient, server: Server) -> None:
    assert mail.queue_names() == ["mail"]
    assert mail.create_queue("mail") is False
    first = mail.enqueue("mail", b"\xff\x00", status="new")
    later = mail.enqueue("mail", b"later", delay_ms=600_000, priority=2)
    others = mail.enqueue_many("mail", [b"a", NewJob(b"b", attempts=1), b"c"])
    assert mail.count("mail") == CountsByState(pending=4, scheduled=1)
    assert mail.count("mail", priority=2) == CountsByState(scheduled=1)

    shown = mail.dequeue("mail", 10, dry_run=True)
    jobs = mail.dequeue("mail", 10)
    assert {job.descriptor for job in shown} == {job.descriptor for job in jobs} == {first, *others}
    assert {job.token for job in jobs} == {bytes(8)}
    by_descriptor = {job.descriptor: job for job in jobs}
    assert (by_descriptor[first].body, by_descriptor[first].attempt) == (b"\xff\x00", 1)
    assert by_descriptor[others[1]].attempts_allowed == 1

    kept = Checkpoint(
        job=by_descriptor[others[2]], body=b"\xfe", status="half; ", move_to_pending=True, delay_ms=60_000
    )
    assert mail.checkpoint(kept) == []
    refused = mail.ack(
        succeeded=[by_descriptor[first], Ack((others[0], b"any token"), "fine")], failed=[Ack(others[1], "no")]
    )
    assert refused == []
    assert mail.count("mail") == CountsByState(scheduled=2, succeeded=2, failed=1)

    named = [first, later, *others]
    with Client(shards={"1": server.url, "2": server.url}) as direct:
        for with_body in (False, True):
            assert mail.lookup(named, with_body=with_body) == direct.lookup(named, with_body=with_body)
        for state in State:
            for future in (False, True)[: 2 if state is State.PENDING else 1]:
                over_thrift = mail.scan("mail", state, future=future, with_body=True, page_size=1)
                directly = direct.scan("mail", state, future=future, with_body=True)
                assert sorted(over_thrift, key=str) == sorted(directly, key=str)
        assert mail.count("mail") == direct.count("mail")

    assert mail.retry_failed("mail", attempts=3, delay_ms=1_000_000) == 1
    assert mail.lookup([others[1]])[others[1]].attempts_remaining == 3
    assert mail.delete_jobs("mail", State.PENDING, limit=2) == 2
    assert mail.delete_jobs("mail", "pending", priority=3) == 0
    assert mail.delete_jobs("mail", "succeeded") == 2
    assert mail.delete_queue("mail", password=PASSWORD) is True
    assert mail.delete_queue("mail", password=PASSWORD) is False


def test_many_jobs(mail: ThriftClient) -> None:
    found = mail.enqueue_many("mail", [b"%d" % number for number in range(2_500)])
    infos = mail.lookup(found, with_body=True)
    assert [infos[each].body for each in found] == [b"%d" % number for number in range(2_500)]
    assert len({info.descriptor for info in mail.scan("mail", page_size=600)}) == 2_500
    jobs: list[Job] = []
    while got := mail.dequeue("mail", 1_000):
        jobs += got
    assert mail.ack(succeeded=jobs) == []
    assert mail.count("mail") == CountsByState(succeeded=2_500)


def test_no_jobs_need_no_call(client: ThriftClient, fake: FakeServer) -> None:
    assert (client.enqueue_many("mail", []), client.ack(), client.checkpoint(), client.lookup([])) == ([], [], [], {})
    assert fake.asked == []


def test_an_ack_counts_only_with_the_source_of_the_dequeue(mail: ThriftClient, service: ThriftServer) -> None:
    mail.enqueue_many("mail", [b"1", b"2"])
    one, two = mail.dequeue("mail", 2)
    with ThriftClient(url_of(service), source="shop:eve") as other:
        other.ack(succeeded=[one])
        assert other.count("mail").in_progress == 2
        other.ack(succeeded=[one], source="shop:ada")
        other.checkpoint(Checkpoint(job=two, move_to_pending=True), source="shop:ada")
        assert other.count("mail") == CountsByState(pending=1, succeeded=1)


def test_errors_of_a_real_server(mail: ThriftClient) -> None:
    with pytest.raises(QueueNotFound, match=r"^enqueueJobs at thrift://127.0.0.1:\d+: queue 'none': not found"):
        mail.enqueue("none", b"")
    with pytest.raises(InvalidArgument, match="expected 1 to 3"):
        mail.enqueue("mail", b"", priority=4)
    with pytest.raises(InvalidArgument, match="continuation"):
        mail.scan_page("mail", cursor="-1")
    with pytest.raises(ServerRefused, match="password"):
        mail.delete_queue("mail", password=PASSWORD[1:])
    with pytest.raises(ServerError, match="32"):
        mail.enqueue("mail", bytes(33 * 1024 * 1024))
    assert mail.count("none") == CountsByState()


def test_threads_share_a_client(mail: ThriftClient) -> None:
    found: list[str] = []

    def work() -> None:
        for number in range(40):
            found.append(mail.enqueue("mail", b"%d" % number))
            job = mail.dequeue("mail")
            mail.ack(succeeded=job)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 320
    mail.ack(succeeded=mail.dequeue("mail", 320))
    assert mail.count("mail") == CountsByState(succeeded=320)


def test_a_server_stops_under_load_and_the_other_one_goes_on(server: Server) -> None:
    """What was answered is there, once; an answer that was lost is said to be."""
    shards = {"1": server.url, "2": server.url}
    with (
        ThriftServer(shards) as first,
        ThriftServer(shards) as second,
        ThriftClient(url_of(first, second)) as client,
    ):
        client.create_queue("mail")
        found, unknown, half = list[str](), list[OutcomeUnknown](), threading.Event()

        def work() -> None:
            for number in range(100):
                try:
                    found.append(client.enqueue("mail", b"%d" % number))
                except OutcomeUnknown as error:
                    unknown.append(error)
                if number == 50:
                    half.set()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        half.wait()
        first.stop()
        for thread in threads:
            thread.join()
        assert len(set(found)) + len(unknown) == 400
        assert len(unknown) <= 4, "one call of each thread was under way"
        assert len(client.lookup(found)) == len(found)
        assert len(found) <= client.count("mail").pending <= 400


# --- what is sent


def test_calls_name_the_source_and_what_was_asked(client: ThriftClient, fake: FakeServer) -> None:
    client.enqueue("mail", b"x", run_after_ms=5, priority=2, attempts=3, status="new")
    client.dequeue("mail", 7)
    client.ack(failed=[Ack("mail:s1:p1:1", "why", 20)], source="other:1")
    enqueue, dequeue, ack = fake.asked
    assert [each.arguments.context.source for each in fake.asked] == ["shop:ada", "shop:ada", "other:1"]
    assert enqueue.request.jobs == [structs.PinLaterJob(b"x", 2, 5, 3, "new")]
    assert (dequeue.request.queueName, dequeue.request.limit, dequeue.request.dryRun) == ("mail", 7, False)
    assert ack.request.jobsFailed == [structs.PinLaterJobAckInfo("mail:s1:p1:1", "why", 20)]
    assert not ack.request.jobsSucceeded


def test_a_delay_counts_from_now(client: ThriftClient, fake: FakeServer) -> None:
    before_ms = int(time.time() * 1000)
    client.enqueue("mail", b"x", delay_ms=60_000)
    after_ms = int(time.time() * 1000)
    assert before_ms <= fake.asked[0].request.jobs[0].runAfterTimestampMillis - 60_000 <= after_ms


def test_a_change_of_all_priorities_ends_when_all_jobs_are_done(client: ThriftClient, fake: FakeServer) -> None:
    failed = {1: 2, 2: 0, 3: 5, 4: 9}

    def answer(asked: Asked) -> bytes:
        if asked.method == "getJobCount":
            return asked.gives(sum(failed.values()) if asked.request.jobState == State.FAILED.code else 0)
        done = min(failed.get(asked.request.priority, 0), asked.request.limit)
        return asked.gives(done)

    fake.answer = answer
    assert client.retry_failed("mail", limit=6) == 6
    assert [(each.request.priority, each.request.limit) for each in fake.asked[5:]] == [(1, 6), (2, 4), (3, 4)]
    assert client.retry_failed("mail", priority=4, limit=3) == 3
    assert client.retry_failed("mail") == 16
    assert client.retry_failed("mail", limit=0) == 0


def test_a_change_of_all_priorities_that_fails_half_way(client: ThriftClient, fake: FakeServer) -> None:
    def answer(asked: Asked) -> bytes:
        if asked.method == "getJobCount":
            return asked.gives(5)
        return asked.gives(2) if asked.request.priority == 1 else asked.refuses(501)

    fake.answer = answer
    with pytest.raises(PartialOutcome, match="done for 2 jobs, then") as caught:
        client.delete_jobs("mail", "failed")
    assert caught.value.result == 2
    with pytest.raises(ServerUnavailable):
        client.delete_jobs("mail", "failed", priority=2)


# --- errors of the server


CODES = [getattr(structs.ErrorCode, name) for name in dir(structs.ErrorCode) if name[0].isupper()]


@pytest.mark.parametrize(
    ("code", "of_a_look", "of_a_change"),
    [
        (400, InvalidArgument, InvalidArgument),
        (403, ServerRefused, ServerRefused),
        (410, InvalidArgument, InvalidArgument),
        (411, InvalidArgument, InvalidArgument),
        (413, QueueNotFound, QueueNotFound),
        (416, InvalidArgument, InvalidArgument),
        (429, DequeueRefused, DequeueRefused),
        (430, EnqueueRefused, EnqueueRefused),
        (500, ServerError, ServerError),
        (501, ServerUnavailable, ServerUnavailable),
        (502, ServerUnavailable, OutcomeUnknown),  # of a change the server may have lost the answer of Redis
    ],
)
def test_codes(
    client: ThriftClient,
    fake: FakeServer,
    code: int,
    of_a_look: type[PinLaterError],
    of_a_change: type[PinLaterError],
) -> None:
    fake.answer = lambda asked: asked.refuses(code, "because")
    with pytest.raises(of_a_look, match=f"getQueueNames at {url_of(fake)}: because") as looked:
        client.queue_names()
    with pytest.raises(of_a_change, match="because") as changed:
        client.enqueue("mail", b"")
    assert (type(looked.value), type(changed.value)) == (of_a_look, of_a_change)
    assert fake.accepted == 1, "the connection is still good"


def test_every_code_has_an_error(client: ThriftClient, fake: FakeServer) -> None:
    for code in CODES:
        fake.answer = partial(Asked.refuses, code=code)
        with pytest.raises(PinLaterError):
            client.queue_names()


@pytest.mark.parametrize(
    ("failure", "kind", "match"),
    [
        (Failure.UNKNOWN_METHOD, ServerError, "is no PinLater"),
        (Failure.INTERNAL_ERROR, InvalidArgument, "because"),
        (Failure.PROTOCOL_ERROR, InvalidArgument, "because"),
        (5, ServerError, "because"),
    ],
)
def test_failures(client: ThriftClient, fake: FakeServer, failure: Any, kind: type, match: str) -> None:
    fake.answer = lambda asked: asked.fails(failure, "because")
    with pytest.raises(kind, match=match):
        client.enqueue("mail", b"")


# --- lost connections


def test_the_next_server_takes_over() -> None:
    with FakeServer() as first, FakeServer() as second, ThriftClient(url_of(first, second)) as client:
        client.enqueue("mail", b"")
        client.enqueue("mail", b"")
        first.stop()
        client.enqueue("mail", b"")
        client.enqueue("mail", b"")
        assert (len(first.asked), len(second.asked)) == (2, 2)
        assert (first.accepted, second.accepted) == (1, 1)


def test_no_server_there() -> None:
    with FakeServer() as first, FakeServer() as second:
        pass
    with ThriftClient(url_of(first, second)) as client:
        for call in (client.queue_names, lambda: client.enqueue("mail", b"")):
            with pytest.raises(ServerUnavailable, match=f"{url_of(second)}: Connection refused"):
                call()


def test_a_name_that_nobody_knows() -> None:
    with (
        ThriftClient("thrift://no-such-host.invalid") as client,
        pytest.raises(ServerUnavailable, match="invalid:9010"),
    ):
        client.queue_names()


def test_a_server_that_was_there_is_waited_for(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that restarts is away for a moment only."""
    with ThriftClient(url_of(fake), timeout_s=60) as client, ExitStack() as stack:
        client.queue_names()
        fake.stop()
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                stack.enter_context(FakeServer(port=fake.port))

        monkeypatch.setattr(time, "sleep", pause)
        client.enqueue("mail", b"")
        assert pauses == [0.1, 0.2, 0.4]


def test_a_connection_that_the_server_closed_is_not_used(client: ThriftClient, fake: FakeServer) -> None:
    client.enqueue("mail", b"")
    fake.drop()
    client.enqueue("mail", b"")
    assert (fake.methods, fake.accepted) == (["enqueueJobs"] * 2, 2)


def test_a_call_that_was_not_sent_completely_goes_to_the_next_server() -> None:
    """The first server closes its end while the call is on the way: it cannot have the whole frame."""
    with FakeServer(reads=False) as first, FakeServer() as second, ThriftClient(url_of(first, second)) as client:
        client.enqueue("mail", bytes(30 * 1024 * 1024))
        assert (first.accepted, second.methods) == (1, ["enqueueJobs"])


def test_a_change_is_not_sent_again_after_its_answer_was_lost() -> None:
    with FakeServer(lambda _: None) as first, FakeServer() as second, ThriftClient(url_of(first, second)) as client:
        with pytest.raises(OutcomeUnknown, match=rf"enqueueJobs: sent, .*{first.port}: the server closed") as caught:
            client.enqueue("mail", b"")
        for _ in range(2):
            with pytest.raises(NotOnThrift, match=r"resolve\(\) is not on the Thrift interface; look at what is there"):
                caught.value.resolve()
        assert (first.methods, second.methods) == (["enqueueJobs"], [])


@pytest.mark.parametrize(
    "change",
    [
        lambda client: client.dequeue("mail"),
        lambda client: client.ack(succeeded=["mail:s1:p1:1"]),
        lambda client: client.checkpoint(Checkpoint(job="mail:s1:p1:1")),
        lambda client: client.retry_failed("mail", priority=1),
        lambda client: client.delete_jobs("mail", "failed", priority=1),
        lambda client: client.create_queue("mail"),
        lambda client: client.delete_queue("mail", password=PASSWORD),
    ],
)
def test_the_outcome_of_every_change_is_unknown_then(
    client: ThriftClient, fake: FakeServer, change: Callable[[ThriftClient], object]
) -> None:
    fake.answer = lambda asked: ordinary(asked) if asked.method == "getQueueNames" else None
    with pytest.raises(OutcomeUnknown):
        change(client)
    assert len([method for method in fake.methods if method != "getQueueNames"]) == 1


@pytest.mark.parametrize(
    "look",
    [
        lambda client: client.queue_names(),
        lambda client: client.lookup(["mail:s1:p1:1"]),
        lambda client: client.count("mail"),
        lambda client: client.scan_page("mail"),
        lambda client: client.dequeue("mail", dry_run=True),
    ],
)
def test_a_look_goes_to_the_next_server_after_its_answer_was_lost(look: Callable[[ThriftClient], object]) -> None:
    with FakeServer(lambda _: None) as first, FakeServer() as second, ThriftClient(url_of(first, second)) as client:
        look(client)
        assert len(first.asked) == 1
        assert second.asked


# --- time limits


def silent(_: Asked) -> bytes:
    return b""


def test_a_look_asks_the_next_server_when_no_answer_comes() -> None:
    with FakeServer(silent) as first, FakeServer() as second:
        url = url_of(first, second)
        with ThriftClient(url, timeout_s=60, read_timeout_s=SOON_S) as client:
            assert client.queue_names() == ["mail"]
        assert (first.methods, second.methods) == (["getQueueNames"], ["getQueueNames"])


def test_no_answer_until_the_end(fake: FakeServer) -> None:
    fake.answer = silent
    with ThriftClient(url_of(fake), timeout_s=SOON_S, read_timeout_s=600) as client:
        with pytest.raises(ServerUnavailable, match="no answer in time"):
            client.queue_names()
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            client.enqueue("mail", b"")
        with pytest.raises(OutcomeUnknown):
            client.within(0.1).enqueue("mail", b"")


def test_parts_are_not_sent_after_the_end(fake: FakeServer) -> None:
    fake.answer = silent
    with ThriftClient(url_of(fake), timeout_s=SOON_S) as client, pytest.raises(PartialEnqueue) as caught:
        client.enqueue_many("mail", [b""] * 2_001)
    assert [type(caught.value.results[at]) for at in (0, 1_000, 2_000)] == [
        OutcomeUnknown,
        ServerUnavailable,
        ServerUnavailable,
    ]
    assert len(fake.asked) == 1


def test_an_answer_that_comes_in_pieces(fake: FakeServer, client: ThriftClient) -> None:
    started, rest = threading.Event(), list[bytes]()

    def answer(asked: Asked) -> bytes:
        whole = asked.gives({"a", "b"})
        fake.send(whole[:10])
        rest.append(whole[10:])
        started.set()
        return b""

    def send_rest() -> None:
        started.wait()
        fake.send(rest[0])

    fake.answer = answer
    thread = threading.Thread(target=send_rest)
    thread.start()
    assert client.queue_names() == ["a", "b"]
    thread.join()


# --- frames that are no answers


def _with_sequence(asked: Asked) -> bytes:
    return Asked(asked.head._replace(sequence=asked.head.sequence + 1), None).gives({"mail"})


BAD_ANSWERS: dict[str, Callable[[Asked], bytes]] = {
    "nothing of Thrift": lambda _: b"-ERR unknown command\r\n",
    "no bytes": lambda _: framed(b""),
    "a negative length": lambda _: struct.pack(">i", -5),
    "a length past the limit": lambda _: struct.pack(">I", 0x7FFFFFFF),
    "half a head": lambda _: framed(b"\x80\x01\x00\x02\x00"),
    "another version": lambda _: framed(b"\x80\x09\x00\x02" + bytes(8)),
    "a call": lambda asked: framed(b"\x80\x01\x00\x01" + asked.gives({"mail"})[8:]),
    "another sequence": _with_sequence,
    "another method": lambda asked: Asked(asked.head._replace(method="createQueue"), None).gives(),
    "no result": lambda asked: framed(asked.gives({"mail"})[4 : asked.head.end] + b"\x00"),
    "a struct without its end": lambda asked: framed(asked.gives({"mail"})[4:-1]),
    "a set of 2 billion": lambda asked: framed(
        asked.gives({"mail"})[4 : asked.head.end] + b"\x0e\x00\x00\x0b" + struct.pack(">i", 2**31 - 1)
    ),
    "a deep struct": lambda asked: framed(asked.gives({"mail"})[4 : asked.head.end] + b"\x0c\x00\x07" * 100_000),
    "an unknown code": lambda asked: asked.refuses(999),
    "two answers": lambda asked: asked.gives({"mail"}) * 2,
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_what_is_no_answer_closes_the_connection(name: str, fake: FakeServer) -> None:
    fake.answer = BAD_ANSWERS[name]
    with ThriftClient(url_of(fake), timeout_s=5) as client:
        with pytest.raises(ServerUnavailable, match=r"expected|nested too deep"):
            client.queue_names()
        fake.answer = ordinary
        assert client.queue_names() == ["mail"]
        assert fake.accepted == 2


def test_what_is_no_answer_to_a_change_leaves_its_outcome_unknown(fake: FakeServer, client: ThriftClient) -> None:
    fake.answer = lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with pytest.raises(OutcomeUnknown, match="expected a frame"):
        client.enqueue("mail", b"")


def test_descriptors_that_are_none(client: ThriftClient, fake: FakeServer) -> None:
    jobs = {"nonsense": b""}
    fake.answer = lambda asked: asked.gives(structs.PinLaterDequeueResponse(jobs=jobs))
    with pytest.raises(ServerError, match="expected jobs, got 'nonsense'"):
        client.dequeue("mail")
    fake.answer = lambda asked: asked.gives(structs.PinLaterEnqueueResponse([]))
    with pytest.raises(OutcomeUnknown, match="expected 1 descriptors, the server gave 0"):
        client.enqueue("mail", b"")


def test_an_old_server_says_nothing_of_attempts(client: ThriftClient, fake: FakeServer) -> None:
    fake.answer = lambda asked: asked.gives(structs.PinLaterDequeueResponse(jobs={"mail:s1:p2:7": b"x"}))
    [job] = client.dequeue("mail")
    assert (job.priority, job.attempt, job.attempts_allowed) == (2, 1, 1)


# --- calls in parts


def test_an_enqueue_of_which_a_part_fails(client: ThriftClient, fake: FakeServer) -> None:
    fake.answer = lambda asked: None if len(fake.asked) == 2 else ordinary(asked)
    with pytest.raises(PartialEnqueue) as caught:
        client.enqueue_many("mail", [b""] * 2_001)
    results = caught.value.results
    assert all(isinstance(each, str) for each in (*results[:1_000], results[2_000]))
    assert all(isinstance(each, OutcomeUnknown) for each in results[1_000:2_000])
    with pytest.raises(NotOnThrift):
        results[1_500].resolve()  # type: ignore[union-attr]


def test_an_enqueue_that_is_refused_in_every_part(client: ThriftClient, fake: FakeServer) -> None:
    fake.answer = lambda asked: asked.refuses(413)
    with pytest.raises(QueueNotFound):
        client.enqueue_many("mail", [b""] * 2_001)
    assert len(fake.asked) == 3


def test_a_large_enqueue_leaves_in_parts(client: ThriftClient, fake: FakeServer) -> None:
    client.enqueue_many("mail", [bytes(400_000)] * 3)
    assert [len(asked.request.jobs) for asked in fake.asked] == [1, 1, 1]


def test_acks_of_several_queues(client: ThriftClient, fake: FakeServer) -> None:
    def answer(asked: Asked) -> bytes | None:
        return {"a": asked.gives(), "b": asked.refuses(501), "c": None}[asked.request.queueName]

    fake.answer = answer
    items = [f"{queue}:s1:p1:{number}" for number in (1, 2) for queue in "abc"]
    with pytest.raises(PartialOutcome, match="ack: 2 of 3 calls are not certain to be carried out") as caught:
        client.ack(succeeded=items[:3], failed=items[3:])
    error = caught.value
    assert (error.result, error.done) == ([], [items[0], items[3]])
    assert [(named, type(why)) for named, why in error.failed] == [([items[1], items[4]], ServerUnavailable)]
    assert [(named, type(why)) for named, why in error.unknown] == [([items[2], items[5]], OutcomeUnknown)]
    with pytest.raises(ServerUnavailable):
        client.ack(succeeded=[items[1]])


# --- the connections of a client


def test_threads_have_connections_of_their_own(fake: FakeServer) -> None:
    together = threading.Barrier(MAX_FREE + 4)

    def answer(asked: Asked) -> bytes:
        if asked.method == "getQueueNames":
            together.wait()
        return ordinary(asked)

    fake.answer = answer
    with ThriftClient(url_of(fake), timeout_s=60, read_timeout_s=60) as client:
        for accepted in (MAX_FREE + 4, MAX_FREE + 8):
            threads = [threading.Thread(target=client.queue_names) for _ in range(together.parties)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert fake.accepted == accepted, "up to MAX_FREE connections are kept"


def test_a_closed_client(fake: FakeServer) -> None:
    client = ThriftClient(url_of(fake))
    client.queue_names()
    client.close()
    client.close()
    for other in (client, client.within(3)):
        with pytest.raises(ClientClosed):
            other.enqueue("mail", b"")
    assert fake.methods == ["getQueueNames"]


def test_a_fork_has_connections_of_its_own(client: ThriftClient, fake: FakeServer) -> None:
    client.queue_names()
    child = os.fork()
    if not child:
        code = 1
        with suppress(Exception):
            code = client.queue_names() != ["mail"]
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert client.queue_names() == ["mail"]
    assert (len(fake.asked), fake.accepted) == (3, 2)


def test_tls(tmp_path: Path) -> None:
    files = Authority(tmp_path).files
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    with FakeServer(tls=context) as fake:
        with ThriftClient(f"thrifts://localhost:{fake.port}?ca={files.certificate}") as client:
            assert client.queue_names() == client.queue_names() == ["mail"]
            assert fake.accepted == 1, "what TLS itself sends does not make a connection stale"
        with (
            ThriftClient(f"thrifts://localhost:{fake.port}") as client,
            pytest.raises(ServerUnavailable, match="certificate"),
        ):
            client.queue_names()
