"""Whether a server's version has known faults in its Lua engine."""

from __future__ import annotations

import re
from typing import Final

from pinlater.cli.doctor.check_result import OK, WARNING, CheckResult
from pinlater.store.servers import Server

#: First patch level of each release line without CVE-2025-49844, -46817 and -46818 (code execution from Lua). Lines
#: before and in between have none, later ones never had the fault. As their release notes of October 2025 say: of Redis
#: in redis/docs 2211 and redis/docker-library-redis 478, of Valkey in osv.dev/vulnerability/BIT-valkey-2025-46818.
CURED_PATCHES: Final = {
    "Redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
FIRST_CURED_LINE: Final = {"Redis": (8, 4), "Valkey": (9, 0)}


def judge_version(server: Server) -> CheckResult:
    """Checks a server whose version is known."""
    product, _, number = (server.version or "").partition(" ")
    parts = [int(part) for part in re.findall(r"\d+", number)[:3]]
    line, patch = (parts[0], parts[1]), parts[2] if len(parts) > 2 else 0
    cured = line >= FIRST_CURED_LINE[product] or patch >= CURED_PATCHES[product].get(line, patch + 1)
    found = server.version or ""
    if cured:
        return CheckResult(OK, repr(server), "version", found)
    newest = ", ".join(f"{a}.{b}.{c}" for (a, b), c in CURED_PATCHES[product].items())
    advice = f"upgrade to {newest} or later; a distribution's package may be patched under its old number"
    return CheckResult(WARNING, repr(server), "version", f"{found}: Lua engine with CVE-2025-49844", advice)
