"""Each deliberate fault (tests/faults.py) can be put in: its text stands once in its file. `make faults` takes long."""

from __future__ import annotations

import pytest

from tests.faults import FAULTS, Fault
from tests.support.paths import ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_the_text_of_a_fault_is_there_once(fault: Fault) -> None:
    assert (ROOT / fault.path).read_text("utf-8").count(fault.before) == 1
    assert [name for name in fault.tests.split() if not (ROOT / name).exists()] == []


def test_each_fault_has_a_name_of_its_own() -> None:
    assert len({fault.what for fault in FAULTS}) == len(FAULTS)
