"""The check that every other test here is looked at with."""

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.tools.leftover_keys import FOREVER, Left, leaks
from support.redis_servers import KeyInspector, RedisAt

P = Keys("t-1")


def test_a_key_may_live_for_ever_only_if_the_table_says_so() -> None:
    fine = [Left(P.inbox("i"), FOREVER), Left(P.nodes_all, FOREVER), Left(P.job("j"), 1000), Left(P.open("i"), 5)]
    assert leaks(fine, "t-1") == []
    assert leaks([Left(P.job("j"), FOREVER)], "t-1") == [
        "t-1:v1:jobs:{job:j}:fsm has no TTL, though its life is 'TTL job'"
    ]


def test_a_key_that_is_not_in_the_table_is_a_leak_whatever_its_life() -> None:
    assert leaks([Left("t-1:v1:surprise", 1000)], "t-1") == ["t-1:v1:surprise is not in the key table"]
    assert leaks([Left("t-1:nodes:owner:n", 1000)], "t-1") != [], "the braces belong to the name"


def test_a_key_of_a_turn_is_a_leak() -> None:
    assert leaks([Left(P.turn("t"), FOREVER)], "t-1") == ["scheduler:turn:t is left of a turn that has ended"]
    assert len(leaks([Left(P.session_turn("s"), FOREVER)], "t-1")) == 1


async def test_keys_are_found_on_every_server_and_gone_afterwards(
    redis: Redis, redis_at: RedisAt, keys: Keys, prefix: str, key_inspector: KeyInspector
) -> None:
    names = [keys.job(str(n)) for n in range(100)] + [keys.turn(prefix), keys.session_turn(prefix)]
    for name in names:
        await redis.call("HSET", name, "a", 1)
    await redis.call("PEXPIRE", names[0], 60_000)
    left = key_inspector.remove_keys(redis_at, prefix)
    assert sorted(key.name for key in left) == sorted(names)
    assert len(leaks(left, prefix)) == 101
    assert key_inspector.remove_keys(redis_at, prefix) == []
    assert [await redis.call("EXISTS", name) for name in names] == [0] * len(names)


async def test_the_keys_of_another_test_are_left_alone(
    redis: Redis, redis_at: RedisAt, keys: Keys, prefix: str, key_inspector: KeyInspector
) -> None:
    await redis.call("SADD", keys.nodes_all, "n")
    assert key_inspector.remove_keys(redis_at, f"{prefix}x") == []
    assert [key.name for key in key_inspector.remove_keys(redis_at, prefix)] == [keys.nodes_all]
