"""The coverage-guided fuzzer of the Thrift codec (`rust/fuzz`), and its inputs: frames with their length.

Promises: `corpus` is what the last campaign kept; a line of its file is a frame.
Risks: the stack of the fuzzer is small, so that a depth without a limit ends it; Python needs some of it too.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from tests.support.requirements import CARGO, CXX, FUZZER, FUZZER_CRATES, PYTHON_LIBRARY, require
from tests.support.thrift_frames import ack, call, enqueue, framed, head
from tests.support.valid_calls import CALLS, QUEUE

CORPUS: Final = FUZZER.parent / "corpus.txt"
#: What libFuzzer needs to see which edges an input takes, and which numbers it is compared with.
INSTRUMENTED: Final = "-Cpasses=sancov-module " + " ".join(
    f"-Cllvm-args=-sanitizer-coverage-{what}"
    for what in ("level=4", "inline-8bit-counters", "pc-table", "trace-compares")
)
STACK_KIB: Final = 512
LONGEST: Final = 32_768
#: The corpus stays small: the seeds are the long frames.
KEPT_BYTES: Final = 512


def build(target: Path) -> Path:
    """The program. Skips the test, by name, if the machine lacks what that takes."""
    for needed in (CARGO, CXX, PYTHON_LIBRARY, FUZZER_CRATES):
        require(needed)
    # with a target given, the flags are not those of build scripts
    host = subprocess.run(["rustc", "--print", "host-tuple"], check=True, capture_output=True, text=True).stdout.strip()
    command = ["cargo", "build", "--release", "--locked", "--offline", "--manifest-path", str(FUZZER)]
    flags = {"PYO3_PYTHON": sys.executable, "RUSTFLAGS": INSTRUMENTED}
    subprocess.run([*command, "--target", host, "--target-dir", target], env={**os.environ, **flags}, check=True)
    return target / host / "release" / "thrift"


def run(program: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs it with arguments of libFuzzer. Its log is stdout."""
    python = {"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")), "PYTHONHOME": sys.base_prefix}
    script = f'ulimit -s {STACK_KIB}; exec nice "$0" "$@"'
    command = ["sh", "-c", script, program, f"-max_len={LONGEST}", "-timeout=20", *arguments]
    environment = {**os.environ, **python}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def corpus() -> list[bytes]:
    """What campaigns kept."""
    return [bytes.fromhex(line) for line in CORPUS.read_text("ascii").splitlines()]


def seeds() -> list[bytes]:
    """Real calls, and bombs."""
    names = ("enqueueJobs", "dequeueJobs", "ackDequeuedJobs")
    starts = [head(name) + start for name in names for start in (b"", b"\x0c\0\2", b"\x0c\0\2\x0c\0\3")]
    bombs = [b"\x0c\0\1" * depth + bytes(depth + 9) for depth in (1, 60, 64, 65, 4_000)]
    bombs += [b"\x0f\0\1" + b"\x0f\0\0\0\1" * depth + bytes(9) for depth in (60, 64, 3_000)]
    bombs += [b"\x0f\0\2" + bytes([kind]) + struct.pack(">i", count) for kind in (2, 11, 12) for count in (-1, 99_999)]
    wrong = [ack(QUEUE, "no descriptor"), call("createQueue")[:-1]]
    large = [enqueue(QUEUE, *[b""] * 1_001), ack(QUEUE, *(f"{QUEUE}:s1:p1:{number}" for number in range(1, 1_002)))]
    return [*CALLS, *wrong, *large, *(framed(start + bomb) for start in starts for bomb in bombs)]


def write_inputs(folder: Path, frames: list[bytes]) -> None:
    """A file for each frame, as libFuzzer reads them."""
    folder.mkdir(parents=True)
    for number, frame in enumerate(frames):
        (folder / f"{number:05}").write_bytes(frame)


def write_corpus(path: Path, folder: Path) -> int:
    """The frames of a folder as lines, but the seeds and those that are long. Returns how many there are."""
    frames = {file.read_bytes() for file in folder.iterdir()}.difference(seeds())
    lines = sorted((frame.hex() for frame in frames if len(frame) <= KEPT_BYTES), key=lambda line: (len(line), line))
    path.write_text("".join(f"{line}\n" for line in lines), "ascii")
    return len(lines)
