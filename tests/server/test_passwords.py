"""The password of deleteQueue: which are right, and how wrong ones are counted and slowed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import subprocess

import pytest

from pinlater.model.errors import InvalidArgument
from pinlater.server.passwords import FIRST_PAUSE_S, MOST_PAUSE_S, MOST_TRIES, Password, TooManyTries, hash_password
from tests.support.pages import page

#: Of the original, for the password "letmein".
ORIGINAL = hashlib.sha256(b"letmein" + b"VHzMjY2Kb9BYlyrbtpyFvnHVPZAvB5Rm").hexdigest()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses behind wrong passwords, which take no time here."""
    found: list[float] = []

    async def pause(_: Password, seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(Password, "pause", pause)
    return found


def tried(password: Password, *attempts: str | None) -> list[bool]:
    async def run() -> list[bool]:
        return [await password.matches(each, "d", "evil:host") for each in attempts]

    return asyncio.run(run())


@pytest.mark.parametrize("hashed", [hash_password("letmein"), ORIGINAL, ORIGINAL.upper()], ids=["argon2id", "a", "A"])
def test_the_right_one_alone_matches(hashed: str, pauses: list[float]) -> None:
    wrong = ("letmei", "letmein ", "", None, hashed, "\0", "x" * 100_000, "π")
    assert tried(Password(hashed), "letmein", *wrong, "letmein") == [True] + [False] * len(wrong) + [True]


def test_the_page_shows_how_the_original_makes_a_hash(pauses: list[float]) -> None:
    [(command, shown)] = re.findall(r"^    \$ (printf .*)\n    (.*)\n", page("thrift"), re.MULTILINE)
    printed = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert printed == f"{shown}\n"
    assert tried(Password(printed.split()[0]), "letmein") == [True]


def test_a_hash_has_its_own_salt() -> None:
    assert hash_password("x") != hash_password("x")
    assert hash_password("x").startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def test_without_a_hash_every_password_is_wrong(pauses: list[float]) -> None:
    assert tried(Password(""), "", "x", None) == [False] * 3


def test_wrong_ones_are_counted_and_slowed(pauses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    password = Password(ORIGINAL)
    tried(password, *["x"] * 8, "letmein", "y")
    assert pauses == [*(min(FIRST_PAUSE_S * 2**n, MOST_PAUSE_S) for n in range(8)), FIRST_PAUSE_S]
    assert max(pauses) == MOST_PAUSE_S
    assert (password.wrong, password.wrong_in_a_row) == (9, 1)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 9
    assert "letmein" not in caplog.text
    assert "deleteQueue of 'd' by source 'evil:host': wrong password, 2 in a row in this process" in caplog.text


def test_what_a_client_sends_stays_on_one_line_of_the_log(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(Password(ORIGINAL).matches("x", "d" * 100_000, "a\nWARNING b"))
    [record] = caplog.records
    assert "by source 'a\\nWARNING b': wrong password" in record.getMessage()
    assert len(record.getMessage()) < 200


def test_tries_that_come_together_are_carried_out_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def together() -> None:
        password, gate, waiting = Password(ORIGINAL), asyncio.Event(), asyncio.Event()

        async def pause(*_: object) -> None:
            waiting.set()
            await gate.wait()

        monkeypatch.setattr(Password, "pause", pause)
        wrong = asyncio.ensure_future(password.matches("x", "d", "evil:host"))
        await waiting.wait()
        right = asyncio.ensure_future(password.matches("letmein", "d", "evil:host"))
        done, _ = await asyncio.wait([right], timeout=0.05)
        assert not done  # it waits for the pause of the one before
        gate.set()
        assert (await wrong, await right) == (False, True)

    asyncio.run(together())


def test_tries_that_wait_are_few_and_end_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinlater.server.passwords.FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr("pinlater.server.passwords.MOST_PAUSE_S", 3600.0)

    async def many() -> None:
        password = Password(ORIGINAL)
        tries = [asyncio.ensure_future(password.matches("x", "d", "evil:host")) for _ in range(MOST_TRIES + 1000)]
        refused, _ = await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
        assert len(refused) == 1000
        assert {type(each.exception()) for each in refused} == {TooManyTries}
        password.close()
        assert [await each for each in tries[:MOST_TRIES]] == [False] * MOST_TRIES
        assert await password.matches("letmein", "d", "evil:host")  # there is room again

    asyncio.run(many())


@pytest.mark.parametrize(
    "hashed", ["letmein", "a" * 63, "g" * 64, "$argon2id$", "$argon2i$v=19$m=8,t=1,p=1$YWFhYWFhYWE$YQ"]
)
def test_what_is_no_hash_is_an_error_that_does_not_show_it(hashed: str) -> None:
    with pytest.raises(InvalidArgument, match="password_hash: expected what `pinlater server") as raised:
        Password(hashed)
    assert hashed not in str(raised.value)
