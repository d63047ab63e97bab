"""examples/shop, driven over HTTP: a web server and a supervisor of two worker processes, one of them killed.

Promises: the shop runs as it is written, from its own folder and with its own TOML; what the test adds is a middleware
that tells when a payment is made and its job has not ended. Its own tests run too.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from pinlater import Client
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.paths import ROOT
from tests.support.requirements import WEB, require
from tests.support.servers import Server, is_alive, wait_until

SHOP = ROOT / "examples" / "shop"
DEADLINE_S = 60.0
DAY = "2026-11-22"
TOTAL = Decimal("13.50")
PAID, REFUSED = 30, 3
#: A module of `--include`. A payment is made when its `after` runs; it waits until the test closes the connection.
HELD = """
import asyncio, os
from contextlib import suppress
from pinlater import Middleware
from shop import app

class Held(Middleware):
    async def after(self, execution, error):
        if execution.task == "shop.payments.charge" and error is None:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["HELD_PORT"]))
                writer.write(f"{os.getpid()} {execution.job.descriptor}\\n".encode())
                await reader.read()
                writer.close()

app.add_middleware(Held())
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The shop's own files, and HELD on the path of imports."""
    require(WEB)
    (tmp_path / "held.py").write_text(HELD)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PINLATER")}
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "SHOP_DB": str(tmp_path / "db"), "SHOP_INVOICES": str(tmp_path / "invoices")}


class Program(NamedTuple):
    """A started program, and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def logged(self, pattern: str, count: int = 1) -> list[str]:
        """Waits until the log has the pattern `count` times, and returns what its group is each time."""
        wait_until(lambda: len(self.found(pattern)) >= count, f"{count} times {pattern!r} in {self.log}", DEADLINE_S)
        return self.found(pattern)

    def found(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.log.read_text())

    def end(self) -> int:
        """Stops it by SIGTERM, and returns its exit code."""
        self.process.terminate()
        return self.process.wait(DEADLINE_S)


Start = Callable[..., Program]
FreshServer = Callable[..., Server]


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """`start(module, *arguments, **environment)`: runs a Python module in the shop's folder."""
    programs: list[Program] = []

    def start(*arguments: str, **more: str) -> Program:
        log = tmp_path / f"{arguments[0]}.log"
        with log.open("wb") as out:
            command = [sys.executable, "-m", *arguments]
            process = subprocess.Popen(command, cwd=SHOP, env={**environment, **more}, stdout=out, stderr=out)
        programs.append(Program(process, log))
        return programs[-1]

    yield start
    for program in programs:
        program.process.kill()
        program.process.wait()


@pytest.fixture
def held() -> Iterator[socket.socket]:
    """Where payments that are made connect to. Without it they go on."""
    with socket.create_server(("127.0.0.1", 0), backlog=PAID) as listener:
        listener.settimeout(DEADLINE_S)
        yield listener


class Customer:
    """Talks to the shop's web app."""

    def __init__(self, url: str) -> None:
        import httpx2  # not at the top: a bare machine lacks it

        self._http = httpx2.Client(base_url=url, timeout=DEADLINE_S)

    def __enter__(self) -> Customer:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def order(self, card: str) -> tuple[str, str]:
        """Places an order, and returns its id and its job."""
        order, answer = self.place(card)
        assert answer.status_code == 202, answer.text
        return order, answer.json()["job"]

    def place(self, card: str) -> tuple[str, Any]:
        """Sends an order, and returns its id and the answer."""
        order = str(uuid4())
        lines = [{"article": "tea", "count": 3, "price": "4.50"}]
        body = {"id": order, "email": "ada@example.org", "card": card, "placed": f"{DAY}T20:00:00Z", "lines": lines}
        return order, self._http.post("/orders", json=body)

    def states(self, orders: list[tuple[str, str]]) -> set[str]:
        return {self.get(f"/orders/{order}")["state"] for order, _ in orders}

    def post(self, path: str) -> Any:
        answer = self._http.post(path)
        assert answer.status_code == 202, answer.text
        return answer.json()

    def get(self, path: str) -> Any:
        answer = self._http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def result(self, job: str) -> Any:
        """Polls the job until it has a result."""
        wait_until(lambda: "result" in self.get(f"/jobs/{job}"), f"a result of {job}", DEADLINE_S)
        return self.get(f"/jobs/{job}")["result"]


