"""One user cannot fill the database of all: bytes a day, on every path and at every instance."""

from dragoman.domain.limits.rates import cost
from support.chat import ChatScenario, module_chat_harness
from support.waiting import wait_until

BODY = "x" * 1000
FITTING = 5


# Room for a few messages a day.
harness = module_chat_harness(
    {"limits__chat_bytes_per_day": FITTING * cost(BODY)}, instances=2, modes=("off", "save first")
)


async def test_user_over_its_quota_is_refused_and_stays_connected(scenario: ChatScenario) -> None:
    alice, bob = await scenario.pair()
    for number in range(FITTING):
        await alice.saved(await alice.chat(bob.uid, BODY, f"n{number}"))
    await alice.chat(bob.uid, BODY, "over")
    await alice.refused("quota_exceeded", clientMsgId="over")
    assert len(scenario.rows(alice.uid)) == FITTING
    await bob.saved(await bob.chat(alice.uid, BODY, "of another user"))
    assert sum([await one.metric("dragoman_chat_over_quota_total") for one in scenario.harness.instances]) >= 1


async def test_quota_of_a_user_counts_at_every_instance(scenario: ChatScenario) -> None:
    alice, to = await scenario.user(), scenario.uid()
    for number in range(FITTING):
        await alice.saved(await alice.chat(to, BODY, f"n{number}"))

    async def counted() -> bool:
        return await scenario.spent(alice.uid) == FITTING * cost(BODY)

    await wait_until(counted, 30)
    elsewhere = await scenario.user(at=1, uid=alice.uid)
    await elsewhere.chat(to, BODY, "over")
    await elsewhere.refused("quota_exceeded", clientMsgId="over")
