"""Bad input for every public method: the error that names it, nothing changed, and nothing sent.

Promises: each message says what was expected and what came; the queue's keys are compared byte for byte; a client that
knows the queue sends nothing.
Risks: a message is matched by its words, not as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pinlater import Ack, AsyncClient, Checkpoint, Client, InvalidArgument, NewJob, QueueConfig, QueueNotFound
from tests.support.both_clients import CALLS_KINDS, Calls, make_calls
from tests.support.cut_proxy import CutProxy
from tests.support.servers import Server

NAN = float("nan")
TOKEN = b"\1" * 8
SOME = "q:s1:p1:1"  # a descriptor that is none of a job's
BIG = 2**62
LONG_STATUS = "x" * 3001
BODY_LIMIT = 1000

Call = Callable[[Calls, str], Any]  # the second argument: the descriptor of a job that is there

NUMBERS = [NAN, -1, 1.5, BIG * 4, True, "1", None]
DESCRIPTORS = ["", "q", "q:s1:p1", "q:s1:p1:x", "q:s1:p1:-1", "q:s1:p101:1", "q:s1:p0:1", "q:1:1:1", "é:s1:p1:1"]
DESCRIPTORS += [f"q:s1:p1:{2**63}", "q:s1:p1:1\n", " q:s1:p1:1", "q:s1:p1:+1", "q:s" + "x" * 33 + ":p1:1"]
NOT_DESCRIPTORS = [None, 1, b"q:s1:p1:1", ["q:s1:p1:1"], 1.5, True]


def on(call: Callable[[Calls, Any], Any], value: Any) -> Call:
    """The call with its value bound."""
    return lambda calls, _: call(calls, value)


def cases() -> Iterator[tuple[str, Call, str]]:
    """A name, the call, and the message (a regular expression)."""
    yield from queue_names()
    yield from of_enqueue()
    yield from of_descriptors()
    yield from of_numbers()
    yield from of_scans()
    yield from of_working()
    yield from of_configuration()


def queue_names() -> Iterator[tuple[str, Call, str]]:
    methods: dict[str, Callable[[Calls, Any], Any]] = {
        "create_queue": lambda c, q: c.create_queue(q),
        "configure_queue": lambda c, q: c.configure_queue(q, lease_ms=1000),
        "queue_config": lambda c, q: c.queue_config(q),
        "delete_queue": lambda c, q: c.delete_queue(q),
        "enqueue": lambda c, q: c.enqueue(q, b""),
        "enqueue_many": lambda c, q: c.enqueue_many(q, [b""]),
        "enqueue_many nothing": lambda c, q: c.enqueue_many(q, []),
        "dequeue": lambda c, q: c.dequeue(q),
        "dry run": lambda c, q: c.dequeue(q, dry_run=True),
        "count": lambda c, q: c.count(q),
        "peek": lambda c, q: c.peek(q),
        "scan": lambda c, q: c.scan(q),
        "scan_page": lambda c, q: c.scan_page(q),
        "retry_failed": lambda c, q: c.retry_failed(q),
        "delete_jobs": lambda c, q: c.delete_jobs(q, "failed"),
        "purge": lambda c, q: c.purge(q),
        "reset_lost": lambda c, q: c.reset_lost(q),
    }
    bad: list[Any] = ["", "a b", "ä", "q" * 256, "q/1", "{q}", "q\n", b"q", 1, True, ["q"]]
    for method, call in methods.items():
        for name in bad:
            said = "got '?q+…" if name == "q" * 256 else re.escape(f"got {name!r}")
            yield f"{method} queue {name!r:.20}", on(call, name), f"queue name: expected .*{said}"
        if method != "delete_jobs":
            yield f"{method} queue None", on(call, None), "queue name: expected .*got None"


def of_enqueue() -> Iterator[tuple[str, Call, str]]:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"priority": 0}, "priority.*1 to.*got 0"),
        ({"priority": 4}, "^job: priority.*1 to 3.*got 4"),
        ({"priority": 101}, "priority.*got 101"),
        ({"status": LONG_STATUS}, "status.*3,?000.*3,?001"),
        ({"status": "é" * 1501}, "status.*3,?000.*3,?002"),
        ({"status": "\ud800"}, "status"),
        ({"attempts": 0}, "attempts.*1 to 65,?535.*got 0"),
        ({"attempts": 65536}, "attempts.*got 65,?536"),
        ({"run_after_ms": 1, "delay_ms": 1}, "run_after_ms.*delay_ms"),
        ({"run_after_ms": 2**44}, "run_after_ms"),
        ({"delay_ms": 2**44}, "delay_ms"),
        ({"status": b"x"}, "status"),
        ({"status": None}, "status"),
        ({"key": 1}, "key"),
        ({"key": 1.5}, "key"),
    ]
    for name in ("priority", "attempts", "run_after_ms", "delay_ms"):
        bad += [({name: value}, name) for value in NUMBERS if not (value is None and name.endswith("_ms"))]
    for options, says in bad:
        yield f"enqueue {options!r:.40}", on(lambda c, o: c.enqueue("q", b"", **o), options), says
    for body in ("text", 1, None, 1.5, [b""], object()):
        yield f"enqueue body {body!r:.10}", on(lambda c, b: c.enqueue("q", b), body), "bod(y|ies): expected bytes"
        yield (
            f"enqueue_many body {body!r:.10}",
            on(lambda c, b: c.enqueue_many("q", [b"", b]), body),
            "(?s)job 2 of 2|bytes",
        )
    large = b"x" * (BODY_LIMIT + 1)
    yield "enqueue large", (lambda c, _: c.enqueue("q", large)), "^job: body.*1,?000.*1,?001"
    yield (
        "enqueue_many large",
        (lambda c, _: c.enqueue_many("q", [b""] * 1500 + [large])),
        "job 1501 of 1501.*1,?000.*1,?001",
    )
    late = [b""] * 1500 + [NewJob(b"", priority=4)]
    yield "enqueue_many priority", (lambda c, _: c.enqueue_many("q", late)), "job 1501 of 1501.*priority.*got 4"
    for jobs in (None, 1, True):
        yield f"enqueue_many {jobs!r}", on(lambda c, jobs: c.enqueue_many("q", jobs), jobs), "jobs: expected"
    yield "enqueue_many str", (lambda c, _: c.enqueue_many("q", "text")), "bytes"
    yield "enqueue_many bytes", (lambda c, _: c.enqueue_many("q", b"text")), "bytes"


def of_scans() -> Iterator[tuple[str, Call, str]]:
    for state in ("in_progress", "succeeded", "failed"):
        said = f"future: expected with pending jobs, got {state} ones"
        yield f"scan {state}", lambda c, _, state=state: c.scan("q", state, future=True), said  # type: ignore[misc]
        yield f"page {state}", lambda c, _, state=state: c.scan_page("q", state, future=True), said  # type: ignore[misc]


def of_descriptors() -> Iterator[tuple[str, Call, str]]:
    methods: dict[str, Callable[[Calls, Any], Any]] = {
        "lookup": lambda c, d: c.lookup([d]),
        "delete": lambda c, d: c.delete_jobs(descriptors=[d]),
        "retry_jobs": lambda c, d: c.retry_jobs([d]),
        "ack succeeded": lambda c, d: c.ack(succeeded=[(d, TOKEN)]),
        "ack failed": lambda c, d: c.ack(failed=[(d, TOKEN)]),
        "release": lambda c, d: c.release([(d, TOKEN)]),
        "renew": lambda c, d: c.renew([(d, TOKEN)]),
        "renew own": lambda c, d: c.renew([(d, TOKEN)], own=True),
        "checkpoint": lambda c, d: c.checkpoint(Checkpoint(job=(d, TOKEN))),
    }
    for method, call in methods.items():
        for descriptor in DESCRIPTORS:
            yield f"{method} {descriptor!r}", on(call, descriptor), f"descriptor.*{re.escape(repr(descriptor)[1:-1])}"
        for other in NOT_DESCRIPTORS:
            yield f"{method} {other!r}", on(call, other), "descriptor|expected"
        yield f"{method} shard", on(call, "q:snone:p1:1"), "shard: expected one of 1, got 'none'"
    for method in ("lookup", "retry_jobs", "release", "renew"):
        for value in (None, 1):
            yield f"{method} {value}", on(lambda c, v: getattr(c, v[0])(v[1]), (method, value)), "expected"
    yield "lookup str", (lambda c, d: c.lookup(d)), "expected"
    yield "delete str", (lambda c, d: c.delete_jobs(descriptors=d)), "expected"


def of_numbers() -> Iterator[tuple[str, Call, str]]:
    methods: list[tuple[str, str, Callable[[Calls, Any], Any], tuple[Any, ...]]] = [
        ("dequeue", "limit", lambda c, n: c.dequeue("q", n), ()),
        ("dry run", "limit", lambda c, n: c.dequeue("q", n, dry_run=True), (2**31,)),
        ("scan", "limit", lambda c, n: c.scan("q", page_size=n), (0, 1001)),
        ("scan_page", "limit", lambda c, n: c.scan_page("q", limit=n), (0, 1001)),
        ("retry_failed", "limit", lambda c, n: c.retry_failed("q", limit=n), ()),
        ("retry_failed", "attempts", lambda c, n: c.retry_failed("q", attempts=n), (0, 65536)),
        ("retry_jobs", "attempts", lambda c, n: c.retry_jobs([], attempts=n), (0, 65536)),
        ("delete_jobs", "limit", lambda c, n: c.delete_jobs("q", "failed", limit=n), ()),
        ("count", "priority", lambda c, n: c.count("q", priority=n), (0, 4)),
        ("scan", "priority", lambda c, n: c.scan("q", priority=n), (0, 4)),
        ("retry_failed", "priority", lambda c, n: c.retry_failed("q", priority=n), (0, 4)),
        ("delete_jobs", "priority", lambda c, n: c.delete_jobs("q", "failed", priority=n), (0, 4)),
        ("retry_failed", "run_after_ms", lambda c, n: c.retry_failed("q", run_after_ms=n), (2**44,)),
        ("retry_failed", "delay_ms", lambda c, n: c.retry_failed("q", delay_ms=n), (2**44,)),
        ("dequeue", "wait", lambda c, n: c.dequeue("q", wait=n), (float("inf"),)),
    ]
    for method, name, call, more in methods:
        optional = name in ("priority", "run_after_ms", "delay_ms", "wait")
        for value in (*NUMBERS, *more):
            if (value is None and optional) or (name == "wait" and value in (1.5, BIG * 4) and value is not True):
                continue
            yield f"{method} {name} {value!r}", on(call, value), f"{name}: expected .*got {re.escape(repr(value))}"


def of_working() -> Iterator[tuple[str, Call, str]]:
    for token in (b"", b"short", b"\1" * 9, 1, "texttext"):
        for method in ("release", "renew"):
            yield (
                f"{method} token {token!r}",
                on(lambda c, v: getattr(c, v[0])([(SOME, v[1])]), (method, token)),
                "token",
            )
        yield f"ack token {token!r}", on(lambda c, t: c.ack(succeeded=[(SOME, t)]), token), "token"
    yield "ack without token", (lambda c, d: c.ack(succeeded=[d])), "source"
    yield "release without token", (lambda c, d: c.release([d])), "token"
    yield "renew without token", (lambda c, d: c.renew([d])), "token"
    yield "ack status", (lambda c, d: c.ack(succeeded=[Ack((d, TOKEN), LONG_STATUS)])), "status.*3,?000.*3,?001"
    for delay in (-1, 2**44, BIG, NAN, 1.5, "1", True):
        yield f"ack delay {delay}", on(lambda c, v: c.ack(failed=[Ack((SOME, TOKEN), "", v)]), delay), "delay_ms"
    yield "ack status type", (lambda c, d: c.ack(failed=[Ack((d, TOKEN), b"")])), "status"  # type: ignore[arg-type]
    for source in (1, "x" * 256, "\ud800"):
        yield (
            f"ack source {source!a:.9}",
            on(lambda c, s: c.ack(succeeded=[SOME], source=s), source),
            "source: expected",
        )
    yield "ack not a list", (lambda c, d: c.ack(succeeded=None)), "expected"

    def point(descriptor: str, **options: Any) -> Checkpoint:
        return Checkpoint(job=(descriptor, TOKEN), **options)

    yield "checkpoint body", (lambda c, d: c.checkpoint(point(d, body=b"x" * 1001))), "body.*1,?000.*1,?001"
    yield "checkpoint body type", (lambda c, d: c.checkpoint(point(d, body="x"))), "body.*bytes"
    yield "checkpoint status", (lambda c, d: c.checkpoint(point(d, status=LONG_STATUS))), "status"
    yield "checkpoint attempts", (lambda c, d: c.checkpoint(point(d, attempts=0))), "attempts"
    yield "checkpoint delay", (lambda c, d: c.checkpoint(point(d, delay_ms=5))), "move_to_pending"
    yield (
        "checkpoint times",
        (lambda c, d: c.checkpoint(point(d, move_to_pending=True, delay_ms=5, run_after_ms=5))),
        "delay_ms",
    )
    yield "checkpoint type", (lambda c, d: c.checkpoint(d)), "Checkpoint"
    yield "state", (lambda c, _: c.scan("q", "gone")), "state: expected one of pending.*got 'gone'"
    yield "state None", (lambda c, _: c.scan("q", None)), "state: expected"
    yield "delete_jobs state", (lambda c, _: c.delete_jobs("q", 7)), "state: expected one of pending.*got 7"
    yield "delete_jobs nothing", (lambda c, _: c.delete_jobs()), "a queue and a state, or descriptors"
    yield "delete_jobs no state", (lambda c, _: c.delete_jobs("q")), "a queue and a state, or descriptors"
    yield "delete_jobs no queue", (lambda c, _: c.delete_jobs(None, "failed")), "a queue and a state, or descriptors"
    for cursor in ("x", "1:2", "nowhere:1:00", 1, "1:9:", b"1:1:"):
        yield f"cursor {cursor!r}", on(lambda c, v: c.scan_page("q", cursor=v), cursor), "cursor"


def of_configuration() -> Iterator[tuple[str, Call, str]]:
    bad: dict[str, tuple[Any, ...]] = {
        "lease_ms": (0, 99, 2**32, *NUMBERS),
        "priorities": (0, 101, *NUMBERS),
        "keep_succeeded": (2**32, *NUMBERS),
        "succeeded_ttl_s": (2**32, *NUMBERS),
        "failed_ttl_s": (2**32, *NUMBERS),
        "body_limit": (0, 2**28 + 1, *NUMBERS),
        "paused": (1, 0, None, "yes"),
        "refuse_enqueue": (1, 0, None, "yes"),
    }
    for name, values in bad.items():
        for value in values:
            says = f"{name}: expected .*got {re.escape(repr(value))}"
            changes = {name: value}
            yield f"configure {name} {value!r}", on(lambda c, v: c.configure_queue("q", **v), changes), says
            yield f"create {name} {value!r}", on(lambda c, v: c.create_queue("new", QueueConfig(**v)), changes), says
    yield "configure unknown", (lambda c, _: c.configure_queue("q", lease=1)), "expected one of lease_ms.*got 'lease'"
    for config in ({}, {"lease_ms": 1000}, 1, "text"):
        yield (
            f"create config {config!r}",
            on(lambda c, v: c.create_queue("new", v), config),
            "config: expected a QueueConfig",
        )


CASES = list(cases())


@pytest.fixture
def proxy(server: Server) -> Iterator[CutProxy]:
    with CutProxy(server.port) as made:
        yield made


def dump(server: Server) -> dict[bytes, bytes]:
    return {key: server.call("DUMP", key) for key in server.call("KEYS", "pl:*")}


@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_bad_input_is_named_and_nothing_is_sent(kind: Any, server: Server, proxy: CutProxy) -> None:
    calls = make_calls(kind, proxy.url)
    wrong: list[str] = []
    try:
        calls.create_queue("q", QueueConfig(body_limit=BODY_LIMIT))
        descriptor = calls.enqueue("q", b"body")
        before = dump(server)
        for name, call, says in CASES:
            seen = len(proxy.requests)
            said = message(call, calls, descriptor)
            if not re.search(says, said):
                wrong.append(f"{name}: expected {says!r}, got {said!r:.150}")
            if len(proxy.requests) != seen:
                wrong.append(f"{name}: sent {[seen.command[:2] for seen in proxy.requests[seen:]]}")
        if wrong:
            pytest.fail("\n".join(wrong))
        assert dump(server) == before
    finally:
        calls.close()


def test_priorities_can_only_grow(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("q")
        before = dump(server)
        with pytest.raises(InvalidArgument, match=r"priorities: expected at least 3 .*got 2"):
            client.configure_queue("q", priorities=2)
        assert dump(server) == before


URL = "redis://127.0.0.1:1"
SETTINGS: list[tuple[dict[str, Any], str]] = [
    *[({"url": url}, "URL: expected") for url in ("http://x", "", "redis", "127.0.0.1:6379", 1, b"redis://x")],
    *[
        ({"url": url}, "URL")
        for url in ("redis://x:port", "redis://x:99999", "redis://[", "rediss://x?ssl_cert_reqs=what")
    ],
    ({"url": URL, "shards": {"1": URL}}, "a URL or shards, got both"),
    ({"shards": {}}, "shards: expected at least one"),
    *[({"shards": shards}, "shards: expected names and URLs, got") for shards in ([URL], "text", 1, {("1", URL)})],
    *[({"shards": {name: URL}}, "shard name: expected") for name in ("", "a b", "x" * 33, "é", 1, None)],
    *[({"shards": {"1": url}}, "URL: expected") for url in ("", "http://x")],
    *[({"shards": {"1": url}}, "shards: expected names and URLs, got 1 = ") for url in (None, 1, b"redis://x")],
    *[({"source": source}, "source: expected 1 to 255") for source in ("", "x" * 256, "é" * 128, 1, b"x", "\ud800")],
    *[
        ({name: value}, f"{name}: expected seconds, more than 0 and at most 600, got")
        for name in ("timeout_s", "connect_timeout_s", "read_timeout_s")
        for value in (0, -1, NAN, float("inf"), True, "1", None, 600.1, BIG)
    ],
]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(("settings", "says"), SETTINGS, ids=lambda value: repr(value)[:60])
def test_a_bad_setting_of_a_client_is_named(kind: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        kind(**{**({} if "shards" in settings else {"url": URL}), **settings})


UNKNOWN: dict[str, Call] = {
    "configure_queue": lambda c, _: c.configure_queue("none", paused=True),
    "queue_config": lambda c, _: c.queue_config("none"),
    "enqueue": lambda c, _: c.enqueue("none", b""),
    "enqueue_many": lambda c, _: c.enqueue_many("none", [b""]),
    "dequeue": lambda c, _: c.dequeue("none", 0),
    "dequeue waiting": lambda c, _: c.dequeue("none", wait=60),
    "dry run": lambda c, _: c.dequeue("none", dry_run=True),
    "ack": lambda c, _: c.ack(succeeded=[("none:s1:p1:1", TOKEN)]),
    "release": lambda c, _: c.release([("none:s1:p1:1", TOKEN)]),
    "renew": lambda c, _: c.renew([("none:s1:p1:1", TOKEN)]),
    "checkpoint": lambda c, _: c.checkpoint(Checkpoint(job=("none:s1:p1:1", TOKEN))),
    "lookup": lambda c, _: c.lookup(["none:s1:p1:1"]),
    "count": lambda c, _: c.count("none"),
    "peek": lambda c, _: c.peek("none"),
    "scan": lambda c, _: c.scan("none"),
    "retry_failed": lambda c, _: c.retry_failed("none"),
    "retry_jobs": lambda c, _: c.retry_jobs(["none:s1:p1:1"]),
    "delete_jobs": lambda c, _: c.delete_jobs("none", "failed"),
    "delete named": lambda c, _: c.delete_jobs(descriptors=["none:s1:p1:1"]),
    "purge": lambda c, _: c.purge("none"),
    "reset_lost": lambda c, _: c.reset_lost("none"),
}


@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_an_unknown_queue_is_named(kind: Any, server: Server) -> None:
    calls = make_calls(kind, server.url)
    try:
        for name, call in UNKNOWN.items():
            with pytest.raises(QueueNotFound, match="queue 'none'"):
                pytest.fail(f"{name}: {call(calls, '')!r}")
        assert calls.delete_queue("none") is False
        assert server.call("KEYS", "pl:*") == []
    finally:
        calls.close()


def message(call: Call, calls: Calls, descriptor: str) -> str:
    try:
        return f"nothing raised, but {call(calls, descriptor)!r}"
    except InvalidArgument as error:
        return str(error)
    except Exception as error:
        return f"another error: {type(error).__name__}: {error}"
