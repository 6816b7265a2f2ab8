"""The inbox is worked in order; what fails stays, what cannot be read becomes a dead letter at first sight."""

import asyncio

import pytest

from dragoman.instance.services import Stores
from dragoman.protocol.peer import InboxMessage, encode_peer
from dragoman.services.routing.router import Handlers
from dragoman.store.errors import RedisAway
from integration.services.members import Join, Member, jobs, said
from support.waiting import wait_until


async def test_entries_are_handled_in_order_and_gone_when_done(join: Join, stores: Stores) -> None:
    member = await join("a")
    names = [f"j{number}" for number in range(25)]
    for name in names:
        await member.push(said(name))
    for _ in range(3):
        await member.reader.run_once()
    assert jobs(member.handled) == names
    tally = await stores.inboxes.counts("a")
    assert (tally.added, tally.done, tally.waiting, tally.bytes) == (25, 25, 0, 0)


async def test_one_that_fails_stays_pending_and_those_behind_it_are_done(join: Join, stores: Stores) -> None:
    member = await join("a")
    await member.push(said("bad"))
    await member.push(said("good"))
    _fail_on(member, "bad", ValueError("not today"))
    await member.reader.run_once()
    assert jobs(member.handled) == ["good"]
    [pending] = await stores.inboxes.pending("a", 0, 10)
    assert member.reader.reasons[pending.id] == "ValueError: not today"
    assert await member.balanced()


async def test_nothing_is_handled_while_the_lease_is_over(join: Join) -> None:
    member = await join("a")
    await member.push(said("j"))
    member.pause()
    reading = asyncio.create_task(member.reader.run_once())
    await asyncio.sleep(0)
    assert member.handled == []
    await member.presence.run_once()
    await reading
    assert jobs(member.handled) == ["j"]


async def test_entries_read_before_the_takeover_are_not_handled_after_it(join: Join) -> None:
    """The survivor has handed it on; who got it works on it."""
    member, heir = await join("a"), await join("heir")
    for name in ("first", "second"):
        await member.push(said(name))
    handle = member.reader._handle

    async def pause_after(message: InboxMessage) -> None:
        await handle(message)
        member.pause()

    member.reader._handle = pause_after
    reading = asyncio.create_task(member.reader.run_once())
    await wait_until(lambda: member.handled)
    await member.die()
    await heir.takeover.run_once()
    await member.presence.run_once()
    await reading
    assert jobs(member.handled) == ["first"]
    assert jobs(heir.rehomed) == ["first", "second"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (("v", "1", "type", "from_node", "size", "1", "data", "{"), "The inbox entry cannot be read: "),
        (("v", "1", "type", "from_node", "size", "2", "data", "{}"), "The inbox entry cannot be read: "),
        (("v", "1", "type", "from_node", "size", "2", "data", b"\xff\xfe"), "The inbox entry cannot be read: "),
        (("v", "1", "type", b"\xff", "size", "2", "data", "{}"), "the entry has no type or no data"),
        (("v", "1", "type", "from_node", "size", "many", "data", "{}"), "the entry has no type or no data"),
        (("v", "1", "type", "from_node", "size", "1.5", "data", "{}"), "the entry has no type or no data"),
        (("type", "from_node", "data", "{}"), "the entry has no type or no data"),
        (("something", "else"), "the entry has no type or no data"),
    ],
)
async def test_unreadable_entry_becomes_a_dead_letter_at_the_first_read(
    join: Join, stores: Stores, fields: tuple[str | bytes, ...], reason: str
) -> None:
    member = await join("a")
    id = await member.push_raw(*fields)
    await member.push(said("behind it"))
    await member.reader.run_once()
    assert jobs(member.handled) == ["behind it"]
    [letter] = await stores.letters.list("a")
    assert letter.reason.startswith(reason)
    assert (letter.added_ms, letter.deliveries) == (int(id.split("-")[0]), 1)
    assert letter.dead_ms >= letter.added_ms
    assert await member.balanced()
    assert member.count("scheduler_phase2_dlq_moved_total") == 1


async def test_entries_of_a_later_release_are_left(join: Join, stores: Stores) -> None:
    member = await join("a")
    await member.push_raw("v", "2", "type", "from_node", "size", "2", "data", "{}")
    await member.reader.run_once()
    assert (member.handled, await stores.letters.list("a")) == ([], [])
    assert (await stores.inboxes.counts("a")).waiting == 1


