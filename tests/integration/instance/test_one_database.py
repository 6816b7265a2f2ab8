"""All instances on one Redis keep messages and accounts in one database: a user id must not be two people."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.config import Config
from dragoman.instance.instance import Instance
from dragoman.instance.redis_check import CannotStart
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.tools.postgres import PostgresServer
from support.cluster import config
from support.redis_servers import RedisAt
from support.waiting import wait_until


def at(redis: RedisAt, prefix: str, name: str, database: str) -> Config:
    return config(redis, prefix, scheduler__phase2__instance_id=name, server__port=0, archive__url=database)


@asynccontextmanager
async def started(settings: Config) -> AsyncIterator[Instance]:
    instance = await Instance.start(settings)
    try:
        yield instance
    finally:
        await instance.stop()


async def test_an_instance_with_a_database_of_its_own_does_not_start(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    async with started(at(redis_at, prefix, "a", f"sqlite:///{tmp_path}/a/chat.sqlite3")):
        with pytest.raises(CannotStart, match=rf"archive\.url.*{prefix}:v1:chat:archive"):
            async with started(at(redis_at, prefix, "b", f"sqlite:///{tmp_path}/b/chat.sqlite3")):
                pass
        async with started(at(redis_at, prefix, "c", f"sqlite:///{tmp_path}/a/chat.sqlite3")):
            pass


async def test_database_of_the_cluster_is_remembered_without_instances(
    redis_at: RedisAt, prefix: str, sql_url: str, tmp_path: Path
) -> None:
    async with started(at(redis_at, prefix, "a", sql_url)):
        pass
    with pytest.raises(CannotStart, match="another database"):
        async with started(at(redis_at, prefix, "a", f"sqlite:///{tmp_path}/other.sqlite3")):
            pass
    async with started(at(redis_at, prefix, "a", sql_url)):
        pass


async def test_a_database_that_was_replaced_is_taken_when_the_key_is_gone(
    redis_at: RedisAt, redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with started(at(redis_at, keys.prefix, "a", f"sqlite:///{tmp_path}/old.sqlite3")):
        pass
    await redis.call("DEL", keys.chat_archive)
    async with started(at(redis_at, keys.prefix, "a", f"sqlite:///{tmp_path}/new.sqlite3")):
        pass


async def test_an_instance_whose_database_comes_up_later_and_is_another_ends(
    redis_at: RedisAt, prefix: str, tmp_path: Path, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()
    monkeypatch.setattr(Instance, "_end_process", lambda self: told.append(self.name))
    elsewhere = own_postgres.new_database()
    own_postgres.kill()
    async with (
        started(at(redis_at, prefix, "a", f"sqlite:///{tmp_path}/chat.sqlite3")),
        started(at(redis_at, prefix, "b", elsewhere)),
    ):
        assert told == []
        own_postgres.start()
        await wait_until(lambda: told == ["b"], what="the instance to end")


async def test_database_that_returns_after_the_start_is_used_if_it_is_the_right_one(
    redis_at: RedisAt, redis: Redis, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()
    monkeypatch.setattr(Instance, "_end_process", lambda self: told.append(self.name))
    in_the_way = tmp_path / "data"
    in_the_way.write_text("no directory")
    async with started(at(redis_at, keys.prefix, "a", f"sqlite:///{in_the_way}/chat.sqlite3")) as instance:
        assert await redis.call("GET", keys.chat_archive) is None
        in_the_way.unlink()

        async def recorded() -> bool:
            return bool(await redis.call("GET", keys.chat_archive))

        await wait_until(recorded, what="the database to be recorded")
        identity = await instance.services.chat.archive.identity()
        assert await redis.call("GET", keys.chat_archive) == identity.encode()
    assert told == []
