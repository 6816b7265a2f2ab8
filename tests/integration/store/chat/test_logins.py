"""Tries to log in, counted across instances."""

from dragoman.store.chat.logins import WINDOW_MS, Logins
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis


async def test_who_used_up_its_tries_at_one_instance_has_none_at_another(redis: Redis, prefix: str) -> None:
    here, there = (Logins(redis, Keys(prefix), 5) for _ in range(2))
    assert [await each.take("::1", "alice") for each in (here, there, here, there, here)] == [True] * 5
    assert not await there.take("::1", "alice")
    assert not await here.take("::1", "alice")
    assert await here.take("::1", "bob")
    assert await there.take("203.0.113.7", "alice")


async def test_a_name_and_an_address_cannot_be_shifted_into_one_another(redis: Redis, prefix: str) -> None:
    logins = Logins(redis, Keys(prefix), 1)
    assert await logins.take("ab", "c")
    assert await logins.take("a", "bc")
    assert not await logins.take("ab", "c")


async def test_what_is_kept_names_nobody_and_goes_by_itself(redis: Redis, prefix: str) -> None:
    logins = Logins(redis, Keys(prefix), 5)
    name = "al\nice{}" * 8
    assert await logins.take("203.0.113.7", name)
    found = [key.decode() for part in await redis.on_each("KEYS", f"{prefix}:*") for key in part]
    assert len(found) == 1
    assert "al" not in found[0].rpartition(":")[2]
    assert 0 < await redis.call("PTTL", found[0]) <= WINDOW_MS


async def test_any_rate_can_be_configured(redis: Redis, prefix: str) -> None:
    logins = Logins(redis, Keys(prefix), 1_000_000)
    assert all([await logins.take("::1", "alice") for _ in range(100)])
