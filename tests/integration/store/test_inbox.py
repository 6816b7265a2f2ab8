"""The inbox: nothing is trimmed, each entry is done once or becomes a dead letter, and the books balance."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.store.dead_letters import InboxDeadLetters
from dragoman.store.inbox import MAX_ENTRY_BYTES, InboxCounts, InboxEntry, Inboxes, InboxSettings, PushReply
from dragoman.store.instances import Instances
from dragoman.store.keys import Keys
from dragoman.store.redis import Dedicated, Redis

TIMEOUT_S = 60.0
SETTINGS = InboxSettings(maxlen=1000, max_bytes=10 * MAX_ENTRY_BYTES, dlq_maxlen=5)


@pytest.fixture
def inboxes(runner: asyncio.Runner, redis: Redis, keys: Keys) -> Inboxes:
    """Instance `i` has its inbox open."""
    runner.run(Instances(redis, keys).open("i", "a", SETTINGS.group))
    return Inboxes(redis, keys, SETTINGS)


@pytest.fixture
def reader(runner: asyncio.Runner, inboxes: Inboxes) -> Iterator[Dedicated]:
    made = inboxes.reader("i")
    yield made
    runner.run(made.close())


async def read(inboxes: Inboxes, reader: Dedicated, count: int = 100) -> list[InboxEntry]:
    return await inboxes.read(reader, "i", count, block_ms=1)


async def balance(inboxes: Inboxes) -> InboxCounts:
    tally = await inboxes.counts("i")
    assert tally.balanced, tally
    return tally


# -- pushing ----------------------------------------------------------------------------------------


async def test_pushed_entries_are_read_complete_and_in_order(inboxes: Inboxes, reader: Dedicated) -> None:
    bodies = [b"", b"\x00\xff", "ünï".encode(), b"x" * 100_000]
    for n, body in enumerate(bodies):
        assert await inboxes.push("i", f"kind-{n}", body, trace_id=f"trace-{n}") is PushReply.OK
    entries = await read(inboxes, reader)
    assert [(entry.kind, entry.data, entry.trace_id, entry.size) for entry in entries] == [
        (f"kind-{n}", body, f"trace-{n}", len(body)) for n, body in enumerate(bodies)
    ]
    assert not any(entry.newer for entry in entries)
    assert await read(inboxes, reader) == [], "each is given once"


async def test_too_large_entry_is_refused_before_it_is_sent(inboxes: Inboxes, redis: Redis) -> None:
    assert await inboxes.push("i", "kind", b"x" * MAX_ENTRY_BYTES) is PushReply.OK
    asked = redis.ops["push_entry"].ok
    assert await inboxes.push("i", "kind", b"x" * (MAX_ENTRY_BYTES + 1)) is PushReply.TOO_LARGE
    assert redis.ops["push_entry"].ok == asked


async def test_a_read_waits_for_the_first_entry(inboxes: Inboxes, reader: Dedicated) -> None:
    reading = asyncio.create_task(inboxes.read(reader, "i", 10, block_ms=30_000))
    await inboxes.push("i", "kind", b"x")
    assert [entry.data for entry in await reading] == [b"x"]


# -- done -------------------------------------------------------------------------------------------


async def test_done_of_nothing_changes_nothing(inboxes: Inboxes) -> None:
    assert await inboxes.done("i", []) == 0
    assert await balance(inboxes) == InboxCounts()


# -- pending, reclaim -------------------------------------------------------------------------------


async def test_unfinished_entry_is_pending_and_read_again(inboxes: Inboxes, reader: Dedicated) -> None:
    for n in range(5):
        await inboxes.push("i", "kind", b"%d" % n)
    entries = await read(inboxes, reader)
    pending = await inboxes.pending("i", 0, 100)
    assert [row.id for row in pending] == [entry.id for entry in entries]
    assert {row.deliveries for row in pending} == {1}
    assert await inboxes.pending("i", 3_600_000, 100) == [], "not idle for that long"
    cursor, again = await inboxes.reclaim("i", 0, 100)
    assert (cursor, again) == ("0-0", entries)
    assert {row.deliveries for row in await inboxes.pending("i", 0, 100)} == {2}


async def test_a_reclaim_goes_on_where_it_stopped(inboxes: Inboxes, reader: Dedicated) -> None:
    for n in range(25):
        await inboxes.push("i", "kind", b"%d" % n)
    entries = await read(inboxes, reader)
    found: list[InboxEntry] = []
    cursor = "-"
    while cursor != "0-0":
        cursor, some = await inboxes.reclaim("i", 0, 10, cursor)
        found += some
    assert found == entries


async def test_a_claim_takes_only_what_has_been_idle_long_enough(inboxes: Inboxes, reader: Dedicated) -> None:
    await inboxes.push("i", "kind", b"x")
    (entry,) = await read(inboxes, reader)
    assert not await inboxes.claim("i", entry.id, 3_600_000)
    assert await inboxes.claim("i", entry.id, 0)
    assert [row.deliveries for row in await inboxes.pending("i", 0, 10)] == [1], "looking is no delivery"


async def test_entries_deleted_while_pending_are_acknowledged(
    inboxes: Inboxes, reader: Dedicated, redis: Redis, keys: Keys
) -> None:
    for n in range(6):
        await inboxes.push("i", "kind", b"%d" % n)
    entries = await read(inboxes, reader)
    await redis.call("XDEL", keys.inbox("i"), entries[0].id, entries[3].id, entries[5].id)
    left = [entries[1], entries[2], entries[4]]
    _, again = await inboxes.reclaim("i", 0, 100)
    assert again == left
    assert [row.id for row in await inboxes.pending("i", 0, 100)] == [entry.id for entry in left]


async def test_a_takeover_gets_what_was_given_out_and_then_what_was_not(
    inboxes: Inboxes, reader: Dedicated, redis: Redis, keys: Keys
) -> None:
    for n in range(6):
        await inboxes.push("i", "kind", b"%d" % n)
    given = await read(inboxes, reader, 3)
    await redis.call("XDEL", keys.inbox("i"), given[1].id)
    assert await inboxes.own("i", 100) == [given[0], given[2]]
    assert [entry.data for entry in await inboxes.unread("i", 100)] == [b"3", b"4", b"5"]
    assert [entry.data for entry in await inboxes.own("i", 100)] == [b"0", b"2", b"3", b"4", b"5"]
    assert await inboxes.unread("i", 100) == []


# -- dead letters -----------------------------------------------------------------------------------


async def test_a_dead_letter_carries_what_a_person_needs(
    inboxes: Inboxes, reader: Dedicated, redis: Redis, keys: Keys
) -> None:
    await inboxes.push("i", "job_assign", b"body", trace_id="t")
    (entry,) = await read(inboxes, reader)
    assert await inboxes.dead_letter("i", entry.id, "nobody understood it", 6) == "OK"
    ((_, flat),) = await redis.call("XRANGE", keys.dlq("i"), "-", "+")
    letter = dict(zip(flat[::2], flat[1::2], strict=True))
    assert int(letter.pop(b"dead_ms")) >= int(letter[b"added_ms"])
    assert letter == {
        b"v": b"1",
        b"type": b"job_assign",
        b"trace_id": b"t",
        b"size": b"4",
        b"data": b"body",
        b"entry_id": entry.id.encode(),
        b"added_ms": entry.id.split("-")[0].encode(),
        b"reason": b"nobody understood it",
        b"deliveries": b"6",
    }
    assert await redis.call("SMEMBERS", keys.dlq_instances) == [b"i"]
    assert await balance(inboxes) == InboxCounts(added=1, dead=1)
    assert await inboxes.pending("i", 0, 10) == []


class Interrupted:
    """A client in whose calls somebody cleans up between the index of letters and the letter itself."""

    def __init__(self, redis: Redis, letters: InboxDeadLetters) -> None:
        self._redis, self._letters = redis, letters
        self.evaluate, self._interrupted = redis.evaluate, False

    def call(self, command: str, key: str, *args: Any) -> "asyncio.Future[Any]":
        async def then_clean_up() -> Any:
            reply = await self._redis.call(command, key, *args)
            if not self._interrupted:
                self._interrupted = True
                assert await self._letters.counts() == {}
            return reply

        return asyncio.ensure_future(then_clean_up())


async def test_a_letter_is_found_even_if_the_index_was_cleaned_up_just_before_it_came(
    inboxes: Inboxes, reader: Dedicated, redis: Redis, keys: Keys
) -> None:
    await inboxes.push("i", "kind", b"x")
    (entry,) = await read(inboxes, reader)
    letters = InboxDeadLetters(redis, keys, inboxes)
    hurried = Inboxes(Interrupted(redis, letters), keys, SETTINGS)  # type: ignore[arg-type]
    assert await hurried.dead_letter("i", entry.id, "why", 6) == "OK"
    assert await letters.counts() == {"i": 1}


# -- the whole --------------------------------------------------------------------------------------
