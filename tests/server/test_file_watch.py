"""A watched file: which changes are seen, and what happens to versions that are refused."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from pinlater import InvalidArgument
from pinlater.server.file_watch import MAX_BYTES, FileWatch


class Taken:
    """What a watch handed on. refused: the error of the next version."""

    def __init__(self) -> None:
        self.versions: list[bytes] = []
        self.refused: Exception | None = None

    async def __call__(self, data: bytes) -> None:
        if self.refused is not None:
            raise self.refused
        self.versions.append(data)


def looks(watch: FileWatch, taken: Taken, times: int = 1) -> list[bool]:
    async def run() -> list[bool]:
        return [await watch.look(taken) for _ in range(times)]

    return asyncio.run(run())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_bytes(b"one")
    return found


def test_a_change_of_size_time_or_inode_is_seen(path: Path) -> None:
    watch, taken = FileWatch(path), Taken()
    assert watch.read() == b"one"
    assert looks(watch, taken) == [False]

    at = path.stat().st_mtime_ns
    path.write_bytes(b"three")
    os.utime(path, ns=(at, at))
    assert looks(watch, taken, 2) == [True, False]

    path.write_bytes(b"seven")
    os.utime(path, ns=(at, at + 1))
    assert looks(watch, taken, 2) == [True, False]

    other = path.with_suffix(".new")
    other.write_bytes(b"eight")
    os.utime(other, ns=(at, at + 1))
    other.replace(path)
    assert looks(watch, taken, 2) == [True, False]
    assert taken.versions == [b"three", b"seven", b"eight"]


def test_a_file_that_was_not_read_is_new(path: Path) -> None:
    taken = Taken()
    assert looks(FileWatch(path), taken, 2) == [True, False]
    assert taken.versions == [b"one"]


@pytest.mark.parametrize("error", [InvalidArgument("the second is wrong"), ZeroDivisionError("by zero")])
def test_a_refused_version_is_logged_once_and_the_next_one_is_taken(
    path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    watch, taken = FileWatch(path), Taken()
    watch.read()
    taken.refused = error
    path.write_bytes(b"second")
    assert looks(watch, taken, 3) == [False] * 3
    [line] = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert str(error) in line
    taken.refused = None
    path.write_bytes(b"the third")
    assert looks(watch, taken, 2) == [True, False]
    assert taken.versions == [b"the third"]


def test_a_file_that_is_too_large_is_refused(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(InvalidArgument, match="expected at most 16,777,216 bytes, got more"):
        FileWatch(path).read()
    taken = Taken()
    assert looks(FileWatch(path), taken) == [False]
    assert taken.versions == []


def test_a_background_watch_sees_a_change_and_ends(path: Path) -> None:
    async def run() -> bytes:
        changed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def take(data: bytes) -> None:
            changed.set_result(data)

        watch = FileWatch(path, interval_s=0.01)
        watch.read()
        watch.start(take)
        watch.start(take)
        await asyncio.to_thread(path.write_bytes, b"second")
        found = await asyncio.wait_for(changed, 60)
        await watch.stop()
        await watch.stop()
        assert len(asyncio.all_tasks()) == 1
        return found

    assert asyncio.run(run()) == b"second"
