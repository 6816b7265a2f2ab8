"""Replicas are asked of the master that took what was accepted, also while its slot is on the way to another."""

import asyncio

import pytest

from dragoman.embedded.engine import free_port
from dragoman.store.chat.cluster import Replicas
from dragoman.store.cluster import ClusterRedis
from dragoman.store.errors import RedisAway
from dragoman.store.redis import Redis
from support.redis_servers import OK, scripted_redis

TIMEOUT_S = 60.0


@pytest.mark.parametrize("replicas_there", [0, 1])
async def test_redirected_write_is_confirmed_by_the_replicas_of_its_new_master(
    replicas_there: int,
) -> None:
    here, there = free_port(), free_port()

    def slots(_: int, command: list[bytes]) -> bytes:
        half = b"*3\r\n:%d\r\n:%d\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n"
        return b"*2\r\n" + half % (0, 16382, here) + half % (16383, 16383, there)

    def send_on(number: int, command: list[bytes]) -> bytes:
        answers = {b"WAIT": b":1\r\n", b"SET": b"-ASK 0 127.0.0.1:%d\r\n" % there}
        return slots(number, command) if command[0] == b"CLUSTER" else answers.get(command[0], OK)

    def take(number: int, command: list[bytes]) -> bytes:
        if command[0] == b"CLUSTER":
            return slots(number, command)
        return b":%d\r\n" % replicas_there if command[0] == b"WAIT" else OK

    async def connect() -> Redis:
        redis = ClusterRedis([url])
        await redis.wait_connected()
        return redis

    async with scripted_redis(send_on, here) as url, scripted_redis(take, there), asyncio.timeout(TIMEOUT_S):
        replicas = Replicas(connect, 1000)
        try:
            redis = await replicas.redis()
            await replicas.wait("k", 1)
            assert await redis.call("SET", "k", "v") == b"OK"
            if replicas_there:
                await replicas.wait("k", 1)
            else:
                with pytest.raises(RedisAway, match="0 of 1 replicas"):
                    await replicas.wait("k", 1)
        finally:
            await replicas.close()
