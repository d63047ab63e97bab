"""The tables of errors: they have every code of the scripts, and each code becomes the right error.

Promises: a test fails for a code of a Lua file that the table lacks, and for a row that no file uses.
Risks: the server's codes are those of Redis 7 and Valkey 9. A new one becomes ServerReplyError.
"""

from __future__ import annotations

import re

import hiredis
import pytest

from pinlater.model import errors
from pinlater.model.errors import SCRIPT_CODES, SERVER_CODES, from_reply
from pinlater.store.effects import ReplyError
from pinlater.store.scripts import LUA_DIRECTORY

WHERE = "enqueue of queue 'q' on shard 1"
CALL = re.compile(r"error_reply\(\s*(.)([^'\" ]*)")


def lua_codes() -> dict[str, list[str]]:
    """Every code of an error reply, and the files that have it."""
    codes: dict[str, list[str]] = {}
    for path in sorted(LUA_DIRECTORY.rglob("*.lua")):
        text = path.read_text("utf-8")
        for quote, code in CALL.findall(text):
            assert quote in "'\"", f"{path.name}: expected error_reply('CODE …, got a name: the code cannot be read"
            codes.setdefault(code, []).append(path.name)
        assert text.count("error_reply") == len(CALL.findall(text)), path.name
        assert "{ err =" not in text.replace("{err", "{ err"), f"{path.name}: an error past error_reply"
    return codes


def test_the_lua_files_answer_with_the_codes_of_the_table_and_no_others() -> None:
    found = lua_codes()
    assert {code: files for code, files in found.items() if code not in SCRIPT_CODES} == {}
    assert {code for code in SCRIPT_CODES if code not in found} == set()


@pytest.mark.parametrize("code", SCRIPT_CODES)
def test_a_code_of_a_script_becomes_its_error_and_names_the_call(code: str) -> None:
    error = from_reply(f"{code} what was wrong", WHERE)
    assert type(error) is SCRIPT_CODES[code]
    assert str(error) == f"{WHERE}: what was wrong"


@pytest.mark.parametrize("code", SERVER_CODES)
def test_a_code_of_the_server_becomes_its_error_and_is_quoted(code: str) -> None:
    error = from_reply(f"{code} what was wrong", WHERE)
    assert type(error) is SERVER_CODES[code]
    assert str(error).startswith(WHERE)
    assert code == "OOM" or f"{code} what was wrong" in str(error)


def test_a_full_server_says_what_still_works() -> None:
    assert "acks and dequeues still work" in str(from_reply("OOM command not allowed", WHERE))


@pytest.mark.parametrize("text", ["ERR unknown command", "WRONGTYPE Operation against a key", "NEWCODE", "", "oom x"])
def test_any_other_answer_is_quoted_as_unknown(text: str) -> None:
    error = from_reply(text, WHERE)
    assert type(error) is errors.ServerReplyError
    assert text in str(error)


def test_the_two_tables_do_not_overlap() -> None:
    assert set(SCRIPT_CODES) & set(SERVER_CODES) == set()


@pytest.mark.parametrize("code", [*SCRIPT_CODES, *SERVER_CODES, "ERR"])
def test_the_code_survives_the_reader_of_replies(code: str) -> None:
    """redis-py's own reader removes some codes."""
    reader = hiredis.Reader(replyError=ReplyError)  # type: ignore[arg-type]
    reader.feed(f"-{code} what was wrong\r\n*1\r\n-OOM in a list\r\n".encode())
    assert reader.gets() == ReplyError(f"{code} what was wrong")
    assert reader.gets() == [ReplyError("OOM in a list")]


def test_every_error_is_in_the_one_tree() -> None:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(found) > 10
    assert [kind for kind in found if not issubclass(kind, errors.PinLaterError)] == []
