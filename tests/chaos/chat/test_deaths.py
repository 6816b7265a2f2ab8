"""Instances of a chat server die, are paused and leave, under load; a ledger decides whether anything was lost."""

import signal

import pytest

from chaos.chat.chat_server import (
    DELIVER_FIRST,
    IN_TURN,
    MODES,
    OFF,
    SAVE_FIRST,
    TIMEOUT_S,
    ChatServer,
    flap,
    of_shard,
    until_told,
)
from dragoman.archive import Fenced, NewMessage, Status, open_archive
from dragoman.protocol.peer import ChatKick, encode_peer, kind_of
from dragoman.store.chat.shards import FINISH_SAVED
from dragoman.store.chat.users import Users
from dragoman.store.inbox import Inboxes, InboxSettings, PushReply
from dragoman.tools.verify.chat_ledger import ChatLedger
from dragoman.tools.verify.clients import chat_load
from dragoman.tools.verify.tcp_proxy import proxied
from support.chat import bodies
from support.redis_servers import RedisAt
from support.waiting import wait_until

# What must outlive a presence.
LASTING: dict[str, object] = {"scheduler__phase2__owner_ttl_seconds": 300, "speech__reservation_ttl_ms": 300_000}

TAKE_OVER_S = 15.0


@pytest.mark.parametrize("mode", IN_TURN)
async def test_an_instance_killed_under_load_loses_nothing(server: ChatServer, mode: str) -> None:
    ledger = ChatLedger()
    a, _ = await server.two(MODES[mode])
    async with chat_load(server.ports, ledger, 8, in_flight=4) as load:
        load.start(per_s=120)
        await until_told(ledger, "saved", 100)
        a.kill()
        server.instances.remove(a)
        await wait_until(server.is_shared, TIMEOUT_S, "the survivor to hold every shard")
        await load.stop_and_settle()
    await server.passes(ledger, order="accepted", ack_grace_s=TAKE_OVER_S)


async def test_batch_of_a_dead_holder_is_finished_by_the_next_holder(server: ChatServer, redis_at: RedisAt) -> None:
    """It dies between the commit and the script that tells Redis, which is held up."""
    ledger = ChatLedger()
    async with proxied(redis_at.url) as proxy:
        doomed = await server.instance(DELIVER_FIRST, scheduler__phase2__redis__url=proxy.url)
        await server.instance(DELIVER_FIRST)
        await wait_until(server.is_shared, TIMEOUT_S)
        async with chat_load(server.ports, ledger, 8, in_flight=4) as load:
            await load.send(40)
            held = proxy.stall_at(FINISH_SAVED.sha.encode())
            load.start(per_s=120)
            await wait_until(held.is_set, TIMEOUT_S, "the stage to come to its end")
            left = [shard for shard, name in enumerate(await server.holders()) if name == "i0"]
            tallies = await server.tallies()
            assert sum(tallies[shard].backlog for shard in left) > 0
            doomed.kill()
            server.instances.remove(doomed)
            await wait_until(server.is_shared, TIMEOUT_S)
            await load.stop_and_settle()
        await server.passes(ledger, order="accepted", ack_grace_s=TAKE_OVER_S)


async def test_messages_pushed_by_an_instance_that_dies_before_they_are_saved_are_kept_with_their_receipts(
    server: ChatServer,
) -> None:
    """No message can be saved while the database is locked: receivers get and confirm what the instance pushed."""
    ledger = ChatLedger()
    doomed = await server.instance(DELIVER_FIRST)
    await server.instance(DELIVER_FIRST)
    await wait_until(server.is_shared, TIMEOUT_S)
    async with chat_load(server.ports, ledger, 8, in_flight=4) as load:
        await load.send(40)
        with server.database_locked():
            load.start(per_s=120)

            def delivered() -> bool:
                return len(ledger.acknowledged_at) >= 100

            await wait_until(delivered, TIMEOUT_S, "messages to be delivered before they are saved")
            doomed.kill()
            server.instances.remove(doomed)
        await wait_until(server.is_shared, TIMEOUT_S)
        await load.stop_and_settle()
    await server.passes(ledger, order="accepted", ack_grace_s=TAKE_OVER_S)


