"""Who holds whose socket: each removes his own word and nobody else's."""

import pytest

from dragoman.store.instances import EPOCH_TTL_MS, NodeIdTaken, Owners
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

TTL_MS = 45_000


@pytest.fixture
def owners(redis: Redis, keys: Keys) -> Owners:
    return Owners(redis, keys, TTL_MS)


async def members(redis: Redis, key: str) -> set[str]:
    return {name.decode() for name in await redis.call("SMEMBERS", key)}


async def test_owned_keys_are_listed_for_the_takeover(owners: Owners, redis: Redis, keys: Keys) -> None:
    await owners.claim_node("n1", "i")
    await owners.claim_node("n2", "i")
    await owners.claim_session("s1", "i")
    assert await members(redis, keys.nodes_of("i")) == {"n1", "n2"}
    assert await members(redis, keys.sessions_of("i")) == {"s1"}
    await owners.leave_node("n1", "i")
    await owners.leave_session("s1", "i")
    assert await members(redis, keys.nodes_of("i")) == {"n2"}
    assert await members(redis, keys.sessions_of("i")) == set()


async def test_closing_connection_deletes_only_its_own_owner_key(owners: Owners, redis: Redis, keys: Keys) -> None:
    await owners.claim_node("n", "i1")
    await owners.claim_session("s", "i1")
    await owners.claim_node("n", "i2")
    await owners.claim_session("s", "i2")
    await owners.leave_node("n", "i1")
    await owners.leave_session("s", "i1")
    assert await owners.node_owner("n") == "i2"
    assert await owners.session_owner("s") == "i2"
    assert await members(redis, keys.nodes_of("i1")) == set()
    await owners.leave_node("n", "i2")
    await owners.leave_session("s", "i2")
    assert await owners.node_owner("n") is None
    assert await owners.session_owner("s") is None


async def test_owner_keys_lapse_and_are_renewed_also_when_redis_has_forgotten_them(
    owners: Owners, redis: Redis, keys: Keys
) -> None:
    await owners.claim_node("n", "i")
    await owners.claim_session("s", "i")
    assert 0 < await redis.call("PTTL", keys.node_epoch("n")) <= EPOCH_TTL_MS
    await redis.call("PEXPIRE", keys.node_owner("n"), 1000)
    await redis.call("DEL", keys.session_owner("s"))
    await owners.renew("i", ["n"], ["s"])
    for key in (keys.node_owner("n"), keys.session_owner("s")):
        assert 1000 < await redis.call("PTTL", key) <= TTL_MS
    assert await owners.session_owner("s") == "i"


async def test_renewing_nothing_asks_nothing(owners: Owners, redis: Redis) -> None:
    await owners.renew("i", [], [])
    assert redis.ops["SET"].ok == 0


async def test_an_anonymous_node_does_not_get_the_id_of_one_with_a_token(
    owners: Owners, redis: Redis, keys: Keys
) -> None:
    epoch = await owners.claim_node("n", "i1", "token")
    with pytest.raises(NodeIdTaken):
        await owners.claim_node("n", "i2", "anonymous")
    assert await owners.node_owner("n") == "i1"
    assert int(await redis.call("GET", keys.node_epoch("n"))) == epoch
    assert await members(redis, keys.nodes_of("i2")) == set()
    assert await owners.claim_node("n", "i2", "token") > epoch
    assert await owners.claim_node("free", "i2", "anonymous") > 0
    assert await members(redis, keys.nodes_of("i2")) == {"n", "free"}


async def test_the_id_stays_with_its_token_for_as_long_as_it_is_renewed(
    owners: Owners, redis: Redis, keys: Keys
) -> None:
    await owners.claim_node("n", "i1", "token")
    await redis.call("DEL", keys.node_named("n"))  # a Redis that came back has forgotten it
    await owners.renew("i1", ["n"], [], ["n"])
    with pytest.raises(NodeIdTaken):
        await owners.claim_node("n", "i2", "anonymous")
    assert 0 < await redis.call("PTTL", keys.node_named("n")) <= TTL_MS
