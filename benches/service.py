"""The figures of the Thrift service: what a call costs its server.

    python benches/service.py [--only 1,2,3,4,5,6] [--rounds 7] [--quick] [--json FILE]

1. CPU of the server for an enqueue of one job, on 50 connections, compared with an echo of frames of the same sizes.
2. The same for an enqueue of 50 jobs.
3. The same for a dequeue of 50 jobs that acks 50 others.
4. The native codec compared with the same work in Python: the library thriftpy2 without compiled code, and the core's
   own functions. The library's compiled code stands beside it.

The echo is a protocol of asyncio on uvloop that finds the ends of frames, and answers each with a frame that the server
sent. Both sides get their calls from the same load. Each side is a process of its own on a core
of its own; the kernel counts its time on the CPU. The other core has the load and a Valkey without persistence.
Every job has 100 bytes.

5. Instructions in the place of CPU, for figures 1 to 3. It works on a busy machine, and knows nothing of system calls.
6. As 3, but each connection is a source of its own; then the same on three shards.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, TypeVar

import uvloop
from thriftpy2.protocol import TBinaryProtocolFactory, TCyBinaryProtocolFactory
from thriftpy2.transport import TCyMemoryBuffer, TMemoryBuffer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pinlater._core as _core
from benches.instructions import callgrind, control, stop_counting
from benches.support import (
    BODY,
    Figure,
    Options,
    figure,
    interleave,
    per_job,
    print_table,
    ratios,
    serving,
    write_json,
)
from pinlater import Client, NewJob
from pinlater.model.queue_config import QueueConfig
from pinlater.server.frames import framed
from pinlater.server.interface import arguments_type, result_type, structs
from pinlater.server.messages import MessageType, read_head, write_head

T = TypeVar("T")

CONNECTIONS = 50
#: Jobs of a large call.
MANY = 50
QUEUE = "bench"
BODY_LIMIT = 1 << 20
#: Shards of figure 6.
SHARDS = 3
_DESCRIPTOR = re.compile(rb"bench:s\d:p1:\d+")


class Process:
    """A process of benches/service_process.py, on the last core. under: a command that runs it."""

    def __init__(self, role: str, argument: str, under: Sequence[str] = ()) -> None:
        command = [*under, sys.executable, str(Path(__file__).with_name("service_process.py")), role, argument]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port, self.pid = int(self._process.stdout.readline()), self._process.pid
        for task in self._tasks():
            os.sched_setaffinity(int(task.name), sorted(os.sched_getaffinity(0))[-1:])

    def _tasks(self) -> Iterator[Path]:
        return Path(f"/proc/{self._process.pid}/task").iterdir()

    def used_us(self) -> float:
        """Microseconds on the CPU since the start, of all threads."""
        return sum(int((task / "schedstat").read_text().split()[0]) for task in self._tasks()) / 1000

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


#: Makes a call of the number of its connection and the last answer there.
NextCall: TypeAlias = Callable[[int, bytes], bytes]


class Load(asyncio.Protocol):
    """One connection of the load: a call as soon as the one before is answered."""

    def __init__(self, number: int, next_call: NextCall, count: int) -> None:
        self._next_call, self._left = partial(next_call, number), count
        self._received = bytearray()
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._next_call(b""))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4], "big"):
            return
        answer = bytes(self._received)
        self._received.clear()
        self._left -= 1
        if self._left:
            self._transport.write(self._next_call(answer))
        else:
            self._transport.close()
            self.ended.set_result(answer)


def run_load(port: int, next_call: NextCall, calls: int) -> bytes:
    """Makes calls on all connections. Returns the last answer."""

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        loads = [
            (await loop.create_connection(partial(Load, number, next_call, calls // CONNECTIONS), "127.0.0.1", port))[1]
            for number in range(CONNECTIONS)
        ]
        return (await asyncio.gather(*(load.ended for load in loads)))[-1]  # type: ignore[no-any-return]

    return uvloop.run(run())


def message(method: str, **arguments: Any) -> bytes:
    """The frame of a call."""
    buffer = TCyMemoryBuffer()
    context = structs.RequestContext(source="bench:host")
    call = arguments_type(method)(context=context, **arguments)
    call.write(TCyBinaryProtocolFactory().get_protocol(buffer))
    return framed(write_head(method, MessageType.CALL, 1) + bytes(buffer.getvalue()))


def enqueue_call(jobs: int) -> bytes:
    """An enqueue of so many jobs."""
    each = [structs.PinLaterJob(body=BODY) for _ in range(jobs)]
    return message("enqueueJobs", request=structs.PinLaterEnqueueRequest(queueName=QUEUE, jobs=each))


def dequeue_call(_: int, answer: bytes, source: bytes = b"bench:host") -> bytes:
    """A dequeue that acks the jobs of the last answer. Written by hand: the load must not be the slower side."""
    named = list(dict.fromkeys(_DESCRIPTOR.findall(answer)))
    head = write_head("dequeueJobs", MessageType.CALL, 1)
    context = b"\x0c\0\1" + _string(1, source) + b"\0"
    acks = b"".join(_string(1, descriptor) + b"\0" for descriptor in named)
    ack = b"\x0c\0\3" + _string(1, QUEUE.encode()) + b"\x0f\0\2\x0c" + struct.pack(">i", len(named)) + acks + b"\0"
    request = b"\x0c\0\2" + _string(1, QUEUE.encode()) + b"\x08\0\2" + struct.pack(">i", MANY) + ack + b"\0"
    return framed(head + context + request + b"\0")


def dequeue_of_its_own(number: int, answer: bytes) -> bytes:
    """The same, by a source that no other connection has."""
    return dequeue_call(number, answer, b"bench:host%d" % number)


def _string(field: int, text: bytes) -> bytes:
    return struct.pack(">BHi", 11, field, len(text)) + text


#: The calls of figures 1 to 3.
CALLS: dict[str, NextCall] = {
    "enqueue of one job": lambda *_: enqueue_call(1),
    f"enqueue of {MANY} jobs": lambda *_: enqueue_call(MANY),
    f"dequeue of {MANY} with {MANY} acks": dequeue_call,
}


# figures


def of_enqueue(jobs: int, options: Options) -> Iterator[Figure]:
    """Figures 1 and 2."""
    calls = options.scaled(40_000, 4_000) // (1 if jobs == 1 else 20)
    call = enqueue_call(jobs)
    with stage() as (process, client):
        answer = run_load(process.port, lambda *_: call, CONNECTIONS)
        with echoing(answer) as echo:

            def served() -> float:
                client.purge(QUEUE)
                return cost(process, lambda *_: call, calls)

            sides = {"server": served, "echo": lambda: cost(echo, lambda *_: call, calls)}
            found = interleave(sides, options.rounds)
    name = "enqueue of one job" if jobs == 1 else f"enqueue of {jobs} jobs"
    bar, aim = (2.5, 1.6) if jobs == 1 else (5.0, 3.0)
    yield compared(name, found, bar, aim)


def of_dequeue(options: Options) -> Iterator[Figure]:
    """Figure 3."""
    yield compared(f"dequeue of {MANY} with {MANY} acks", dequeues(options, dequeue_call), 5.0, 3.0)


def of_other_dequeues(options: Options) -> Iterator[Figure]:
    """Figure 6."""
    name = f"dequeue of {MANY} with {MANY} acks"
    yield compared(f"{name}, {CONNECTIONS} sources", dequeues(options, dequeue_of_its_own))
    yield compared(f"{name}, {SHARDS} shards", dequeues(options, dequeue_call, SHARDS))
    found = dequeues(options, dequeue_of_its_own, SHARDS)
    yield compared(f"{name}, {CONNECTIONS} sources, {SHARDS} shards", found)


def dequeues(options: Options, next_call: NextCall, shards: int = 1) -> dict[str, list[float]]:
    """What dequeues cost the server and the echo."""
    calls = options.scaled(2_000, 400)
    with stage(shards) as (process, client):
        fill(client, calls)
        answer = run_load(process.port, next_call, CONNECTIONS)
        with echoing(answer) as echo:

            def served() -> float:
                client.purge(QUEUE)
                fill(client, calls)
                return cost(process, next_call, calls)

            return interleave({"server": served, "echo": lambda: cost(echo, next_call, calls)}, options.rounds)


def fill(client: Client, calls: int) -> None:
    """Jobs for so many dequeues."""
    for _ in range(0, calls * MANY + 1000, 1000):
        client.enqueue_many(QUEUE, [BODY] * 1000)


@contextmanager
def stage(shards: int = 1) -> Iterator[tuple[Process, Client]]:
    """A server process, and a client of its Valkey, which has so many shards."""
    with (
        serving("valkey") as server,
        Client(url := ",".join(f"{at + 1}={server.url}" for at in range(shards))) as client,
    ):
        cores = sorted(os.sched_getaffinity(0))
        client.create_queue(QUEUE, QueueConfig(lease_ms=600_000))
        process = Process("serve", url)
        for task in Path(f"/proc/{server.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cores[:1])
        os.sched_setaffinity(0, cores[:1])
        try:
            yield process, client
        finally:
            process.close()
            os.sched_setaffinity(0, cores)


@contextmanager
def echoing(answer: bytes) -> Iterator[Process]:
    """An echo that answers with this frame."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with answer_file(answer) as file:
        echo = Process("echo", str(file))
    os.sched_setaffinity(0, cores)
    try:
        yield echo
    finally:
        echo.close()


