"""The node of a turn, under names that other tools read."""

import asyncio

import pytest

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.turns import Turns
from support.redis_servers import Connect


@pytest.fixture
def turns(redis: Redis, keys: Keys) -> Turns:
    return Turns(redis, keys)


async def test_a_turn_is_found_under_its_literal_names(turns: Turns, redis: Redis, prefix: str) -> None:
    session, turn = f"{prefix}-s", f"{prefix}-t"
    await turns.bind(session, turn, "n1")
    assert await redis.call("HGETALL", f"scheduler:turn:{turn}") == [b"affinity_node_id", b"n1"]
    assert await redis.call("HGETALL", f"scheduler:session:{session}") == [b"current_turn_id", turn.encode()]
    assert await redis.call("TTL", f"scheduler:turn:{turn}") == -1
    await turns.end(session, turn)


async def test_the_first_node_of_a_turn_stays_its_node(turns: Turns, connect: Connect, keys: Keys, prefix: str) -> None:
    other, session, turn = Turns(await connect(), keys), f"{prefix}-s", f"{prefix}-t"
    await asyncio.gather(*((turns, other)[n % 2].bind(session, turn, f"n{n}") for n in range(20)))
    first = await turns.node_of(turn)
    await turns.bind(session, turn, "late")
    assert await turns.node_of(turn) == first
    await turns.end(session, turn)


async def test_a_turn_that_ended_leaves_no_key(turns: Turns, redis: Redis, keys: Keys, prefix: str) -> None:
    session, turn = f"{prefix}-s", f"{prefix}-t"
    await turns.bind(session, turn, "n1")
    await turns.end(session, turn)
    assert await turns.node_of(turn) is None
    assert await turns.current(session) is None
    assert [await redis.call("EXISTS", key) for key in (keys.turn(turn), keys.session_turn(session))] == [0, 0]
    await turns.end(session, turn)


async def test_the_end_of_an_old_turn_leaves_the_new_one_alone(turns: Turns, prefix: str) -> None:
    session, old, new = f"{prefix}-s", f"{prefix}-old", f"{prefix}-new"
    await turns.bind(session, old, "n1")
    await turns.bind(session, new, "n2")
    await turns.end(session, old)
    assert await turns.current(session) == new
    assert await turns.node_of(new) == "n2"
    assert await turns.node_of(old) is None
    await turns.end_current(session)
    assert await turns.current(session) is None
    assert await turns.node_of(new) is None


async def test_a_session_that_ends_between_turns_has_nothing_to_end(turns: Turns, prefix: str) -> None:
    await turns.end_current(f"{prefix}-s")
    assert await turns.current(f"{prefix}-s") is None
