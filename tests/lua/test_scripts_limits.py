"""The limits of a queue in its scripts: grants of a rate, what another configuration does to them, pauses, max_running.

Promises: shown on real servers. Rates are so slow that the time of a test adds no token, so that each number is exact.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.listener import Listener
from tests.support.servers import Server
from tests.support.wire import Wire, connect, refused
from tests.support.wire_format import (
    CLAIM,
    DELAY,
    NO_TIME,
    PAUSED_FOR_A_TIME,
    RUNNING,
    Account,
    End,
    Grant,
    Job,
    ends,
    settings,
    unpack_config,
)

SLOW_MS = 100_000_000  # a token takes a day, so none comes while a test runs
GRANT_MS = 1000
LONGEST_REST_MS = 15_000
PAUSE, MAX_RUNNING, HOME = 2, 3, 4  # what a claim says that limits it
#: Nothing of a grant.
NOTHING = (0, 0, 0, 0)

Listen = Callable[[bytes], Listener]


def limited(
    count: int = 1, per_ms: int = SLOW_MS, burst: int = 10, *, home: bytes = b"s", lease_ms: int = 30_000
) -> bytes:
    """Settings with a rate."""
    return settings(rate=struct.pack(">III", count, per_ms, burst), home=home, lease_ms=lease_ms)


#: Settings without limits. A client that does not know of limits sends none, which would leave them.
UNLIMITED = settings(home=b"s")


def places(count: int, **words: Any) -> bytes:
    return settings(max_running=count, **{"home": b"s", **words})


@pytest.fixture
def queue(server: Server) -> Iterator[Wire]:
    with connect(server) as client:
        yield Wire(client)


@pytest.fixture
def wire(queue: Wire) -> Wire:
    """A queue with a slow rate."""
    queue.create(limited())
    return queue


@pytest.fixture
def listen(queue: Wire) -> Iterator[Listen]:
    made: list[Listener] = []

    def make(waiter: bytes) -> Listener:
        made.append(Listener(queue.client, queue.key(f"wake:{waiter.decode()}")))
        return made[-1]

    yield make
    for listener in made:
        listener.pubsub.close()


def now_ms(wire: Wire) -> int:
    seconds, us = wire.client.time()
    return int(seconds * 1000 + us // 1000)


def fill(wire: Wire, units: int, ago_ms: int = 0, **fields: int) -> Account:
    """Writes the account, as it was so many ms ago."""
    account = Account(now_ms(wire) - ago_ms, units, **fields)
    wire.account = account
    return account


def make_due(wire: Wire, name: str) -> None:
    """Whatever stands in a sorted set is due since 1970."""
    members: Any = wire.client.zrange(wire.key(name), 0, -1)
    wire.client.zadd(wire.key(name), dict.fromkeys(members, 1))


def account_of(wire: Wire) -> Account:
    assert wire.account is not None
    return wire.account


# -- grants


def test_an_account_begins_empty(wire: Wire) -> None:
    grant = wire.grant(5)
    assert (grant.tokens, grant.valid_ms, grant.processes) == (0, GRANT_MS, 1)
    # it counts since the queue was made
    assert SLOW_MS - 60_000 < grant.wait_ms <= SLOW_MS
    assert account_of(wire).units == SLOW_MS - grant.wait_ms


@pytest.mark.parametrize(("count", "per_ms"), [(1, SLOW_MS), (3, 300_000_007), (7, 400_000_009)])
def test_a_refill_adds_whole_units_and_rounds_nothing(queue: Wire, count: int, per_ms: int) -> None:
    queue.create(limited(count, per_ms))
    given = 0
    before = fill(queue, 5, ago_ms=3 * per_ms // count + 7)
    for want in (1, 0, 1, 5):
        given += queue.grant(want).tokens
        after = account_of(queue)
        assert after.units == 5 + (after.refilled_ms - before.refilled_ms) * count - given * per_ms
    assert given == 3


@pytest.mark.parametrize(
    ("count", "per_ms", "burst", "most"),
    [(1, SLOW_MS, 4, 4), (5, 1000, 0, 5), (1, 3000, 0, 1), (1_000_000, 1000, 0, 1_000_000)],
)
def test_no_more_than_a_burst_is_kept(queue: Wire, count: int, per_ms: int, burst: int, most: int) -> None:
    queue.create(limited(count, per_ms, burst))
    fill(queue, 0, ago_ms=1_000_000_000_000)
    assert queue.limits().tokens == most
    assert queue.grant(1_000_000).tokens == most


def test_what_is_not_asked_for_stays_and_nobody_waits_for_it(wire: Wire) -> None:
    fill(wire, 5 * SLOW_MS)
    assert wire.grant(3) == Grant(3, GRANT_MS, 0, 1)
    assert wire.grant(2) == Grant(2, GRANT_MS, 0, 1)
    assert account_of(wire).line_ms == 0
    assert wire.grant(1).tokens == 0


def test_who_gets_less_than_it_wants_also_gets_a_place(wire: Wire) -> None:
    fill(wire, 2 * SLOW_MS)
    granted = wire.grant(3)
    assert granted.tokens == 2
    assert granted.wait_ms > 0


def test_a_repeated_grant_takes_nothing_more(wire: Wire) -> None:
    fill(wire, 5 * SLOW_MS)
    wire.grant(3)
    first, account = wire.answer, wire.account
    assert wire.again() == first
    assert wire.account == account


@pytest.mark.parametrize(("want", "unused"), [(1_000_001, 0), (-1, 0), (0, 1_000_001), (0, -1)])
def test_a_grant_of_an_absurd_size_is_refused(wire: Wire, want: int, unused: int) -> None:
    fill(wire, 5 * SLOW_MS)
    with refused("BAD_REQUEST"):
        wire.grant(want, unused=unused)
    assert wire.limits().tokens == 5


def test_a_rate_of_zero_gives_nothing_and_tells_no_time(queue: Wire) -> None:
    queue.create(limited(0, 1, 5))
    fill(queue, 0, ago_ms=10_000)
    assert queue.grant(1) == Grant(0, GRANT_MS, NO_TIME, 1)


def test_only_the_home_shard_gives_tokens(queue: Wire) -> None:
    queue.create(limited(home=b"other"))
    assert queue.grant(5) == Grant(*NOTHING)
    assert queue.account is None
    assert queue.limits()[:3] == (0, 0, 0)


def test_a_queue_without_a_rate_gives_no_tokens(queue: Wire) -> None:
    """A client that got some here could use them once the queue has a rate."""
    queue.create(UNLIMITED)
    assert queue.grant(5) == Grant(*NOTHING)


def test_processes_are_counted_for_a_minute(wire: Wire) -> None:
    assert [wire.grant(1, grantee=name).processes for name in (b"1", b"2", b"1", b"3")] == [1, 2, 2, 3]
    wire.client.zadd(wire.key("grantees"), {b"1": now_ms(wire) - 60_001})
    assert wire.limits().processes == 3
    assert wire.grant(1, grantee=b"2").processes == 2
    assert 0 < wire.client.pttl(wire.key("grantees")) <= 60_000


# -- the line


def test_two_that_wait_come_a_token_apart_and_nobody_later_than_the_longest_rest(queue: Wire) -> None:
    queue.create(limited(1, 4_000))
    lines = []
    for number in range(1, 7):
        granted = queue.grant(1, grantee=b"%d" % number)
        account = account_of(queue)
        lines.append(account.line_ms)
        assert granted.wait_ms == account.line_ms - account.refilled_ms <= LONGEST_REST_MS
    assert [after - before for before, after in itertools.pairwise(lines[:3])] == [4_000, 4_000]


def test_fast_tokens_are_worth_an_ask_when_one_comes(queue: Wire) -> None:
    queue.create(limited(100_000, 1000, 1_000_000))
    lines: list[int] = []
    for _ in range(3):
        fill(queue, 0, line_ms=lines[-1] if lines else 0)
        queue.grant(1_000_000)
        lines.append(account_of(queue).line_ms)
    assert [after - before for before, after in itertools.pairwise(lines)] == [50, 50]


def test_a_place_is_never_before_a_token_is_there(wire: Wire) -> None:
    fill(wire, SLOW_MS // 4)
    account = account_of(wire)
    granted = wire.grant(1)
    assert account.refilled_ms + SLOW_MS - SLOW_MS // 4 == account_of(wire).refilled_ms + granted.wait_ms


@pytest.mark.parametrize(("part", "place", "waits"), [(0.9, True, True), (0.9, False, False), (0.3, True, False)])
def test_a_visitor_a_little_early_waits_for_its_token(queue: Wire, part: float, place: bool, waits: bool) -> None:
    """Only who comes at its place, and only for the token that comes next."""
    queue.create(limited(1, 10_000_000))
    line_ms = now_ms(queue) + 14_000
    fill(queue, int(part * 10_000_000), line_ms=line_ms)
    granted = queue.grant(1, place=place)
    account = account_of(queue)
    if waits:
        assert granted.wait_ms == 10_000_000 - account.units
        assert account.line_ms == line_ms
    else:
        assert granted.wait_ms == account.line_ms - account.refilled_ms
        assert account.line_ms > line_ms


def test_an_early_visitor_that_gets_some_goes_to_the_end_of_the_line(queue: Wire) -> None:
    queue.create(limited(1, 10_000_000))
    fill(queue, 19_000_000, line_ms=now_ms(queue) + 14_000)
    before_ms = account_of(queue).line_ms
    assert queue.grant(2, place=True).tokens == 1
    assert account_of(queue).line_ms > before_ms


# -- unused tokens


def test_unused_tokens_come_back(wire: Wire) -> None:
    fill(wire, 5 * SLOW_MS)
    assert wire.grant(5).tokens == 5
    assert wire.grant(0, unused=3).tokens == 0
    assert (wire.limits().tokens, wire.limits().granted) == (3, 2)
    assert wire.grant(5, unused=1).tokens == 4


def test_what_was_not_granted_does_not_come_back(wire: Wire) -> None:
    fill(wire, 0)
    wire.grant(0, unused=5)
    assert wire.limits().tokens == 0
    fill(wire, 2 * SLOW_MS)
    assert wire.grant(2).tokens == 2
    wire.grant(0, unused=5)
    assert wire.limits().tokens == 2


@pytest.mark.parametrize("ago_ms", [0, 1_500], ids=["just now", "in the second before"])
def test_unused_tokens_come_back_once(wire: Wire, ago_ms: int) -> None:
    fill(wire, 0, since_ms=now_ms(wire) - ago_ms, granted=4)
    for _ in range(3):
        wire.grant(0, unused=4)
    assert wire.limits().tokens == 4


def test_a_return_of_both_seconds_is_counted_in_both(wire: Wire) -> None:
    fill(wire, 0, since_ms=now_ms(wire) + 0, granted=2, granted_before=3)
    wire.grant(0, unused=4)
    assert wire.limits().tokens == 4
    wire.grant(0, unused=4)
    assert wire.limits().tokens == 5


def test_tokens_of_an_ended_grant_do_not_come_back(wire: Wire) -> None:
    fill(wire, 0, since_ms=now_ms(wire) - 2 * GRANT_MS, granted=4)
    wire.grant(0, unused=4)
    assert (wire.limits().tokens, wire.limits().granted) == (0, 0)


def test_what_comes_back_fits_into_a_burst(wire: Wire) -> None:
    fill(wire, 9 * SLOW_MS, since_ms=now_ms(wire), granted=5)
    wire.grant(0, unused=5)
    assert wire.limits().tokens == 10


def test_a_repeated_return_counts_once(wire: Wire) -> None:
    fill(wire, 0, since_ms=now_ms(wire), granted=5)
    wire.grant(0, unused=2)
    wire.again()
    assert wire.limits().tokens == 2


# -- the clock


def test_no_time_counts_twice_after_a_small_step_back(queue: Wire) -> None:
    queue.create(limited(1, 1_000_000))
    fill(queue, 7, ago_ms=-900)
    before = account_of(queue)
    queue.grant(1)
    assert account_of(queue)[:2] == before[:2]


def test_after_a_long_step_back_the_account_goes_on_from_there(queue: Wire) -> None:
    queue.create(limited(1, 1_000_000))
    fill(queue, 7, ago_ms=-60_000, line_ms=now_ms(queue) + 60_000, since_ms=now_ms(queue) + 60_000, granted=3)
    granted, account = queue.grant(1), account_of(queue)
    assert account.units == 7
    assert account.refilled_ms <= now_ms(queue)
    assert granted.wait_ms <= 1_000_000
    assert (account.since_ms, account.granted, account.granted_before) == (account.refilled_ms, 0, 0)


def test_a_line_ahead_of_the_clock_begins_again(queue: Wire) -> None:
    queue.create(limited(1, 4_000))
    fill(queue, 0, line_ms=now_ms(queue) + 60_000)
    assert queue.grant(1).wait_ms <= 4_000


# -- another configuration


@pytest.mark.parametrize(
    ("after", "per_ms", "tokens"),
    [
        (limited(2), SLOW_MS, 8),
        (limited(1, 3 * SLOW_MS), 3 * SLOW_MS, 8),
        (limited(burst=20), SLOW_MS, 8),
        (limited(burst=3), SLOW_MS, 3),
        (limited(1, 1000, 0), 1000, 1),
        (limited(lease_ms=5000), SLOW_MS, 8),
    ],
    ids=["faster", "slower", "larger burst", "smaller burst", "default burst", "another setting"],
)
def test_tokens_stay_up_to_the_new_burst(wire: Wire, after: bytes, per_ms: int, tokens: int) -> None:
    fill(wire, 8 * SLOW_MS, line_ms=now_ms(wire) + 14_000)
    wire.configure(after)
    account = account_of(wire)
    assert wire.limits().tokens == account.units // per_ms == tokens
    assert account.line_ms == 0


def test_time_before_a_change_counts_by_the_rate_of_then(wire: Wire) -> None:
    fill(wire, 0, ago_ms=2 * SLOW_MS)
    wire.configure(limited(1000))
    assert wire.limits().tokens == 2


def test_a_change_of_another_setting_keeps_the_part_of_a_token(wire: Wire) -> None:
    """Or a slow rate would never give a token while settings change often."""
    fill(wire, SLOW_MS - 1000)
    wire.configure(limited(lease_ms=5000))
    assert account_of(wire).units >= SLOW_MS - 1000


def test_a_change_of_the_rate_never_adds_a_part_of_a_token(wire: Wire) -> None:
    fill(wire, 2 * SLOW_MS - SLOW_MS // 10)
    wire.configure(limited(1, SLOW_MS // 2))
    assert wire.limits().tokens == 1


def test_a_rate_that_is_removed_leaves_no_account(wire: Wire) -> None:
    fill(wire, 8 * SLOW_MS)
    wire.configure(UNLIMITED)
    assert wire.account is None
    wire.configure(limited())
    assert wire.limits().tokens == 0


def test_a_shard_keeps_no_account_for_the_time_that_it_is_not_the_home(wire: Wire) -> None:
    fill(wire, 8 * SLOW_MS, ago_ms=100 * SLOW_MS)
    wire.configure(limited(home=b"other"))
    assert wire.account is None
    wire.configure(limited())
    assert wire.limits().tokens == 0
    assert wire.grant(5, unused=5).tokens == 0


def test_a_grant_of_before_can_come_back_to_the_new_configuration(wire: Wire) -> None:
    fill(wire, 8 * SLOW_MS)
    wire.grant(8)
    wire.configure(limited(burst=3))
    wire.grant(0, unused=8)
    assert wire.limits().tokens == 3


def test_a_carried_configuration_settles_too(wire: Wire) -> None:
    fill(wire, 8 * SLOW_MS)
    version = int.from_bytes(wire.version, "big") + 5
    wire.configure(limited(burst=2), carried=version.to_bytes(8, "big"))
    assert wire.limits().tokens == 2


def test_an_older_configuration_settles_nothing(wire: Wire) -> None:
    fill(wire, 8 * SLOW_MS)
    version = int.from_bytes(wire.version, "big") - 5
    wire.configure(limited(burst=2), carried=version.to_bytes(8, "big"))
    assert wire.limits().tokens == 8


def test_a_deleted_queue_leaves_no_account_and_no_pause(wire: Wire) -> None:
    fill(wire, 8 * SLOW_MS)
    wire.pause(60_000)
    left = wire.write("delete_queue", b"")[0]
    assert wire.client.keys(wire.key("*")) == [wire.key("meta")]
    wire.forget(wire.keep(left))
    again = Wire(wire.client)
    again.create(limited(), remnant=left)
    assert again.limits()[:4] == (1, 0, 0, 0)
    assert again.claim().limited == 0


def test_every_change_tells_the_channel_of_the_limits(wire: Wire) -> None:
    told = Listener(wire.client, wire.key("limits"))
    wire.configure(limited(2))
    wire.configure(UNLIMITED)
    assert told.notifications() == 2
    told.pubsub.close()


def test_a_client_that_knows_no_limits_leaves_them(queue: Wire) -> None:
    queue.create(places(1, rate=struct.pack(">III", 1, SLOW_MS, 4)))
    fill(queue, 3 * SLOW_MS)
    queue.configure(settings(lease_ms=5000))
    queue.enqueue(Job(), Job())
    assert len(queue.claim().jobs) == 1
    assert queue.claim().limited == MAX_RUNNING
    assert queue.limits().tokens == 3


# -- pauses


def flags_of(wire: Wire) -> int:
    return unpack_config(wire.read("config")[0]).flags


def test_a_pause_keeps_jobs_from_claims_and_says_how_long(queue: Wire) -> None:
    queue.create()
    queue.enqueue(Job(), Job())
    assert queue.pause(60_000, b"somebody") == 60_000
    claimed = queue.claim()
    assert (claimed.jobs, claimed.limited) == ([], PAUSE)
    assert 0 < claimed.due_in_ms <= 60_000
    assert queue.claim_one().jobs == []
    assert queue.claim(1).limited == PAUSE
    seen = queue.limits()
    assert (seen.end_ms - seen.begin_ms, seen.by) == (60_000, b"somebody")


def test_a_pause_is_no_setting(queue: Wire) -> None:
    queue.create()
    other = queue.other()
    queue.pause(60_000)
    assert flags_of(queue) == PAUSED_FOR_A_TIME
    assert other.enqueue(Job())  # its configuration is still the present one
    with refused("BAD_REQUEST"):
        queue.configure(settings(flags=PAUSED_FOR_A_TIME))
    with refused("BAD_REQUEST"):
        Wire(queue.client, "new").create(settings(flags=PAUSED_FOR_A_TIME))


def test_of_two_pauses_the_later_end_stays(queue: Wire) -> None:
    queue.create()
    assert queue.pause(60_000, b"first") == 60_000
    assert 1000 < queue.pause(1000, b"second") <= 60_000
    assert queue.limits().by == b"first"
    assert queue.pause(120_000, b"third") == 120_000
    assert queue.limits().by == b"third"


def set_pause(wire: Wire, begin_ms: int, end_ms: int, by: bytes = b"me") -> None:
    """Moves a pause that there is, relative to now."""
    now = now_ms(wire)
    times = (now + begin_ms).to_bytes(6, "big") + (now + end_ms).to_bytes(6, "big")
    wire.client.hset(wire.key("meta"), "pause", times + by)


def test_a_pause_ends_by_itself_and_leaves_nothing(queue: Wire) -> None:
    queue.create()
    queue.enqueue(Job(), Job())
    queue.pause(60_000)
    set_pause(queue, -60_000, -1)
    assert queue.limits()[5:7] == (0, 0)
    assert len(queue.claim(1).jobs) == 1
    assert flags_of(queue) == 0
    assert not queue.client.hexists(queue.key("meta"), "pause")
    assert len(queue.claim_one().jobs) == 1


def test_a_pause_that_is_ended_notifies_a_waiter(queue: Wire, listen: Listen) -> None:
    queue.create()
    queue.enqueue(Job())
    waiter = listen(b"me")
    queue.pause(60_000)
    queue.claim(1, channel=b"me")
    assert waiter.notifications() == 0
    assert queue.pause(0) == 0
    assert waiter.notifications() == 1
    assert flags_of(queue) == 0
    assert len(queue.claim(1).jobs) == 1


def test_the_end_of_no_pause_changes_nothing(queue: Wire) -> None:
    queue.create()
    assert queue.pause(0) == 0
    assert flags_of(queue) == 0


def test_a_pause_survives_another_configuration(queue: Wire) -> None:
    queue.create()
    queue.enqueue(Job())
    queue.pause(60_000)
    for packed in (settings(lease_ms=5000), places(5), limited(), settings(home=b"s")):
        queue.configure(packed)
        assert queue.claim().limited == PAUSE
    queue.configure(settings(flags=1, home=b"s"))
    assert queue.claim().limited == 1
    queue.configure(settings(home=b"s"))
    assert queue.claim().limited == PAUSE
    queue.pause(0)
    assert len(queue.claim().jobs) == 1


def test_a_configured_pause_stays_when_the_other_one_ends(queue: Wire, listen: Listen) -> None:
    queue.create(settings(flags=1))
    queue.enqueue(Job())
    waiter = listen(b"me")
    queue.pause(60_000)
    queue.claim(channel=b"me")
    queue.pause(0)
    assert queue.claim(channel=b"me").limited == 1
    assert waiter.notifications() == 0


def test_after_the_clock_went_back_a_pause_lasts_no_longer_than_it_did(queue: Wire) -> None:
    queue.create()
    queue.enqueue(Job())
    queue.pause(5_000)
    set_pause(queue, 3_600_000, 3_605_000, b"by whom")
    seen = queue.limits()
    assert seen.end_ms - seen.now_ms <= 5_000
    claimed = queue.claim()
    assert claimed.limited == PAUSE
    assert claimed.due_in_ms <= 5_000
    seen = queue.limits()
    assert (seen.end_ms - seen.begin_ms, seen.by) == (5_000, b"by whom")
    assert seen.begin_ms <= seen.now_ms


@pytest.mark.parametrize("ms", [-1, 1 << 44])
def test_a_pause_of_an_absurd_length_is_refused(queue: Wire, ms: int) -> None:
    queue.create()
    with refused("BAD_REQUEST"):
        queue.pause(ms)
    assert flags_of(queue) == 0


def test_the_longest_pause_and_the_longest_name(queue: Wire) -> None:
    queue.create()
    assert queue.pause((1 << 44) - 1, b"x" * 400) == (1 << 44) - 1
    assert queue.limits().by == b"x" * 300


def test_a_repeated_pause_is_one(queue: Wire) -> None:
    queue.create()
    queue.pause(60_000)
    meta = queue.client.hget(queue.key("meta"), "pause")
    queue.again()
    assert queue.client.hget(queue.key("meta"), "pause") == meta


# -- jobs at once


def test_a_claim_takes_as_many_as_there_are_places(queue: Wire) -> None:
    queue.create(places(5))
    queue.enqueue(*(Job(b"%d" % i, 1 + i % 3) for i in range(12)))
    assert len(queue.claim(2).jobs) == 2
    first = queue.claim(1000, quotas=(2, 1000, 1000))
    assert len(first.jobs) == 3
    full = queue.claim()
    assert (full.jobs, full.limited, full.due_in_ms) == ([], MAX_RUNNING, 0)
    assert queue.claim_one().jobs == []
    assert queue.succeed(first) == []
    assert len(queue.claim().jobs) == 3
    assert queue.limits().running == 5


def test_due_jobs_count_too(queue: Wire) -> None:
    queue.create(places(1))
    queue.enqueue(Job(b"late", kind=DELAY, ms=3_600_000), Job(b"late", kind=DELAY, ms=3_600_000))
    make_due(queue, "scheduled:1")
    queue.set_head(due_ms=1)
    assert len(queue.claim().jobs) == 1
    assert queue.claim().limited == MAX_RUNNING


def test_running_jobs_above_a_lowered_limit_keep_their_places(queue: Wire) -> None:
    queue.create()
    queue.enqueue(*[Job()] * 6)
    held = queue.claim(3)
    queue.configure(places(2))
    assert queue.claim().limited == MAX_RUNNING
    job, *others = ends(held)
    queue.ack(job)
    assert queue.claim().limited == MAX_RUNNING
    queue.ack(others[0])
    assert len(queue.claim().jobs) == 1


def test_places_are_on_the_home_shard_alone(queue: Wire) -> None:
    queue.create()
    queue.enqueue(Job())
    queue.configure(places(5, home=b"other"))
    with refused("NOT_AT_HOME the queue has max_running, so its jobs live on shard other"):
        queue.enqueue(Job())
    claimed = queue.claim()
    assert (claimed.jobs, claimed.limited) == ([], HOME)


def test_a_full_queue_that_is_paused_says_the_pause(queue: Wire) -> None:
    queue.create(places(1))
    queue.enqueue(Job(), Job())
    held = queue.claim()
    queue.pause(60_000)
    assert queue.claim().limited == PAUSE
    assert flags_of(queue) == PAUSED_FOR_A_TIME + 8
    queue.succeed(held)
    assert queue.claim().limited == PAUSE
    queue.pause(0)
    assert len(queue.claim(1).jobs) == 1
    assert queue.claim().limited == MAX_RUNNING


def test_a_pause_that_ended_leaves_the_places(queue: Wire) -> None:
    queue.create(places(1))
    queue.enqueue(Job(), Job())
    queue.pause(60_000)
    set_pause(queue, -60_000, -1)
    assert len(queue.claim().jobs) == 1
    assert queue.claim().limited == MAX_RUNNING
    assert flags_of(queue) == 8


def test_a_queue_with_a_rate_and_places_has_both(queue: Wire) -> None:
    queue.create(places(2, rate=struct.pack(">III", 1, SLOW_MS, 10)))
    fill(queue, 5 * SLOW_MS)
    queue.enqueue(*[Job()] * 6)
    assert queue.grant(5).tokens == 5
    assert len(queue.claim(5).jobs) == 2
    queue.grant(0, unused=3)
    assert (queue.limits().tokens, queue.limits().running) == (3, 2)


def run_out(wire: Wire) -> None:
    """All leases end."""
    make_due(wire, "leases")
    assert wire.expire().leases == 1


def lose_lease(wire: Wire) -> None:
    wire.client.delete(wire.key("leases"), wire.key("lease_jobs"))
    assert wire.expire(sweep=b"1:0").leases == 1


#: What ends a run, so that its place is free, and how many claims took the two jobs that run.
ENDS: dict[str, tuple[int, Callable[[Wire, list[End]], Any]]] = {
    "one success": (1, lambda wire, held: wire.ack(held[0])),
    "all successes": (2, lambda wire, held: wire.ack(*held)),
    "a success with a status": (2, lambda wire, held: wire.ack(held[0]._replace(status=b"x"))),
    "a failure for good": (2, lambda wire, held: wire.ack(held[0]._replace(failed=True))),
    "a failure until later": (2, lambda wire, held: wire.ack(held[1]._replace(failed=True, delay_ms=3_600_000))),
    "a move until later": (2, lambda wire, held: wire.checkpoint(held[1], move=(DELAY, 3_600_000))),
    "a release": (2, lambda wire, held: wire.release(held[0])),
    "the end of the lease": (2, lambda wire, held: run_out(wire)),
    "the loss of the lease": (2, lambda wire, held: lose_lease(wire)),
    "the death of the worker": (2, lambda wire, held: wire.end_leases(b"worker")),
    "a deletion": (2, lambda wire, held: wire.delete_jobs(RUNNING, ids=[held[0].id])),
    "a deletion of all": (2, lambda wire, held: wire.delete_jobs(RUNNING, limit=10)),
}


@pytest.mark.parametrize("keep", [0, 5])
@pytest.mark.parametrize("how", ENDS)
def test_whatever_ends_a_run_notifies_one_waiter(queue: Wire, listen: Listen, how: str, keep: int) -> None:
    batch, end = ENDS[how]
    queue.create(places(2, keep=keep))
    queue.enqueue(*[Job(allowed=1 + (i > 0)) for i in range(2)])
    held = [one for _ in range(2 // batch) for one in ends(queue.claim(batch, claim=CLAIM))]
    assert len(held) == 2
    queue.enqueue(Job(b"next"), Job(b"next"), Job(b"next"))
    waiters = [listen(name) for name in (b"one", b"two", b"three")]
    for name in (b"one", b"two", b"three"):
        assert queue.claim(10, channel=name).limited == MAX_RUNNING
    assert [waiter.notifications() for waiter in waiters] == [0, 0, 0]  # a full queue makes no storm
    end(queue, held)
    assert sum(waiter.notifications() for waiter in waiters) == 1
    before = queue.limits().running
    free = len(queue.claim(1, channel=b"one").jobs)
    assert free == 1
    # a claim that leaves places and jobs notifies the next waiter; the one that takes the last place does not
    assert sum(waiter.notifications() for waiter in waiters) == (before == 0)


def test_a_free_place_goes_to_the_waiter_that_waited_longest(queue: Wire, listen: Listen) -> None:
    queue.create(places(1))
    queue.enqueue(Job(), Job())
    held = queue.claim()
    waiters = [listen(b"first"), listen(b"last")]
    for at, name in enumerate((b"first", b"last")):
        queue.claim(channel=name)
        queue.client.zadd(queue.key("waiters"), {name: now_ms(queue) + at})
    queue.succeed(held)
    assert [waiter.notifications() for waiter in waiters] == [1, 0]


def test_a_checkpoint_that_keeps_its_place_wakes_nobody(queue: Wire, listen: Listen) -> None:
    queue.create(places(1))
    queue.enqueue(Job(), Job())
    held = ends(queue.claim())
    waiter = listen(b"me")
    queue.claim(channel=b"me")
    assert queue.checkpoint(held[0]._replace(status=b"half")) == []
    assert waiter.notifications() == 0
    queue.ack(held[0])
    assert waiter.notifications() == 1


def test_a_full_queue_wakes_nobody_when_nothing_is_due(queue: Wire, listen: Listen) -> None:
    queue.create(places(1))
    queue.enqueue(Job())
    held = queue.claim()
    waiter = listen(b"me")
    assert queue.claim(channel=b"me").limited == MAX_RUNNING
    queue.succeed(held)
    assert waiter.notifications() == 0


def test_a_raised_limit_notifies_a_waiter(queue: Wire, listen: Listen) -> None:
    queue.create(places(1))
    queue.enqueue(*[Job()] * 3)
    queue.claim()
    waiters = [listen(b"one"), listen(b"two")]
    for name in (b"one", b"two"):
        queue.claim(channel=name)
    queue.configure(places(3))
    assert sum(waiter.notifications() for waiter in waiters) == 1
    assert len(queue.claim(1).jobs) == 1
    assert sum(waiter.notifications() for waiter in waiters) == 1


def test_a_removed_limit_notifies_a_waiter(queue: Wire, listen: Listen) -> None:
    queue.create(places(1))
    queue.enqueue(*[Job()] * 3)
    queue.claim()
    waiter = listen(b"me")
    queue.claim(channel=b"me")
    queue.configure(UNLIMITED)
    assert waiter.notifications() == 1


def test_claims_of_a_queue_without_limits_notify_as_before(queue: Wire, listen: Listen) -> None:
    queue.create()
    waiter = listen(b"me")
    queue.claim(channel=b"me")
    queue.enqueue(*[Job()] * 3)
    assert waiter.notifications() == 1
    queue.claim(1)
    assert waiter.notifications() == 0
