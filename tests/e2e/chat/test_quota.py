"""One user cannot fill the database of all: bytes a day, on every path and at every instance."""

from collections.abc import Iterator

import pytest

from dragoman.domain.limits.bytes_a_day import cost
from e2e.chat.chat_stage import PATHS, chat_stage, visiting_chat
from e2e.speech_stage import Stage
from key_leaks import Onlooker
from redis_servers import RedisAt
from waiting import wait_until

BODY = "x" * 1000
FITTING = 5


@pytest.fixture(scope="module", params=["off", "save first"])
def stage(
    request: pytest.FixtureRequest, redis_server: RedisAt, onlooker: Onlooker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """Two instances, and room for a few messages a day."""
    flags = {**PATHS[request.param], "limits__chat_bytes_per_day": FITTING * cost(BODY)}
    with chat_stage(redis_server, tmp_path_factory.mktemp("chat-quota"), onlooker, flags, instances=2) as up:
        yield up


async def test_a_user_that_has_stored_its_bytes_of_the_day_is_told_so_and_stays_connected(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        alice, bob = await visit.pair()
        for number in range(FITTING):
            await alice.saved(await alice.chat(bob.uid, BODY, f"n{number}"))
        await alice.chat(bob.uid, BODY, "over")
        await alice.refused("quota_exceeded", clientMsgId="over")
        assert len(visit.rows(alice.uid)) == FITTING
        await bob.saved(await bob.chat(alice.uid, BODY, "of another user"))
        assert sum([await one.metric("dragoman_chat_over_quota_total") for one in stage.instances]) >= 1


async def test_a_user_over_its_quota_is_so_at_every_instance(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        alice, to = await visit.user(), visit.uid()
        for number in range(FITTING):
            await alice.saved(await alice.chat(to, BODY, f"n{number}"))

        async def counted() -> bool:
            return await visit.spent(alice.uid) == FITTING * cost(BODY)

        await wait_until(counted, 30)
        elsewhere = await visit.user(at=1, uid=alice.uid)
        await elsewhere.chat(to, BODY, "over")
        await elsewhere.refused("quota_exceeded", clientMsgId="over")
