"""The client's interface: credentials, blocking reads, channels, and what is counted."""

import asyncio
from contextlib import AsyncExitStack
from signal import SIGCONT, SIGSTOP

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dragoman.store.errors import RedisAway, Refused, StoreError, UnknownOutcome
from dragoman.store.keys import Keys
from dragoman.store.nodes import RESERVE_SLOT
from dragoman.store.redis import Dedicated, Redis, SingleRedis, Subscriber
from support.redis_servers import Connect, RedisAt, connected, own
from support.waiting import wait_until

TIMEOUT_S = 60.0


# -- being let in -----------------------------------------------------------------------------------


async def test_a_password_and_a_database_in_the_url_are_used(mortal: RedisAt) -> None:
    server = own(mortal.server)
    server.call("CONFIG", "SET", "requirepass", "s3cret/@")
    redis = SingleRedis(f"redis://:s3cret%2F%40@127.0.0.1:{server.port}/5")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await redis.wait_connected()
        await redis.call("SET", "x", 1)
        assert b"db5:keys=1" in await redis.call_at("x", "INFO", "keyspace")
    finally:
        await redis.close()


async def test_a_user_of_the_servers_own_list_is_let_in(mortal: RedisAt) -> None:
    server = own(mortal.server)
    server.call("ACL", "SETUSER", "scheduler", "on", ">pw", "~*", "&*", "+@all")
    redis = SingleRedis(f"redis://scheduler:pw@127.0.0.1:{server.port}")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await redis.wait_connected()
        assert await redis.call_at("x", "ACL", "WHOAMI") == b"scheduler"
    finally:
        await redis.close()


async def test_wrong_password_is_reported_to_every_caller(mortal: RedisAt) -> None:
    server = own(mortal.server)
    server.call("CONFIG", "SET", "requirepass", "right")
    redis = SingleRedis(f"redis://:wrong@127.0.0.1:{server.port}")
    try:
        await wait_until(lambda: "WRONGPASS" in redis.last_error, TIMEOUT_S)
        with pytest.raises(RedisAway, match="WRONGPASS"):
            await redis.call("GET", "x")
    finally:
        await redis.close()


