"""The shape of the tree: imports point one way, one public list, no module that only helps itself to everything."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from pathlib import Path

import pytest

import pinlater

PACKAGE = Path(pinlater.__file__).parent
#: Modules by layer, lowest first; docs/design.md has the same table.
LAYERS = [
    {"_core"},
    {"errors", "jobs", "config", "registry", "tracebacks"},
    {
        "async_link",
        "async_transport",
        "async_waker",
        "async_watcher",
        "coalescer",
        "embedded",
        "embedded_keeper",
        "exchange",
        "flows",
        "keys",
        "lanes",
        "memory",
        "scripts",
        "servers",
        "shards",
        "sync_transport",
        "sync_waker",
        "sync_watcher",
        "toml_file",
    },
    {
        "async_client",
        "audit",
        "client",
        "dequeuing",
        "enqueuing",
        "holding",
        "inspecting",
        "maintaining",
        "quarantine",
        "queues",
        "results",
    },
    {
        "begun",
        "bells",
        "claiming",
        "deaths",
        "doctor",
        "ending",
        "handlers",
        "monitor",
        "os_process",
        "overtime",
        "process",
        "rate",
        "removals",
        "renewal",
        "subscriptions",
        "sharing",
        "stop_signals",
        "supervisor",
        "worker",
        "worker_config",
    },
    {"framework"},
    {"demo"},
    {"cli", "testing", "__main__"},
]


#: Within the framework, lowest first: what a task is made of, what puts it in line, what runs it, and in tests.
FRAMEWORK = [
    {
        "backoff",
        "batches",
        "context",
        "depending",
        "ends",
        "envelope",
        "functions",
        "hooks",
        "lasting",
        "logs",
        "meters",
        "middleware",
        "pipes",
        "probes",
        "reports",
        "watching",
    },
    {"app", "clients", "handles", "tasks"},
    {"calling", "child", "dispatching", "dumps", "metrics", "options", "overseeing", "processes", "running"},
    {"draining", "immediate"},
]
UPWARD: set[tuple[str, str]] = set()


def _layer(module: str) -> int:
    found = [level for level, names in enumerate(LAYERS) if module in names]
    assert len(found) == 1, f"{module} stands in {len(found)} layers: put it in one of LAYERS and in docs/design.md"
    return found[0]


def _imports(path: Path) -> set[str]:
    """First names below `pinlater` that a module imports, at any depth of its code."""
    tree = ast.parse(path.read_text("utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "pinlater":
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pinlater."):
            names.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("pinlater.")}
    return names - {"__version__"}


def _modules() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if first != "__init__":
            found.setdefault(first, []).append(path)
    return found


def test_imports_point_down() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for module, paths in _modules().items()
        for path in paths
        for name in _imports(path)
        if name != module and _layer(name) > _layer(module)
    ]
    assert wrong == []


def _framework_imports(path: Path) -> set[str]:
    """Modules of the framework that one imports, but for types alone."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "pinlater.framework":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pinlater.framework."):
            found.add((node.module or "").split(".")[2])
    return found


def test_imports_within_the_framework_point_down() -> None:
    places = {name: level for level, names in enumerate(FRAMEWORK) for name in names}
    modules = {path.stem: path for path in (PACKAGE / "framework").glob("*.py") if path.stem != "__init__"}
    assert places.keys() == modules.keys()
    upward = {
        (module, name)
        for module, path in modules.items()
        for name in _framework_imports(path)
        if places[name] > places[module]
    }
    assert upward == UPWARD


def test_no_two_modules_import_each_other() -> None:
    imports = {module: set().union(*map(_imports, paths)) - {module} for module, paths in _modules().items()}
    both = [(a, b) for a in imports for b in imports[a] if a < b and a in imports.get(b, set())]
    assert both == []


def test_every_module_says_what_it_promises() -> None:
    silent = [
        path.name
        for paths in _modules().values()
        for path in paths
        if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert silent == []


def test_the_public_list_is_what_there_is() -> None:
    for name in pinlater.__all__:
        assert getattr(getattr(pinlater, name), "__name__", name) == name  # some come when they are named
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
    assert not {"pinlater.framework", "pinlater.worker", "msgpack", "orjson", "uvloop", "click"} & set(
        ran.stdout.split()
    )
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
    import inspect

    def methods(client: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(function).parameters)
            for name, function in vars(client).items()
            if not name.startswith("_") and callable(function)
        }

    assert methods(pinlater.Client) == methods(pinlater.AsyncClient)
