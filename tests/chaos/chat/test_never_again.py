"""Mistakes that other servers of this kind have made, one test each, on a real server."""

from pathlib import Path

from chaos.chat.chat_server import DELIVER_FIRST, SAVE_FIRST, TIMEOUT_S, chat_server, of_shard
from dragoman.archive import NewMessage, Status, open_archive
from dragoman.domain.chat.shards import shard_of, tag
from dragoman.store.chat.entries import ChatEntry
from dragoman.store.chat.shards import ACCEPT_MESSAGE, CONSUMER, MOVE_TO_SAVE
from dragoman.tools.verify.tcp_proxy import proxied
from support.redis_servers import RedisAt
from support.waiting import wait_until

SENDER = of_shard(0, 1)[0]
RECEIVER = 1


def entry(number: int, mode: str = "save_first") -> ChatEntry:
    return ChatEntry("", number << 22, f"m{number}", SENDER, RECEIVER, "TEXT", f"body {number}", 1, 1, "test", mode)


async def test_a_failed_save_is_not_acknowledged_to_redis(redis_at: RedisAt, prefix: str, tmp_path: Path) -> None:
    async with chat_server(redis_at, tmp_path, prefix) as server:
        here = await server.instance(SAVE_FIRST)
        sender = await server.speaker(here, SENDER)
        with server.database_locked():
            name = await sender.chat(RECEIVER)

            async def failed_twice() -> bool:
                return await here.metric("dragoman_chat_save_fail_total") >= 2

            await wait_until(failed_twice, TIMEOUT_S)
            tally = (await server.tallies())[0]
            assert (tally.backlog, tally.to_save_len, tally.to_save_pending, tally.saved) == (1, 1, 1, 0)
        await sender.saved(name)
        await wait_until(server.is_at_rest, TIMEOUT_S)


