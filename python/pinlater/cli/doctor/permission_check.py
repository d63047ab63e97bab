"""Whether a user may run the commands of scripts and clients, on the keys and channels of its queues."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from redis.exceptions import NoPermissionError

from pinlater.cli.doctor.check_result import ERROR, OK, CheckResult
from pinlater.cli.doctor.reached_server import ReachedServer
from pinlater.model.queue_config import read_registry
from pinlater.store.keys import PREFIX, queue_key, registry_key, remnant_keys, tag, wake_channel
from pinlater.store.scripts import load_scripts

#: Commands a client sends itself, besides EVALSHA and SCRIPT LOAD.
CLIENT_COMMANDS: Final = ("SADD", "SREM", "BLPOP")
CHANNEL_COMMANDS: Final = ("PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE")
_CALLS: Final = re.compile(rb"\b(?:call|call_in_chunks)\('([A-Z]+)'(?:, '([A-Z]+)')?")
#: ARGV: a key and a channel of a queue shard, two keys of the registry, commands. Asks for each without running it.
_ACL_PROBE: Final = """#!lua flags=no-writes
local key, channel, registry, remnants = unpack(ARGV)
local on = { PUBLISH = channel, SUBSCRIBE = channel, UNSUBSCRIBE = channel, SADD = registry, SREM = registry }
local denied = {}
for i = 5, #ARGV do
  local words = {string.match(ARGV[i], '^(%u+)|?(%u*)$')}
  if words[2] == '' then table.remove(words) end
  words[#words + 1] = on[words[1]] or key
  local reads = words[1] ~= 'HGET' or redis.acl_check_cmd('HGET', remnants)
  if not reads or not redis.acl_check_cmd(unpack(words)) then denied[#denied + 1] = ARGV[i] end
end
return denied
"""
#: Stands for all queues where the names of none are known.
_ANY_QUEUE: Final = "doctor"
_ALL: Final = "pl:*"


def permissions(server: ReachedServer) -> Iterator[CheckResult]:
    """Asks the server for each command of scripts and clients on each queue, without running it."""
    calls = {call for script in load_scripts().values() for call in _CALLS.findall(script.source)}
    commands = sorted(b"|".join(filter(None, words)).decode() for words in calls)
    probe = server.redis.script_load(_ACL_PROBE)
    wanted = list(dict.fromkeys([*commands, *CLIENT_COMMANDS, *CHANNEL_COMMANDS]))
    denied: dict[str, list[str]] = {}
    for shard in server.shards:
        for queue in server.queues or registered(server, shard) or [_ANY_QUEUE]:
            names = [queue_key(queue, shard, "meta"), wake_channel(queue, shard, bytes(8)), registry_key(shard)]
            names.append(remnant_keys(queue, shard)[0])
            where = _ALL if queue == _ANY_QUEUE else f"{PREFIX}{tag(queue, shard)}*"
            if missing := server.redis.evalsha(probe, 0, *names, *wanted):
                denied.setdefault(", ".join(name.decode() for name in missing), []).append(where)
    for missing, patterns in denied.items():
        rules = " ".join(f"+{name.lower()}" for name in missing.split(", "))
        allowed = f"~{patterns[0]} %R~pl:{{*}}:deleted:* &{patterns[0]} (+sadd +srem %W~pl:{{*}}:queues)"
        advice = f"ACL SETUSER … {rules} {allowed}; without them a script can stop half-way: docs/acl.md"
        yield server.result(ERROR, "permissions", f"denied on {_listed(patterns)}: {missing}", advice)
    if not denied:
        yield server.result(OK, "permissions", f"all {len(wanted)} commands of the scripts and clients")


def registered(server: ReachedServer, shard: str) -> list[str]:
    """The names in the registry of a shard; none if the user may not read it, as a tenant may not."""
    try:
        return sorted(read_registry(server.redis.smembers(registry_key(shard)))[0])  # type: ignore[arg-type]
    except NoPermissionError:
        return []


def _listed(patterns: list[str]) -> str:
    return patterns[0] if len(patterns) == 1 else f"{patterns[0]} and {len(patterns) - 1} more"
