"""Deliberate faults, one a room, one in Lua and one a clause of the limits and of the archive's protocol: the tests of
CI must fail for each.

    make faults
    make faults T=archive    those whose names begin so

Promises that each fault is put into a copy of the checkout, and that the command fails if the tests of its room pass
all the same, or if the text that a fault replaces is not there any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "python/pinlater"


class Fault(NamedTuple):
    """What goes wrong, in which file, by which replacement, and the tests that should notice."""

    what: str
    path: str
    before: str
    after: str
    tests: str


FAULTS = [
    Fault(
        "model: a paused queue is packed as open",
        f"{PACKAGE}/model/queue_config.py",
        "_NO_CLAIMS: self.is_stopped",
        "_NO_CLAIMS: self._has_rate_0",
        "tests/operations/test_behaviour.py tests/worker",
    ),
    Fault(
        "embedded: the last user does not release the server",
        f"{PACKAGE}/embedded/server.py",
        "            os.close(self._users_lock)\n",
        "            pass\n",
        "tests/embedded",
    ),
    Fault(
        "store: a lane repeats its number",
        f"{PACKAGE}/store/lanes.py",
        "lane.number += 1",
        "lane.number += lane.number == 0",
        "tests/store tests/operations/test_behaviour.py",
    ),
    Fault(
        "store: a COMMIT without an answer is taken for done",
        f"{PACKAGE}/store/archive_driver.py",
        "            if wrote:\n",
        "            if False:\n",
        "tests/store/test_archive_driver.py",
    ),
    Fault(
        "store: a transaction that lost a deadlock is not run again",
        f"{PACKAGE}/store/archive_driver.py",
        "for _ in range(TRIES - 1):",
        "for _ in ():",
        "tests/store/test_archive_driver.py",
    ),
    Fault(
        "store: a transaction goes on after a deadlock that its work hid",
        f"{PACKAGE}/store/archive_driver.py",
        "            sql.check()\n        except",
        "        except",
        "tests/store/test_archive_driver.py",
    ),
    Fault(
        "store: what a failed transaction did is not undone",
        f"{PACKAGE}/store/archive_driver.py",
        "            self._connection.rollback()\n",
        "            pass\n",
        "tests/store/test_archive_driver.py",
    ),
    Fault(
        "store: a connection that the server closed is used again",
        f"{PACKAGE}/store/archive_driver.py",
        "return not poll.poll(0)",
        "return True",
        "tests/store/test_archive_driver.py",
    ),
    Fault(
        "store: two migrate one database at once",
        "mysql_archive/statements.sql",
        "SELECT GET_LOCK(CONCAT('pinlater:', SHA1(DATABASE())), %s)",
        "SELECT %s + 1 DIV 1 > 0",
        "tests/store/test_archive_schema.py",
    ),
    Fault(
        "store: a batch that was aborted becomes final",
        "mysql_archive/statements.sql",
        "SET state = 2, ids = '' WHERE state = 1 AND batch IN %s",
        "SET state = 2, ids = '' WHERE batch IN %s",
        "tests/store/test_statements.py",
    ),
    Fault(
        "store: an error of a transaction ends the flows beside it",
        f"{PACKAGE}/store/effects.py",
        "            return self.database.transaction(self.work)\n        except PinLaterError as error:",
        "            return self.database.transaction(self.work)\n        except ZeroDivisionError as error:",
        "tests/store/test_transactions.py",
    ),
    Fault(
        "store: a call goes to an unhealthy server",
        f"{PACKAGE}/store/async_driver.py",
        "if server.outage is not None and not effect.ping:",
        "if False:",
        "tests/operations/test_health.py",
    ),
    Fault(
        "store: a call waits for an unhealthy server",
        f"{PACKAGE}/store/servers.py",
        "return self.contacted and self.outage is None",
        "return self.contacted",
        "tests/operations/test_health.py",
    ),
    Fault(
        "operations: new jobs go to a suspect server",
        f"{PACKAGE}/operations/enqueue.py",
        "[queue_shard for queue_shard in healthy if not queue_shard.shard.server.suspect] or healthy",
        "healthy",
        "tests/operations/test_health.py",
    ),
    Fault(
        "operations: claims wait for a suspect server",
        f"{PACKAGE}/operations/queue_shards.py",
        "return queue_shard.silent_until_s > now_s or queue_shard.shard.server.suspect",
        "return queue_shard.silent_until_s > now_s",
        "tests/operations/test_health.py",
    ),
    Fault(
        "server: the next ping waits for an interval after the last one",
        f"{PACKAGE}/server/health.py",
        "next_s = max(next_s + self._interval_s, loop.time())",
        "next_s = loop.time() + self._interval_s",
        "tests/server/test_health_checks.py",
    ),
    Fault(
        "store: a session forgets a removed shard that jobs came from",
        f"{PACKAGE}/store/shards.py",
        "known = {**self.shards_of_jobs, **shards}",
        "known = dict(shards)",
        "tests/store/test_shards.py tests/operations/test_shard_changes.py",
    ),
    Fault(
        "store: the free connections to a removed server stay open",
        f"{PACKAGE}/store/sync_driver.py",
        "is_current = server.is_used and ",
        "is_current = ",
        "tests/operations/test_shard_changes.py",
    ),
    Fault(
        "operations: a dequeue-only shard gets jobs without a key",
        f"{PACKAGE}/operations/enqueue.py",
        "queue_shards if not queue_shard.shard.dequeue_only]",
        "queue_shards]",
        "tests/operations/test_shard_changes.py",
    ),
    Fault(
        "operations: a dequeue-only home gets jobs",
        f"{PACKAGE}/operations/enqueue.py",
        "    if home.shard.dequeue_only:\n",
        "    if False:\n",
        "tests/operations/test_shard_changes.py",
    ),
    Fault(
        "operations: a count leaves out a shard that does not answer",
        f"{PACKAGE}/operations/queue_shards.py",
        "        if queue_shard not in known:\n",
        "        if False:\n",
        "tests/operations/test_health.py",
    ),
    Fault(
        "operations: pings that failed long ago count",
        f"{PACKAGE}/operations/health.py",
        "        if answered == self.is_healthy:\n            self._against = 0\n",
        "        if answered == self.is_healthy:\n",
        "tests/operations/test_health.py",
    ),
    Fault(
        "server: a version that was refused is read again and again",
        f"{PACKAGE}/server/file_watch.py",
        "        if message != self._logged:\n",
        "        if True:\n",
        "tests/server",
    ),
    Fault(
        "memory: the clock moves, but no lease expires",
        f"{PACKAGE}/memory/server.py",
        "            expire_leases(self._store, self._scripts)\n",
        "            pass\n",
        "tests/testing tests/memory",
    ),
    Fault(
        "operations: the delay of a retry or a checkpoint is ignored",
        f"{PACKAGE}/operations/enqueue.py",
        "return (2, delay_ms) if delay_ms else (0, 0)",
        "return (0, 0)",
        "tests/client tests/operations/test_behaviour_shards.py tests/tasks/test_task_ends.py",
    ),
    Fault(
        "operations: the shards of a merged scan come one after the other",
        f"{PACKAGE}/operations/scans.py",
        "heapreplace(heads, (line.places[0], at))",
        "heads[0] = (line.places[0], at)",
        "tests/operations/test_scans.py",
    ),
    Fault(
        "operations: a merged scan passes over jobs of the same time and id on other shards",
        f"{PACKAGE}/operations/scans.py",
        "id_ = -self.minus_id + (shard > self.shard)",
        "id_ = -self.minus_id",
        "tests/operations/test_scans.py",
    ),
    Fault(
        "operations: a dry run that its bytes end shows jobs of lower priorities",
        f"{PACKAGE}/operations/claim.py",
        "for job in line.jobs if job.priority <= lowest]",
        "for job in line.jobs]",
        "tests/operations/test_dry_runs.py",
    ),
    Fault(
        "operations: a dequeue with a coverage looks at all shards",
        f"{PACKAGE}/operations/shard_quotas.py",
        "math.ceil(min(coverage, 1.0) * len(queue_shards) - _ROUNDING)",
        "len(queue_shards)",
        "tests/operations/test_dry_runs.py",
    ),
    Fault(
        "operations: a count with a pattern never ends",
        f"{PACKAGE}/operations/body_match.py",
        "if looked and time.monotonic() >= deadline_s:",
        "if False:",
        "tests/operations/test_body_match.py",
    ),
    Fault(
        "operations: an empty source needs no claim with an empty one",
        f"{PACKAGE}/operations/leases.py",
        "    if source is not None:\n",
        "    if source:\n",
        "tests/operations/test_sources.py",
    ),
    Fault(
        "lua: a dry run gives the last job of a page again",
        f"{PACKAGE}/lua/dry_run.lua",
        "rank_of(key, from_score, from_id, true)",
        "rank_of(key, from_score, from_id)",
        "tests/lua/test_scripts_order.py",
    ),
    Fault(
        "lua: a scan forgets the sixteenths of a score",
        f"{PACKAGE}/lua/scan.lua",
        "string.char(value % 1 * 16)",
        "string.char(0)",
        "tests/operations/test_scans.py",
    ),
    Fault(
        "client: release does nothing",
        f"{PACKAGE}/client/methods.py",
        'partial(leases.release, self.session, listed("jobs", jobs), None)',
        'partial(leases.release, self.session, [], "")',
        "tests/operations/test_behaviour.py tests/operations/test_audit.py tests/store/test_server_faults.py",
    ),
    Fault(
        "worker: weights of queues are ignored",
        f"{PACKAGE}/worker/queue_order.py",
        "max(1, jobs) / self._weights[queue]",
        "max(1, jobs)",
        "tests/worker/test_queue_order.py",
    ),
    Fault(
        "tasks: pauses do not grow",
        f"{PACKAGE}/tasks/retry_policies.py",
        "as_seconds(self.first) * self.factor ** min(attempt - 1, _MAX_EXPONENT)",
        "as_seconds(self.first)",
        "tests/tasks/test_tasks.py tests/tasks/test_functions.py tests/tasks/test_task_ends.py",
    ),
    Fault(
        "running: a dead process's jobs wait for their lease",
        f"{PACKAGE}/running/recoverer.py",
        "                await self._end_leases(queue, process, ending)\n",
        "                pass\n",
        "tests/running/test_recoverer.py",
    ),
    Fault(
        "server: a process reads the files again, not what its supervisor read",
        f"{PACKAGE}/server/read_settings.py",
        "if REPORT_VARIABLE in os.environ:",
        "if False:",
        "tests/server/test_read_settings.py",
    ),
    Fault(
        "server: an entry that leaves the file of rates leaves its rate behind",
        f"{PACKAGE}/server/queue_config_file.py",
        "left = dict.fromkeys(before.keys() - rates.keys(), None)",
        "left = dict[str, Rate | None]()",
        "tests/server/test_queue_config_file.py",
    ),
    Fault(
        "server: the file of rates takes away what an operator set",
        f"{PACKAGE}/server/queue_config_file.py",
        "if rate is None and current != self._kept.get(queue):",
        "if rate is None and current is None:",
        "tests/server/test_queue_config_file.py",
    ),
    Fault(
        "server: wrong passwords are not slowed more and more",
        f"{PACKAGE}/server/passwords.py",
        "FIRST_PAUSE_S * 2 ** (self.wrong_in_a_row - 1)",
        "FIRST_PAUSE_S",
        "tests/server/test_passwords.py",
    ),
    Fault(
        "server: percentiles take the bucket before theirs",
        f"{PACKAGE}/server/samples.py",
        "if count > below and count >= wanted:",
        "if count > below:",
        "tests/server/test_samples.py",
    ),
    Fault(
        "cli: the doctor's exit code is always 0",
        f"{PACKAGE}/cli/doctor/command.py",
        "return DONE if ok else NO",
        "return DONE",
        "tests/cli",
    ),
    Fault(
        "lua: the lowest priority is claimed first",
        "lua/claim.lua",
        "for priority = 1, priorities do\n  local ready, n",
        "for priority = priorities, 1, -1 do\n  local ready, n",
        "tests/lua tests/operations/test_behaviour.py",
    ),
    Fault(
        "lua: a job without a token may be of any source",
        "lua/lib/holds.lua",
        "return any_source or source_of",
        "return true or source_of",
        "tests/lua/test_scripts_leases.py tests/operations/test_source_acks.py",
    ),
    Fault(
        "lua: all jobs of an ack have its first source",
        "lua/lib/holds.lua",
        "named[unp('>I2', token, 7) + 1]",
        "named[1]",
        "tests/lua/test_scripts_leases.py tests/operations/test_source_acks.py",
    ),
    Fault(
        "wire: the length of a frame is not looked at",
        f"{PACKAGE}/server/frames.py",
        "        if not 0 < length <= self.limit:\n",
        "        if length <= 0:\n",
        "tests/server/test_frames.py",
    ),
    Fault(
        "wire: a call that is answered at once starts the next one inside itself",
        f"{PACKAGE}/server/connection.py",
        "            if not self._starts:  # what",
        "            if True:  # what",
        "tests/server/test_wire.py",
    ),
    Fault(
        "wire: half a frame may stay as long as an idle connection",
        f"{PACKAGE}/server/connection.py",
        "        if (kept := self._frames.kept_bytes) and self._is_free:\n",
        "        if (kept := self._frames.kept_bytes) and not self._is_free:\n",
        "tests/server/test_wire.py",
    ),
    Fault(
        "wire: calls go on though the client reads no answers",
        f"{PACKAGE}/server/connection.py",
        "return not (self._busy or self._is_full or self._is_held_back or self._ends)",
        "return not (self._busy or self._is_held_back or self._ends)",
        "tests/server/test_wire.py",
    ),
    Fault(
        "wire: jobs of an answer that was cut off stay claimed",
        f"{PACKAGE}/server/connection.py",
        "            self._lost = lost\n",
        "            self._lost = None\n",
        "tests/server/test_wire.py",
    ),
    Fault(
        "wire: a stop cuts calls under way off",
        f"{PACKAGE}/server/connection.py",
        "        if not (self._busy or self._is_full or self._unsent):\n            self._transport.close()\n",
        "        self._transport.close()\n",
        "tests/server/test_stop.py",
    ),
    Fault(
        "wire: what a client of TLS does not read is not counted",
        f"{PACKAGE}/server/connection.py",
        "PIECE_BYTES: Final = 128 * 1024",
        "PIECE_BYTES: Final = 1024 * 1024 * 1024",
        "tests/server/test_tls_clients.py",
    ),
    Fault(
        "wire: a stop waits for the goodbyes of TLS clients",
        f"{PACKAGE}/server/listener.py",
        "            ssl_shutdown_timeout=None if tls is None else CLOSE_S,\n",
        "",
        "tests/server/test_tls_clients.py",
    ),
    Fault(
        "wire: the bytes of all connections have no bound",
        f"{PACKAGE}/server/listener.py",
        "while change > 0 and self._held_bytes > self.settings.max_buffered:",
        "while change > 0 and self._held_bytes < 0:",
        "tests/server/test_wire.py",
    ),
    Fault(
        "wire: nobody says that there is room again",
        f"{PACKAGE}/server/capacity.py",
        "            self._was_short = False\n            self.on_room()\n",
        "            self._was_short = False\n",
        "tests/server/test_frames.py",
    ),
    Fault(
        "wire: a frame that is no call takes room for ever",
        f"{PACKAGE}/server/calls.py",
        "            self.capacity.give(size)\n            raise BadMessage",
        "            raise BadMessage",
        "tests/server/test_wire.py",
    ),
    Fault(
        "wire: a dequeue gets nothing, as those before it took all that their claim had room for",
        f"{PACKAGE}/operations/dequeue_now.py",
        "return not (any(claim.left) if claim.count else claim.limited)",
        "return not claim.limited",
        "tests/operations/test_dequeue_packets.py",
    ),
    Fault(
        "wire: a checkpoint by source renews the jobs of its whole claim",
        "lua/checkpoint.lua",
        "    if job.own and job_flags < 4 then\n",
        "    if false then\n",
        "tests/lua/test_scripts_leases.py",
    ),
    Fault(
        "wire: acks of a removed shard are refused",
        f"{PACKAGE}/server/ack_calls.py",
        "if shard not in self._session.shards_of_jobs:",
        "if shard not in self._session.shards:",
        "tests/server/test_removed_shards.py",
    ),
    Fault(
        "wire: a dequeue never gives its room back",
        f"{PACKAGE}/server/dequeue_calls.py",
        "        self._calls.room.give(self._size)\n        self._call.end(frame, lost)\n",
        "        self._call.end(frame, lost)\n",
        "tests/server/test_wire.py",
    ),
    Fault(
        "wire: what comes behind a stop is kept",
        f"{PACKAGE}/server/connection.py",
        "        if self._ends:\n            return  # no call starts any more\n",
        "        if self._ends:\n            frames.add(data)\n            self._count()\n            return\n",
        "tests/server/test_wire.py",
    ),
    Fault(
        "wire: a packet forgets a claim whose answer was lost",
        f"{PACKAGE}/operations/dequeue_now.py",
        "                self._queue_shard.lost_claims.keep(claim)",
        "                pass",
        "tests/operations/test_dequeue_packets.py",
    ),
    Fault(
        "wire: jobs that were granted are not given when the last token goes",
        f"{PACKAGE}/server/dequeue_calls.py",
        "if limit in _RATE_LIMITS and not jobs:",
        "if limit in _RATE_LIMITS:",
        "tests/server/test_rates.py",
    ),
]

SCRIPTS = "tests/lua/test_scripts_limits.py"
HARD_MARK = "tests/lua/test_scripts_full.py"
MACHINE = "tests/operations/test_limits_machine.py"
SCENES = "tests/operations/test_limits.py"
WORKERS = "tests/worker/test_limited_workers.py"


def _fault(what: str, path: str, before: str, after: str, tests: str) -> Fault:
    return Fault(f"limits: {what}", path, before, after, tests)


#: The tests of the clause must notice each.
FAULTS += [
    _fault(
        "an account has no cap",
        "lua/lib/account.lua",
        "units = math.min(units + (now - refilled_ms) * token_count, burst * per_ms)",
        "units = units + (now - refilled_ms) * token_count",
        SCRIPTS,
    ),
    _fault(
        "time counts twice after a step back of the clock",
        "lua/lib/account.lua",
        "refilled_ms = math.max(refilled_ms, now) else",
        "refilled_ms = now else",
        SCRIPTS,
    ),
    _fault(
        "time counts again for each look",
        "lua/lib/account.lua",
        "if refilled_ms <= now + GRANT_MS then refilled_ms = math.max(refilled_ms, now) else refilled_ms = now end",
        "",
        MACHINE,
    ),
    _fault(
        "a token is rounded up",
        "lua/grant.lua",
        "math.min(wanted, floor(units / per_ms))",
        "math.min(wanted, math.ceil(units / per_ms))",
        SCRIPTS,
    ),
    _fault(
        "tokens come back that were not granted",
        "lua/grant.lua",
        "local of_before = math.min(returned - of_now, granted_before)",
        "local of_before = returned - of_now",
        SCRIPTS,
    ),
    _fault(
        "tokens come back twice",
        "lua/grant.lua",
        "granted, granted_before = granted - of_now, granted_before - of_before",
        "granted_before = granted_before - of_before",
        SCRIPTS,
    ),
    _fault(
        "a repeated grant is carried out again",
        "lua/grant.lua",
        "if replay then return stored end",
        "",
        SCRIPTS,
    ),
    _fault(
        "every shard gives tokens",
        "lua/grant.lua",
        "if not is_home(config) or not refill(config)",
        "if not refill(config)",
        SCRIPTS,
    ),
    _fault(
        "all that wait have one place",
        "lua/grant.lua",
        "math.max(line_ms + math.max(token_ms, math.min(50, burst * token_ms / 2)), due_ms)",
        "due_ms",
        SCRIPTS,
    ),
    _fault(
        "a place is further off than the longest rest",
        "lua/grant.lua",
        "math.ceil(math.min(place_ms, math.max(due_ms, now + LONGEST_REST_MS)))",
        "math.ceil(place_ms)",
        SCRIPTS,
    ),
    _fault(
        "a visitor a little early goes to the end of the line",
        "lua/grant.lua",
        "if tokens == 0 and place == '1' and due_ms - now < token_ms / 2 then",
        "if tokens == 0 and place == '2' then",
        SCRIPTS,
    ),
    _fault(
        "a shard that is the home no more keeps its account",
        "lua/lib/settle.lua",
        "  call('HDEL', key_meta, 'account')\n",
        "",
        MACHINE,
    ),
    _fault(
        "a smaller burst leaves the tokens of the larger one",
        "lua/lib/settle.lua",
        "units, line_ms = math.min(old_units, burst * per_ms), 0",
        "units, line_ms = old_units, 0",
        SCRIPTS,
    ),
    _fault(
        "units of one rate are units of the next one",
        "lua/lib/settle.lua",
        "  if old_ms ~= per_ms then old_units = floor(old_units / (old_ms or 1)) * per_ms end\n",
        "",
        MACHINE,
    ),
    _fault(
        "a configuration ends a pause",
        "lua/configure.lua",
        "local kept = byte(old, CONFIG_FLAGS) % 32 >= FLAG_PAUSE and FLAG_PAUSE or 0",
        "local kept = 0",
        SCRIPTS,
    ),
    _fault(
        "a client that knows no limits removes max_running",
        "lua/configure.lua",
        "if sent < ENTRY_RATE then",
        "if false then",
        SCRIPTS,
    ),
    _fault(
        "a client that knows no hard mark removes it",
        "lua/configure.lua",
        "elseif sent < ENTRY_REFUSE_ABOVE then",
        "elseif false then",
        HARD_MARK,
    ),
    _fault(
        "a full queue issues reservations",
        "lua/prepare.lua",
        "if flags >= FLAG_REFUSE_ABOVE then",
        "if false then",
        HARD_MARK,
    ),
    _fault(
        "a full queue takes one job more",
        "lua/lib/refuse_full.lua",
        "if held >= most then",
        "if held > most then",
        HARD_MARK,
    ),
    _fault(
        "a shorter pause ends a longer one",
        "lua/pause.lua",
        "if wanted_ms > left_ms then",
        "if wanted_ms > 0 then",
        SCRIPTS,
    ),
    _fault(
        "a pause goes on for an hour after the clock went back by one",
        "lua/lib/read_pause.lua",
        "left_ms = begin_ms > now and end_ms - begin_ms or math.max(end_ms - now, 0)",
        "left_ms = math.max(end_ms - now, 0)",
        SCRIPTS,
    ),
    _fault(
        "one job more than max_running",
        "lua/lib/claim_limits.lua",
        "places = unp('>I4', entry_of(config, ENTRY_MAX_RUNNING))",
        "places = 1 + unp('>I4', entry_of(config, ENTRY_MAX_RUNNING))",
        MACHINE,
    ),
    _fault(
        "a claim takes more jobs than there are places",
        "lua/lib/claim_limits.lua",
        "want, limited = math.min(want, places), places < 1 and 3 or 0",
        "limited = places < 1 and 3 or 0",
        SCRIPTS,
    ),
    _fault(
        "a free place wakes nobody",
        "lua/lib/free_places.lua",
        "if due then notify(true) end",
        "",
        SCRIPTS,
    ),
    _fault(
        "the last place of a claim wakes a waiter",
        "lua/claim.lua",
        "if more_work and waiting and total ~= places then",
        "if more_work and waiting then",
        SCRIPTS,
    ),
    _fault(
        "simple successes free no place",
        "lua/lib/simple_ack.lua",
        "  if counts_places and waiting then plan = plan or {} end\n",
        "",
        SCRIPTS,
    ),
    _fault(
        "a claim of before the rate goes on without tokens",
        f"{PACKAGE}/operations/claim.py",
        "given = quota if has_tokens or config.rate is None else [0]",
        "given = quota",
        SCENES,
    ),
    _fault(
        "a claim takes more jobs than the client has tokens",
        f"{PACKAGE}/operations/claim_round.py",
        "tokens = yield from take_tokens(session, home, config, min(limit, sighted), sighted, deadline_s)",
        "tokens = limit * bool((yield from take_tokens(session, home, config, 1, sighted, deadline_s)))",
        MACHINE,
    ),
    _fault(
        "tokens outlive their configuration",
        f"{PACKAGE}/store/allowance.py",
        "            self.bucket = TokenBucket()\n            self.rest",
        "            self.bucket = getattr(self, 'bucket', TokenBucket())\n            self.rest",
        SCENES,
    ),
    _fault(
        "tokens outlive their second",
        f"{PACKAGE}/operations/limits.py",
        'allowance.granted(tokens, asked_ms + int.from_bytes(valid, "big"))',
        "allowance.granted(tokens, asked_ms + 10**9)",
        SCENES,
    ),
    _fault(
        "unused tokens are kept",
        f"{PACKAGE}/operations/claim_round.py",
        "        yield from return_tokens(session, home.queue, deadline_s)\n",
        "        pass\n",
        SCENES,
    ),
    _fault(
        "a share of the rate goes back to the home shard",
        f"{PACKAGE}/operations/limits.py",
        "    home.allowance.end_flow()\n    unused",
        "    unused",
        SCENES,
    ),
    _fault(
        "a resting worker does not hear of a change",
        f"{PACKAGE}/worker/fetcher.py",
        "            self._end_rest(poll)\n            poll.due = True\n",
        "            pass\n",
        WORKERS,
    ),
    _fault(
        "a claim without a token waits at the server",
        f"{PACKAGE}/worker/queue_shard_source.py",
        "waits = stored is not None and stored.config.rate is None",
        "waits = stored is not None",
        WORKERS,
    ),
    _fault(
        "a worker that stops keeps its tokens",
        f"{PACKAGE}/worker/queue_shard_source.py",
        "await self._client.run(lambda end, queue=queue: limits.return_tokens(session, queue, end))",
        "await self._client.run(lambda end: leave(session, [], end))",
        WORKERS,
    ),
]


CLAUSES = "tests/archive/test_clauses.py"
STEPS = "tests/archive/test_steps.py"
TRANSPARENT = "tests/archive/test_transparent.py"
MOVES = "tests/archive/test_moves.py"
ARCHIVE_SCRIPTS = "tests/lua/test_scripts_archive.py"
STATEMENTS = "tests/store/test_statements.py"


def _of_archive(what: str, path: str, before: str, after: str, tests: str) -> Fault:
    return Fault(f"archive: {what}", path, before, after, tests)


ARCHIVE = f"{PACKAGE}/archive"
SQL = "mysql_archive/statements.sql"
#: The tests of the clause must notice each.
FAULTS += [
    # a batch
    _of_archive(
        "a batch ends in Redis before MySQL has it",
        f"{ARCHIVE}/spill.py",
        "        committed = await self._store(",
        "        await self._end([batch for batch, _ in read])\n        committed = await self._store(",
        CLAUSES,
    ),
    _of_archive(
        "an aborted batch takes all of its transaction with it",
        f"{ARCHIVE}/spill.py",
        "            if len(batches) > 1:",
        "            if len(batches) > 4:",
        CLAUSES,
    ),
    _of_archive(
        "a batch is committed before its withdrawal is on disk",
        f"{ARCHIVE}/spill.py",
        "done = await self.run(lambda end: settle(self.queue_shard, end, withdrawn=names))",
        "done = [True] * len(names)",
        f"{MOVES} {STEPS}",
    ),
    _of_archive(
        "a batch is FINALIZED before its end is on disk",
        f"{ARCHIVE}/recovery.py",
        "        settled = yield from settle(queue_shard, deadline_s, finalized=left)\n",
        "        settled = [True] * len(left)\n",
        CLAUSES,
    ),
    _of_archive(
        "a batch is FINALIZED whether its end is on disk or not",
        f"{ARCHIVE}/recovery.py",
        "[name for name, done in zip(left, settled, strict=True) if done])",
        "left)",
        CLAUSES,
    ),
    _of_archive(
        "nobody waits for the disk",
        f"{ARCHIVE}/settle.py",
        "        if (yield from _on_disk(queue_shard.shard.server, answer, deadline_s)):\n",
        "        if True:\n",
        CLAUSES,
    ),
    _of_archive(
        "the wait for the disk is on another connection",
        f"{ARCHIVE}/settle.py",
        '        reply, [answer] = yield from repeat(queue_shard, "settled", arguments, deadline_s, then=waiting)\n',
        '        reply, _ = yield from repeat(queue_shard, "settled", arguments, deadline_s)\n'
        "        [answer] = yield from send(queue_shard.shard.server, *waiting, deadline_s=deadline_s)\n",
        STEPS,
    ),
    _of_archive(
        "a check of steps is always content",
        "lua/settled.lua",
        "== expected and 1 or 0)",
        "== expected and 1 or 1)",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "a check of steps writes nothing",
        "lua/settled.lua",
        "call('HSET', key_meta, 'settled', pack('>I6', now) .. nonce)\n",
        "",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "an abandoned batch is aborted without a row",
        f"{ARCHIVE}/recovery.py",
        "        yield Transaction(database, insert)\n",
        "        yield Transaction(database, lambda sql: None)\n",
        CLAUSES,
    ),
    _of_archive(
        "a batch that MySQL has is aborted",
        f"{ARCHIVE}/recovery.py",
        "(yield from _judge(database, incarnation, name)) is BatchState.ABORTED",
        "(yield from _judge(database, incarnation, name)) is not BatchState.FINALIZED",
        CLAUSES,
    ),
    _of_archive(
        "a commit does not ask whether the queue was deleted",
        f"{ARCHIVE}/batches.py",
        "        check_current(sql, incarnation)\n",
        "",
        CLAUSES,
    ),
    _of_archive(
        "a job of an open restore is committed",
        f"{ARCHIVE}/batches.py",
        "        _refuse_restored(sql, incarnation, {job.id for jobs in batches.values() for job in jobs})\n",
        "",
        CLAUSES,
    ),
    _of_archive(
        "a commit does not lock the incarnation",
        SQL,
        "number = %s AND ended = 0 LOCK IN SHARE MODE",
        "number = %s AND ended = 0",
        CLAUSES,
    ),
    _of_archive(
        "an epoch is not compared in MySQL",
        f"{ARCHIVE}/incarnations.py",
        "if not rows or rows[0][0] != incarnation.epoch:",
        "if not rows:",
        CLAUSES,
    ),
    _of_archive(
        "an epoch is not compared in Redis",
        "lua/lib/check_epoch.lua",
        "if epoch ~= present_epoch then",
        "if false then",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "a batch ends although jobs of it were removed",
        "lua/finalize.lua",
        "if unnamed[1] then",
        "if false then",
        f"{ARCHIVE_SCRIPTS}",
    ),
    _of_archive(
        "a batch never ends after a job of it was removed",
        "lua/finalize.lua",
        "if not named[id] then",
        "if id then",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "a job that was deleted while it was withdrawn keeps its row",
        f"{ARCHIVE}/batches.py",
        "        yield from drop_rows(database, name, unpack_ids(missing))\n",
        "",
        TRANSPARENT,
    ),
    _of_archive(
        "a batch takes the jobs of another one along",
        "lua/lib/owned_ids.lua",
        "owner == batch and owned or missing",
        "owner and owned or missing",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "a batch that is there takes more jobs",
        "lua/withdraw.lua",
        "if known then return",
        "if false then return",
        ARCHIVE_SCRIPTS,
    ),
    # recovery
    _of_archive(
        "a recovery takes a batch that Redis has for a lost one",
        f"{ARCHIVE}/recovery.py",
        "    ended = [name for name, done in zip(names, settled, strict=True) if done]\n",
        "    ended = names\n",
        CLAUSES,
    ),
    _of_archive(
        "a recovery does not ask which jobs Redis has",
        f"{ARCHIVE}/recovery.py",
        "if stale := (yield from held(queue_shard, incarnation, ids_of[name], deadline_s)):",
        "if stale := []:",
        CLAUSES,
    ),
    _of_archive(
        "rows of a FINALIZED batch are dropped",
        SQL,
        "WHERE batch = %s AND state = 1 FOR UPDATE",
        "WHERE batch = %s FOR UPDATE",
        CLAUSES,
    ),
    _of_archive(
        "a batch is FINALIZED while its rows are dropped",
        SQL,
        "WHERE batch = %s AND state = 1 FOR UPDATE",
        "WHERE batch = %s AND state = 1",
        CLAUSES,
    ),
    _of_archive(
        "a recovery closes a restore that is open",
        f"{ARCHIVE}/recovery.py",
        "    ended = min([last, *(number - 1 for number, _, _ in still_open)])\n",
        "    ended = last\n",
        CLAUSES,
    ),
    # a restore
    _of_archive(
        "jobs of a COMMITTED batch come back",
        SQL,
        "  AND batches.number IS NULL\nORDER BY jobs.run_after_ms,",
        "ORDER BY jobs.run_after_ms,",
        STATEMENTS,
    ),
    _of_archive(
        "a restore begins beside an open one",
        f"{ARCHIVE}/restores.py",
        '        if sql.run("select_restores", (incarnation.number,)):\n            return []\n',
        "",
        CLAUSES,
    ),
    _of_archive(
        "a restore begins while a batch commits",
        f"{ARCHIVE}/restores.py",
        "check_current(sql, incarnation, exclusive=True)",
        "check_current(sql, incarnation)",
        CLAUSES,
    ),
    _of_archive(
        "a restore does not lock the incarnation",
        SQL,
        "SELECT epoch FROM incarnations WHERE number = %s AND ended = 0 FOR UPDATE",
        "SELECT epoch FROM incarnations WHERE number = %s AND ended = 0",
        CLAUSES,
    ),
    _of_archive(
        "jobs of an ended incarnation come back",
        SQL,
        "SELECT epoch FROM incarnations WHERE number = %s AND ended = 0 FOR UPDATE",
        "SELECT epoch FROM incarnations WHERE number = %s FOR UPDATE",
        CLAUSES,
    ),
    _of_archive(
        "a closed restore is carried out",
        "lua/restore.lua",
        "elseif not before(closed, restore) then",
        "elseif false then",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "a restore is carried out twice",
        "lua/restore.lua",
        "elseif call('HEXISTS', key_restores, restore) == 1 then",
        "elseif false then",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "a server that knows no closed restore takes one",
        "lua/restore.lua",
        "if not closed then\n  what = 3\nelse",
        "closed = closed or '\\0\\0\\0\\0\\0\\0\\0\\0'\n",
        CLAUSES,
    ),
    _of_archive(
        "what ended before a loss is not closed behind it",
        f"{ARCHIVE}/restores.py",
        "        ended = yield from _last_ended(database, incarnation)\n",
        "        ended = 0\n",
        CLAUSES,
    ),
    _of_archive(
        "what is open is closed after a loss",
        SQL,
        "SELECT COALESCE((SELECT MIN(number) - 1 FROM restores WHERE restores.incarnation = incarnations.number), "
        "last_restore)",
        "SELECT last_restore",
        CLAUSES,
    ),
    _of_archive(
        "restores are closed for a server that lost its data since",
        "lua/close.lua",
        "local may_close = known == sub(config, CONFIG_VERSION, CONFIG_VERSION_END)",
        "local may_close = known ~= nil",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "the highest closed restore goes down",
        "lua/close.lua",
        "if closed then may_close = before(closed, restore) end",
        "if closed then may_close = true end",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "a job that Redis has comes back",
        "lua/restore.lua",
        "  if size > 0 then\n    left_out",
        "  if size < 0 then\n    left_out",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "rows go before the jobs are on disk",
        f"{ARCHIVE}/restores.py",
        "        settled = yield from settle(queue_shard, deadline_s, restored=numbers)\n",
        "        settled = [True] * len(numbers)\n",
        CLAUSES,
    ),
    _of_archive(
        "rows go although the server went back in time",
        f"{ARCHIVE}/restores.py",
        "        if not again:\n            break\n",
        "        break\n",
        CLAUSES,
    ),
    _of_archive(
        "the end of a restore takes rows of later batches along",
        SQL,
        "DELETE FROM jobs WHERE incarnation = %s AND batch <= %s AND id IN %s",
        "DELETE FROM jobs WHERE incarnation = %s AND %s AND id IN %s",
        STATEMENTS,
    ),
    _of_archive(
        "a restore reaches rows of later batches",
        f"{ARCHIVE}/restores.py",
        "max(row[2] for row in rows)",
        "2**32 - 1",
        CLAUSES,
    ),
    _of_archive(
        "a restore is not closed",
        f"{ARCHIVE}/restores.py",
        "    yield from close(queue_shard, incarnation, max(numbers), deadline_s)\n",
        "",
        CLAUSES,
    ),
    _of_archive(
        "a restore counts what another one began",
        f"{ARCHIVE}/restores.py",
        "    return Started((yield from open_restores(database, incarnation)), 0)\n",
        "    others = yield from open_restores(database, incarnation)\n"
        "    return Started(others, sum(len(restore.ids) for restore in others))\n",
        CLAUSES,
    ),
    # what comes back
    _of_archive(
        "a job comes back without its extras",
        f"{ARCHIVE}/moving_job.py",
        '            extras = _EXTRAS.pack(left, updated_ms.to_bytes(6, "big"), crashes) + status\n',
        "            pass\n",
        MOVES,
    ),
    _of_archive(
        "a score is rounded",
        f"{ARCHIVE}/moving_job.py",
        'round(float(b"0." + fraction) * 16) if fraction else 0',
        "0",
        CLAUSES,
    ),
    _of_archive(
        "jobs stand behind younger ones",
        "lua/restore.lua",
        "scores[i] = string.format(sixteenths > 0 and '%.4f' or '%d', times[i])",
        "scores[i] = string.format('%d', now)",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "the latest jobs come back first",
        SQL,
        "ORDER BY jobs.run_after_ms, jobs.sixteenths, jobs.id LIMIT",
        "ORDER BY jobs.run_after_ms DESC, jobs.sixteenths DESC, jobs.id DESC LIMIT",
        STATEMENTS,
    ),
    # deletions
    _of_archive(
        "a deletion does not reach withdrawn jobs",
        "lua/delete_jobs.lua",
        "SETS[''] = { ready0, scheduled0, withdrawn0, succeeded0, failed0 }",
        "SETS[''] = { ready0, scheduled0, succeeded0, failed0 }",
        ARCHIVE_SCRIPTS,
    ),
    _of_archive(
        "a deletion does not reach rows",
        f"{ARCHIVE}/backlog.py",
        '            sql.run_in("delete_ids", (incarnation.number,), found)\n',
        "",
        TRANSPARENT,
    ),
    _of_archive(
        "a deletion leaves open restores alone",
        f"{ARCHIVE}/backlog.py",
        "[id_ for _, id_ in archived])\n        yield from self._end_restores(queue_shard, incarnation, deadline_s)\n",
        "[id_ for _, id_ in archived])\n",
        TRANSPARENT,
    ),
    _of_archive(
        "a deletion looks at each store once",
        f"{PACKAGE}/operations/admin.py",
        "        if now_seen == seen:\n",
        "        if True:\n",
        CLAUSES,
    ),
    _of_archive(
        "a deletion does not repeat its looks",
        f"{PACKAGE}/operations/admin.py",
        "        if now_seen == seen:\n",
        "        if seen is not None:\n",
        CLAUSES,
    ),
    _of_archive(
        "a lookup looks at each store once",
        f"{PACKAGE}/operations/inspect.py",
        "        if now_seen == seen:\n",
        "        if True:\n",
        CLAUSES,
    ),
    # incarnations
    _of_archive(
        "a lookup does not repeat its looks",
        f"{PACKAGE}/operations/inspect.py",
        "        if now_seen == seen:\n",
        "        if seen is not None:\n",
        CLAUSES,
    ),
    _of_archive(
        "the end of an incarnation is not written down",
        f"{ARCHIVE}/backlog.py",
        "        yield from end(self._database, incarnation)\n",
        "",
        CLAUSES,
    ),
    _of_archive(
        "a later epoch goes on",
        f"{ARCHIVE}/incarnations.py",
        "if known is not None and epoch <= max(known.epoch, seen.lost_epoch):",
        "if known is not None:",
        TRANSPARENT,
    ),
    _of_archive(
        "an earlier epoch ends an incarnation",
        f"{ARCHIVE}/incarnations.py",
        "if known is not None and epoch <= max(known.epoch, seen.lost_epoch):",
        "if False:",
        CLAUSES,
    ),
    _of_archive(
        "an epoch that another shard brings back ends an incarnation",
        f"{ARCHIVE}/incarnations.py",
        "epoch <= max(known.epoch, seen.lost_epoch):",
        "epoch < known.epoch:",
        CLAUSES,
    ),
    _of_archive(
        "an epoch that a client remembers decides",
        f"{ARCHIVE}/incarnations.py",
        "        epoch = yield from settled_epoch(queue_shard, deadline_s)\n",
        "        epoch = (yield from known_config(queue_shard, deadline_s)).epoch\n",
        CLAUSES,
    ),
    _of_archive(
        "an epoch of before a loss ends what was committed since",
        f"{ARCHIVE}/incarnations.py",
        "        if _seen([(*row, *last[0]) for row in rows]) != seen:\n",
        "        if _seen([(*row, *last[0]) for row in rows]).incarnation != seen.incarnation:\n",
        CLAUSES,
    ),
    _of_archive(
        "restores of two incarnations have the same numbers",
        f"{ARCHIVE}/incarnations.py",
        '        sql.run("number_apart", (number,))\n',
        "",
        CLAUSES,
    ),
    _of_archive(
        "open restores of an ended incarnation stay for ever",
        f"{ARCHIVE}/purge.py",
        '        yield from query(database, "delete_restores", number)\n',
        "",
        CLAUSES,
    ),
]


def main() -> int:
    """The number of faults that no test noticed."""
    chosen = [fault for fault in FAULTS if fault.what.startswith(sys.argv[1] if sys.argv[1:] else "")]
    missed = [fault.what for fault in chosen if not _is_noticed(fault)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults noticed", *missed, sep="\n  missed: ")
    return len(missed) or not chosen


def _is_noticed(fault: Fault) -> bool:
    started_s = time.monotonic()
    with TemporaryDirectory(prefix="pinlater-fault-") as folder:
        copy = Path(folder)
        _copy_checkout(copy)
        _put_in(copy / fault.path, fault)
        ran = _run_tests(copy, fault.tests)
    first = next((line for line in ran.stdout.splitlines() if line.startswith("FAILED")), "")
    noticed = bool(first)
    print(
        f"{'noticed' if noticed else 'MISSED'} in {time.monotonic() - started_s:.0f} s  {fault.what}\n  {first}",
        flush=True,
    )
    return noticed


def _copy_checkout(copy: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    for native in (ROOT / PACKAGE).glob("_core*.so"):
        shutil.copy2(native, copy / PACKAGE)


def _put_in(path: Path, fault: Fault) -> None:
    text = path.read_text("utf-8")
    if text.count(fault.before) != 1:
        sys.exit(
            f"{fault.what}: expected {fault.before!r} once in {fault.path}, found it {text.count(fault.before)} times"
        )
    path.write_text(text.replace(fault.before, fault.after), "utf-8")


def _run_tests(copy: Path, tests: str) -> subprocess.CompletedProcess[str]:
    options = [
        "-q",
        "-x",
        "-n",
        "4",
        "-m",
        "not campaign",
        "-p",
        "no:cacheprovider",
        "--hypothesis-profile=first-failure",
    ]
    command = [sys.executable, "-m", "pytest", *options, *tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(copy / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
