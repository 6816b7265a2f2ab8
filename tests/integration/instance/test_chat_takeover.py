"""Chat users and notices of an instance that is taken over, and of one that starts over after that."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from msgspec import Raw

from dragoman.protocol import chat as wire
from dragoman.protocol.codes import Close
from dragoman.protocol.peer import ChatNotices, UserNotice, encode_peer, kind_of
from dragoman.services.upkeep.presence import TakeoverResult
from dragoman.tools.verify.clients import token
from support.chat import ChatSpeaker
from support.in_process import SELDOM_RENEWED, TIMEOUT_S, InProcessInstance
from support.redis_servers import RedisAt

pytestmark = pytest.mark.parametrize("redis_at", ["single"], indirect=True)

USER = 7


@asynccontextmanager
async def instance(redis_at: RedisAt, prefix: str, name: str) -> AsyncIterator[InProcessInstance]:
    one = await InProcessInstance.open(redis_at, prefix, name, **SELDOM_RENEWED)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield one
    finally:
        await one.close()


async def test_an_instance_that_starts_over_admits_no_chat_user_before_its_takeover_has_ended(
    redis_at: RedisAt, prefix: str
) -> None:
    async with instance(redis_at, prefix, "a") as a, aiohttp.ClientSession() as http:
        instances, presence = a.stores.instances, a.services.presence

        async def connect() -> ChatSpeaker:
            port = a.instance.ports.listener.port
            return ChatSpeaker(USER, await http.ws_connect(f"ws://127.0.0.1:{port}/ws"))

        before, waiting = await connect(), await connect()
        await before.auth()
        await a.redis.call("DEL", a.keys.presence("a"))
        await instances.lock_takeover("a", "another", 600_000)
        await instances.mark_takeover("a", presence.incarnation)
        presence.lease.expires_at = float("-inf")
        starting_over = asyncio.create_task(presence.run_once())
        assert await before.until_closed() == Close.LEASE_LOST
        for refused in (waiting, await connect()):
            await refused.say("AUTH", token=token(USER))
            assert (await refused.until_closed(), refused.heard) == (Close.LEASE_LOST, [])
        assert await a.services.chat.users.owners([USER]) == [""]
        await instances.unlock_takeover("a", "another")
        await starting_over
        await (await connect()).auth()


async def test_a_notice_for_a_user_of_a_dead_instance_does_not_go_round_in_its_inbox(
    redis_at: RedisAt, prefix: str
) -> None:
    """The user has not connected elsewhere yet, so its owner key still names the dead instance."""
    async with instance(redis_at, prefix, "b") as b:
        users, inboxes = b.services.chat.users, b.stores.inboxes
        await b.stores.instances.open("dead", "incarnation", inboxes.settings.group)
        await users.swap_owner(USER, "dead|1")
        error = wire.error(wire.Reason.SAVE_FAILED, 1, "m", 5)
        notices = ChatNotices([UserNotice(USER, 5, Raw(error), keep=True), UserNotice(USER, 6, Raw(b"{}"))])
        await inboxes.push("dead", kind_of(notices), encode_peer(notices))
        assert await b.services.takeover.take_over("dead") is TakeoverResult.DONE
        assert await users.notices(USER) == [error]
