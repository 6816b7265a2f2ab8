"""A chat shard from accept to row: order, what an overtaken holder can do (nothing), and what cannot be read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.domain.limits.rates import cost
from dragoman.store.chat import shards as chat_shards
from dragoman.store.chat.entries import AcceptReply, ChatEntry, SavedEntry, ShardStatus, Unreadable
from dragoman.store.chat.shards import DeadLetterLimits, Shards, StreamNames
from dragoman.store.keys import Keys
from dragoman.store.redis import Dedicated, Redis
from support.waiting import wait_until

TTL_MS = 60_000
SHARE = 1000
ID = 2**62
SENDER, OTHER = 7, 8
LONG_MS, SHORT_MS = 20_000, 50


def shards_of(
    redis: Redis, keys: Keys, count: int = 1, keep: DeadLetterLimits | None = None, bytes_per_day: int = 0
) -> Shards:
    streams = f"{keys.im}:stream:single_chat"
    return Shards(
        redis,
        keys,
        StreamNames(f"{streams}:accepted", f"{streams}:to_save", "deliver", "save"),
        count,
        TTL_MS,
        keep,
        bytes_per_day,
    )


@pytest.fixture
def shards(redis: Redis, keys: Keys) -> Shards:
    return shards_of(redis, keys)


def message(number: int, sender: int = SENDER, client_msg_id: str = "", body: str = "héllo") -> ChatEntry:
    client_msg_id = client_msg_id or f"m-{number}"
    return ChatEntry("", ID + number, client_msg_id, sender, 9, "TEXT", body, 11, 12, "i1", "save_first")


async def accept(shards: Shards, *numbers: int, sender: int = SENDER) -> None:
    for number in numbers:
        assert (await shards.accept(message(number, sender), "digest", SHARE))[0] is AcceptReply.OK


async def take(shards: Shards, instance: str = "i1", shard: int = 0) -> str:
    """The lease, from whoever has it."""
    await shards.redis.call("DEL", shards.keys.lease(shards._tags[shard]))
    fence = await shards.take_lease(shard, instance, 0, TTL_MS)
    return f"{instance}|{fence}"


@asynccontextmanager
async def reading(shards: Shards) -> AsyncIterator[Dedicated]:
    reader = shards.reader(0)
    try:
        yield reader
    finally:
        await reader.close()


async def accepted(shards: Shards, after: str = "0", count: int = 100) -> list[Any]:
    async with reading(shards) as reader:
        return await shards.next_entries(reader, shards.accepted(0), after, count)


def ids(entries: list[Any]) -> list[int]:
    return [entry.id - ID for entry in entries]


# -- the whole way


async def test_a_message_goes_from_accepted_to_saved_and_leaves_nothing_but_its_claim(shards: Shards) -> None:
    holder = await take(shards)
    assert await shards.accept(message(1), "digest", SHARE) == (AcceptReply.OK, 1)
    assert await shards.unsaved(SENDER) == 1
    (read,) = await accepted(shards)
    assert read == ChatEntry(read.entry, ID + 1, "m-1", SENDER, 9, "TEXT", "héllo", 11, 12, "i1", "save_first")
    assert await shards.finish_saved(0, holder, shards.accepted(0), [SavedEntry(read, read.id)]) == []
    assert await shards.unsaved(SENDER) == 0
    assert await accepted(shards) == []
    assert await shards.claim(SENDER, "m-1") == {"id": str(ID + 1), "to": "9", "digest": "digest", "saved": "1"}
    assert await shards.status(0) == ShardStatus(accepted=1, saved=1, fence=1, holder=holder)
    assert await shards.accept(message(2, client_msg_id="m-1"), "digest", SHARE) == (AcceptReply.SAVED, ID + 1)


async def test_a_sender_stores_so_many_bytes_a_day_and_another_one_its_own(redis: Redis, keys: Keys) -> None:
    shards = shards_of(redis, keys, bytes_per_day=2 * cost("héllo"))
    await accept(shards, 1, 2)
    used = 2 * cost("héllo")
    assert await shards.accept(message(3), "digest", SHARE) == (AcceptReply.OVER, used)
    assert (await shards.accept(message(3, client_msg_id="m-1"), "digest", SHARE))[0] is AcceptReply.DUPLICATE
    assert (await shards.accept(message(4), "digest", SHARE, without_quota=True))[0] is AcceptReply.OK
    await accept(shards, 5, sender=OTHER)
    told, left_s = await shards.spent(SENDER)
    assert told == used
    assert 86_300 < left_s <= 86_400


async def moved_to_dead(shards: Shards, holder: str, *numbers: int) -> None:
    await accept(shards, *numbers)
    for entry in await accepted(shards):
        assert await shards.move_to_dead(0, holder, shards.accepted(0), entry, "why", 5) == 0


async def dead_ids(shards: Shards) -> list[int]:
    rows = await shards.redis.call("XRANGE", shards.dead(0), "-", "+")
    return [entry.id - ID for row in rows if isinstance(entry := ChatEntry.parse(*row), ChatEntry)]


async def test_dead_letters_that_are_too_old_are_dropped_and_counted(redis: Redis, keys: Keys) -> None:
    shards = shards_of(redis, keys, keep=DeadLetterLimits(max_age_ms=3_600_000))
    holder = await take(shards)
    fields = message(1).fields()
    await redis.call("XADD", shards.dead(0), "1-1", *fields)  # in 1970
    await moved_to_dead(shards, holder, 2)
    assert await dead_ids(shards) == [2]
    assert (await shards.status(0)).dropped == 1
    assert await shards.trim_dead_letters(0) == 0


async def test_body_of_an_unsaved_message_is_found_in_either_stream(
    shards: Shards, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier releases moved entries to a second one."""
    monkeypatch.setattr(chat_shards, "PAGE", 2)
    await redis.call("XADD", shards.to_save(0), "*", *message(1, body="left").fields(), "pushedTo", "i1|1")
    await accept(shards, *range(2, 7))
    assert [await shards.unsaved_body(SENDER, ID + number) for number in (1, 2, 6, 7)] == [
        "left", "héllo", "héllo", None,
    ]  # fmt: skip


