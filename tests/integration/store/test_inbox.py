"""The inbox: nothing is trimmed, each entry is done once or becomes a dead letter, and the books balance."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.store.dead_letters import InboxDeadLetters
from dragoman.store.errors import Refused
from dragoman.store.inbox import MAX_ENTRY_BYTES, InboxCounts, InboxEntry, Inboxes, InboxSettings, PushReply
from dragoman.store.instances import Instances
from dragoman.store.keys import Keys
from dragoman.store.redis import Dedicated, Redis
from support.redis_servers import Connect

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


async def counted_by_hand(redis: Redis, keys: Keys, *fields: str | bytes) -> str:
    """An entry that no push has made, but counted as if it had."""
    id: bytes = await redis.call("XADD", keys.inbox("i"), "*", *fields)
    await redis.call("HINCRBY", keys.counts("i"), "added", 1)
    return id.decode()


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


async def test_push_to_a_missing_inbox_gets_gone(inboxes: Inboxes) -> None:
    assert await inboxes.push("nobody", "kind", b"x") is PushReply.GONE
    assert await inboxes.counts("nobody") == InboxCounts()


async def test_an_inbox_full_by_number_refuses_and_keeps_all_it_has(
    inboxes: Inboxes, reader: Dedicated, connect: Connect, keys: Keys
) -> None:
    other = Inboxes(await connect(), keys, SETTINGS)
    pushes = [(inboxes, other)[n % 2].push("i", "kind", b"x") for n in range(SETTINGS.maxlen + 50)]
    answers = await asyncio.gather(*pushes)
    assert answers.count(PushReply.OK) == SETTINGS.maxlen
    assert answers.count(PushReply.FULL) == 50
    first = await read(inboxes, reader, 1)
    assert await inboxes.push("i", "kind", b"x") is PushReply.FULL, "what was given out is still there"
    await inboxes.done("i", first)
    assert await inboxes.push("i", "kind", b"x") is PushReply.OK
    assert (await balance(inboxes)).waiting == SETTINGS.maxlen


async def test_an_inbox_full_by_bytes_refuses_until_some_are_done(inboxes: Inboxes, reader: Dedicated) -> None:
    body = b"x" * MAX_ENTRY_BYTES
    assert [await inboxes.push("i", "kind", body) for _ in range(11)] == [PushReply.OK] * 10 + [PushReply.FULL]
    assert await inboxes.push("i", "kind", b"") is PushReply.OK, "nothing takes no room"
    assert (await inboxes.counts("i")).bytes == SETTINGS.max_bytes
    await inboxes.done("i", await read(inboxes, reader, 1))
    assert await inboxes.push("i", "kind", body) is PushReply.OK
    assert (await balance(inboxes)).bytes == SETTINGS.max_bytes


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


async def test_an_entry_is_done_once(inboxes: Inboxes, reader: Dedicated, connect: Connect, keys: Keys) -> None:
    other = Inboxes(await connect(), keys, SETTINGS)
    for _ in range(10):
        await inboxes.push("i", "kind", b"four")
    entries = await read(inboxes, reader)
    counts = await asyncio.gather(*((inboxes, other)[n % 2].done("i", entries) for n in range(6)))
    assert sum(counts) == 10
    assert await balance(inboxes) == InboxCounts(added=10, done=10, dead=0, bytes=0, waiting=0)
    assert await inboxes.pending("i", 0, 10) == []


async def test_entries_without_a_body_are_done_and_die_like_others(inboxes: Inboxes, reader: Dedicated) -> None:
    for _ in range(2):
        await inboxes.push("i", "kind", b"")
    first, second = await read(inboxes, reader)
    assert await inboxes.done("i", [first]) == 1
    assert await inboxes.dead_letter("i", second.id, "why", 6) == "OK"
    assert await balance(inboxes) == InboxCounts(added=2, done=1, dead=1)


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


async def test_an_entry_dies_once(inboxes: Inboxes, reader: Dedicated) -> None:
    await inboxes.push("i", "kind", b"x")
    (entry,) = await read(inboxes, reader)
    assert await inboxes.dead_letter("i", entry.id, "why", 6) == "OK"
    assert await inboxes.dead_letter("i", entry.id, "why", 6) == "NONE"
    assert await inboxes.done("i", [entry]) == 0
    assert await balance(inboxes) == InboxCounts(added=1, dead=1)


async def test_a_full_dead_letter_office_leaves_the_entry_pending(inboxes: Inboxes, reader: Dedicated) -> None:
    for _ in range(SETTINGS.dlq_maxlen + 2):
        await inboxes.push("i", "kind", b"x")
    entries = await read(inboxes, reader)
    answers = [await inboxes.dead_letter("i", entry.id, "why", 6) for entry in entries]
    assert answers == ["OK"] * SETTINGS.dlq_maxlen + ["FULL"] * 2
    assert [row.id for row in await inboxes.pending("i", 0, 10)] == [entry.id for entry in entries[-2:]]
    assert await balance(inboxes) == InboxCounts(added=7, dead=5, bytes=2, waiting=2)


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


@pytest.mark.parametrize(
    "fields",
    [
        ("type", "job_assign", "data", "x"),
        ("v", "one", "type", "job_assign", "data", "x"),
        ("v", "1", "type", b"\xff", "data", "x"),
        ("some", "thing"),
    ],
)
async def test_unknown_entry_is_read_without_a_kind_and_can_become_a_dead_letter(
    inboxes: Inboxes, reader: Dedicated, redis: Redis, keys: Keys, fields: tuple[str | bytes, ...]
) -> None:
    await counted_by_hand(redis, keys, *fields)
    await inboxes.push("i", "kind", b"fine")
    corrupt, fine = await read(inboxes, reader)
    assert (corrupt.kind, fine.kind) == ("", "kind")
    assert await inboxes.dead_letter("i", corrupt.id, "unreadable", 1) == "OK"
    assert await balance(inboxes) == InboxCounts(added=2, dead=1, waiting=1, bytes=4)


async def test_entry_of_a_later_release_is_recognised(
    inboxes: Inboxes, reader: Dedicated, redis: Redis, keys: Keys
) -> None:
    await counted_by_hand(redis, keys, "v", "2", "type", "kind", "data", "x")
    (entry,) = await read(inboxes, reader)
    assert entry.newer


# -- the whole --------------------------------------------------------------------------------------


async def test_a_lost_group_is_made_again_and_misses_nothing(
    inboxes: Inboxes, reader: Dedicated, redis: Redis, keys: Keys
) -> None:
    await inboxes.push("i", "kind", b"1")
    await redis.call_at(keys.inbox("i"), "XGROUP", "DESTROY", keys.inbox("i"), SETTINGS.group)
    with pytest.raises(Refused) as refused:
        await read(inboxes, reader)
    assert refused.value.word == "NOGROUP"
    await inboxes.ensure_group("i")
    await inboxes.ensure_group("i")
    assert [entry.data for entry in await read(inboxes, reader)] == [b"1"]


async def test_counts_balance_after_any_sequence_of_operations(
    inboxes: Inboxes, reader: Dedicated, connect: Connect, keys: Keys
) -> None:
    other, rng = Inboxes(await connect(), keys, SETTINGS), random.Random(7)
    pushed = dead = done = 0
    for _ in range(30):
        bodies = [b"x" * rng.randrange(50) for _ in range(rng.randrange(1, 40))]
        pushes = await asyncio.gather(*(other.push("i", "kind", body) for body in bodies))
        pushed += pushes.count(PushReply.OK)
        entries = await read(inboxes, reader, rng.randrange(1, 40))
        rng.shuffle(entries)
        dying, finished = entries[:2], entries[2 : rng.randrange(2, 40)]
        both = asyncio.gather(inboxes.done("i", finished), other.done("i", finished))
        letters = await asyncio.gather(*(other.dead_letter("i", entry.id, "why", 6) for entry in dying))
        done += sum(await both)
        dead += letters.count("OK")
        assert (await balance(inboxes)).done == done
    tally = await balance(inboxes)
    assert (tally.added, tally.done, tally.dead) == (pushed, done, dead)
    assert dead == SETTINGS.dlq_maxlen
    while entries := [*(await inboxes.reclaim("i", 0, 1000))[1], *await read(inboxes, reader, 1000)]:
        done += await inboxes.done("i", entries)
    assert await balance(inboxes) == InboxCounts(added=pushed, done=done, dead=dead, bytes=0, waiting=0)


async def test_many_pushers_and_one_reader_lose_and_double_nothing(
    inboxes: Inboxes, reader: Dedicated, connect: Connect, keys: Keys
) -> None:
    others = [Inboxes(await connect(), keys, SETTINGS) for _ in range(2)]
    seen: list[bytes] = []

    async def pusher(n: int) -> None:
        for turn in range(20):
            assert await others[n % 2].push("i", "kind", b"%d-%d" % (n, turn)) is PushReply.OK

    async def worker() -> None:
        while len(seen) < 40 * 20:
            entries = await inboxes.read(reader, "i", 64, block_ms=1000)
            seen.extend(entry.data for entry in entries)
            await inboxes.done("i", entries)

    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(worker(), *(pusher(n) for n in range(40)))
    assert sorted(seen) == sorted(b"%d-%d" % (n, turn) for n in range(40) for turn in range(20))
    for n in range(40):
        mine = [data for data in seen if data.startswith(b"%d-" % n)]
        assert mine == [b"%d-%d" % (n, turn) for turn in range(20)], "in the order they were pushed"
    assert await balance(inboxes) == InboxCounts(added=800, done=800)
