"""The shape of the tree: rooms that import one way, one public list, and files a newcomer can find.

Every import counts: those inside functions and those under TYPE_CHECKING too.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import pinlater

PACKAGE = Path(pinlater.__file__).parent
#: From the ground up: a room imports only itself and rooms before it. docs/internals.md says what each is.
ROOMS = [
    "model",
    "embedded",
    "store",
    "memory",
    "operations",
    "archive",
    "client",
    "worker",
    "tasks",
    "running",
    "server",
    "testing",
    "cli",
]
#: What stands beside the rooms.
BESIDE = {"__init__.py", "__main__.py", "_core.pyi", "py.typed", "lua", "mysql_archive"}
MAX_ROOMS = 15
MAX_FLOORS = 13


def _modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a package stands for its `__init__`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imports(module: str) -> set[str]:
    """Modules of the package that one imports, wherever in its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: expected imports by the whole name"
            base = node.module or ""
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & MODULES.keys()) - {module, "pinlater"}


def _room(module: str) -> str:
    return module.split(".")[1]


def test_the_rooms_are_what_stands_at_the_root() -> None:
    there = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__" and path.suffix != ".so"}
    assert there == BESIDE | set(ROOMS)
    assert len(ROOMS) <= MAX_ROOMS


def test_the_page_shows_each_room_in_its_place() -> None:
    page = (Path(__file__).parents[2] / "docs" / "internals.md").read_text("utf-8")
    picture = page.partition("\n## Rooms\n")[2].split("```")[1]
    assert [line.split()[0] for line in picture.strip().splitlines()] == ROOMS[::-1]


def test_a_room_imports_only_rooms_below_it() -> None:
    upward = [
        f"{module} imports {found}"
        for module in MODULES
        if module.count(".") and _room(module) in ROOMS
        for found in sorted(_imports(module))
        if ROOMS.index(_room(found)) > ROOMS.index(_room(module))
    ]
    assert upward == []


def test_a_room_never_imports_the_root_of_the_package() -> None:
    """The root imports every room, so an import of it points up. `_core` is imported by its whole name."""
    wrong = [
        module for module in MODULES if module.count(".") and module != "pinlater.__main__" and _root_imports(module)
    ]
    assert wrong == []


def _root_imports(module: str) -> bool:
    return any(
        (isinstance(node, ast.ImportFrom) and node.module == "pinlater")
        or (isinstance(node, ast.Import) and any(alias.name == "pinlater" for alias in node.names))
        for node in ast.walk(ast.parse(MODULES[module].read_text("utf-8")))
    )


def test_rooms_stand_on_few_floors() -> None:
    """A room's floor is one above the highest room that it imports."""
    floors: dict[str, int] = {}
    for room in ROOMS:
        below = {
            _room(found) for module in MODULES if module.startswith(f"pinlater.{room}") for found in _imports(module)
        }
        floors[room] = 1 + max((floors[name] for name in below - {room} if name in floors), default=0)
    assert max(floors.values()) <= MAX_FLOORS


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert list(_circles({module: _imports(module) for module in MODULES if module != "pinlater"})) == []


def test_the_check_of_circles_finds_one() -> None:
    assert list(_circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == [["a", "b", "c", "a"]]


def _circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    done: set[str] = set()

    def visit(module: str, above: list[str]) -> Iterator[list[str]]:
        if module in above:
            yield [*above[above.index(module) :], module]
        elif module not in done:
            for found in sorted(graph.get(module, ())):
                yield from visit(found, [*above, module])
            done.add(module)

    for module in sorted(graph):
        yield from visit(module, [])


def test_every_module_says_what_it_promises() -> None:
    assert [name for name, path in MODULES.items() if not ast.get_docstring(ast.parse(path.read_text("utf-8")))] == []


def test_the_public_list_is_what_there_is() -> None:
    for name in pinlater.__all__:
        assert getattr(getattr(pinlater, name), "__name__", name) == name  # some are imported when they are named
    public = {
        name
        for name, value in vars(pinlater).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(pinlater.__all__) - {"__version__"}
    assert list(pinlater.__all__) == sorted(pinlater.__all__)


def test_an_import_brings_only_what_talks_to_queues() -> None:
    code = "import pinlater, sys; print(*sys.modules); pinlater.PinLater, pinlater.Worker"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unwanted = {"pinlater.tasks", "pinlater.worker", "pinlater.embedded", "msgpack", "orjson", "uvloop", "click"}
    assert not unwanted & set(ran.stdout.split())
    with pytest.raises(AttributeError, match="module 'pinlater' has no attribute 'PinLate'"):
        pinlater.PinLate  # type: ignore[attr-defined]  # noqa: B018


def test_every_public_thing_is_documented() -> None:
    for name in pinlater.__all__:
        thing = getattr(pinlater, name)
        if isinstance(thing, type):
            assert thing.__doc__, name
            methods = [
                method for method in vars(thing) if not method.startswith("_") and callable(getattr(thing, method))
            ]
            assert [method for method in methods if not getattr(thing, method).__doc__] == [], name


def test_both_clients_have_the_same_methods() -> None:
    def methods(client: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(function).parameters)
            for name, function in vars(client).items()
            if not name.startswith("_") and callable(function)
        }

    assert methods(pinlater.Client) == methods(pinlater.AsyncClient)
