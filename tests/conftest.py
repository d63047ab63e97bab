"""Fixtures every test file shares: running servers, and the promise that no process outlives the session.

Promises: `server` is empty at the start of a test; servers of `fresh_server` are stopped after it; a session
that leaves a process behind, detached ones included, fails. What is marked `thorough` waits for `make test-all`, what
is marked `campaign` for `make campaign`, and the last lines of a session count them.
Risks: `server` is shared by the session: a test that changes its configuration or ends it takes a fresh one.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from pinlater.store.archive_driver import ArchiveDatabase
from tests.support.archive import migrated
from tests.support.mariadb import MariaDB, given_url, is_given, made_database
from tests.support.memory import CONFORMANCE, DAILY_ON_EVERY_STORE, AnyKind, MemoryKind
from tests.support.requirements import PYMYSQL, closing_line, require
from tests.support.servers import KINDS, Server, is_alive, wait_until

FreshServer = Callable[..., Server]

STORE_PARAMETERS = ("server", "server_kind", "kind", "timed", "clocked", "frozen")  # that name a kind of store
ROWS = {"thorough": "make test-all", "campaign": "make campaign"}  # marks of tests, and what runs them
LEFT_OUT = pytest.StashKey[dict[str, int]]()  # how many tests of each mark this session did not run
SHOWN = pytest.StashKey[set[tuple[str, str]]]()  # test functions, and the stores on which one of their cases runs
#: Rooms and files whose tests cost seconds of a core each.
FIRST_CASE_DAILY = ("running", "test_protocol_model", "test_transparent", "test_worker_failover")

PR_SET_CHILD_SUBREAPER = 36  # prctl(2): orphans below this process become its children, not init's
LAST_EXIT_DEADLINE_S = 10.0  # a keeper or a server told to stop saves first

# inputs are made slowly where other tests run beside
settings.register_profile("beside", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# whoever asks only whether a test fails needs no smallest example
settings.register_profile(
    "first-failure",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile("beside")

# Processes that tests start write no bytecode: a test may write a module twice within a second, which bytecode misses.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.fixture(autouse=True)
def _variables_end_with_the_test() -> Iterator[None]:
    """A command sets the variables of PinLater for its processes; the next test must not see them."""
    before = _variables()
    yield
    for name in _variables().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("PINLATER_")}


@pytest.fixture(scope="session")
def _running() -> Iterator[dict[str, Any]]:
    """The session's servers by kind, each made when a test first asks for it."""
    running: dict[str, Any] = {}
    yield running
    for server in running.values():
        server.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`server` is of each kind in turn; where tests/support/memory.py says so, the memory store too."""
    chosen = [mark for mark in metafunc.definition.iter_markers("parametrize") if mark.args[0] == "server"]
    if "server" in metafunc.fixturenames and not chosen:
        memory = metafunc.module.__name__.rpartition(".")[2] in CONFORMANCE
        real = metafunc.definition.get_closest_marker("real_server")
        metafunc.parametrize("server", [*KINDS, *["memory"] * (memory and not real)], indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Every test runs on Valkey; on the other stores daily only where tests/support/memory.py says so. Elsewhere the
    first case of each test function does so thoroughly, and the other cases in a campaign. In the rooms and files
    of FIRST_CASE_DAILY the first case of each test function is daily, and the others are thorough.
    """
    store = _store(item)
    if item.path.stem not in DAILY_ON_EVERY_STORE and store in ("redis", "memory"):
        item.add_marker(pytest.mark.campaign("stores") if _is_shown(item, store) else pytest.mark.thorough("stores"))
    elif (
        {item.path.parent.name, item.path.stem} & {*FIRST_CASE_DAILY}
        and not _waits_for(item)
        and _is_shown(item, "daily")
    ):
        item.add_marker(pytest.mark.thorough("cases"))


def _is_shown(item: pytest.Item, where: str) -> bool:
    """Whether an earlier case of its function runs there."""
    shown, case = item.config.stash.setdefault(SHOWN, set()), (item.nodeid.partition("[")[0], where)
    if case in shown:
        return True
    shown.add(case)
    return False