def kill_one_that_works(held: socket.socket) -> tuple[int, str]:
    """Kills the first process that made a payment and did not end its job: its id, and the job's descriptor."""
    connection, _ = held.accept()
    with connection:
        pid, job = connection.makefile().readline().split()
        os.kill(int(pid), signal.SIGKILL)
        held.close()  # from here on payments go on
    return int(pid), job


@pytest.mark.thorough("pages")
def test_every_order_ends_although_a_worker_is_killed(
    server: Server, start: Start, held: socket.socket, tmp_path: Path
) -> None:
    port = str(held.getsockname()[1])
    workers = start(
        *("pinlater", "run", "--include", "held", "--http", "127.0.0.1:0"), PINLATER_URL=server.url, HELD_PORT=port
    )
    web = start("uvicorn", "shop.web:web", "--port", "0", PINLATER_URL=server.url)
    workers.logged("working on payments, mails, reports", 2)
    with Customer(web.logged(r"running on (http://\S+)")[0]) as customer:
        paid = [customer.order("1234") for _ in range(PAID)]
        refused = [customer.order("0000") for _ in range(REFUSED)]
        killed, job = kill_one_that_works(held)
        [made] = [order for order, its_job in paid if its_job == job]
        assert customer.get(f"/orders/{made}") == {"state": "paid"}

        def ended() -> bool:
            states = [customer.get(f"/jobs/{job}")["state"] for _, job in paid + refused]
            return states == ["ended"] * PAID + ["failed"] * REFUSED

        wait_until(ended, "each payment ended", DEADLINE_S)
        assert customer.states(paid) == {"paid"}
        wait_until(lambda: customer.states(refused) == {"refused"}, "each refused order is marked", DEADLINE_S)
        report = customer.post(f"/reports/sales?since={DAY}&days=2")["job"]
        assert customer.result(report) == {DAY: str(PAID * TOTAL), "2026-11-23": "0"}, "each order is paid once"
        assert Decimal(customer.get(f"/forecast?day={DAY}")["low"]) == PAID * TOTAL
    invoices = {tmp_path / "invoices" / f"{order}.txt" for order, _ in paid}
    wait_until(lambda: invoices == set((tmp_path / "invoices").iterdir()), "an invoice of each order", DEADLINE_S)

    processes = {int(pid) for pid in workers.logged(r"worker process (\d+) started", 3)}
    assert killed in processes
    assert workers.end() == 0
    assert web.end() in (0, -signal.SIGTERM)
    assert not [pid for pid in processes if is_alive(pid)]
    assert not web.found("Traceback")


def test_a_slow_server_is_503_and_a_lost_answer_is_asked_for(fresh_server: FreshServer, start: Start) -> None:
    server = fresh_server()
    with CutProxy(server.port) as proxy:
        web = start("uvicorn", "shop.web:web", "--port", "0", PINLATER_URL=proxy.url)
        with Customer(web.logged(r"running on (http://\S+)")[0]) as customer, Client(server.url) as client:
            customer.order("1234")
            proxy.arm(Cut.MUTE)
            _, job = customer.order("1234")
            assert customer.get(f"/jobs/{job}")["state"] == "pending"
            assert client.count("payments").pending == 2
            server.pause()
            try:
                answer = customer.place("1234")[1]
            finally:
                server.resume()
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


@pytest.mark.thorough("pages")
def test_its_own_tests(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=SHOP, env=environment, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stdout
