"""A session belongs to who opened it, on any instance; and the tenant of a token goes with all that is done for it."""

import json
import time
from typing import Any

import pytest

from dragoman.protocol.codes import Close
from support.speech import (
    SECRET,
    TIMEOUT_S,
    Scenario,
    Talker,
    closed_with,
    module_harness,
    token,
)

OPERATOR = {"Authorization": f"Bearer {token('operator', 'olga', tenant='acme', exp=int(time.time()) + 3600)}"}


GUARDED = {"security__secret": SECRET}
harness = module_harness(GUARDED, GUARDED, headers=OPERATOR)


async def told(scenario: Scenario, path: str, at: int = 0) -> Any:
    port = scenario.harness.instances[at].port
    async with scenario.http.get(f"http://127.0.0.1:{port}/api/v1/{path}", headers=OPERATOR) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def resumed(scenario: Scenario, before: Talker, credential: str, secret: str | None = None) -> dict[str, Any]:
    """What is answered to who comes with the ids of a session."""
    after = Talker(await scenario.socket())
    await after.say(
        "session_resume", session_id=before.session_id, resume_token=secret or before.token, last_seq=before.last_seq,
        token=credential,
    )  # fmt: skip
    return await after.until(lambda m: m["type"] in ("session_init_ack", "error"), TIMEOUT_S)


async def test_only_the_principal_that_opened_a_session_resumes_it(scenario: Scenario) -> None:
    ann = await scenario.talker(token=token(sub="ann", tenant="acme"), resume=True)
    strangers = {
        "another subject": token(sub="eve", tenant="acme"),
        "another tenant": token(sub="ann", tenant="evil"),
        "no tenant": token(sub="ann"),
        "a name that looks alike": token(sub="acme/ann"),
    }
    for who, credential in strangers.items():
        assert (await resumed(scenario, ann, credential))["code"] == "INVALID_SESSION", who
    wrong = await resumed(scenario, ann, token(sub="ann", tenant="acme"), secret="x" * len(ann.token))
    assert wrong["code"] == "INVALID_SESSION"
    assert await ann.pong(), "who opened it did not notice"
    assert (await resumed(scenario, ann, token(sub="ann", tenant="acme")))["resumed"]


@pytest.mark.parametrize("later", ["not a token", token(sub="eve", tenant="acme")], ids=["bad", "of another principal"])
async def test_a_later_token_of_a_connection_is_checked_like_the_first(scenario: Scenario, later: str) -> None:
    init = {"client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
    ann = await scenario.talker(token=token(sub="ann", tenant="acme"))
    await ann.init(token=token(sub="ann", tenant="acme"))
    await ann.say("session_init", **init, token=later)
    assert await closed_with(ann.ws) == Close.UNAUTHORIZED


async def test_the_tenant_of_a_token_goes_with_node_session_job_and_audit(scenario: Scenario) -> None:
    await scenario.node(token=token("node", "gpu", tenant="acme"), node_id="gpu")
    ann = await scenario.talker(token=token(sub="ann", tenant="acme"), resume=True)
    await scenario.say_utterance(ann, 0)
    result = await ann.result(0, TIMEOUT_S)
    for at in range(2):  # any instance tells of all of it
        nodes = (await told(scenario, "nodes", at))["nodes"]
        assert {node["node_id"]: node["tenant"] for node in nodes}["gpu"] == "acme"
        (session,) = (await told(scenario, f"sessions?part={ann.session_id}", at))["sessions"]
        assert (session["subject"], session["tenant"]) == ("acme/ann", "acme")
        assert (await told(scenario, f"jobs/{result['job_id']}", at))["tenant"] == "acme"
        listed = (await told(scenario, f"jobs?session={ann.session_id}", at))["jobs"]
        assert [job["tenant"] for job in listed] == ["acme"]
    port = scenario.harness.instances[0].port
    async with scenario.http.delete(f"http://127.0.0.1:{port}/api/v1/dlq/a/9-9", headers=OPERATOR) as answer:
        assert answer.status == 404
    entry = (await told(scenario, "audit", 1))["entries"][0]
    assert (entry["who"], entry["tenant"], entry["action"]) == ("olga", "acme", "dlq.drop")


async def test_tenant_in_a_message_of_a_client_is_ignored(scenario: Scenario) -> None:
    """`tenant_id` of session_init is a word of the client; the token's is not."""
    ann = await scenario.talker(token=token(sub="ann", tenant="acme"), resume=True, tenant_id="evil")
    (session,) = (await told(scenario, f"sessions?part={ann.session_id}"))["sessions"]
    assert session["tenant"] == "acme"
    assert "evil" not in json.dumps(session)
