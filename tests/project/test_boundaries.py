"""A `_name` is used only in the file that defines it; tests, benches and examples use public names alone.

So a module can be moved, split or rewritten without a look at the others. Modules are told apart by their files, so the
rule needs no list of rooms.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import pinlater
from tests.support.paths import ROOT

PACKAGE = Path(pinlater.__file__).parent
#: Private by their names, and used all the same: the native module, and names of other libraries.
EXEMPT = {
    "_core",
    "_VALUES_TO_NAMES",  # of enums of thriftpy2
    "_current_frames",  # sys: it is documented
    "_exit",  # os: it is documented
    "_fields",  # of named tuples, as _replace: both are documented
    "_fmt",  # logging.Formatter
    "_get_running_loop",  # asyncio: without an exception where there is none
    "_recv",  # of clients of thriftpy2, as _send
    "_replace",
    "_send",
    "_sock",  # of connections of redis-py
}
#: Calls that name attributes by strings.
BY_NAME = {"attrgetter", "delattr", "getattr", "hasattr", "methodcaller", "object", "patch", "setattr"}
OWN = {"self", "cls"}

#: All nodes of a file, which are walked once.
Nodes = Sequence[ast.AST]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in EXEMPT


def _defined(nodes: Nodes) -> set[str]:
    """Names that a file defines: of functions, classes, variables and attributes."""
    found = set[str]()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def _is_own(value: ast.expr) -> bool:
    match value:
        case ast.Name(id=name):
            return name in OWN
        case ast.Call(func=ast.Name(id="super")):
            return True
    return False


def _modules(nodes: Nodes) -> set[str]:
    """Names by which a file has modules of this project."""
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("pinlater", "tests"):
            package = PACKAGE.parent if node.module and node.module.startswith("pinlater") else ROOT
            folder = package.joinpath(*(node.module or "").split("."))
            names = [alias for alias in node.names if (folder / f"{alias.name}.py").exists()]
            found |= {alias.asname or alias.name for alias in names}
    return found


def imported(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Private names that are imported from this project."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("pinlater", "tests", "benches"):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names if alias.name[:8] == "pinlater" for part in alias.name.split(".")]
        else:
            continue
        yield from ((node.lineno, f"imports {name}") for name in names if is_private(name))


def reached(nodes: Nodes, inherited: set[str], *, strictly: bool = False) -> Iterator[tuple[int, str]]:
    """Private attributes of what others define. inherited: names that `self` may have from elsewhere. strictly: also of
    what this file defines, where it is no `self`.
    """
    own, modules = _defined(nodes), _modules(nodes)
    own_and_inherited = own | inherited
    for node in nodes:
        if not (isinstance(node, ast.Attribute) and is_private(node.attr)):
            continue
        of_module = isinstance(node.value, ast.Name) and node.value.id in modules
        known = own_and_inherited if _is_own(node.value) else set() if strictly or of_module else own
        if node.attr not in known:
            yield node.lineno, ast.unparse(node)[-80:]


def named(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Private attributes in strings: of monkeypatch.setattr() and the like, and in programs."""
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in BY_NAME:
            texts = [
                part.value
                for argument in node.args
                for part in ast.walk(argument)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            for text in texts:
                if re.fullmatch(r"[\w.]+", text) and any(map(is_private, text.split("."))):
                    yield node.lineno, repr(text)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "import pinlater" in node.value:
            found = re.findall(r"[\w)]\.(_[a-z]\w*)", node.value)
            yield from ((node.lineno, f"in a program: {name}") for name in found if is_private(name))


def _nodes(code: str) -> Nodes:
    return list(ast.walk(ast.parse(code)))


def _files(folder: Path) -> dict[str, Nodes]:
    return {str(path.relative_to(ROOT)): _nodes(path.read_text("utf-8")) for path in sorted(folder.rglob("*.py"))}


def test_the_package_uses_a_private_name_only_where_it_is_defined() -> None:
    found = [
        f"{path}:{line}: {what}"
        for path, nodes in _files(PACKAGE.parent).items()
        for line, what in (*imported(nodes), *reached(nodes, set()), *named(nodes))
    ]
    assert found == []


@pytest.mark.parametrize("folder", ["tests", "benches", "examples"])
def test_what_stands_around_the_package_uses_public_names_alone(folder: str) -> None:
    files = _files(ROOT / folder)
    inherited = set[str]().union(*map(_defined, files.values()))  # from classes of other tests
    found = [
        f"{path}:{line}: {what}"
        for path, nodes in files.items()
        for line, what in (*imported(nodes), *reached(nodes, inherited, strictly=True), *named(nodes))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "from pinlater.model.jobs import SECRET",
        "from pinlater import SECRET",
        "import pinlater.SECRET",
        "from pinlater.model import jobs\ndef SECRET(): ...\njobs.SECRET()",
        "worker.SECRET",
        "worker.SECRET = 1",
        "self.SECRET",
        "super().SECRET()",
        "setattr(worker, 'SECRET', 1)",
        "monkeypatch.setattr('pinlater.model.jobs.SECRET', 1)",
        "monkeypatch.setattr(f'pinlater.{module}.SECRET', 1)",
        "run('import pinlater; pinlater.Client().SECRET')",
    ],
)
def test_what_it_finds(code: str) -> None:
    nodes = _nodes(code.replace("SECRET", "_secret"))
    assert [*imported(nodes), *reached(nodes, set()), *named(nodes)]


@pytest.mark.parametrize(
    "code",
    [
        "from pinlater import _core",
        "class A:\n def f(self, other): self._mine = other._mine",
        "worker.__class__",
        "row._replace(a=1)",
        "getattr(worker, 'public')",
        "def _mine(): ...\n_mine()",
    ],
)
def test_what_it_lets_pass(code: str) -> None:
    nodes = _nodes(code)
    assert [*imported(nodes), *reached(nodes, set()), *named(nodes)] == []
