"""The multiplexed connection on real servers: order, writes, loss, silence, return."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from signal import SIGCONT, SIGSTOP
from typing import Any

import hiredis
import pytest

from dragoman.store.errors import RedisAway, Refused, StoreError, UnknownOutcome
from dragoman.store.keys import Keys
from dragoman.store.nodes import RESERVE_SLOT
from dragoman.store.redis import Redis, SingleRedis, connect
from dragoman.store.script import ALL
from support.redis_servers import OK, RedisAt, connected, own, scripted_redis
from support.waiting import wait_until

TIMEOUT_S = 60.0


async def flushed(redis: Redis, since: int) -> None:
    await wait_until(lambda: redis.flushes > since, TIMEOUT_S)


# -- many callers, one socket -----------------------------------------------------------------------


async def test_thousands_of_calls_at_once_are_answered_in_order(redis: Redis, keys: Keys) -> None:
    counter = keys.node_epoch("n")
    replies = await asyncio.gather(*(redis.call("INCR", counter) for _ in range(5000)))
    assert replies == list(range(1, 5001))
    await redis.call("PEXPIRE", counter, 60_000)


async def test_each_of_thousands_of_callers_gets_its_own_answer(redis: Redis, keys: Keys) -> None:
    async def caller(n: int) -> bool:
        key = keys.request_binding(str(n))
        await redis.call("SET", key, n, "PX", 60_000)
        with pytest.raises(Refused, match="WRONGTYPE"):
            await redis.call("SADD", key, "x")
        length, value = await asyncio.gather(redis.call("STRLEN", key), redis.call("GET", key))
        return bool(value == str(n).encode() and length == len(str(n)))

    assert all(await asyncio.gather(*(caller(n) for n in range(2000))))


async def test_all_calls_of_one_turn_of_the_loop_leave_in_one_write_a_server(
    redis: Redis, keys: Keys, redis_at: RedisAt
) -> None:
    servers = 3 if redis_at.mode == "cluster" else 1
    names = [str(n) for n in range(500)]

    async def writes() -> int:
        before = redis.flushes
        calls = [redis.call("GET", keys.request_lock(name)) for name in names]
        scripts = [RESERVE_SLOT(redis, reserved=keys.reserved(name), job="j", ttl=60_000, limit=1) for name in names]
        await asyncio.gather(*calls, *scripts)
        return redis.flushes - before

    # The fewest of several: a Cluster's client may be asking for the slot table in one of the rounds.
    assert min([await writes() for _ in range(5)]) == servers


async def test_calls_in_a_hurry_are_written_at_once_but_wait_for_the_others_while_the_server_is_busy(
    redis: Redis, keys: Keys
) -> None:
    key = keys.node_epoch("n")
    await redis.call("GET", key)  # nothing is under way any more
    before = redis.flushes
    first = redis.call("INCR", key)
    redis.hurry()
    assert redis.flushes == before + 1
    second = redis.call("INCR", key)
    redis.hurry()
    assert redis.flushes == before + 1
    assert [await first, await second] == [1, 2]
    await redis.call("PEXPIRE", key, 60_000)


async def test_calls_made_ready_are_sent_when_they_are_wanted_and_not_before(redis: Redis, keys: Keys) -> None:
    key = keys.node_epoch("n")
    with redis.keeping() as kept:
        later = [redis.call("INCR", key), redis.call("PEXPIRE", key, 60_000)]
        script = RESERVE_SLOT(redis, reserved=keys.reserved("n"), job="j", ttl=60_000, limit=1)
    assert await redis.call("GET", key) is None
    assert not any(call.done() for call in (*later, script))
    kept.send()
    assert await asyncio.gather(*later, script) == [1, 1, b"OK"]
    kept.send()
    assert await redis.call("GET", key) == b"1"


async def test_more_than_the_socket_takes_at_once_arrives_whole_and_in_order(redis: Redis, keys: Keys) -> None:
    body = os.urandom(1024 * 1024)
    names = [keys.request_binding(str(n)) for n in range(48)]
    written = [redis.call("SET", name, body + name.encode(), "PX", 60_000) for name in names]
    read = [redis.call("GET", name) for name in names]
    assert await asyncio.gather(*written) == [b"OK"] * len(names)
    assert await asyncio.gather(*read) == [body + name.encode() for name in names]


async def test_a_caller_that_gave_up_does_not_shift_the_answers_of_the_others(redis: Redis, keys: Keys) -> None:
    key = keys.node_epoch("n")
    calls = [redis.call("INCR", key) for _ in range(100)]
    for impatient in calls[::3]:
        impatient.cancel()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    kept = [n for n in range(100) if n % 3]
    assert [replies[n] for n in kept] == [n + 1 for n in kept]
    assert await redis.call("PEXPIRE", key, 60_000) == 1


# -- a server that dies -----------------------------------------------------------------------------


async def test_call_in_flight_when_the_server_is_killed_has_an_unknown_outcome(mortal: RedisAt) -> None:
    server = own(mortal.server)
    async with connected(mortal) as redis:
        server.child.signal(SIGSTOP)
        before = redis.flushes
        calls = [redis.call("INCR", "n") for _ in range(1000)]
        await flushed(redis, before)
        server.kill()
        replies = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(reply, UnknownOutcome) for reply in replies)
        assert "lost before the reply" in str(replies[0])


async def test_calls_fail_at_once_while_the_server_is_gone(mortal: RedisAt) -> None:
    server = own(mortal.server)
    async with connected(mortal) as redis:
        server.kill()
        await wait_until(lambda: not redis.connected, TIMEOUT_S)
        replies = await asyncio.gather(*(redis.call("GET", "x") for _ in range(100)), return_exceptions=True)
        assert all(isinstance(reply, RedisAway) for reply in replies)
        with pytest.raises(RedisAway, match=f"no connection to Redis at 127.0.0.1:{server.port}"):
            await RESERVE_SLOT(redis, reserved="{n}r", job="j", ttl=1000, limit=1)


async def test_a_server_that_comes_back_has_every_script_before_the_first_call(mortal: RedisAt) -> None:
    server = own(mortal.server)
    async with connected(mortal) as redis:
        for _ in range(2):
            server.kill()
            await wait_until(lambda: not redis.connected, TIMEOUT_S)
            server.start()
            await asyncio.wait_for(redis.wait_connected(), TIMEOUT_S)
            assert await RESERVE_SLOT(redis, reserved="{n}r", job="j", ttl=60_000, limit=1) in (b"OK", b"HELD")
            assert server.call("SCRIPT", "EXISTS", *(script.sha for script in ALL.values())) == [1] * len(ALL)
            assert "NOSCRIPT" not in server.call("INFO", "errorstats")


async def test_a_client_may_be_made_before_its_server_is_there(mortal: RedisAt) -> None:
    server = own(mortal.server)
    server.kill()
    redis = SingleRedis(mortal.url)
    try:
        with pytest.raises(RedisAway, match="not connected yet"):
            await redis.call("GET", "x")
        server.start()
        await asyncio.wait_for(redis.wait_connected(), TIMEOUT_S)
        assert await redis.call("SET", "x", 1) == b"OK"
    finally:
        await redis.close()


async def test_after_close_nothing_is_left_open_and_every_call_is_refused(mortal: RedisAt) -> None:
    server = own(mortal.server)
    async with connected(mortal, name="closing") as redis:
        server.child.signal(SIGSTOP)
        before = redis.flushes
        waiting = redis.call("GET", "x")
        await flushed(redis, before)
    with pytest.raises(UnknownOutcome):
        await waiting
    with pytest.raises(StoreError):
        await redis.call("GET", "x")
    server.child.signal(SIGCONT)
    await wait_until(lambda: "name=closing" not in server.call("CLIENT", "LIST"), TIMEOUT_S)


# -- a server that hangs ----------------------------------------------------------------------------


async def test_a_server_that_does_not_answer_in_time_is_cut_off_and_taken_back_when_it_does(mortal: RedisAt) -> None:
    server = own(mortal.server)
    async with connected(mortal, timeout_s=1.0) as redis:
        server.child.signal(SIGSTOP)
        with pytest.raises(UnknownOutcome):
            await asyncio.wait_for(redis.call("INCR", "n"), TIMEOUT_S)
        assert not redis.connected
        with pytest.raises(RedisAway, match=r"no answer in 1 s|TimeoutError"):
            await redis.call("GET", "n")
        server.child.signal(SIGCONT)
        await wait_until(lambda: redis.call("SET", "n", 7), TIMEOUT_S, tolerate=StoreError)
        assert await redis.call("GET", "n") == b"7"


async def test_an_idle_connection_is_not_cut_off(mortal: RedisAt) -> None:
    async with connected(mortal, timeout_s=0.2) as redis:
        assert isinstance(redis, SingleRedis)
        looks: set[object] = set()

        def looked_at_often_enough() -> bool:
            looks.add(redis._link._watch)
            return len(looks) > 8  # four a time-out

        await wait_until(looked_at_often_enough, TIMEOUT_S)
        assert redis.reconnects == 0
        assert await redis.call("GET", "x") is None


async def test_connection_is_not_cut_while_replies_keep_coming_however_long_the_queue_takes() -> None:
    async with scripted_redis(lambda *_: OK, pauses={b"GET": 0.05}) as url:
        redis = SingleRedis(url, timeout_s=0.4)
        await redis.wait_connected()
        assert await asyncio.gather(*(redis.call("GET", "x") for _ in range(30))) == [b"OK"] * 30
        assert redis.reconnects == 0
        await redis.close()


# -- servers that misbehave -------------------------------------------------------------------------


@asynccontextmanager
async def client_of(url: str, **options: Any) -> AsyncIterator[SingleRedis]:
    redis = SingleRedis(url, **options)
    try:
        yield redis
    finally:
        await redis.close()


async def test_a_socket_lost_right_after_the_greeting_is_not_taken_for_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def greet_once_and_hang_up() -> None:
            # On a thread of its own, so that the answers and the end arrive together.
            with listener.accept()[0] as caller, listener:
                parser, greeted = hiredis.Reader(notEnoughData=None), 0
                while greeted <= len(ALL) and (data := caller.recv(65536)):
                    parser.feed(data)
                    while parser.gets() is not None:
                        greeted += 1
                listener.close()  # nobody is there for the next try either
                caller.sendall(OK * greeted)

        answering = asyncio.create_task(asyncio.to_thread(greet_once_and_hang_up))
        async with client_of(f"redis://127.0.0.1:{port}") as redis:
            await answering
            await wait_until(lambda: redis.last_error != "not connected yet", TIMEOUT_S)
            await wait_until(lambda: not redis.connected, TIMEOUT_S)
            with pytest.raises(StoreError):
                await redis.call("GET", "x")


async def test_a_server_that_speaks_something_else_is_never_connected() -> None:
    async with scripted_redis(lambda *_: b"HTTP/1.1 400 Bad Request\r\n\r\n") as url, client_of(url) as redis:
        await wait_until(lambda: redis.last_error != "not connected yet", TIMEOUT_S)
        assert not redis.connected
        with pytest.raises(RedisAway):
            await redis.call("GET", "x")


async def test_a_server_that_is_still_loading_is_tried_again_until_it_has() -> None:
    def loading_at_first(connection: int, command: list[bytes]) -> bytes:
        return OK if connection > 2 else b"-LOADING Redis is loading the dataset in memory\r\n"

    async with scripted_redis(loading_at_first) as url, client_of(url) as redis:
        await asyncio.wait_for(redis.wait_connected(), TIMEOUT_S)
        assert await redis.call("SET", "x", 1) == b"OK"


async def test_a_server_that_refuses_the_password_is_named_in_the_error() -> None:
    async with scripted_redis(lambda *_: b"-WRONGPASS invalid username-password pair\r\n") as url:
        async with client_of(url.replace("redis://", "redis://:wrong@")) as redis:
            await wait_until(lambda: "WRONGPASS" in redis.last_error, TIMEOUT_S)
            with pytest.raises(RedisAway, match="WRONGPASS"):
                await redis.call("GET", "x")


async def test_a_server_that_has_become_a_replica_is_left_for_the_one_its_name_leads_to_now() -> None:
    def demoted(connection: int, command: list[bytes]) -> bytes:
        written_to = connection == 1 and command[0] == b"SET"
        return b"-READONLY You can't write against a read only replica.\r\n" if written_to else OK

    async with scripted_redis(demoted) as url, client_of(url) as redis:
        await asyncio.wait_for(redis.wait_connected(), TIMEOUT_S)
        with pytest.raises(RedisAway, match="READONLY"):
            await redis.call("SET", "x", 1)
        await wait_until(lambda: redis.reconnects == 1 and redis.connected, TIMEOUT_S)
        assert await redis.call("SET", "x", 1) == b"OK"


async def test_unexpected_reply_ends_the_connection_but_not_the_client() -> None:
    def one_too_many(connection: int, command: list[bytes]) -> bytes:
        return OK + OK if connection == 1 and command[0] == b"SET" else OK

    async with scripted_redis(one_too_many) as url, client_of(url) as redis:
        await asyncio.wait_for(redis.wait_connected(), TIMEOUT_S)
        await redis.call("SET", "x", 1)
        await wait_until(lambda: redis.reconnects == 1 and redis.connected, TIMEOUT_S)
        assert await redis.call("SET", "x", 1) == b"OK"


# -- the end ----------------------------------------------------------------------------------------


async def test_a_client_ends_in_whichever_turn_of_the_loop_it_is_closed(redis_at: RedisAt) -> None:
    for turns in range(60):
        redis = await connect(redis_at.urls, cluster=redis_at.mode == "cluster")
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(TIMEOUT_S):
            await redis.close()


async def test_a_connected_client_ends_in_whichever_turn_of_the_loop_it_is_closed(redis_at: RedisAt) -> None:
    for turns in range(20):
        async with connected(redis_at) as redis:
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(TIMEOUT_S):
                await redis.close()