@contextmanager
def answer_file(answer: bytes) -> Iterator[Path]:
    """A file with a frame."""
    with TemporaryDirectory(prefix="pinlater-bench-") as folder:
        file = Path(folder) / "answer"
        file.write_bytes(answer)
        yield file


def cost(process: Process, next_call: NextCall, calls: int) -> float:
    """Microseconds of CPU a call."""
    before_us = process.used_us()
    run_load(process.port, next_call, calls)
    return (process.used_us() - before_us) / calls


def compared(name: str, found: dict[str, list[float]], bar: float | None = None, aim: float | None = None) -> Figure:
    note = f"{per_job(found['server'])} a call, echo {per_job(found['echo'])}"
    return figure(f"server CPU, {name} / echo", "valkey", ratios(found["server"], found["echo"]), bar, aim, note=note)


# the same in instructions


def of_instructions(options: Options) -> Iterator[Figure]:
    """What figures 1 to 3 count, in instructions of both processes, by valgrind."""
    calls = options.scaled(1_000, 200)
    with serving("valkey") as server, Client(server.url) as client, counted("serve", server.url) as (process, folder):
        client.create_queue(QUEUE, QueueConfig(lease_ms=600_000))
        fill(client, 2 * calls)
        for name, next_call in CALLS.items():
            answer = run_load(process.port, next_call, CONNECTIONS)
            run_load(process.port, next_call, 4 * CONNECTIONS)
            with answer_file(answer) as file, counted("echo", str(file)) as (echo, of_its):
                run_load(echo.port, next_call, 4 * CONNECTIONS)
                of_echo = instructions(echo, next_call, calls, of_its)
            of_server = instructions(process, next_call, calls, folder)
            note = f"{of_server:,.0f} a call, echo {of_echo:,.0f}"
            yield Figure(f"instructions, {name} / echo", "valkey", of_server / of_echo, None, None, note=note)