async def test_entries_that_a_reader_never_finished_are_read_again(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    """In both streams, and before anything newer."""
    async with chat_server(redis_at, tmp_path, prefix) as server:
        shards, redis, names = server.shards, server.redis, server.shards.names
        await shards.ensure_groups(0)
        for number in (1, 2, 3, 4):
            await shards.accept(entry(number), f"digest {number}", 100)
        fence = await shards.take_lease(0, "dead", 0, 60_000)
        reads = (shards.accepted(0), names.deliver_group, 3), (shards.to_save(0), names.save_group, 1)
        for stream, group, count in reads:
            command = ("XREADGROUP", "GROUP", group, CONSUMER, "COUNT", count, "STREAMS", stream, ">")
            ((_, given),) = await redis.call_at(stream, *command)
            if stream == shards.accepted(0):
                moves = [(id.decode(), "") for id, _ in given[:2]]
                assert await shards.move_to_save(0, f"dead|{fence}", moves)
        await shards.release_lease(0, f"dead|{fence}")
        await server.instance(SAVE_FIRST)
        await wait_until(server.is_at_rest, TIMEOUT_S)
        assert [row.client_msg_id for row in sorted(await server.rows(), key=lambda row: row.seq)] == [
            "m1", "m2", "m3", "m4",
        ]  # fmt: skip


async def test_message_accepted_before_the_group_exists_is_not_skipped(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    async with chat_server(redis_at, tmp_path, prefix) as server:
        for number in (1, 2):
            await server.shards.accept(entry(number), f"digest {number}", 100)
        await server.instance(SAVE_FIRST)
        await wait_until(server.is_at_rest, TIMEOUT_S)
        assert [row.client_msg_id for row in await server.rows()] == ["m1", "m2"]


async def test_repeated_message_gets_saved_only_after_it_is_saved(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    async with chat_server(redis_at, tmp_path, prefix) as server:
        here = await server.instance(SAVE_FIRST)
        sender = await server.speaker(here, SENDER)
        with server.database_locked():
            name = await sender.chat(RECEIVER)
            first = await sender.expect("ACK", clientMsgId=name)
            await sender.chat(RECEIVER, name=name)
            second = await sender.expect("ACK", clientMsgId=name)
            assert [first["ackType"], second["ackType"]] == ["accepted", "accepted"]
            assert first["serverMsgId"] == second["serverMsgId"]
            assert [frame for frame in await sender.so_far() if frame.get("ackType") == "saved"] == []
        assert await sender.saved(name) == int(first["serverMsgId"])
        assert len(await server.rows()) == 1


async def test_saved_comes_once_for_a_message_that_was_answered_server_busy_and_is_sent_again(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    """Redis accepts it after its sender was refused, and the save stage saves it before the sender repeats it."""
    async with chat_server(redis_at, tmp_path, prefix) as server, proxied(redis_at.url) as proxy:
        flags: dict[str, object] = {
            "chat__accept_timeout_ms": 300,
            "chat__two_phase__fail_open": False,
            "scheduler__phase2__instance_presence_ttl_seconds": 12,
        }
        here = await server.instance(SAVE_FIRST, scheduler__phase2__redis__url=proxy.url, **flags)
        sender = await server.speaker(here, SENDER)
        held = proxy.stall_at(ACCEPT_MESSAGE.sha.encode())
        await sender.chat(RECEIVER, name="busy")
        await sender.refused("server_busy", clientMsgId="busy")
        assert held.is_set()
        proxy.restore()

        async def is_saved() -> bool:
            return len(await server.rows()) == 1 and await server.is_at_rest()

        await wait_until(is_saved, TIMEOUT_S)
        frames = await sender.so_far()
        while not any(frame.get("ackType") == "saved" for frame in frames):
            await sender.chat(RECEIVER, name="busy")  # after a failure Redis is not asked for a while
            frames += [await sender.next()] + await sender.so_far()
        kinds = [frame["ackType"] for frame in frames if frame["type"] == "ACK"]
        assert kinds == ["accepted", "saved"]
        acks = [frame["ts"] for frame in frames if frame["type"] == "ACK"]
        assert acks == sorted(acks)


async def test_receipt_is_accepted_before_its_message_has_a_row(redis_at: RedisAt, prefix: str, tmp_path: Path) -> None:
    """The holder of the shard is held up after it pushed the message, and goes on when the receipt is there."""
    async with chat_server(redis_at, tmp_path, prefix) as server, proxied(redis_at.url) as proxy:
        unhurried: dict[str, object] = {"scheduler__phase2__instance_presence_ttl_seconds": 12}
        await server.instance(DELIVER_FIRST, scheduler__phase2__redis__url=proxy.url, **unhurried)
        here = await server.instance(DELIVER_FIRST, **unhurried)
        await wait_until(server.is_shared, TIMEOUT_S)
        uid = of_shard((await server.holders()).index("i0"), 1)[0]
        sender, receiver = await server.speaker(here, uid), await server.speaker(here, RECEIVER)
        held = proxy.stall_at(MOVE_TO_SAVE.sha.encode())
        await sender.chat(RECEIVER)
        got = await receiver.expect("SINGLE_CHAT")
        await receiver.ack(got["serverMsgId"], "read", uid)
        await wait_until(lambda: server.redis.call("HLEN", server.keys.early(RECEIVER)), TIMEOUT_S)
        assert held.is_set()
        assert await server.rows() == []
        assert [frame for frame in await receiver.so_far() if frame["type"] == "ERROR"] == []
        proxy.restore()
        told = await sender.expect("ACK", ackType="read")
        assert told["serverMsgId"] == got["serverMsgId"]
        assert [row.status for row in await server.rows()] == [Status.READ]


async def test_all_undelivered_messages_are_sent_at_auth(redis_at: RedisAt, prefix: str, tmp_path: Path) -> None:
    async with chat_server(redis_at, tmp_path, prefix) as server:
        here = await server.instance(SAVE_FIRST)
        archive = open_archive(server.database)
        rows = [NewMessage(n << 22, f"m{n}", SENDER, RECEIVER, "TEXT", f"{n}", 1) for n in range(1, 1236)]
        await archive.save(rows)
        await archive.close()
        receiver = await server.speaker(here, RECEIVER)
        got = [(await receiver.expect("SINGLE_CHAT"))["body"] for _ in rows]
        assert got == [row.body for row in rows]


async def test_a_claim_is_kept_while_its_insert_may_still_commit(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    async with chat_server(redis_at, tmp_path, prefix) as server:
        here = await server.instance(SAVE_FIRST, chat__max_deliveries=1)
        sender = await server.speaker(here, SENDER)
        claim = server.keys.claim(tag(shard_of(SENDER, server.shards.count)), SENDER, "same")
        with server.database_locked():
            await sender.chat(RECEIVER, "said once", name="same")
            first = await sender.expect("ACK", ackType="accepted")

            async def failed_often() -> bool:
                return await here.metric("dragoman_chat_save_fail_total") >= 3

            await wait_until(failed_often, TIMEOUT_S)
            assert await server.redis.call("HGET", claim, "id") == first["serverMsgId"].encode()
            await sender.chat(RECEIVER, "said otherwise", name="same")
            again = await sender.expect("ACK", ackType="accepted", duplicate=True)
            assert (again["serverMsgId"], again["body"]) == (first["serverMsgId"], "said once")
        assert await sender.saved("same") == int(first["serverMsgId"])
        assert [row.body for row in await server.rows()] == ["said once"]