async def test_a_lost_group_is_made_again_and_nothing_in_the_stream_is_lost(join: Join, stores: Stores) -> None:
    member, inbox = await join("a"), stores.keys.inbox("a")
    await member.push(said("j"))
    await stores.redis.call_at(inbox, "XGROUP", "DESTROY", inbox, stores.inboxes.settings.group)
    await member.reader.run_once()
    await member.reader.run_once()
    assert jobs(member.handled) == ["j"]


async def test_a_stream_deleted_under_a_waiting_reader_is_made_again(join: Join, stores: Stores) -> None:
    member, inbox = await join("a"), stores.keys.inbox("a")
    member.reader.block_ms = 300
    reading = asyncio.create_task(member.reader.run_once())
    await wait_until(lambda: _a_reader_waits(stores, inbox))
    await stores.redis.call("DEL", inbox)
    await reading
    await member.push(said("j"))
    await wait_until(lambda: _handled(member))


async def test_entries_handled_before_a_redis_outage_are_acknowledged_after_it(
    join: Join, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = await join("a")
    await member.push(said("good"))
    await member.push_raw("unreadable", "entry")

    async def away(*_: object) -> str:
        raise RedisAway("in the middle of a batch")

    monkeypatch.setattr(stores.inboxes, "dead_letter", away)
    with pytest.raises(RedisAway):
        await member.reader.run_once()
    assert (await stores.inboxes.counts("a")).done == 1


async def test_handled_entry_is_not_handled_again_when_its_acknowledgement_was_lost(
    join: Join, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An assignment that was passed on to its node must not be passed on a second time when Redis is back."""
    member = await join("a")
    await member.push(said("j"))

    def away(*_: object) -> asyncio.Future[int]:
        lost: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        lost.set_exception(RedisAway("before it was written"))
        return lost

    with monkeypatch.context() as patched:
        patched.setattr(stores.inboxes, "finishing", away)
        await member.reader.run_once()
    await wait_until(lambda: not member.reader.in_hand)
    member.reclaimer.min_idle_ms = 0
    await member.reclaimer.run_once()
    assert jobs(member.handled) == ["j"]
    await wait_until(lambda: _is_done(stores, 1))
    assert await member.balanced()


async def _is_done(stores: Stores, count: int) -> bool:
    return (await stores.inboxes.counts("a")).done == count


async def test_an_entry_without_a_handler_is_not_acknowledged_and_becomes_a_dead_letter(
    join: Join, stores: Stores
) -> None:
    member = await join("a")
    member.reader._handle = Handlers().handle
    await member.push(said("j"))
    await member.reader.run_once()
    assert (await stores.inboxes.counts("a")).done == 0
    for _ in range(4):
        await member.reclaimer.run_once()
    [letter] = await stores.letters.list("a")
    assert letter.reason == "NoHandler: no handler for from_node"
    assert await member.balanced()


async def test_reasons_are_bounded(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.services.routing.inbox_reader.MAX_REASONS", 3)
    member = await join("a")
    for number in range(5):
        await member.push(said(f"j{number}"))
    member.failing = RedisAway("no")
    await member.reader.run_once()
    assert len(member.reader.reasons) == 3


async def test_local_and_foreign_entries_look_the_same_to_the_handler(join: Join) -> None:
    member = await join("a")
    message = said("j", frame=b'{"audio": "\\u00e9"}')
    await member.push(message)
    await member.reader.run_once()
    assert [encode_peer(each) for each in member.handled] == [encode_peer(message)]


def _fail_on(member: Member, job: str, error: Exception) -> None:
    handle = member.reader._handle

    async def fussy(message: InboxMessage) -> None:
        if jobs([message]) == [job]:
            raise error
        await handle(message)

    member.reader._handle = fussy


async def _a_reader_waits(stores: Stores, inbox: str) -> bool:
    clients = await stores.redis.call_at(inbox, "CLIENT", "LIST")
    return any(b"flags=b" in client and b"cmd=xreadgroup" in client for client in clients.splitlines())


async def _handled(member: Member) -> bool:
    member.reader.block_ms = 1
    await member.reader.run_once()
    return bool(member.handled)
