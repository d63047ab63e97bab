"""Words that were given up (docs/words.md) are in no identifier and no key name. Prose is free.

Promises: an identifier is compared word by word, so `unbegun_jobs` and `SoleLease` are found. Risks: names in Lua and
Rust are read from text without comments and strings, not from a syntax tree.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinlater.store.scripts import LUA_DIRECTORY, load_scripts
from tests.support.paths import ROOT

#: Given up everywhere.
WORDS = {
    "arrive",
    "bare",
    "begun",
    "bell",
    "deaths",
    "exchange",
    "hang",
    "lasting",
    "life",
    "mint",
    "observer",
    "odd",
    "overseer",
    "rang",
    "removals",
    "ring",
    "sole",
    "ticket",
    "told",
    "waker",
}
#: In the scripts also: `level` is a priority, `ring` notifies. Python's logging has levels, and plain tasks exist.
LUA_WORDS = WORDS | {"gone", "level", "plain", "reach"}
#: `ring` is a crate of Rust.
RUST_WORDS = WORDS - {"ring"} | {"level"}
#: Plurals and compounds of those.
FORMS = {"begun": "unbegun"}


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def given_up(names: Iterator[str] | list[str], words: set[str]) -> list[str]:
    every = words | {word + "s" for word in words} | {FORMS[word] for word in words & set(FORMS)}
    return sorted({name for name in names if words_of(name) & every})


def python_names(code: str) -> Iterator[str]:
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return (token.string for token in tokens if token.type == tokenize.NAME)


def other_names(code: str, comment: str) -> list[str]:
    """Of Lua or Rust."""
    lines = (line.partition(comment)[0] for line in code.splitlines())
    bare = re.sub(r"'[^'\n]*'|\"[^\"\n]*\"", "", "\n".join(lines))
    return re.findall(r"[A-Za-z_]\w*", bare)


def python_files() -> list[Path]:
    return sorted(
        path
        for folder in ("pinlater", "pinlater_pytest")
        for path in (ROOT / "python" / folder).rglob("*.py*")
        if path.suffix != ".pyc"
    )


def test_no_identifier_of_the_package_has_a_word_that_was_given_up() -> None:
    files = [path for path in python_files() if path.suffix in (".py", ".pyi")]
    assert len(files) > 50
    found = {path.name: given_up(python_names(path.read_text("utf-8")), WORDS) for path in files}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("folder", "suffix", "comment", "words"),
    [(LUA_DIRECTORY, "lua", "--", LUA_WORDS), (ROOT / "rust" / "src", "rs", "//", RUST_WORDS)],
    ids=["lua", "rust"],
)
def test_no_identifier_of_the_scripts_and_of_rust(folder: Path, suffix: str, comment: str, words: set[str]) -> None:
    files = sorted(folder.rglob(f"*.{suffix}"))
    assert len(files) > 15
    found = {path.name: given_up([path.stem, *other_names(path.read_text("utf-8"), comment)], words) for path in files}
    assert {name: names for name, names in found.items() if names} == {}


def test_no_verb_key_or_argument() -> None:
    scripts = load_scripts().values()
    names = [name for script in scripts for name in (script.verb, *script.keys, *script.arguments)]
    assert given_up(names, LUA_WORDS) == []


def test_no_module_or_folder() -> None:
    assert given_up([part for path in python_files() for part in path.parts[-2:]], WORDS) == []


@pytest.mark.parametrize("name", ["bell", "bells", "_bell_of", "SoleLease", "unbegun_ids", "SOLE_BYTES", "nextTicket"])
def test_what_it_finds(name: str) -> None:
    assert given_up(python_names(f"x.{name} = 1  # plain"), WORDS) == [name]
    assert given_up(other_names(f"local {name} = 'x' -- y", "--"), WORDS) == [name]


@pytest.mark.parametrize("code", ["# a bell", "'ticket'", '"""odd"""', "x = belly + oddity + lifespan"])
def test_what_it_lets_pass(code: str) -> None:
    assert given_up(python_names(code), WORDS) == []
