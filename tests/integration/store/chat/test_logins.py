"""Tries to log in, counted across instances."""

from dragoman.store.attempts import REMEMBERED_MS, Invites, Logins, LoginVerdict
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis


async def test_login_attempts_count_across_instances(redis: Redis, prefix: str) -> None:
    here, there = (Logins(redis, Keys(prefix), 5, 100) for _ in range(2))
    assert [await each.take("::1", "alice") for each in (here, there, here, there, here)] == [LoginVerdict.OK] * 5
    assert await there.take("::1", "alice") is LoginVerdict.ADDRESS
    assert await here.take("::1", "alice") is LoginVerdict.ADDRESS
    assert await here.take("::1", "bob") is LoginVerdict.OK
    assert await there.take("203.0.113.7", "alice") is LoginVerdict.OK


async def test_a_name_and_an_address_cannot_be_shifted_into_one_another(redis: Redis, prefix: str) -> None:
    logins = Logins(redis, Keys(prefix), 1, 100)
    assert await logins.take("ab", "c") is LoginVerdict.OK
    assert await logins.take("a", "bc") is LoginVerdict.OK
    assert await logins.take("ab", "c") is LoginVerdict.ADDRESS


async def test_login_keys_name_no_user_and_expire(redis: Redis, prefix: str) -> None:
    logins = Logins(redis, Keys(prefix), 5, 100)
    name = "al\nice{}" * 8
    assert await logins.take("203.0.113.7", name) is LoginVerdict.OK
    await logins.succeeded("203.0.113.7", name)
    found = [key.decode() for part in await redis.on_each("KEYS", f"{prefix}:*") for key in part]
    assert len(found) == 3
    for key in found:
        assert "al" not in key.rpartition(":")[2]
        assert 0 < await redis.call("PTTL", key) <= REMEMBERED_MS


async def test_any_rate_can_be_configured(redis: Redis, prefix: str) -> None:
    logins = Logins(redis, Keys(prefix), 1_000_000, 1_000_000)
    assert {await logins.take("::1", "alice") for _ in range(100)} == {LoginVerdict.OK}


async def test_attempts_from_many_addresses_use_up_a_name_for_new_addresses_alone(redis: Redis, prefix: str) -> None:
    logins = Logins(redis, Keys(prefix), 5, 10)
    await logins.succeeded("192.0.2.1", "alice")
    guesses = [await logins.take(f"203.0.113.{n}", "alice") for n in range(12)]
    assert guesses == [LoginVerdict.OK] * 10 + [LoginVerdict.NAME] * 2
    assert await logins.take("192.0.2.1", "alice") is LoginVerdict.OK
    assert await logins.take("203.0.113.99", "bob") is LoginVerdict.OK


async def test_attempts_that_an_address_may_not_make_do_not_use_up_the_name(redis: Redis, prefix: str) -> None:
    logins = Logins(redis, Keys(prefix), 1, 3)
    assert await logins.take("203.0.113.7", "alice") is LoginVerdict.OK
    assert {await logins.take("203.0.113.7", "alice") for _ in range(9)} == {LoginVerdict.ADDRESS}
    assert await logins.take("203.0.113.8", "alice") is LoginVerdict.OK


# -- invite codes


async def test_an_invite_code_can_be_claimed_once_at_any_instance(redis: Redis, prefix: str) -> None:
    here, there = (Invites(redis, Keys(prefix)) for _ in range(2))
    code = await here.make(60)
    assert await there.exists(code)
    assert sorted([bool(await here.claim(code)), bool(await there.claim(code))]) == [False, True]
    assert not await here.exists(code)
    assert not await here.claim("never made")


async def test_an_invite_code_expires_and_keeps_its_time_if_it_is_restored(redis: Redis, prefix: str) -> None:
    invites = Invites(redis, Keys(prefix))
    code = await invites.make(60)
    left_ms = await invites.claim(code)
    assert 0 < left_ms <= 60_000
    await invites.restore(code, left_ms)
    (found,) = [key.decode() for part in await redis.on_each("KEYS", f"{prefix}:*") for key in part]
    assert code not in found
    assert 0 < await redis.call("PTTL", found) <= left_ms