@contextmanager
def counted(role: str, argument: str) -> Iterator[tuple[Process, Path]]:
    """A process whose instructions are counted, and the folder of its counts."""
    with TemporaryDirectory(prefix="pinlater-bench-") as folder:
        process = Process(role, argument, callgrind(folder))
        try:
            yield process, Path(folder)
        finally:
            process.close()


def instructions(process: Process, next_call: NextCall, calls: int, folder: Path) -> float:
    """Instructions a call."""
    control(process.pid, "zero", "instrumentation on")
    run_load(process.port, next_call, calls)
    return stop_counting(process.pid, folder) / calls


# figure 4


def of_codec(options: Options) -> Iterator[Figure]:
    """Figure 4."""
    count = options.scaled(2_000, 200)
    for name, native, python, compiled in codecs():
        turns = {
            "native": partial(spent, native, count),
            "python": partial(spent, python, count // 10),
            "compiled": partial(spent, compiled, count // 10),
        }
        found = interleave(turns, options.rounds)
        note = f"{per_job(found['native'])}, Python {per_job(found['python'])}, compiled {per_job(found['compiled'])}"
        gained = ratios(found["python"], found["native"])
        yield figure(f"codec, {name}: Python / native", "-", gained, 5.0, 10.0, at_least=True, note=note)


def spent(work: Callable[[], object], count: int) -> float:
    """Microseconds of CPU of one time."""
    before_s = time.process_time()
    for _ in range(count):
        work()
    return 1e6 * (time.process_time() - before_s) / count


def codecs() -> Iterator[tuple[str, Callable[[], object], Callable[[], object], Callable[[], object]]]:
    """Name, native work, the same in Python, the same with the library's compiled code."""
    for count in (1, MANY):
        frame = enqueue_call(count)
        name = "enqueue of one job" if count == 1 else f"enqueue of {count} jobs"
        yield (
            name,
            partial(native_enqueue, frame),
            partial(library_enqueue, frame, IN_PYTHON),
            partial(library_enqueue, frame, COMPILED),
        )
    jobs = [_core.Job(QUEUE, "1", 1, 2**40 + number, BODY, bytes(8), 2, 2) for number in range(MANY)]
    frame = dequeue_call(0, b" ".join(job.descriptor.encode() for job in jobs))
    claim = claim_of(jobs)
    yield (
        f"dequeue of {MANY} with {MANY} acks",
        lambda: native_dequeue(frame, claim),
        lambda: library_dequeue(frame, jobs, IN_PYTHON),
        lambda: library_dequeue(frame, jobs, COMPILED),
    )


def claim_of(jobs: list[_core.Job]) -> _core.Claim:
    """A claim of these jobs."""
    block = b"\1" + len(jobs).to_bytes(2, "big") + b"".join(job.id.to_bytes(8, "big") for job in jobs) + b"\0\0"
    records = list(_core.pack_jobs([BODY] * len(jobs), BODY_LIMIT, 3)[2])
    return _core.decode_claim([b"", b"", b"\0" * 7 + b"\1" + bytes(8) + block, records], QUEUE, "1")


def read_hot(frame: bytes, kind: type[T]) -> tuple[int, T]:
    found = _core.read_hot_call(frame)
    assert found is not None
    sequence, request = found
    assert isinstance(request, kind)
    return sequence, request


def native_enqueue(frame: bytes) -> bytes:
    sequence, request = read_hot(frame, _core.EnqueueCall)
    request.fits(BODY_LIMIT, 3, 1000, 1 << 20)
    _core.pack_enqueues([request], BODY_LIMIT, 3)
    [[answer], _] = _core.enqueue_answers([request], [sequence], "1", 2**40)
    return answer


def library_enqueue(frame: bytes, library: Library) -> bytes:
    request = library.read(frame, "enqueueJobs").request
    jobs = [
        NewJob(
            job.body,
            priority=job.priority,
            run_after_ms=job.runAfterTimestampMillis,
            attempts=job.numAttemptsAllowed,
            status=job.customStatus,
        )
        for job in request.jobs
    ]
    _core.pack_jobs(jobs, BODY_LIMIT, 3)
    named = _core.format_descriptors(request.queueName, "1", 1, 2**40, len(jobs))
    return library.write("enqueueJobs", structs.PinLaterEnqueueResponse(jobDescriptors=named))


def native_dequeue(frame: bytes, claim: _core.Claim) -> bytes:
    sequence, request = read_hot(frame, _core.DequeueCall)
    assert request.acks is not None
    _core.group_ack_calls([request.acks], False, 1000)
    return _core.claim_answer(sequence, claim)


def library_dequeue(frame: bytes, jobs: list[Any], library: Library) -> bytes:
    request = library.read(frame, "dequeueJobs").request
    acks = request.jobAckRequest
    ended = [
        [(info.jobDescriptor, info.appendCustomStatus, info.retryDelayMillis) for info in infos or []]
        for infos in (acks.jobsSucceeded, acks.jobsFailed)
    ]
    _core.group_acks(ended[0], ended[1])
    metadata = {
        job.descriptor: structs.PinLaterDequeueMetadata(
            attemptsAllowed=job.attempts_allowed, attemptsRemaining=job.attempts_remaining
        )
        for job in jobs
    }
    bodies = {job.descriptor: job.body for job in jobs}
    return library.write("dequeueJobs", structs.PinLaterDequeueResponse(jobs=bodies, jobMetadata=metadata))


class Library:
    """thriftpy2, with the protocol and the buffer of its compiled code or of its Python."""

    def __init__(self, protocol: Any, buffer: Any) -> None:
        self._protocol, self._buffer = protocol, buffer

    def read(self, frame: bytes, method: str) -> Any:
        """The arguments of a call."""
        arguments = arguments_type(method)()
        arguments.read(self._protocol.get_protocol(self._buffer(frame[read_head(frame).end :])))
        return arguments

    def write(self, method: str, value: Any) -> bytes:
        """The frame of an answer."""
        buffer = self._buffer()
        result_type(method)(success=value).write(self._protocol.get_protocol(buffer))
        return framed(write_head(method, MessageType.REPLY, 1) + bytes(buffer.getvalue()))


IN_PYTHON = Library(TBinaryProtocolFactory(), TMemoryBuffer)
COMPILED = Library(TCyBinaryProtocolFactory(), TCyMemoryBuffer)

MEASURES: dict[str, Callable[[Options], Iterator[Figure]]] = {
    "1": lambda options: of_enqueue(1, options),
    "2": lambda options: of_enqueue(MANY, options),
    "3": of_dequeue,
    "4": of_codec,
    "5": of_instructions,
    "6": of_other_dequeues,
}


def main() -> int:
    """Exit code 1 if a bar is not met."""
    parser = argparse.ArgumentParser(description="The figures of the Thrift service.")
    parser.add_argument("--only", default="1,2,3,4", metavar="1,2,…")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="fewer calls, to check that it works")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    options = Options(given.rounds, given.quick)
    figures = [each for number in given.only.split(",") for each in MEASURES[number](options)]
    print_table(figures)
    if given.json:
        write_json(given.json, figures, options, {})
    return int(any(each.is_met is False for each in figures))


if __name__ == "__main__":
    sys.exit(main())
