"""Wrong codes and persistent rooms, counted for all instances together."""

from dragoman.store.attempts import DAY_MS, WRONG_CODES_PER_MINUTE, RoomAttempts
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis


async def test_wrong_codes_of_an_address_count_across_instances(redis: Redis, prefix: str) -> None:
    here, there = (RoomAttempts(redis, Keys(prefix), 1) for _ in range(2))
    for number in range(WRONG_CODES_PER_MINUTE):
        each = (here, there)[number % 2]
        assert await each.may_try_code("203.0.113.7")
        assert await each.may_try_code("203.0.113.7")  # to ask costs nothing
        await each.wrong_code("203.0.113.7")
    assert not await here.may_try_code("203.0.113.7")
    assert not await there.may_try_code("203.0.113.7")
    assert await here.may_try_code("203.0.113.8")


async def test_persistent_rooms_of_a_principal_count_across_instances(redis: Redis, prefix: str) -> None:
    here, there, unlimited = (RoomAttempts(redis, Keys(prefix), per_day) for per_day in (2, 2, 0))
    assert await here.may_make_persistent("default/ann")
    assert await there.may_make_persistent("default/ann")
    assert not await here.may_make_persistent("default/ann")
    assert not await there.may_make_persistent("default/ann")
    assert await here.may_make_persistent("default/bob")
    assert all([await unlimited.may_make_persistent("default/ann") for _ in range(10)])


async def test_keys_of_attempts_name_nobody_and_expire(redis: Redis, prefix: str) -> None:
    attempts = RoomAttempts(redis, Keys(prefix), 2)
    await attempts.wrong_code("203.0.113.7")
    await attempts.may_make_persistent("default/ann")
    found = [key.decode() for part in await redis.on_each("KEYS", f"{prefix}:*") for key in part]
    assert len(found) == 2
    for key in found:
        assert "203" not in key.rpartition(":")[2]
        assert "ann" not in key.rpartition(":")[2]
        assert 0 < await redis.call("PTTL", key) <= DAY_MS