async def test_repeated_request_renews_the_claim(shards: Shards, redis: Redis, keys: Keys) -> None:
    await accept(shards, 1)
    claim = keys.claim(shards._tags[0], SENDER, "m-1")
    await redis.call("PEXPIRE", claim, 1000)
    await shards.accept(message(2, client_msg_id="m-1"), "digest", SHARE)
    assert int(await redis.call("PTTL", claim)) > 1000


async def test_the_fields_of_an_entry_have_the_names_others_read(shards: Shards, redis: Redis) -> None:
    await accept(shards, 1)
    names = ["serverMsgId", "clientMsgId", "fromUserId", "toUserId", "msgType", "body", "sendTs", "createdAtMs"]
    names += ["producerServerId", "mode", "v"]
    ((_, fields),) = await redis.call("XRANGE", shards.accepted(0), "-", "+")
    assert [name.decode() for name in fields[::2]] == names


async def test_first_holder_reads_a_shard_from_its_first_entry(shards: Shards) -> None:
    await accept(shards, 1, 2, 3)
    await take(shards)
    assert ids(await accepted(shards)) == [1, 2, 3]


async def test_senders_are_accepted_in_the_slot_of_their_shard(redis: Redis, keys: Keys) -> None:
    shards = shards_of(redis, keys, 16)
    for sender in range(1, 101):
        assert (await shards.accept(message(sender, sender), "d", SHARE))[0] is AcceptReply.OK
    tallies = await asyncio.gather(*(shards.status(shard) for shard in range(16)))
    assert sum(tally.backlog for tally in tallies) == 100
    for shard, tally in enumerate(tallies):
        assert tally.accepted == tally.accepted_len == sum(shards.shard_of(sender) == shard for sender in range(1, 101))


# -- the holder, and those before it


async def test_next_holder_reads_all_that_is_not_finished_page_by_page(shards: Shards) -> None:
    first = await take(shards, "i1")
    await accept(shards, 1, 2, 3, 4)
    read = await accepted(shards, count=3)
    assert await shards.finish_saved(0, first, shards.accepted(0), [SavedEntry(read[0], read[0].id)]) == []
    second = await take(shards, "i2")
    page = await accepted(shards, count=2)
    assert ids(page) == [2, 3]
    page = await accepted(shards, after=page[-1].entry, count=2)
    assert ids(page) == [4]
    assert await accepted(shards, after=page[-1].entry, count=2) == []
    assert await shards.finish_saved(0, first, shards.accepted(0), [SavedEntry(page[0], page[0].id)]) is None
    assert await shards.finish_saved(0, second, shards.accepted(0), [SavedEntry(page[0], page[0].id)]) == []


async def test_repeated_finish_whose_answer_was_lost_counts_nothing_twice(shards: Shards) -> None:
    holder = await take(shards)
    await accept(shards, 1, 2, 3)
    rows = [SavedEntry(entry, entry.id) for entry in await accepted(shards)]
    for _ in range(2):
        assert await shards.finish_saved(0, holder, shards.accepted(0), rows[:2]) == []
    assert await shards.finish_saved(0, holder, shards.accepted(0), rows) == []
    assert await shards.status(0) == ShardStatus(accepted=3, saved=3, fence=1, holder=holder)


