"""Renewals of thousands: never all of them at once."""

import asyncio
from typing import Any

from dragoman.store.chat.users import Users
from dragoman.store.keys import Keys
from dragoman.store.owners import Owners
from dragoman.store.slices import SLICE, in_slices

MANY = 5 * SLICE + 1


class Counting:
    """A Redis that forgot everything: each call is answered a turn later, and it notes how many waited at once."""

    def __init__(self) -> None:
        self.waiting = self.most = self.calls = 0

    def call(self, *_: Any) -> "asyncio.Future[Any]":
        return self._answer(b"OK")

    def evaluate(self, *_: Any) -> "asyncio.Future[Any]":
        return self._answer(b"NONE")

    def _answer(self, reply: bytes) -> "asyncio.Future[Any]":
        self.calls += 1
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        future = asyncio.get_running_loop().create_future()

        def answered() -> None:
            self.waiting -= 1
            future.set_result(reply)

        asyncio.get_running_loop().call_soon(answered)
        return future


def test_answers_come_in_order_and_a_slice_at_a_time() -> None:
    async def main() -> None:
        redis = Counting()

        async def ask(number: int) -> int:
            await redis.call()
            return -number

        assert await in_slices(range(MANY), ask) == [-number for number in range(MANY)]
        assert redis.most == SLICE

    asyncio.run(main())


def test_owners_of_sessions_are_renewed_a_slice_at_a_time() -> None:
    async def main() -> None:
        redis: Any = Counting()
        await Owners(redis, Keys("t"), 1000).renew("here", ["node"], [f"session-{number}" for number in range(MANY)])
        assert (redis.calls, redis.most) == (2 * (MANY + 1), SLICE)  # kept, and written again

    asyncio.run(main())


def test_owners_of_chat_users_are_renewed_a_slice_at_a_time() -> None:
    async def main() -> None:
        redis: Any = Counting()
        forgotten = list(range(MANY))  # all of them
        assert await Users(redis, Keys("t"), 1000).renew((number, "here|1") for number in forgotten) == ([], forgotten)
        assert (redis.calls, redis.most) == (MANY, SLICE)

    asyncio.run(main())
