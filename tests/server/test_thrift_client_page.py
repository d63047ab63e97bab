"""docs/thrift.md, section "Python client": its program prints what it shows, and its tables leave nothing out."""

from __future__ import annotations

import re
import subprocess
import sys

from pinlater import Client, PinLaterError
from pinlater.model import errors
from pinlater.server.interface import structs
from tests.support.pages import page, table
from tests.support.servers import Server
from tests.support.thrift_server import ThriftServer

SECTION = page("thrift").partition("\n## Python client\n")[2].partition("\n## ")[0]


def test_the_program_prints_what_the_page_says(server: Server) -> None:
    program = re.findall(r"^```python\n# over_thrift\.py\n(.*?)^```\n", SECTION, re.MULTILINE | re.DOTALL)[0]
    shown = re.findall(r"^    \$ python over_thrift\.py\n((?:    .*\n)+)", SECTION, re.MULTILINE)[0]
    with ThriftServer({"1": server.url}) as service:
        code = program.replace("thrift://localhost:9010", f"thrift://127.0.0.1:{service.port}")
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == re.sub("^    ", "", shown, flags=re.MULTILINE)


def test_the_table_has_every_method() -> None:
    named = [name for row in table(page("thrift"), "python differences") for name in re.findall(r"`(\w+)`", row[0])]
    methods = {name for name in dir(Client) if not name.startswith("_") and callable(getattr(Client, name))}
    assert sorted(named) == sorted(methods)


def test_the_table_has_every_code() -> None:
    rows = table(page("thrift"), "python errors")
    codes = [int(code) for row in rows for code in re.findall(r"\b\d{3}\b", row[0])]
    assert sorted(codes) == sorted(
        getattr(structs.ErrorCode, name) for name in dir(structs.ErrorCode) if name[0].isupper()
    )
    for _, error in rows:
        assert issubclass(getattr(errors, re.findall(r"`(\w+)`", error)[0]), PinLaterError)
