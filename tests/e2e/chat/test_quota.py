"""One user cannot fill the database of all: bytes a day, on every path and at every instance."""

from collections.abc import Iterator

import pytest

from dragoman.domain.limits.rates import cost
from support.chat import PATHS, chat_harness, new_chat_scenario
from support.redis_servers import KeyInspector, RedisAt
from support.speech import Harness
from support.waiting import wait_until

BODY = "x" * 1000
FITTING = 5


@pytest.fixture(scope="module", params=["off", "save first"])
def harness(
    request: pytest.FixtureRequest,
    redis_server: RedisAt,
    key_inspector: KeyInspector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Harness]:
    """Two instances, and room for a few messages a day."""
    flags = {**PATHS[request.param], "limits__chat_bytes_per_day": FITTING * cost(BODY)}
    with chat_harness(redis_server, tmp_path_factory.mktemp("chat-quota"), key_inspector, flags, instances=2) as up:
        yield up


async def test_user_over_its_quota_is_refused_and_stays_connected(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, bob = await scenario.pair()
        for number in range(FITTING):
            await alice.saved(await alice.chat(bob.uid, BODY, f"n{number}"))
        await alice.chat(bob.uid, BODY, "over")
        await alice.refused("quota_exceeded", clientMsgId="over")
        assert len(scenario.rows(alice.uid)) == FITTING
        await bob.saved(await bob.chat(alice.uid, BODY, "of another user"))
        assert sum([await one.metric("dragoman_chat_over_quota_total") for one in harness.instances]) >= 1


async def test_quota_of_a_user_counts_at_every_instance(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, to = await scenario.user(), scenario.uid()
        for number in range(FITTING):
            await alice.saved(await alice.chat(to, BODY, f"n{number}"))

        async def counted() -> bool:
            return await scenario.spent(alice.uid) == FITTING * cost(BODY)

        await wait_until(counted, 30)
        elsewhere = await scenario.user(at=1, uid=alice.uid)
        await elsewhere.chat(to, BODY, "over")
        await elsewhere.refused("quota_exceeded", clientMsgId="over")
