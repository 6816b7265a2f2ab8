"""The outbox with a Redis that refuses: what the client is told in the end is what a resume finds, and in order."""

import asyncio
from typing import Any

from dragoman.protocol.peer import JobEnded
from dragoman.protocol.session import Backpressure
from dragoman.services.loops import Tasks
from dragoman.services.speech.outbox import Outbox
from dragoman.store.errors import RedisAway
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.sessions import ResumableSessions, Resumed
from support.waiting import wait_until

TIMEOUT_S = 60.0


class Stumbling(ResumableSessions):
    """Redis refuses the first write, as it does when it has no memory left for a moment, and takes the next ones."""

    refused = False

    def write(self, *told: Any, **more: Any) -> "asyncio.Future[bytes]":
        if self.refused:
            return super().write(*told, **more)
        self.refused = True
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        answer.set_exception(RedisAway("OOM command not allowed"))
        return answer


async def test_a_message_that_was_refused_is_not_missing_before_those_that_followed_it(
    redis: Redis, keys: Keys
) -> None:
    store = Stumbling(redis, keys, owner_ttl_ms=45_000, grace_ms=30_000)
    await store.open("s", "token", "user", {})
    delivered, fenced, tasks = list[bytes](), list[JobEnded](), Tasks()
    outbox = Outbox(store, "s", 1, 0, tasks, deliver=delivered.append, on_fenced=fenced.extend, on_full=lambda: None)
    outbox.post([Backpressure(action="BUSY")], {"next_index": 1})
    outbox.post([Backpressure(action="BUSY")], {"next_index": 2})
    noted = outbox.note({"next_index": 3})
    assert await noted
    await wait_until(lambda: len(delivered) == 2, TIMEOUT_S)
    await tasks.settled()
    taken = await store.resume("s", "token", "user", 0, "b")
    assert isinstance(taken, Resumed)
    assert taken.outbox == delivered
    assert (taken.state["next_index"], fenced) == ("3", [])
