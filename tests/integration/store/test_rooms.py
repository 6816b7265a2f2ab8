"""Rooms on every kind of Redis: a conversation from its first member to its transcript, by the time of Redis itself."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dragoman.domain.rooms import Entry, EntryKind, Member, Role
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.rooms.rooms import (
    Appended,
    Changed,
    Closed,
    Done,
    Joined,
    Left,
    Planned,
    Refusal,
    RoomBounds,
    RoomCounts,
    Rooms,
    RoomState,
    Updated,
    Visited,
)
from support.redis_servers import Connect
from support.waiting import wait_until

ROOM, CODE = "room-1", "123456"
BOUNDS = RoomBounds(max_entries=50)


@pytest.fixture
def rooms(redis: Redis, keys: Keys) -> Rooms:
    return Rooms(redis, keys, BOUNDS)


async def create(rooms: Rooms, **given: Any) -> bool:
    said = {"tenant": "t", "creator": "p-s1", "settings": b'{"guests":true}', "log_epoch": "e1"}
    return await rooms.create(ROOM, CODE, **{**said, "persistent": False, "locked": False, **given})


def member(session: str, hears: str, instance: str = "a", **given: Any) -> Member:
    said = {"epoch": 0, "name": f'"{session}" / \\ ü', "speaks": "en", "principal": f"p-{session}"}
    return Member(session=session, instance=instance, hears=hears, **{**said, **given})


async def joined(rooms: Rooms, *members: Member) -> None:
    for each in members:
        assert isinstance(await rooms.join(ROOM, each), Joined)


async def say(rooms: Rooms, caption: str, session: str = "s1", **given: Any) -> Appended | Refusal:
    said = {"lang": "en", "text": "hello", "about": b'{"name":"Ana"}', **given}
    return await rooms.append_original(ROOM, caption, session, 0, **said)


async def test_a_conversation_from_its_first_member_to_its_transcript(rooms: Rooms) -> None:
    assert await create(rooms)
    assert not await create(rooms), "it exists"
    first = await rooms.join(ROOM, member("s1", "en"))
    assert isinstance(first, Joined)
    assert (first.member.role, first.log_epoch, first.seq, first.first_seq) == (Role.HOST, "e1", 0, 1)
    assert first.member.joined_ms > 0
    await joined(rooms, member("s2", "es", "b", voice=True), member("s3", "fr", "b", role=Role.LISTENER))

    said = await say(rooms, "s1:u0")
    assert isinstance(said, Appended)
    assert said == Appended(1, said.at_ms, False, [Planned("es", 1, True), Planned("fr", 1, False)], ["a", "b"])
    again = await say(rooms, "s1:u0", text="hello again")
    assert isinstance(again, Appended)
    assert (again.seq, again.again, again.planned) == (1, True, said.planned)
    translated = await rooms.append_translation(ROOM, "s1:u0", "es", 1, "hola")
    assert isinstance(translated, Appended)
    assert translated == Appended(2, translated.at_ms, False, [], ["a", "b"])
    assert await rooms.append_translation(ROOM, "s1:u0", "es", 1, "hola") is Refusal.LATE
    assert isinstance(await rooms.append_translation(ROOM, "s1:u0", "fr", 1, "", reason="no_node"), Appended)
    assert await rooms.plan(ROOM, "s1:u0", "es") == Done(2)
    assert await rooms.plan(ROOM, "s1:u0", "fr") == Planned("fr", 2, False)
    assert isinstance(await say(rooms, "s9:u0", "s9", lost=True, text="NO_NODE"), Appended), "s9 left before"
    log = [
        Entry(1, EntryKind.ORIGINAL, "s1:u0", "en", "hello", b'{"name":"Ana"}'),
        Entry(2, EntryKind.TRANSLATION, "s1:u0", "es", "hola"),
        Entry(3, EntryKind.UNTRANSLATED, "s1:u0", "fr", "no_node"),
        Entry(4, EntryKind.LOST, "s9:u0", "en", "NO_NODE", b'{"name":"Ana"}'),
    ]
    found = await rooms.read(ROOM, 0, 100)
    assert [replace(entry, at_ms=0) for entry in found] == log
    assert found[0].at_ms == said.at_ms
    assert await rooms.read(ROOM, 1, 2, upto=3) == found[1:3]
    assert [await rooms.last(ROOM, captions) for captions in (1, 2, 50)] == [3, 0, 0]

    closed = await rooms.close(ROOM, "host", only_if_over=False)
    assert isinstance(closed, Closed)
    assert (closed.code, closed.instances, sorted(closed.sessions)) == (CODE, ["a", "b"], ["s1", "s2", "s3"])
    assert await rooms.read(ROOM, 0, 100) == found
    info = await rooms.info(ROOM)
    assert info is not None
    assert (info.closed, info.seq, info.settings) == ("host", 4, b'{"guests":true}')
    state = await rooms.state(ROOM)
    assert state is not None
    assert state.closed == "host"
    assert await rooms.join(ROOM, member("s1", "en")) is Refusal.NONE
    assert await rooms.members(ROOM) == []


async def test_a_late_leave_after_a_resume_removes_nobody(rooms: Rooms) -> None:
    await create(rooms)
    await joined(rooms, member("s1", "en", "a", epoch=1))
    again = await rooms.join(ROOM, member("s1", "en", "b", epoch=2))
    assert isinstance(again, Joined)
    assert (again.again, again.instances, again.member.role) == (True, ["b"], Role.HOST)
    assert await rooms.leave(ROOM, "s1", 1) is Refusal.STALE
    assert await rooms.append_original(ROOM, "c", "s1", 1, lang="en", text="x", about=b"") is Refusal.FENCED
    assert [(each.instance, each.epoch) for each in await rooms.members(ROOM)] == [("b", 2)]
    left = await rooms.leave(ROOM, "s1", 2)
    assert isinstance(left, Left)
    assert (left.members, left.instances, left.instance) == (0, [], "b")
    assert await rooms.leave(ROOM, "s1", 2) is Refusal.NOT_MEMBER


async def test_the_longest_present_speaker_becomes_host_before_any_listener(rooms: Rooms) -> None:
    await create(rooms)
    await joined(rooms, member("s1", "en"), member("s2", "en", role=Role.LISTENER), member("s3", "en"))
    left = await rooms.leave(ROOM, "s1", 0)
    assert isinstance(left, Left)
    assert left.host == "s3"
    left = await rooms.leave(ROOM, "s3", 0)
    assert isinstance(left, Left)
    assert left.host == "s2"


async def test_a_host_locks_pauses_transfers_and_removes(rooms: Rooms) -> None:
    await create(rooms, locked=True)
    await joined(rooms, member("s1", "en"))
    assert await rooms.join(ROOM, member("s2", "es")) is Refusal.LOCKED, "only the creator gets in"
    assert isinstance(await rooms.set_field(ROOM, "s1", 0, "locked", False), Changed)
    await joined(rooms, member("s2", "es"), member("s3", "fr"))
    assert await rooms.set_field(ROOM, "s2", 0, "paused", True) is Refusal.NOT_HOST
    assert isinstance(await rooms.set_field(ROOM, "s1", 0, "paused", True), Changed)
    assert await say(rooms, "s1:u0") is Refusal.PAUSED
    assert isinstance(await rooms.transfer(ROOM, "s1", 0, "s2"), Changed)
    assert await rooms.set_field(ROOM, "s1", 0, "paused", False) is Refusal.NOT_HOST
    removed = await rooms.remove(ROOM, "s2", 0, "s3")
    assert isinstance(removed, Left)
    assert removed.members == 2
    assert await rooms.join(ROOM, member("s4", "fr", principal="p-s3")) is Refusal.REMOVED
    with pytest.raises(ValueError, match="a host cannot set closed"):
        await rooms.set_field(ROOM, "s2", 0, "closed", b"x")


async def test_members_change_what_they_hear(rooms: Rooms) -> None:
    await create(rooms)
    await joined(rooms, member("s1", "en"), member("s2", "es", "b", voice=True))
    assert await rooms.counts(ROOM) == RoomCounts({"a": 1, "b": 1}, {"en": 1, "es": 1}, {"es": 1})
    changed = await rooms.update(ROOM, "s2", 0, {"hears": "fr", "muted": True})
    assert isinstance(changed, Updated)
    assert (changed.member.hears, changed.member.muted, changed.version) == ("fr", True, 3)
    assert await rooms.counts(ROOM) == RoomCounts({"a": 1, "b": 1}, {"en": 1, "fr": 1}, {"fr": 1})
    assert await rooms.state(ROOM) == RoomState(3, 0, "e1", 0)
    with pytest.raises(ValueError, match="a member cannot change"):
        await rooms.update(ROOM, "s2", 0, {"role": "host"})


async def test_an_overdue_language_ends_at_a_visit_and_an_empty_room_is_over(redis: Redis, keys: Keys) -> None:
    rooms = Rooms(redis, keys, RoomBounds(translate_timeout_ms=1, empty_grace_ms=1))
    await create(rooms)
    await joined(rooms, member("s1", "en"), member("s2", "es"))
    await say(rooms, "s1:u0")
    visits: list[Visited | Refusal] = []

    async def visited() -> bool:
        visits.append(await rooms.expire_pending(ROOM))
        return isinstance(visits[-1], Visited) and bool(visits[-1].expired)

    await wait_until(visited)
    assert isinstance(visits[-1], Visited)
    at_ms = visits[-1].expired[0].at_ms
    assert visits[-1].expired == [Entry(2, EntryKind.UNTRANSLATED, "s1:u0", "es", "timeout", at_ms=at_ms)]
    assert (visits[-1].instances, visits[-1].over) == (["a"], "")
    assert await rooms.close(ROOM, "empty", only_if_over=True) is Refusal.OPEN
    for session in ("s1", "s2"):
        assert isinstance(await rooms.leave(ROOM, session, 0), Left)

    async def closed() -> bool:
        return isinstance(await rooms.close(ROOM, "empty", only_if_over=True), Closed)

    await wait_until(closed)


async def test_the_oldest_entries_go_when_the_log_is_full(rooms: Rooms) -> None:
    await create(rooms)
    await joined(rooms, member("s1", "en"))
    await asyncio.gather(*(say(rooms, f"s1:u{n}") for n in range(BOUNDS.max_entries + 5)))
    kept = await rooms.read(ROOM, 0, 100)
    assert [entry.seq for entry in kept] == list(range(6, BOUNDS.max_entries + 6))
    assert await rooms.plan(ROOM, "s1:u0", "es") is Refusal.NONE
    again = await rooms.join(ROOM, member("s1", "en"))
    assert isinstance(again, Joined)
    assert (again.first_seq, again.seq) == (6, BOUNDS.max_entries + 5)


async def test_instances_that_append_at_once_leave_no_gap_and_write_nothing_twice(
    rooms: Rooms, connect: Connect, keys: Keys
) -> None:
    other = Rooms(await connect(), keys, BOUNDS)
    await create(rooms)
    await joined(rooms, member("s1", "en"), member("s2", "es"))
    replies = await asyncio.gather(*(say((rooms, other)[n % 2], f"s1:u{n // 2}") for n in range(20)))
    assert sorted(reply.again for reply in replies if isinstance(reply, Appended)) == [False] * 10 + [True] * 10
    ends = await asyncio.gather(
        *((rooms, other)[n % 2].append_translation(ROOM, f"s1:u{n // 2}", "es", 1, "hola") for n in range(20))
    )
    assert sorted(reply is Refusal.LATE for reply in ends) == [False] * 10 + [True] * 10
    assert [entry.seq for entry in await rooms.read(ROOM, 0, 100)] == list(range(1, 21))


async def test_a_code_leads_to_one_room_until_it_is_released(rooms: Rooms) -> None:
    assert await rooms.claim_code(CODE, ROOM)
    assert not await rooms.claim_code(CODE, "room-2")
    assert await rooms.room_of_code(CODE) == ROOM
    assert await rooms.renew_code(CODE, ROOM, 60_000)
    assert not await rooms.renew_code(CODE, "room-2", 60_000)
    await rooms.release_code(CODE, "room-2")
    assert await rooms.room_of_code(CODE) == ROOM
    await rooms.release_code(CODE, ROOM)
    assert await rooms.room_of_code(CODE) is None


async def test_a_created_room_is_in_the_index_until_it_is_forgotten(redis: Redis, keys: Keys) -> None:
    rooms = Rooms(redis, keys, RoomBounds(empty_grace_ms=1, translate_timeout_ms=1))
    await create(rooms)
    assert await rooms.open_rooms(0, 10) == [ROOM]
    claimed: list[str] = []

    async def is_due() -> bool:
        claimed.extend(await rooms.claim_due(10, 60_000))
        return bool(claimed)

    await wait_until(is_due)
    assert claimed == [ROOM]
    assert await Rooms(redis, keys, BOUNDS).claim_due(10, 60_000) == [], "one visitor at a time"
    visited = await rooms.expire_pending(ROOM)
    assert isinstance(visited, Visited)
    await rooms.schedule(ROOM, 0, visited.claim)
    assert await rooms.claim_due(10, 60_000) == [ROOM]
    await rooms.forget_due(ROOM)
    assert await rooms.open_rooms(0, 10) == []


async def test_the_room_of_a_session_is_noted_with_its_epoch(rooms: Rooms) -> None:
    assert await rooms.session_room("s1") is None
    await rooms.note_session("s1", ROOM, 3)
    assert await rooms.session_room("s1") == (ROOM, 3)
    await rooms.forget_session("s1")
    assert await rooms.session_room("s1") is None
