"""Mistakes that other servers of this kind have made, one test each, on a real server."""

from chaos.chat.chat_server import SAVE_FIRST, TIMEOUT_S, ChatServer, of_shard
from dragoman.domain.chat.shards import shard_of, tag
from dragoman.store.chat.shards import ACCEPT_MESSAGE
from dragoman.tools.verify.tcp_proxy import proxied
from support.redis_servers import RedisAt
from support.waiting import wait_until

SENDER = of_shard(0, 1)[0]
RECEIVER = 1


async def test_a_failed_save_is_not_acknowledged_to_redis(server: ChatServer) -> None:
    here = await server.instance(SAVE_FIRST)
    sender = await server.speaker(here, SENDER)
    with server.database_locked():
        name = await sender.chat(RECEIVER)

        async def failed_twice() -> bool:
            return await here.metric("dragoman_chat_save_fail_total") >= 2

        await wait_until(failed_twice, TIMEOUT_S)
        tally = (await server.tallies())[0]
        assert (tally.backlog, tally.accepted_len, tally.saved) == (1, 1, 0)
    await sender.saved(name)
    await wait_until(server.is_at_rest, TIMEOUT_S)


async def test_saved_comes_once_for_a_message_that_was_answered_server_busy_and_is_sent_again(
    server: ChatServer, redis_at: RedisAt
) -> None:
    """Redis accepts it after its sender was refused, and the save stage saves it before the sender repeats it."""
    async with proxied(redis_at.url) as proxy:
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


async def test_a_claim_is_kept_while_its_insert_may_still_commit(server: ChatServer) -> None:
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
