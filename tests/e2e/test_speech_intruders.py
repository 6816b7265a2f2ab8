"""Who has no token, or somebody else's, stays outside, and a healthy session does not notice."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from dragoman.protocol.codes import Close
from support.raw_node import SAMPLES as NODE_SAMPLES
from support.speech import (
    SECRET,
    TIMEOUT_S,
    Scenario,
    Talker,
    closed_with,
    module_harness,
    scenario_on_harness,
    token,
    with_healthy_client,
)

ODD = "a\x00\x1b[31m\r\n\t\x7f\u2028\ufeff\U0001f600\U0010ffff\"\\'${7*7}<b>"
CLIENT_SAMPLES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "contract" / "samples.json").read_text()
)["client"]


# A server that lets nobody in without a token.
harness = module_harness(
    {"security__secret": SECRET, "server__pre_session_s": 2.0},
    headers={"Authorization": f"Bearer {token('operator', 'op')}"},
)
scenario = scenario_on_harness(with_healthy_client)


def unsigned(typ: str) -> str:
    told = {"iss": "dragoman", "exp": int(time.time()) + 86_400, "typ": typ, "sub": "ann"}
    return jwt.encode(told, None, algorithm="none")


def bad_tokens(typ: str) -> dict[str, str | None]:
    other = "operator" if typ == "node" else "node"
    head, body, signature = token(typ).split(".")
    return {
        "none": None,
        "empty": "",
        "no token": "abc",
        "expired": token(typ, exp=int(time.time()) - 60),
        "never expires": token(typ, exp=None),
        "wrongly signed": token(typ, secret="another secret that is long enough for HS256 as well"),
        "alg none": unsigned(typ),
        "alg none, signed": ".".join((unsigned(typ).split(".")[0], body, signature)),
        "cut": f"{head}.{body}.",
        "of another kind": token(other),
        "of another issuer": token(typ, iss="somebody"),
        "of another algorithm": jwt.encode({"iss": "dragoman", "exp": 2**40, "typ": typ, "sub": "a"}, SECRET, "HS512"),
        "made tomorrow": token(typ, iat=int(time.time()) + 86_400),
        "for tomorrow": token(typ, nbf=int(time.time()) + 86_400),
        "of a tenant that is none": token(typ, tenant="a/b"),
        "odd": ODD,
        "long": "x" * 4096,
        "subject is no text": token(typ, tenant=7),
    }


@pytest.mark.parametrize("name", bad_tokens("client"))
async def test_client_without_a_valid_token_is_refused(scenario: Scenario, name: str) -> None:
    ws = await scenario.socket()
    init = {"type": "session_init", "client_version": "1", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
    await ws.send_str(json.dumps(init | {"token": bad_tokens("client")[name]}))
    assert await closed_with(ws) == Close.UNAUTHORIZED


@pytest.mark.parametrize("name", bad_tokens("node"))
async def test_node_without_a_valid_token_is_refused(scenario: Scenario, name: str) -> None:
    ws = await scenario.socket(path="/ws/node")
    await ws.send_str(json.dumps(NODE_SAMPLES["node_register"] | {"token": bad_tokens("node")[name]}))
    assert await closed_with(ws) == Close.UNAUTHORIZED


async def test_node_that_claims_the_id_of_another_is_refused(scenario: Scenario) -> None:
    victim = await scenario.node(token=token("node", "victim"), node_id="victim")
    ws = await scenario.socket(path="/ws/node")
    claim = NODE_SAMPLES["node_register"] | {"node_id": "victim", "token": token("node", "villain")}
    await ws.send_str(json.dumps(claim))
    assert await closed_with(ws) == Close.NODE_ID_CONFLICT
    talker = await scenario.talker(token=token())
    await scenario.say_utterance(talker, 0)
    assert await talker.result(0, TIMEOUT_S)
    assert len(victim.jobs) == 1


async def test_a_node_gets_the_id_its_token_is_for(scenario: Scenario) -> None:
    node = await scenario.node(token=token("node", "by-token"))
    assert node.id == "by-token"


@pytest.mark.parametrize("type", ["audio_chunk", "utterance", "client_heartbeat", "tts_started", "session_close"])
@pytest.mark.parametrize("who", ["another subject", "another tenant", "nobody"])
async def test_session_of_another_principal_cannot_be_used(scenario: Scenario, type: str, who: str) -> None:
    others = {"another subject": token(sub="eve"), "another tenant": token(tenant="evil"), "nobody": None}
    await scenario.node(token=token("node", "n"), node_id="n")
    victim = await scenario.talker(token=token())
    if others[who] is None:
        villain = Talker(await scenario.socket())
    else:
        villain = await scenario.talker(token=others[who])
    forged = next(s for s in CLIENT_SAMPLES.values() if s["type"] == type) | {"session_id": victim.session_id}
    await villain.ws.send_str(json.dumps(forged))
    if others[who] is None:
        assert await closed_with(villain.ws) == Close.UNAUTHORIZED
    else:
        assert (await villain.refused())["code"] == "INVALID_SESSION"
        assert await villain.pong()
    await scenario.say_utterance(victim, 0)
    assert await victim.result(0, TIMEOUT_S)


async def test_same_principal_may_use_its_session_on_another_socket(scenario: Scenario) -> None:
    await scenario.node(token=token("node", "n"), node_id="n")
    owner = await scenario.talker(token=token())
    sender = Talker(await scenario.socket(headers={"Authorization": f"Bearer {token()}"}))
    sender.session_id = owner.session_id
    await scenario.say_utterance(sender, 0)
    assert await sender.result(0, TIMEOUT_S)
