"""The node of a turn, under its literal names.

`scheduler:turn:<turn>` has one field, `affinity_node_id`: written once by the first job of a turn that
goes on, read once by an instance that takes the turn over, gone when the turn ends. No TTL, no fallback.
`scheduler:session:<session>` has one field, `current_turn_id`.
"""

import asyncio

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

END_TURN = Script.beside(__file__, "end_turn")

AFFINITY = "affinity_node_id"
CURRENT = "current_turn_id"


class Turns:
    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis, self.keys = redis, keys

    def binding(self, session: str, turn: str, node: str) -> "list[asyncio.Future[int]]":
        """Both writes of a first job, started: they travel with whatever else its placing writes."""
        return [
            self.redis.call("HSETNX", self.keys.turn(turn), AFFINITY, node),
            self.redis.call("HSET", self.keys.session_turn(session), CURRENT, turn),
        ]

    async def bind(self, session: str, turn: str, node: str) -> None:
        await asyncio.gather(*self.binding(session, turn, node))

    async def node_of(self, turn: str) -> str | None:
        found = await self.redis.call("HGET", self.keys.turn(turn), AFFINITY)
        return found.decode() if found is not None else None

    async def current(self, session: str) -> str | None:
        found = await self.redis.call("HGET", self.keys.session_turn(session), CURRENT)
        return found.decode() if found is not None else None

    async def end(self, session: str, turn: str) -> None:
        await asyncio.gather(
            self.redis.call("HDEL", self.keys.turn(turn), AFFINITY),
            END_TURN(self.redis, session=self.keys.session_turn(session), turn=turn),
        )

    async def end_current(self, session: str) -> None:
        """A session ends in mid-turn: its turn's key goes with it."""
        turn = await self.current(session)
        if turn is not None:
            await self.end(session, turn)