async def test_a_unix_socket_does_as_well(mortal: RedisAt) -> None:
    redis = SingleRedis(mortal.unix_url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await redis.wait_connected()
        assert await redis.call("SET", "x", 1) == b"OK"
    finally:
        await redis.close()


# -- the rest of the interface ----------------------------------------------------------------------


async def test_a_command_without_a_key_goes_to_every_server_that_holds_data(redis: Redis, redis_at: RedisAt) -> None:
    replies = await redis.on_each("PING")
    assert replies == [b"PONG"] * (3 if redis_at.mode == "cluster" else 1)
    assert len(redis.addresses()) == len(replies)


async def test_every_operation_is_counted_with_its_result(redis: Redis, keys: Keys) -> None:
    key = keys.reserved("n")
    await RESERVE_SLOT(redis, reserved=key, job="j", ttl=60_000, limit=1)
    await RESERVE_SLOT(redis, reserved=key, job="k", ttl=60_000, limit=1)
    with pytest.raises(Refused):
        await redis.call("GET", key)
    await redis.call_at(key, "OBJECT", "ENCODING", key)
    registry = CollectorRegistry()
    registry.register(redis.ops)
    lines = generate_latest(registry).decode().splitlines()
    assert 'scheduler_phase2_redis_op_total{op="reserve_slot",result="ok"} 2.0' in lines
    assert 'scheduler_phase2_redis_op_total{op="GET",result="error"} 1.0' in lines
    assert 'scheduler_phase2_redis_op_total{op="OBJECT",result="ok"} 1.0' in lines
    assert 'dragoman_redis_op_seconds_count{op="reserve_slot"} 2.0' in lines


async def test_lost_and_refused_calls_are_counted(mortal: RedisAt) -> None:
    server = own(mortal.server)
    async with connected(mortal) as redis:
        server.child.signal(SIGSTOP)
        before = redis.flushes
        calls = [redis.call("INCR", "n") for _ in range(3)]
        await wait_until(lambda: redis.flushes > before, TIMEOUT_S)
        server.kill()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(redis.call("INCR", "n"), return_exceptions=True)
        op = redis.ops["INCR"]
        assert (op.ok, op.unknown, op.away, op.errors) == (0, 3, 1, 0)


# -- connections of one's own -----------------------------------------------------------------------


async def test_a_blocking_read_waits_on_a_connection_of_its_own(redis: Redis, keys: Keys) -> None:
    stream = keys.inbox("i")
    reader = Dedicated(redis, stream, "reader")
    try:
        read = asyncio.create_task(reader.call("XREAD", "BLOCK", 60_000, "STREAMS", stream, "0", patience_s=TIMEOUT_S))
        # Blocked: the server itself says so, if it is not a reader of the test before. The others go on meanwhile.
        await wait_until(lambda: _blocked(redis), TIMEOUT_S)
        assert await redis.call("XADD", stream, "*", "a", "1")
        reply = await read
        assert reply[0][1][0][1] == [b"a", b"1"]
    finally:
        await reader.close()


async def _blocked(redis: Redis) -> bool:
    infos = await redis.on_each("INFO", "clients")
    return any(b"blocked_clients:1" in info for info in infos)


async def test_a_blocking_read_with_nothing_to_read_returns_nothing(redis: Redis, keys: Keys) -> None:
    reader = Dedicated(redis, keys.inbox("i"), "reader")
    try:
        for _ in range(3):
            command = ("XREAD", "BLOCK", 1, "STREAMS", keys.inbox("i"), "$")
            assert await reader.call(*command, patience_s=TIMEOUT_S) is None
    finally:
        await reader.close()


async def test_blocking_read_is_aborted_after_its_timeout_and_the_next_works(redis: Redis, keys: Keys) -> None:
    stream = keys.inbox("i")
    reader = Dedicated(redis, stream, "reader")
    try:
        with pytest.raises(RedisAway, match="no answer"):
            await reader.call("XREAD", "BLOCK", 0, "STREAMS", stream, "$", patience_s=0.1)
        await redis.call("XADD", stream, "*", "a", "1")

        async def again() -> object:
            return await reader.call("XREAD", "COUNT", 1, "STREAMS", stream, "0", patience_s=TIMEOUT_S)

        assert await wait_until(again, TIMEOUT_S, tolerate=StoreError)
    finally:
        await reader.close()


async def test_a_reader_that_is_cancelled_ends(redis: Redis, keys: Keys) -> None:
    for turns in range(30):
        reader = Dedicated(redis, keys.inbox("i"), "reader")
        command = ("XREAD", "BLOCK", 0, "STREAMS", keys.inbox("i"), "$")
        read = asyncio.create_task(reader.call(*command, patience_s=TIMEOUT_S))
        for _ in range(turns):
            await asyncio.sleep(0)
        read.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            assert isinstance((await asyncio.gather(read, return_exceptions=True))[0], asyncio.CancelledError)
            await reader.close()


async def test_a_reader_that_is_closed_while_it_is_about_to_read_says_that_its_connection_is_gone(
    redis: Redis, keys: Keys
) -> None:
    for turns in range(60):
        reader = Dedicated(redis, keys.inbox("i"), "reader")
        command = ("XREAD", "BLOCK", 0, "STREAMS", keys.inbox("i"), "$")
        read = asyncio.create_task(reader.call(*command, patience_s=TIMEOUT_S))
        await asyncio.sleep(0)
        assert reader._link is not None
        if turns % 2:
            await reader._link.connected.wait()
        for _ in range(turns // 2):
            await asyncio.sleep(0)
        await reader.close()
        async with asyncio.timeout(TIMEOUT_S):
            assert isinstance((await asyncio.gather(read, return_exceptions=True))[0], StoreError)


async def test_blocking_read_fails_when_its_server_dies_and_works_again_afterwards(mortal: RedisAt) -> None:
    server = own(mortal.server)
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(connected(mortal))
        reader = Dedicated(redis, "stream", "reader")
        stack.push_async_callback(reader.close)
        read = asyncio.create_task(reader.call("XREAD", "BLOCK", 0, "STREAMS", "stream", "$", patience_s=TIMEOUT_S))
        await wait_until(lambda: _blocked(redis), TIMEOUT_S)
        server.kill()
        with pytest.raises(UnknownOutcome):
            await read
        server.start()
        await wait_until(lambda: redis.call("XADD", "stream", "*", "a", "1"), TIMEOUT_S, tolerate=StoreError)

        async def again() -> object:
            return await reader.call("XREAD", "COUNT", 1, "STREAMS", "stream", "0", patience_s=TIMEOUT_S)

        assert await wait_until(again, TIMEOUT_S, tolerate=StoreError)


# -- channels ---------------------------------------------------------------------------------------


async def test_subscriber_gets_messages_published_by_any_client(redis: Redis, connect: Connect, keys: Keys) -> None:
    heard: list[list[bytes]] = [[], []]
    ears = [Subscriber(redis, keys.announcements, heard[0].append)]
    ears.append(Subscriber(await connect(), keys.announcements, heard[1].append))
    listening = [asyncio.create_task(ear.run()) for ear in ears]
    try:
        await wait_until(lambda: all(ear.listening for ear in ears), TIMEOUT_S)
        for n in range(100):
            await redis.publish(keys.announcements, b"%d" % n)
        await wait_until(lambda: all(len(each) >= 100 for each in heard), TIMEOUT_S)
        assert heard[0] == heard[1] == [b"%d" % n for n in range(100)]
    finally:
        for task in listening:
            task.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*listening, return_exceptions=True)
    assert not any(ear.listening for ear in ears)


@pytest.mark.parametrize("fault", ["killed", "hung"])
async def test_a_listener_comes_back_after_its_server_did(mortal: RedisAt, fault: str) -> None:
    server = own(mortal.server)
    heard: list[bytes] = []
    async with connected(mortal, timeout_s=1.0) as redis:
        ear = Subscriber(redis, "channel", heard.append)
        listening = asyncio.create_task(ear.run())
        await wait_until(lambda: ear.listening, TIMEOUT_S)
        if fault == "killed":
            server.kill()
        else:
            server.child.signal(SIGSTOP)
        await wait_until(lambda: not ear.listening, TIMEOUT_S)
        if fault == "killed":
            server.start()
        else:
            server.child.signal(SIGCONT)

        async def said_and_heard() -> bool:
            await redis.publish("channel", b"again")
            return b"again" in heard

        await wait_until(said_and_heard, TIMEOUT_S, tolerate=StoreError)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
