"""A coverage-guided fuzzer on the Thrift codec, and what it found worth keeping: its corpus.

Promises: the daily tests read the corpus as the twins do. The test of the campaign runs the fuzzer on it, and further.
PINLATER_CAMPAIGN=1 runs it for ten minutes, and writes the corpus that it has then to build/fuzz/corpus.txt.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from pinlater import _core
from tests.support import fuzzer, thrift_twins
from tests.support.paths import ROOT
from tests.support.thrift_inputs import ack_call, agree, dequeue_call, enqueue_call, outcome_of

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
LENGTH = "-max_total_time=600" if CAMPAIGN else "-runs=30000"
FOLDER = ROOT / "build" / "fuzz"
ANY_BODY, ANY_PRIORITY = 2**31 - 1, 100


def shown_enqueue(call: Any) -> Any:
    """What a call shows of itself, if a queue can have all of its priorities. For the native call and for its twin."""
    if isinstance(call, type):
        return call
    refused = outcome_of(call.check, ANY_BODY, ANY_PRIORITY)
    if refused is not None or isinstance(call, thrift_twins.EnqueueCall):
        return refused or tuple(call)
    return enqueue_call(call)


#: How the call of a method is read by the core and by its twin, and what is compared.
METHODS: dict[bytes, tuple[Callable[..., Any], Callable[..., Any], Callable[[Any], Any]]] = {
    b"enqueueJobs": (_core.read_enqueue, thrift_twins.read_enqueue, shown_enqueue),
    b"dequeueJobs": (_core.read_dequeue, thrift_twins.read_dequeue, dequeue_call),
    b"ackDequeuedJobs": (_core.read_ack, thrift_twins.read_ack, ack_call),
}


def outcome_of_frame(frame: bytes) -> str:
    """What becomes of a frame, which its twin must agree with: the name of an error, or of a type of calls."""
    length = int.from_bytes(frame[8:12], "big")
    start = min(16 + length, len(frame))
    checked = outcome_of(_core.check_message, frame, start)
    assert checked == outcome_of(thrift_twins.check_message, frame, start)
    hot = outcome_of(_core.read_hot_call, frame)
    if hot is None:
        return "another call" if checked is None else "another message"
    native, twin, shown = METHODS[frame[12 : 12 + length]]
    assert agree(shown(outcome_of(native, frame, start)), shown(outcome_of(twin, frame, start)))
    return hot.__name__ if isinstance(hot, type) else type(hot[1]).__name__


def test_the_corpus_is_read_as_the_twins_read_it() -> None:
    found = [outcome_of_frame(frame) for frame in fuzzer.corpus() + fuzzer.seeds()]
    reads, errors = {"EnqueueCall", "DequeueCall", "AckCall"}, {"BadMessage", "MissingField", "ValueError"}
    assert set(found) == {*reads, *errors, "another call", "another message"}


@pytest.mark.campaign("fuzzer")
@pytest.mark.timeout(3600)
def test_the_fuzzer_finds_nothing() -> None:
    program = fuzzer.build(ROOT / "target" / "fuzz")
    shutil.rmtree(FOLDER, ignore_errors=True)
    fuzzer.write_inputs(FOLDER / "seeds", fuzzer.corpus() + fuzzer.seeds())
    (FOLDER / "found").mkdir()
    ran = fuzzer.run(program, LENGTH, f"-artifact_prefix={FOLDER}/", FOLDER / "found", FOLDER / "seeds")
    (FOLDER / "log").write_text(ran.stdout)
    assert ran.returncode == 0, ran.stdout[-4_000:]
    [*_, (runs, edges)] = re.findall(r"^#(\d+)\s+DONE\s+cov: (\d+)", ran.stdout, re.MULTILINE)
    assert int(edges) > 500
    if CAMPAIGN:
        (FOLDER / "kept").mkdir()
        merged = fuzzer.run(program, "-merge=1", FOLDER / "kept", FOLDER / "seeds", FOLDER / "found")
        assert merged.returncode == 0, merged.stdout[-4_000:]
        kept = fuzzer.write_corpus(FOLDER / "corpus.txt", FOLDER / "kept")
        print(f"{int(runs):,} executions, {edges} edges, {kept} inputs kept")


def test_the_fuzzer_has_what_the_core_is_built_with() -> None:
    """It is built by campaigns alone."""

    def crates(folder: str) -> set[str]:
        manifest = tomllib.loads((ROOT / folder / "Cargo.toml").read_text("utf-8"))
        return set(manifest["dependencies"])

    assert crates("rust") <= crates("rust/fuzz")