async def blocked(redis: Redis, key: str) -> bool:
    info = (await redis.call_at(key, "INFO", "clients")).decode()
    return "blocked_clients:0" not in info


async def test_blocking_read_returns_new_entries(shards: Shards) -> None:
    async with reading(shards) as reader:
        waiting = asyncio.ensure_future(shards.next_entries(reader, shards.accepted(0), "0", 10, LONG_MS))
        await wait_until(lambda: blocked(shards.redis, shards.accepted(0)))
        await accept(shards, 1)
        assert ids(await waiting) == [1]


async def test_blocking_read_returns_nothing_after_its_timeout(shards: Shards) -> None:
    """Also when something is left in the stream: it was read before."""
    await accept(shards, 1)
    (read,) = await accepted(shards)
    began = asyncio.get_running_loop().time()
    async with reading(shards) as reader:
        assert await shards.next_entries(reader, shards.accepted(0), read.entry, 10, SHORT_MS) == []
    assert asyncio.get_running_loop().time() - began >= SHORT_MS / 1000 * 0.9


# -- what cannot be read


FIELDS = [str(part) for part in message(1).fields()]
BROKEN = {
    "no fields of ours": ["a", "b"],
    "no version": FIELDS[:-2],
    "no receiver": FIELDS[:6] + FIELDS[8:],
    "a sender that is no number": [*FIELDS[:5], "bob", *FIELDS[6:]],
    "a text that is no text": [*FIELDS[:11], b"\xff\xfe", *FIELDS[12:]],
    "a version that is no number": [*FIELDS[:-1], "one"],
}


@pytest.mark.parametrize("fields", BROKEN.values(), ids=BROKEN)
async def test_unreadable_entry_stays_until_it_is_moved_to_the_dead_letters(
    shards: Shards, redis: Redis, fields: list[Any]
) -> None:
    holder = await take(shards)
    await accept(shards, 1)
    entry = (await redis.call("XADD", shards.accepted(0), "*", *fields)).decode()
    first, broken = await accepted(shards)
    assert isinstance(first, ChatEntry)
    assert isinstance(broken, Unreadable)
    assert (broken.entry, broken.newer) == (entry, False)
    assert "it cannot be read" in broken.why
    assert await shards.move_to_dead(0, holder, shards.accepted(0), broken, broken.why, 1) == 0
    tally = await shards.status(0)
    assert (tally.accepted_len, tally.dead_len) == (1, 1)


async def test_entry_of_a_later_release_is_recognised_and_extra_fields_are_ignored(
    shards: Shards, redis: Redis
) -> None:
    await redis.call("XADD", shards.accepted(0), "*", *FIELDS[:-1], "2")
    await redis.call("XADD", shards.accepted(0), "*", *FIELDS, "colour", "red")
    newer, known = await accepted(shards)
    assert isinstance(newer, Unreadable)
    assert newer.newer
    assert isinstance(known, ChatEntry)


async def test_an_entry_that_a_person_deleted_becomes_no_dead_letter(shards: Shards, redis: Redis) -> None:
    holder = await take(shards)
    await accept(shards, 1)
    (read,) = await accepted(shards)
    await redis.call("XDEL", shards.accepted(0), read.entry)
    assert await shards.move_to_dead(0, holder, shards.accepted(0), read, "why", 1) == 0
    assert (await shards.status(0)).dead_len == 0


async def test_a_dead_letter_says_why_and_its_sender_may_try_anew(shards: Shards, redis: Redis) -> None:
    holder = await take(shards)
    await accept(shards, 1)
    (read,) = await accepted(shards)
    assert await shards.move_to_dead(0, holder, shards.accepted(0), read, "w" * 1000, 5) == 0
    ((_, fields),) = await redis.call("XRANGE", shards.dead(0), "-", "+")
    letter = dict(zip(fields[::2], fields[1::2], strict=True))
    assert (letter[b"deadReason"], letter[b"tries"], letter[b"body"]) == (b"w" * 500, b"5", "héllo".encode())
    assert letter[b"deadMs"].isdigit()
    assert await shards.claim(SENDER, "m-1") == {}
    assert await shards.unsaved(SENDER) == 0
    assert await shards.accept(message(2, client_msg_id="m-1"), "other", SHARE) == (AcceptReply.OK, 1)


# -- what can be seen


async def test_unused_shard_has_an_empty_tally(shards: Shards) -> None:
    assert await shards.status(0) == ShardStatus()


async def test_unknown_counters_of_a_later_release_are_ignored(shards: Shards, redis: Redis, keys: Keys) -> None:
    await accept(shards, 1)
    await redis.call("HSET", keys.shard(shards._tags[0]), "colour", "red")
    assert (await shards.status(0)).accepted == 1
