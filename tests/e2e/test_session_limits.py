"""How many speech sessions one client may have, and that the others have room whatever it does."""

import time
from typing import Any

from dragoman.domain.limits.sessions import WORK_AT_ONCE
from dragoman.protocol.codes import Close
from support.speech import (
    ACKING,
    SECRET,
    TIMEOUT_S,
    Harness,
    Scenario,
    Talker,
    closed_with,
    module_harness,
    new_scenario,
    token,
    with_healthy_client,
)
from support.waiting import wait_until

PER_S = 20
INIT: dict[str, object] = {"client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
TWO: dict[str, object] = {
    "security__secret": SECRET,
    "limits__sessions_per_principal": 3,
    "limits__sessions_per_gateway": 5,
    "limits__utterances_per_s": PER_S,
}
# With a secret, a client may have three sessions and a gateway five.
shared = module_harness(TWO, TWO, headers={"Authorization": f"Bearer {token('operator', 'olga')}"})
# Without one, there is room for six; for two of them without a connection.
laptop = module_harness({"limits__sessions": 6, "limits__detached_share": 0.34})


async def asked(talker: Talker, **fields: object) -> dict[str, Any]:
    """The answer to a session_init."""
    await talker.say("session_init", **INIT | fields)
    return await talker.until(lambda m: m["type"] in ("session_init_ack", "error"), TIMEOUT_S)


async def opened_and_left(scenario: Scenario, count: int, **fields: object) -> list[dict[str, Any]]:
    """The answers to one session_init each on connections that are closed after it."""
    answers = []
    for _ in range(count):
        talker = await scenario.bare_talker()
        answers.append(await asked(talker, **fields))
        await talker.ws.close()
    return answers


async def is_there(talker: Talker, session_id: str) -> bool:
    await talker.say("client_heartbeat", session_id=session_id, timestamp=1)
    answer = await talker.until(lambda m: m["type"] in ("server_heartbeat", "error"), TIMEOUT_S)
    return bool(answer["type"] == "server_heartbeat")


async def known(scenario: Scenario, credential: str, at: int = 0) -> Talker:
    """A connection that has said who it is, and has no session."""
    return Talker(await scenario.socket(at, headers={"Authorization": f"Bearer {credential}"}))


async def limited(scenario: Scenario, limit: str) -> float:
    return await scenario.count(f"dragoman_session_limits_total{{limit={limit}}}")


def types(answers: list[dict[str, Any]]) -> list[str]:
    return [answer["type"] for answer in answers]


async def test_session_of_a_client_that_only_says_it_is_a_gateway_ends_with_its_connection(shared: Harness) -> None:
    async with with_healthy_client(shared) as scenario:
        eve = token(sub="eve")
        (told,) = await opened_and_left(scenario, 1, platform="api-gateway", token=eve)
        talker = await known(scenario, eve)

        async def is_over() -> bool:
            return not await is_there(talker, told["session_id"])

        await wait_until(is_over, TIMEOUT_S)


async def test_session_limit_of_a_principal_counts_sessions_without_a_connection(shared: Harness) -> None:
    async with with_healthy_client(shared) as scenario:
        before = await limited(scenario, "principal")
        answers = await opened_and_left(scenario, 4, resume=True, token=token(sub="mallory"))
        assert types(answers) == ["session_init_ack"] * 3 + ["error"]
        assert answers[3]["code"] == "LIMIT_EXCEEDED"
        assert "as many sessions as it may have" in answers[3]["message"]
        assert await limited(scenario, "principal") == before + 1
        assert await scenario.talker(token=token(sub="mallory", tenant="other"))


async def test_client_that_was_refused_a_session_keeps_its_connection_and_may_open_one_later(shared: Harness) -> None:
    async with new_scenario(shared) as scenario:
        talker = await scenario.talker(token=token(sub="oscar"))
        first = talker.session_id
        assert types([await asked(talker) for _ in range(3)]) == ["session_init_ack"] * 2 + ["error"]
        await talker.say("session_close", session_id=first, reason="done")
        await talker.until(lambda m: m["type"] == "session_close_ack", TIMEOUT_S)
        assert (await asked(talker))["type"] == "session_init_ack"


async def test_closed_session_counts_as_long_as_it_can_be_resumed(shared: Harness) -> None:
    """Each leaves something in Redis: to open and close them must not be a way around the limit."""
    async with new_scenario(shared) as scenario:
        talker = await known(scenario, token(sub="trudy"))
        for _ in range(3):
            session_id = (await asked(talker, resume=True))["session_id"]
            await talker.say("session_close", session_id=session_id, reason="done")
            await talker.until(lambda m: m["type"] == "session_close_ack", TIMEOUT_S)
        assert (await asked(talker, resume=True))["code"] == "LIMIT_EXCEEDED"


async def test_session_is_not_resumed_where_its_client_has_as_many_as_it_may_have(shared: Harness) -> None:
    async with new_scenario(shared) as scenario:
        credential = token(sub="peggy")
        here = [await scenario.talker(token=credential) for _ in range(3)]
        elsewhere = await scenario.talker(1, token=credential, resume=True)
        back = await known(scenario, credential)
        resume: dict[str, object] = {"session_id": elsewhere.session_id, "resume_token": elsewhere.token, "last_seq": 0}
        await back.say("session_resume", **resume)
        assert (await back.refused())["code"] == "LIMIT_EXCEEDED"
        assert await elsewhere.pong(), "it goes on where it is"
        await here[0].say("session_close", session_id=here[0].session_id, reason="done")
        await here[0].until(lambda m: m["type"] == "session_close_ack", TIMEOUT_S)
        await back.say("session_resume", **resume)
        assert (await back.until(lambda m: m["type"] == "session_init_ack", TIMEOUT_S))["resumed"]


async def test_sessions_of_a_gateway_outlive_their_connections_up_to_a_limit_of_its_own(shared: Harness) -> None:
    async with new_scenario(shared) as scenario:
        await scenario.node(features=ACKING, token=token("node", "of-gateways"), node_id="of-gateways")
        gateway, before = token(sub="gw", gateway=True), await limited(scenario, "gateway")
        answers = await opened_and_left(scenario, 6, platform="api-gateway", token=gateway)
        assert types(answers) == ["session_init_ack"] * 5 + ["error"]
        assert await limited(scenario, "gateway") == before + 1
        for at in (0, 1):
            sender = await known(scenario, gateway, at)
            sender.session_id = answers[0]["session_id"]
            await scenario.say_utterance(sender, at)
            assert await sender.result(at, TIMEOUT_S)


async def test_client_makes_no_more_work_with_more_connections_and_is_only_slowed_down(shared: Harness) -> None:
    async with with_healthy_client(shared) as scenario:
        await scenario.node(features=ACKING, token=token("node", "of-ivan"), node_id="of-ivan")
        slowed, began = await limited(scenario, "work"), time.monotonic()
        talkers = [await scenario.talker(token=token(sub="ivan")) for _ in range(3)]
        for talker in talkers:
            for index in range(20):
                await scenario.say_utterance(talker, index)
        for talker in talkers:
            for index in range(20):
                assert await talker.result(index, TIMEOUT_S)
        assert time.monotonic() - began >= (3 + 3 * 20 - WORK_AT_ONCE - 3) / PER_S
        assert await limited(scenario, "work") > slowed


async def test_oldest_sessions_without_a_connection_end_when_others_need_their_room(laptop: Harness) -> None:
    async with new_scenario(laptop) as scenario:

        async def detached() -> bool:
            return await scenario.count("dragoman_sessions_detached") == 6

        left = await opened_and_left(scenario, 6, platform="api-gateway")
        await wait_until(detached, TIMEOUT_S)
        talkers = [await scenario.talker() for _ in range(4)]
        late = await scenario.bare_talker()
        await late.say("session_init", **INIT)
        assert await closed_with(late.ws) == Close.OVERLOADED
        for one in left:  # one that is there answers by a socket of its own, and has none
            await talkers[0].say("client_heartbeat", session_id=one["session_id"], timestamp=1)
        await talkers[0].pong()
        gone = [message for message in talkers[0].heard if message["type"] == "error"]
        assert (len(gone), await limited(scenario, "detached"), await scenario.count("dragoman_sessions")) == (4, 4, 6)
