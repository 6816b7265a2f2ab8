"""Scripts on real servers: names bound on both sides, and servers that have forgotten them."""

import asyncio

import pytest

from dragoman.store.errors import Refused
from dragoman.store.keys import Keys
from dragoman.store.nodes import RESERVE_SLOT
from dragoman.store.redis import Redis
from dragoman.store.script import Script

ECHO = Script(
    "echo",
    """\
-- Give everything back as it arrived.
--
-- KEYS  first   string
--       second  string
-- ARGV  text    str
--       number  int
--       at      now
--       rest    list
--
-- Returns what it was called with.
return { first, second, text, number + 1, string.format('%.0f', at), #rest, unpack(rest) }
""",
    register=False,
)

COUNT = Script(
    "count",
    """\
-- Count, and say how far we are.
--
-- KEYS  counter  string
-- ARGV  ttl      int  ms
--
-- Returns the count.
local n = redis.call('INCR', counter)
redis.call('PEXPIRE', counter, ttl)
return n
""",
    register=False,
)


async def test_every_name_of_the_header_holds_its_value_inside_the_script(redis: Redis, keys: Keys) -> None:
    first, second = keys.open("i"), keys.inbox("i")
    reply = await ECHO(redis, second=second, first=first, number=41, text="ünï\n", rest=["a", "", b"\xff"], at=123)
    assert reply == [first.encode(), second.encode(), "ünï\n".encode(), 42, b"123", 3, b"a", b"", b"\xff"]


async def test_a_list_may_be_empty(redis: Redis, keys: Keys) -> None:
    reply = await ECHO(redis, first=keys.open("i"), second=keys.inbox("i"), number=0, text="", rest=[], at=1)
    assert reply[2:] == [b"", 1, b"1", 0]


async def test_the_time_that_is_left_out_is_that_of_redis(redis: Redis, keys: Keys) -> None:
    async def server_ms() -> int:
        seconds, micros = await redis.call_at(keys.open("i"), "TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    before = await server_ms()
    reply = await ECHO(redis, first=keys.open("i"), second=keys.inbox("i"), number=0, text="", rest=[])
    assert before <= int(reply[4]) <= await server_ms()


async def test_a_script_no_server_has_seen_is_sent_with_its_source_and_known_from_then_on(
    redis: Redis, keys: Keys
) -> None:
    counter = keys.node_epoch("n")
    assert await COUNT(redis, counter=counter, ttl=60_000) == 1
    assert await redis.call_at(counter, "SCRIPT", "EXISTS", COUNT.sha) == [1]
    assert await COUNT(redis, counter=counter, ttl=60_000) == 2


async def test_scripts_forgotten_in_the_middle_of_a_pipeline_still_run_once_each(redis: Redis, keys: Keys) -> None:
    counter = keys.node_epoch("n")
    before = [COUNT(redis, counter=counter, ttl=60_000) for _ in range(100)]
    forgotten = redis.call_at(counter, "SCRIPT", "FLUSH")
    after = [COUNT(redis, counter=counter, ttl=60_000) for _ in range(100)]
    assert await forgotten == b"OK"
    replies = await asyncio.gather(*before, *after)
    assert sorted(replies) == list(range(1, 201))


async def test_every_script_of_ours_survives_being_forgotten_by_every_server(redis: Redis, keys: Keys) -> None:
    await redis.on_each("SCRIPT", "FLUSH")
    nodes = [f"n{n}" for n in range(50)]
    taken = [RESERVE_SLOT(redis, reserved=keys.reserved(node), job="j", ttl=60_000, limit=1) for node in nodes]
    assert set(await asyncio.gather(*taken)) == {b"OK"}


async def test_an_error_inside_a_script_reaches_its_caller_alone(redis: Redis, keys: Keys) -> None:
    hash_key, good = keys.job("j"), keys.reserved("n")
    await redis.call("HSET", hash_key, "state", "CREATED")
    await redis.call("PEXPIRE", hash_key, 60_000)
    bad = RESERVE_SLOT(redis, reserved=hash_key, job="j", ttl=1000, limit=1)
    fine = RESERVE_SLOT(redis, reserved=good, job="j", ttl=60_000, limit=1)
    with pytest.raises(Refused, match="WRONGTYPE"):
        await bad
    assert await fine == b"OK"
