"""Static rules for the Lua: what a reviewer would have to look for in every script.

Promises: each rule is shown to catch a script that breaks it.
Risks: the rules read text, not a syntax tree; they go by the style of this tree (a statement a line, the
short names of lib/base.lua).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pinlater.store.scripts import LUA_DIRECTORY, Script, load_scripts
from tests.support import lua_names

SCRIPTS = load_scripts()
FILES = sorted(LUA_DIRECTORY.rglob("*.lua"))
#: No part, but names that the loader knows.
CONFIG_LAYOUT = LUA_DIRECTORY / "lib" / "config_layout.lua"
PARTS = sorted({*(LUA_DIRECTORY / "lib").glob("*.lua")} - {CONFIG_LAYOUT})
STEP_LINES = 40
SHEBANGS = {"write": "#!lua flags=allow-oom", "admit": "#!lua", "read": "#!lua flags=no-writes"}
ADMITTED = {"create", "enqueue", "load", "permit", "prepare", "restore"}  # the only ones that a full Redis may refuse
WRITES = {"HSET", "HDEL", "HINCRBY", "ZADD", "ZREM", "ZREMRANGEBYRANK", "ZPOPMIN", "ZPOPMAX"}
WRITES |= {"UNLINK", "PUBLISH", "RPUSH", "PEXPIRE"}
READS = {
    "HGET",
    "HMGET",
    "HLEN",
    "HEXISTS",
    "HSTRLEN",
    "HSCAN",
    "ZRANGE",
    "ZCARD",
    "ZCOUNT",
    "ZSCORE",
    "ZMSCORE",
    "EXISTS",
    "PUBSUB",
}
COMMANDS = WRITES | READS | {"TIME"}
LINES = 160

#: Writes that may be repeated, so they need no lane.
REPEATED = {"beat", "forget_queue", "keep_remnant", "measure", "permit", "settled"}

# unpack() of more than ~8,000 values fails (LUAI_MAXCSTACK). What each argument may be, and why it is bounded.
BOUNDED = {
    "argv, first, first + n - 1": "a group fits the ids of one call: 1,000",
    "fields": "ids and records of one call: 2,000",
    "extras": "ids of one call and their extras: 2,000",
    "lost": "of one claim: 1,000",
    "members": "of one claim: 1,000",
    "ended": "a page of HSCAN of 10, and one; ZRANGE with a limit of 100",
    "decorated_ids": "of one claim: 1,000",
    "entries": "two for each id of one call: 2,000",
    "leases": "of the ids of one call: 1,000",
    "KEYS, ready0 + priority, ready0 + priorities": "100 priorities",
    "KEYS, ready0 + at, ready0 + priorities": "100 priorities",
    "values, first, math.min(first + 1999, #values)": "call_in_chunks: 2,000 a call",
    "ids, 1, math.min(room, #ids)": "CALL_JOBS, 250",
    "ids, position + 1, last": "ids of a batch: 500",
    "owned": "ids of a batch: 500",
    "owners": "two for each id of a batch: 1,000",
    "ids, count + 1, last": "fetch: a chunk of a claim's ids, 1,000 at most",
    "ids, 1, count": "a claim's ids",
    "rest, 1, math.min(#rest, 1000)": "1,000 at a time of a page of HSCAN",
    "ids": "ids of one call or one lease, 1,000 at most",
    "crashed": "ids of one lease",
    "candidates": "two forms an id of one call: 2,000",
    "group.ids": "ids of one call",
    "group.decorated": "ids of one call",
    "group.flagged": "ids of one call",
    "argv, ids0 + base + 1, ids0 + base + n": "a group fits the ids of one call",
    "ARGV, ids0 + base + 1, ids0 + base + n": "a group fits the ids of one call",
    "ARGV, ids0 + 1, ids0 + named": "ids of one call",
    "lists": "chunks of records: at most one a job, 1,000",
    "KEYS": "14 keys and 6 a priority, 100 priorities",
}


# What one match of each pattern breaks; {} is the first group.
RULES = {
    r"\b(pcall|xpcall|loadstring|dofile|require)\b": "{} is not allowed",
    r":(match|find|gsub|gmatch)\(": "a string method may take a pattern: {}",
    r"'(pl:[^']*)'": "key outside of KEYS: {}",
    r"\b(?:KEYS|ARGV)\[(\d+)\]": "index of {} in a body",
    r"\b(tostring)\(": "{} loses digits",
    r"\.\. (now|score|due_ms|ms|expires|earliest)\b": "number in a string: {}",
    r"^(?!local )function (\w+)": "global {}",
    r"\b(?:config|settings|carried), ([2-9]|\d\d)": "byte {} of a configuration (lib/config_layout)",
}
UNPACK = re.compile(r"unpack\(((?:[^()]|\([^()]*\))*)\)")
MATCH = re.compile(r"string\.(g?match|find|gsub)\((.*)")
LITERAL = re.compile(r"(?:[^(),]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))+, '")  # a subject, then a literal


def problems(source: str) -> list[str]:
    """What breaks a rule in a script or part, comments left out."""
    code = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("--"))
    found = [text.format(word) for rule, text in RULES.items() for word in re.findall(rule, code, re.MULTILINE)]
    found += [f"unbounded unpack({inner})" for inner in UNPACK.findall(code) if inner not in BOUNDED]
    found += [f"pattern of string.{call}" for call, rest in MATCH.findall(code) if not LITERAL.match(rest)]
    found += [f"command {word}" for word in re.findall(r"\bcall\('(\w+)'", code) if word not in COMMANDS]
    found += [f"command {word}" for word in re.findall(r"\bcall_in_chunks\('(\w+)'", code) if word not in WRITES]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_lua_file_keeps_the_rules(path: Path) -> None:
    source = path.read_text("utf-8")
    assert problems(source) == []
    assert [line for line in source.splitlines() if len(line) > LINES or line != line.rstrip()] == []
    assert source.startswith("-- ")
    assert source.endswith("\n")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("redis.pcall('ZADD', key_leases, now, x)", "pcall is not allowed"),
        ("call('ZREM', key_leases, unpack(everything))", "unbounded unpack(everything)"),
        ("string.match(status, pattern)", "pattern of string"),
        ("string.gsub(sub(status, 3), ARGV0, '')", "pattern of string"),
        ("status:find(word)", "a string method"),
        ("call('GET', 'pl:{a/b}:meta')", "key outside of KEYS"),
        ("call('HGET', KEYS[2], ARGV[1])", "index of 2"),
        ("x = tostring(score)", "tostring"),
        ("call('ZRANGE', key_leases, '(' .. now, '+inf')", "number in a string"),
        ("call('KEYS', '*')", "command KEYS"),
        ("call_in_chunks('HMGET', key_jobs, ids)", "command HMGET"),
        ("function leak() end", "global leak"),
        ("unp('>I4', config, 13)", "byte 13 of a configuration"),
    ],
)
def test_a_rule_catches_what_breaks_it(line: str, problem: str) -> None:
    assert any(one.startswith(problem) for one in problems(line)), problems(line)


def test_a_literal_pattern_is_allowed() -> None:
    assert problems("string.match(sub(entry, 3 + unp('>I2', entry)), '^[^:]*$')\n-- no pcall here") == []


def test_every_bound_is_in_use() -> None:
    code = "\n".join(path.read_text("utf-8") for path in FILES)
    assert [inner for inner in BOUNDED if f"unpack({inner})" not in code] == []


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=lambda script: script.verb)
def test_the_source_as_sent_has_the_right_flags_and_one_clock(script: Script) -> None:
    source = script.source.decode()
    assert source.splitlines()[0] == SHEBANGS[script.kind]
    assert (script.kind == "admit") == (script.verb in ADMITTED)
    assert source.count("'TIME'") <= 1
    written = set(re.findall(r"\b(?:call|call_in_chunks)\('(\w+)'", source)) & WRITES
    assert bool(written) == script.writes
    assert script.on_lane == (script.writes and script.verb not in REPEATED)
    first = ("lane", "sequence") if script.on_lane else ("nonce",)
    assert script.arguments[: len(first)] == first
    assert ("meta" in script.keys) == (script.verb != "keep_remnant")  # its keys are the registry's


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=lambda script: script.verb)
def test_a_header_is_complete_and_its_parts_exist(script: Script) -> None:
    text = (LUA_DIRECTORY / f"{script.verb}.lua").read_text("utf-8")
    assert text.startswith(f"-- {script.verb}: ")
    order = [text.index(f"\n-- {name} ") for name in ("KIND", "NEEDS", "KEYS", "ARGV", "REPLY")]
    assert order == sorted(order)


def test_every_part_is_needed_by_a_script() -> None:
    asked = re.compile(r"^ *-- (?:NEEDS|HERE) +(.*)$", re.MULTILINE)
    needed = {part for path in FILES for parts in asked.findall(path.read_text("utf-8")) for part in parts.split()}
    assert needed == {path.stem for path in PARTS}


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.stem)
def test_the_header_of_a_part_lists_the_locals_it_reads_and_sets(path: Path) -> None:
    assert lua_names.header(path) == lua_names.names(lua_names.part(path.stem))


@pytest.mark.parametrize(
    ("code", "reads", "sets"),
    [
        ("local a = b", {"b"}, {"a"}),
        ("if a then local b = a end", {"a"}, set()),
        ("a, b = c.d, { e = f }", {"c", "f"}, {"a", "b"}),
        ("for i, x in ipairs(a) do b[i] = x end", {"a", "b"}, set()),
        ("local function f(x) return x + y end", {"y"}, {"f"}),
        ("repeat local a = f('b') until a or c", {"a", "c", "f"}, set()),
        ("if a then local b = 1 else b = 2 end", {"a"}, {"b"}),
        ("call('HGET', key_meta, ready0 + priority)", {"priority"}, set()),
    ],
)
def test_finds_what_code_reads_and_sets(code: str, reads: set[str], sets: set[str]) -> None:
    assert lua_names.names(code) == (reads, sets)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=lambda script: script.verb)
def test_a_script_reads_nothing_that_nobody_set(script: Script) -> None:
    code = script.source.decode().partition("\n")[2]
    assert lua_names.names(code)[0] == set()


@pytest.mark.parametrize("verb", ["claim", "ack"])
def test_steps_of_a_claim_and_an_ack_are_short(verb: str) -> None:
    """A step: a part that stands where it is needed, or a function."""
    code = (LUA_DIRECTORY / f"{verb}.lua").read_text("utf-8")
    parts = {name for found in re.findall(r"-- HERE (.+)", code) for name in found.split()}
    for name in parts:
        lines = (LUA_DIRECTORY / "lib" / f"{name}.lua").read_text("utf-8").splitlines()
        assert len([line for line in lines if not line.startswith("--")]) <= STEP_LINES, name
    for function in re.findall(r"^local function .*?^end$", code, re.MULTILINE | re.DOTALL):
        assert function.count("\n") < STEP_LINES, function


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=lambda script: script.verb)
def test_what_a_part_defines_is_there_where_it_is_called(script: Script) -> None:
    parts = "".join(path.read_text("utf-8") for path in (LUA_DIRECTORY / "lib").glob("*.lua"))
    source = script.source.decode()
    for name in set(re.findall(r"local function (\w+)\(", parts)):
        called = re.search(rf"(?<!function )(?<![\w.]){name}\(", source)
        defined = re.search(rf"local function {name}\(", source)
        assert called is None or (defined is not None and defined.start() < called.start()), name


# Scripts that decide everything before their first write. The others do so a priority or a lease at a time.
READ_FIRST = [
    *("create", "configure", "delete_queue", "enqueue", "load", "prepare", "release", "retry_failed", "pass_on"),
    *("withdraw", "finalize", "abort", "restore", "close", "settled"),
]


@pytest.mark.parametrize("verb", READ_FIRST)
def test_nothing_is_validated_after_the_first_write(verb: str) -> None:
    body = (LUA_DIRECTORY / f"{verb}.lua").read_text("utf-8")
    first_write = min(
        (match.start() for match in re.finditer(r"\b(?:call|call_in_chunks)\('(\w+)'", body) if match[1] in WRITES),
        default=len(body),
    )
    assert "error_reply" not in body[first_write:]