def _store(item: pytest.Item) -> str:
    """The kind of store that a parameter of the test names, if one does."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return next((str(parameters[name]) for name in STORE_PARAMETERS if name in parameters), "")


def pytest_deselected(items: list[pytest.Item]) -> None:
    if not items:  # xdist with --lf
        return
    config = items[0].config
    config.stash[LEFT_OUT] = {row: sum(_waits_for(item) == row for item in items) for row in ROWS}
    if hasattr(config, "workeroutput"):  # a process of xdist: the one that started it writes the last line
        config.workeroutput["left_out"] = config.stash[LEFT_OUT]


def _waits_for(item: pytest.Item) -> str:
    """The last of the marks of ROWS that it has."""
    return next((row for row in reversed(ROWS) if item.get_closest_marker(row)), "")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


@pytest.fixture
def server(
    request: pytest.FixtureRequest, _running: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Server:
    """The session's server of each kind in turn, flushed (data and scripts), with nobody connected."""
    kind = request.param
    if kind not in _running:
        memory = kind == "memory"
        _running[kind] = MemoryKind() if memory else Server(kind, tmp_path_factory.mktemp(kind), unix_socket=True)
    running: Server = _running[kind]
    running.start()  # a test that ended it by mistake fails alone, not everything after it
    with running.client() as client:
        client.flushall()
        client.script_flush()
        if request.param != "memory":  # what an earlier test left connected is not this one's
            for kind in ("normal", "pubsub"):
                client.client_kill_filter(_type=kind, skipme=True)
    return running


@pytest.fixture
def fresh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshServer]:
    """`fresh_server(kind="valkey", **options of Server) -> Server`, started; stopped when the test ends."""
    made: list[Any] = []

    def make(kind: AnyKind = "valkey", **options: Any) -> Any:
        if kind == "memory":
            made.append(MemoryKind())
            return made[-1]
        server = Server(kind, options.pop("directory", None) or tmp_path_factory.mktemp("server"), **options)
        made.append(server)
        return server.start()

    yield make
    for server in made:
        server.stop()


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """The session's MariaDB. A test that ends it or changes its settings takes a fresh one."""
    with MariaDB(tmp_path_factory.mktemp("mariadb")) as running:
        yield running


@pytest.fixture
def mysql_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database, on the server of PINLATER_TEST_MYSQL_URL or on the session's MariaDB."""
    require(PYMYSQL)
    url_of = given_url if is_given() else request.getfixturevalue("mariadb").start().url
    with made_database(url_of) as url:
        yield url


@pytest.fixture
def private(mariadb: MariaDB) -> Iterator[ArchiveDatabase]:
    """A database with the archive's tables on the session's own server, whatever PINLATER_TEST_MYSQL_URL says."""
    with made_database(mariadb.start().url) as url:
        made = migrated(url)
        yield made
        made.close()


@pytest.fixture
def fresh_mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., MariaDB]]:
    """`fresh_mariadb(**options of MariaDB) -> MariaDB`, started; stopped when the test ends."""
    require(PYMYSQL)
    made: list[MariaDB] = []

    def make(**options: Any) -> MariaDB:
        made.append(MariaDB(tmp_path_factory.mktemp("mariadb"), **options))
        return made[-1].start()

    yield make
    for server in made:
        server.stop()


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end, so the garbage collector need not visit them each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionstart() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # so that detached processes are found at the end


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: its line comes after the list of skipped tests
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    yield
    for row, count in config.stash.get(LEFT_OUT, {}).items():
        if count and config.option.markexpr:
            terminalreporter.write_line(f"{row} tests left out: {count} ({ROWS[row]} runs them)")
    if line := closing_line(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session, and name them, if processes started in it still run."""
    with suppress(TimeoutError):
        wait_until(lambda: not _left_behind(), "no process left behind", LAST_EXIT_DEADLINE_S)
    left = _left_behind()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        names = "; ".join(f"{pid}: {command}" for pid, command in left.items())
        raise pytest.UsageError(f"expected no process left behind by this session, found {names}")


def _left_behind() -> dict[int, str]:
    """Command lines, by process id, of the living processes below this one."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            status = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            parents[int(folder.name)] = int(status[1])
    return {pid: _command_line(pid) for pid in parents if _is_below(pid, parents) and is_alive(pid)}


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return "ended"
