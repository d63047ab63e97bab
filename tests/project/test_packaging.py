"""The wheel: one for every CPython from 3.11, with the Lua of the tree in it, and the demo runs from it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.thorough("wheel"),
    pytest.mark.timeout(600),  # a wheel is built
]
VERSIONS = [(3, minor) for minor in range(11, 20)]  # those that are not on the machine are left out

SMOKE = """
import sys, pinlater
from pinlater import Client
with Client("embedded://?private") as client:
    client.create_queue("smoke")
    descriptor = client.enqueue("smoke", b"hello")
    [job] = client.dequeue("smoke", wait=5)
    assert job.descriptor == descriptor and job.body == b"hello", job
    assert client.ack(succeeded=[job]) == []
    assert client.lookup([descriptor]) == {}
print("smoke", *sys.version_info[:2], pinlater.__version__)
"""


def _candidates(version: tuple[int, int]) -> list[str]:
    """What may be a CPython of this version: the running one, or those on PATH and under pyenv. None is started."""
    if version == sys.version_info[:2]:
        return [sys.executable]
    name = "{}.{}".format(*version)
    on_path, pyenv = shutil.which(f"python{name}"), Path.home().glob(f".pyenv/versions/{name}.*/bin/python")
    return [*filter(None, [on_path]), *map(str, sorted(pyenv))]


def _is_version(python: str, version: tuple[int, int]) -> bool:
    wanted = f"sys.version_info[:2] == {version} and sys.implementation.name == 'cpython'"
    code = f"import sys, venv; sys.exit(not ({wanted}))"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once, also where the tests are shared out to several processes."""
    folder = tmp_path_factory.getbasetemp()
    out = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "wheel"
    with out.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(out.glob("*.whl")):
            maturin = Path(sys.executable).with_name("maturin")
            # as `make setup` has: with another one Cargo compiles pyo3 anew
            same = ["--interpreter", sys.executable]
            subprocess.run([maturin, "build", "--release", "--quiet", *same, "--out", out], cwd=ROOT, check=True)
    [built] = out.glob("*.whl")
    return built


def _clean_environment(tmp_path: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PINLATER", "VIRTUAL_ENV"))
    }
    return {**kept, "XDG_STATE_HOME": str(tmp_path / "state")}


def _fresh_venv(python: Path, wheel: Path, tmp_path: Path, extra: str = "") -> Path:
    venv = tmp_path / "venv"
    environment = _clean_environment(tmp_path)
    subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True, env=environment)
    # by the pip of the tests, and without bytecode: what is installed is the same, in a third of the time
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile", f"{wheel}{extra}"]
    subprocess.run(install, check=True, env=environment, cwd=tmp_path)
    return venv / "bin"


def test_the_wheel_carries_the_sql_of_the_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        carried = {Path(name).name: packed.read(name) for name in packed.namelist() if name.endswith(".sql")}
    tree = {path.name: path.read_bytes() for path in (ROOT / "mysql_archive").glob("*.sql")}
    assert carried == tree
    assert len(tree) > 1


def test_the_wheel_is_abi3_and_carries_the_lua_of_the_tree(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        carried = {name.removeprefix("pinlater/lua/"): packed.read(name) for name in names if name.endswith(".lua")}
    tree = {str(path.relative_to(ROOT / "lua")): path.read_bytes() for path in (ROOT / "lua").rglob("*.lua")}
    assert carried == tree
    assert {"pinlater/py.typed", "pinlater/_core.pyi"} <= set(names)
    assert {"pinlater/memory/lua.py", "pinlater_pytest/__init__.py"} <= set(names)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"pinlater", "pinlater_pytest"}


@pytest.mark.parametrize("version", [each for each in VERSIONS if _candidates(each)], ids=str)
def test_smoke_on_every_cpython(version: tuple[int, int], wheel: Path, tmp_path: Path) -> None:
    python = next((each for each in _candidates(version) if _is_version(each, version)), None)
    if python is None:
        pytest.skip(f"no CPython {version[0]}.{version[1]} here")
    binaries = _fresh_venv(Path(python), wheel, tmp_path)
    run = subprocess.run(
        [binaries / "python", "-c", SMOKE],
        env=_clean_environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("smoke 3 ")


def test_the_demo_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    binaries = _fresh_venv(Path(sys.executable), wheel, tmp_path, "[demo]")
    run = subprocess.run(
        [binaries / "pinlater", "demo", "--images", "40"],
        env=_clean_environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "redeliveries" in run.stdout
    assert len(list((tmp_path / "demo-output" / "thumbnails").glob("[!.]*.jpg"))) == 34
