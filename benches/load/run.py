"""`make load`: locust without its web page, with a report as HTML and CSV.

    python benches/load/run.py [--users 200] [--seconds 60] [--kind thrift|direct] [--shape SHAPE] [--processes N]
                               [--host URL] [--out build/load]

Without --host it starts a Valkey without persistence and, for the kind `thrift`, a `pinlater server` on it. The exit
code is that of locust: 1 if a request failed, or if a job did not run once.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benches.load.shapes import SHAPES
from benches.support import serving
from tests.support.servers import free_port

LOCUSTFILE = Path(__file__).resolve().parents[1] / "locustfile.py"
START_S = 60.0


@contextmanager
def thrift_service(url: str, log: Path) -> Iterator[str]:
    """A `pinlater server` on the shard at a URL, with its log in a file. Yields its own URL."""
    port = free_port()
    environment = {**os.environ, "PINLATER_URL": url}
    dies_with_this = ["setpriv", "--pdeathsig", "TERM"]
    command = [*dies_with_this, sys.executable, "-m", "pinlater", "server", "--no-http"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, env=environment, stderr=sink)
    try:
        await_port(port, process, log)
        yield f"thrift://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns once a connection is accepted. Raises RuntimeError if the process ends before."""
    end_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end_s:
        with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise RuntimeError(f"expected a `pinlater server` that listens, got {log.read_text('utf-8', 'replace')[-300:]!r}")


@contextmanager
def host_of(options: argparse.Namespace) -> Iterator[str]:
    """The URL that users are to call."""
    if options.host:
        yield options.host
        return
    with serving("valkey") as server:
        if options.kind == "direct":
            yield server.url
        else:
            with thrift_service(server.url, options.out / "server.log") as url:
                yield url


def distributed(processes: int) -> list[str | int]:
    """Options of a master and its workers, on a port that no other load uses."""
    port = free_port()
    return ["--processes", processes, "--master-bind-port", port, "--master-port", port]


def run_locust(host: str, options: argparse.Namespace) -> int:
    """Returns the exit code."""
    command = [
        *(sys.executable, "-m", "locust", "-f", LOCUSTFILE, "--headless", "--only-summary", "--host", host),
        *("--users", options.users, "--run-time", f"{options.seconds}s", "--shape", options.shape),
        *("--html", options.out / "report.html", "--csv", options.out / "load", "--csv-full-history"),
        *(distributed(options.processes) if options.processes else ()),
    ]
    code = subprocess.run([str(word) for word in command]).returncode
    print(f"report: {options.out / 'report.html'}; tables: {options.out}/load_*.csv")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=60, help="time of the shape; the queue is emptied afterwards")
    parser.add_argument("--kind", choices=("thrift", "direct"), default="thrift", help="of users, without --host")
    parser.add_argument("--shape", choices=SHAPES, default="sustained")
    parser.add_argument("--processes", type=int, default=0, help="locust's workers; -1: one a core; 0: no workers")
    parser.add_argument("--host", help="thrift://…, or the URL of a server")
    parser.add_argument("--out", type=Path, default=Path("build/load"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with host_of(options) as host:
        return run_locust(host, options)


if __name__ == "__main__":
    sys.exit(main())
