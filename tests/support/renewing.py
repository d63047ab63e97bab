"""What the tests of the lease renewer share: a stand-in for lua/renew.lua, and waits for the thread.

Promises: the stand-in speaks the wire of docs/design.md and refuses any other.
Risks: it gives every lease the same length, whatever was held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from pinlater._core import LeaseRenewer
from tests.support.servers import Server, wait_until

DEADLINE_S = 30.0  # for what takes milliseconds; two loaded cores can make it seconds
NEVER = 10**9  # more renewals than a test makes: a wait for them ends at its timeout
LEASE_MS = 150  # a third of it is 50 ms: several renewals fit in a test, none is due at once
LONG_LEASE_MS = 600_000  # its first renewal lies beyond every test
SESSION = b"session1"
LEASES, DONE, REFUSE = b"{q/s}:leases", b"{q/s}:done", b"{q/s}:refuse"

# The wire of lua/renew.lua: EVALSHA sha n KEYS... lane sequence version jobs own lease -> {sequence, h, refused}.
# For tests to wait on and look at: DONE gets the number of tokens of each call, DONE:left what was left of
# each lease in ms, DONE:lanes lane and sequence. REFUSE holds an error to answer instead.
RENEW = b"""#!lua
local e, done, refuse = KEYS[1], KEYS[2], KEYS[3]
if #ARGV ~= 6 or not tonumber(ARGV[6]) or #ARGV[1] ~= 10 or #ARGV[2] ~= 4 or ARGV[3] ~= '' or ARGV[5] ~= '' then
  return redis.error_reply('BAD_REQUEST wire')
end
local no = redis.call('GET', refuse)
if no then return redis.error_reply(no) end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local refused = {}
for i = 1, #ARGV[4] / 17 do
  local token = string.sub(ARGV[4], 17 * i - 7, 17 * i)
  local expiry = redis.call('ZSCORE', e, token)
  if expiry then
    redis.call('RPUSH', done .. ':left', expiry - now)
    redis.call('ZADD', e, 'XX', now + 150, token)
  else
    refused[#refused + 1] = struct.pack('>I2', i - 1)
  end
end
redis.call('RPUSH', done, #ARGV[4] / 17)
redis.call('RPUSH', done .. ':lanes', ARGV[1] .. ARGV[2])
return ARGV[2] .. string.rep('h', 8) .. table.concat(refused)
"""

Make = Callable[..., LeaseRenewer]


def token(number: int) -> bytes:
    return number.to_bytes(8)


def command(*arguments: str) -> bytes:
    parts = [b"$%d\r\n%s\r\n" % (len(argument.encode()), argument.encode()) for argument in arguments]
    return b"*%d\r\n%s" % (len(parts), b"".join(parts))


def keys(name: bytes = b"q") -> list[bytes]:
    return [key.replace(b"q", name) for key in (LEASES, DONE, REFUSE)]


def take(client: redis.Redis, *numbers: int, key: bytes = LEASES) -> None:
    """What a claim does: the leases exist."""
    client.zadd(key, {token(number): 1 for number in numbers})


def renewed(client: redis.Redis, key: bytes = DONE) -> int:
    """Waits for the next renewal call. Returns the number of its tokens."""
    popped: Any = client.blpop([key], timeout=DEADLINE_S)
    assert popped is not None, "expected a renewal, none came"
    return int(popped[1])


def failed(renewer: LeaseRenewer, count: int = 1) -> str:
    """Waits for `count` failures in all. Returns the last error."""
    wait_until(lambda: renewer.stats().failures >= count, f"{count} failures")
    return renewer.stats().last_error


def switches() -> list[str]:
    """How often each renewer thread of this process has gone to sleep: it has not woken if that stays."""
    found = []
    for path in Path("/proc/self/task").glob("*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end between the two looks
            status = path.read_text()
            if status.startswith("Name:\tlease-renewer"):
                found += [line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches")]
    return found


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[LeaseRenewer] = []

    def new(at: Server | str, handshake: list[bytes] | None = None, **options: Any) -> LeaseRenewer:
        address = at if isinstance(at, str) else f"127.0.0.1:{at.port}"
        script, session = options.pop("script", RENEW), options.pop("session", SESSION)
        made.append(LeaseRenewer(address, handshake or [], script, session, **options))
        return made[-1]

    yield new
    for renewer in made:
        renewer.close()
