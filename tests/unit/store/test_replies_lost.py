"""Several questions at once to a Redis that goes away: one error for who asked, and none in the log for the others."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from dragoman.store.chat.shards import Names, Shards
from dragoman.store.chat.users import Users
from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.inbox import Inboxes, InboxSettings
from dragoman.store.instances import Instances
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

KEYS = Keys("t")
NAMES = Names("accepted", "to_save", "deliver", "save")


class Away:
    """Takes every question, and answers none but which names there are."""

    def call(self, *command: Any) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        if command[0] == "SMEMBERS":
            future.set_result([b"a", b"b", b"c"])
        else:
            future.set_exception(RedisAway("the connection was lost"))
        return future


ASKING: dict[str, Callable[[Redis], Awaitable[object]]] = {
    "who is where": lambda redis: Users(redis, KEYS, 1000).owners([1, 2, 3]),
    "the account of an inbox": lambda redis: Inboxes(redis, KEYS, InboxSettings()).tally("a"),
    "who lives": lambda redis: Instances(redis, KEYS).all(),
    "what a shard has done": lambda redis: Shards(redis, KEYS, NAMES, 2, 1000).tally(0),
}


@pytest.mark.parametrize("what", ASKING)
async def test_a_lost_connection_is_told_once(what: str) -> None:
    forgotten = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: forgotten.append(context))
    with pytest.raises(StoreError):
        await ASKING[what](cast(Redis, Away()))
    gc.collect()
    assert forgotten == []
