"""Whether a user may run the commands of scripts and clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pinlater.cli.doctor.check_result import ERROR, OK, CheckResult
from pinlater.cli.doctor.reached_server import ReachedServer
from pinlater.store.keys import script_keys
from pinlater.store.scripts import load_scripts

#: Commands a client sends itself, besides EVALSHA and SCRIPT LOAD.
CLIENT_COMMANDS: Final = ("SADD", "SREM", "SMEMBERS", "BLPOP")
CHANNEL_COMMANDS: Final = ("PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE")
_CALLS: Final = re.compile(rb"\b(?:call|call_in_chunks)\('([A-Z]+)'(?:, '([A-Z]+)')?")
_ACL_PROBE: Final = """#!lua flags=no-writes
local denied = {}
for i = 2, #ARGV do
  local on_channel = ARGV[i] == 'PUBLISH' or ARGV[i] == 'SUBSCRIBE'
  local words = {string.match(ARGV[i], '^(%u+)|?(%u*)$')}
  if words[2] == '' then table.remove(words) end
  words[#words + 1] = on_channel and ARGV[1] or KEYS[1]
  if not redis.acl_check_cmd(unpack(words)) then denied[#denied + 1] = ARGV[i] end
end
return denied
"""


def permissions(server: ReachedServer) -> Iterator[CheckResult]:
    """Asks the server for each command of scripts and clients, without running it."""
    calls = {call for script in load_scripts().values() for call in _CALLS.findall(script.source)}
    commands = sorted(b"|".join(filter(None, words)).decode() for words in calls)
    probe = server.redis.script_load(_ACL_PROBE)
    wanted = list(dict.fromkeys([*commands, *CLIENT_COMMANDS, *CHANNEL_COMMANDS]))
    key, channel = script_keys("doctor", "1", ("meta",), 0)[0], "pl:wake:doctor"
    denied = [name.decode() for name in server.redis.evalsha(probe, 1, key, channel, *wanted)]
    if denied:
        rules = " ".join(f"+{name.lower()}" for name in denied)
        advice = f"ACL SETUSER … {rules} ~pl:* &pl:wake:*; without them a script can stop half-way"
        yield server.result(ERROR, "permissions", f"denied on pl:*: {', '.join(denied)}", advice)
    else:
        yield server.result(OK, "permissions", f"all {len(wanted)} commands of the scripts and clients")