async def test_message_read_before_the_instance_that_pushed_it_died_unsaved_stays_read(server: ChatServer) -> None:
    """The receipt came to the other instance, which saves the message later."""
    doomed, other = await server.two(DELIVER_FIRST)
    shard = (await server.holders()).index("i0")
    sender = await server.speaker(doomed, of_shard(shard, 1)[0])
    receiver = await server.speaker(other, 1)
    with server.database_locked():
        name = await sender.chat(1, "read at once")
        got = await receiver.expect("SINGLE_CHAT", clientMsgId=name)
        await receiver.ack(got["serverMsgId"], "delivered", sender.uid)
        await receiver.ack(got["serverMsgId"], "read", sender.uid)
        assert await receiver.so_far() == []
        assert await server.rows() == []
        doomed.kill()
        server.instances.remove(doomed)
    sender = await server.speaker(other, sender.uid)
    await sender.saved(name)
    await sender.expect("ACK", ackType="read", serverMsgId=got["serverMsgId"])

    async def is_read() -> bool:
        return [(row.client_msg_id, row.status) for row in await server.rows()] == [(name, Status.READ)]

    await wait_until(is_read, TIMEOUT_S)
    assert bodies(await receiver.so_far()) == [], "it does not come again"


async def test_former_holder_of_a_shard_writes_nothing(server: ChatServer, redis_at: RedisAt) -> None:
    """Its script for Redis is under way while its lease lapses; its transaction would come with the old fence."""
    ledger = ChatLedger()
    async with proxied(redis_at.url) as proxy:
        await server.instance(SAVE_FIRST, scheduler__phase2__redis__url=proxy.url)
        await server.instance(SAVE_FIRST)
        await wait_until(server.is_shared, TIMEOUT_S)
        fences = [tally.fence for tally in await server.tallies()]
        theirs = [shard for shard, name in enumerate(await server.holders()) if name == "i0"]
        async with chat_load(server.ports[1:], ledger, 8, in_flight=4) as load:
            held = proxy.stall_at(FINISH_SAVED.sha.encode())
            load.start(per_s=120)
            await wait_until(held.is_set, TIMEOUT_S, "a batch to be committed and not acknowledged")

            async def overtaken() -> bool:
                return all(name == "i1" for name in await server.holders())

            await wait_until(overtaken, TIMEOUT_S, "the leases to lapse")
            proxy.restore()  # what was held arrives now, and is answered FENCED
            await wait_until(server.is_shared, TIMEOUT_S, "the overtaken one to be back")
            await load.stop_and_settle()
        await server.passes(ledger, order="accepted", ack_grace_s=TAKE_OVER_S)
        archive = open_archive(server.database)
        try:
            for shard in theirs:
                row = NewMessage(7, "late", 1, 2, "TEXT", "late", 1)
                with pytest.raises(Fenced):
                    await archive.save([row], shard=shard, fence=fences[shard])
        finally:
            await archive.close()


@pytest.mark.parametrize("mode", IN_TURN[:2])
async def test_instance_paused_past_its_leases_does_no_harm_when_it_resumes(server: ChatServer, mode: str) -> None:
    ledger = ChatLedger()
    a, _ = await server.two(MODES[mode])
    async with chat_load(server.ports, ledger, 8, in_flight=4) as load:
        load.start(per_s=120)
        await until_told(ledger, "saved", 100)
        a.signal(signal.SIGSTOP)

        async def overtaken() -> bool:
            return all(name == "i1" for name in await server.holders())

        await wait_until(overtaken, TIMEOUT_S)
        a.signal(signal.SIGCONT)
        await wait_until(server.is_shared, TIMEOUT_S)
        await load.stop_and_settle()
    await server.passes(ledger, order="accepted", ack_grace_s=TAKE_OVER_S)


async def test_stopped_instance_hands_its_shards_over_at_once_and_leaves_no_key(server: ChatServer) -> None:
    """Leases of this length do not lapse within the test: who has a shard was given it."""
    ledger = ChatLedger()
    long: dict[str, object] = {"scheduler__phase2__instance_presence_ttl_seconds": 100, **LASTING}
    a, b = await server.two(SAVE_FIRST, **long)
    await server.instance(SAVE_FIRST, **long)
    await wait_until(server.is_shared, TIMEOUT_S, "three instances to share four shards")
    async with chat_load(server.ports, ledger, 9, in_flight=4) as load:
        load.start(per_s=120)
        await until_told(ledger, "saved", 50)
        for leaving in (a, b):
            leaving.signal(signal.SIGTERM)
            server.instances.remove(leaving)
            await wait_until(server.is_shared, TIMEOUT_S, "those who stay to hold every shard")
        await load.stop_and_settle()
    await server.passes(ledger, order="accepted", ack_grace_s=TAKE_OVER_S)
    last = server.instances[0]
    last.signal(signal.SIGTERM)
    await wait_until(lambda: all(one.process.poll() is not None for one in (a, b, last)), TIMEOUT_S)
    assert await server.left_over() == []


async def test_kick_for_a_connection_of_a_killed_process_does_not_end_one_of_the_next_process(
    server: ChatServer,
) -> None:
    """The client was on another instance in between, whose kick comes late. The process has the same instance id."""
    named = {"scheduler__phase2__instance_id": "again"}
    users, inboxes = Users(server.redis, server.keys, 0), Inboxes(server.redis, server.keys, InboxSettings())
    first = await server.instance(SAVE_FIRST | named)
    await server.speaker(first, 7)

    async def owner_of_7() -> str:
        return (await users.owners([7]))[0]

    owner = await wait_until(owner_of_7, TIMEOUT_S)
    first.kill()
    speaker = await server.speaker(await server.instance(SAVE_FIRST | named), 7)
    kick = ChatKick(7, int(owner.partition("|")[2]))
    verdict, entry = await inboxes.put("again", kind_of(kick), encode_peer(kick))
    assert verdict is PushReply.OK

    async def is_handled() -> bool:
        return await inboxes.get("again", entry) is None

    await wait_until(is_handled, TIMEOUT_S)
    assert await speaker.so_far() == []


FLAPS = 8
FLIPS: list[dict[str, object]] = [
    {"enabled": True},
    {"deliver_before_saved": True},
    {"rollout_percent": 40},
    {"deliver_before_saved": False, "rollout_percent": 100},
    {"enabled": False},
    {"enabled": True, "deliver_before_saved": True, "batch_size": 3},
    {"enabled": False, "fail_open": False},
]


@pytest.mark.parametrize("mode", IN_TURN)
async def test_receivers_that_flap_between_two_instances_get_everything_once_and_in_order(
    server: ChatServer, mode: str
) -> None:
    ledger = ChatLedger()
    await server.two(MODES[mode])
    async with chat_load(server.ports, ledger, 6, in_flight=4) as load:
        load.start(per_s=250)
        for number in range(FLAPS):
            await until_told(ledger, "saved", 40 * (number + 1))
            flap(load, [one.uid for one in load.users[number % 2 :: 2]])
        await load.stop_and_settle()
    await server.passes(ledger, order="accepted")


async def test_switches_flipped_under_load_lose_double_and_reorder_nothing(server: ChatServer) -> None:
    ledger = ChatLedger()
    await server.two(OFF)
    async with chat_load(server.ports, ledger, 8, in_flight=4) as load:
        load.start(per_s=200)
        for number, flip in enumerate(FLIPS):
            await until_told(ledger, "saved", 40 * (number + 1))
            await server.switch(**flip)
            if number % 2:
                flap(load, [one.uid for one in load.users[:3]])
        await until_told(ledger, "saved", 40 * (len(FLIPS) + 1))
        await load.stop_and_settle()
    assert ledger.count(lambda entry: entry.accepted_at is not None and entry.saved_at is not None) > 0
    await server.passes(ledger, order="accepted")
