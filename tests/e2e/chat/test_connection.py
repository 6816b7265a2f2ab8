"""Coming in, staying in and being put out, on a running server of two instances."""

import asyncio
import time

import aiohttp
import jwt
import pytest

from dragoman.protocol.codes import Close
from dragoman.tools.verify.clients import DEVELOPMENT_SECRET, token
from support.chat import (
    SAVE_FIRST,
    TIMEOUT_S,
    ChatScenario,
    ChatSpeaker,
    module_chat_harness,
)
from support.speech import after
from support.waiting import wait_until

harness = module_chat_harness(SAVE_FIRST, instances=2)


def claims(uid: int, /, **changed: object) -> dict[str, object]:
    now = int(time.time())
    usual: dict[str, object] = {"iss": "mini-im", "iat": now, "exp": now + 86_400, "uid": uid, "typ": "access", "sv": 0}
    return {name: value for name, value in (usual | changed).items() if value is not None}


def signed(uid: int, /, **changed: object) -> str:
    return jwt.encode(claims(uid, **changed), DEVELOPMENT_SECRET, algorithm="HS256")


async def refused_at_auth(scenario: ChatScenario, reason: str, **fields: object) -> None:
    """AUTH with these fields ends the connection with this reason."""
    speaker = await scenario.stranger()
    await speaker.say("AUTH", **fields)
    told = await speaker.next()
    assert (told["type"], told["reason"]) == ("AUTH_FAIL", reason)
    assert told["ts"] > 1_600_000_000_000
    assert await speaker.until_closed() == Close.UNAUTHORIZED


# -- coming in -------------------------------------------------------------------------------------


async def test_token_in_the_first_frame_authenticates_a_user(scenario: ChatScenario) -> None:
    speaker = await scenario.stranger()
    told = await speaker.auth()
    assert told["from"] == str(speaker.uid)
    assert abs(told["ts"] - time.time() * 1000) < 60_000


@pytest.mark.parametrize("way", ["header", "token", "accessToken"])
async def test_token_in_the_handshake_authenticates_a_user_without_a_frame(scenario: ChatScenario, way: str) -> None:
    uid = scenario.uid()
    headers = {"Authorization": f"Bearer {token(uid)}"} if way == "header" else {}
    query = "" if way == "header" else f"?{way}={token(uid)}"
    speaker = await scenario.stranger(uid=uid, query=query, headers=headers)
    assert (await speaker.next())["type"] == "AUTH_OK"
    assert await speaker.so_far() == []


async def test_token_sent_twice_gets_auth_ok_twice(scenario: ChatScenario) -> None:
    uid = scenario.uid()
    speaker = await scenario.stranger(uid=uid, query=f"?token={token(uid)}")
    await speaker.say("AUTH", token=token(uid))
    assert [(await speaker.next())["type"] for _ in range(2)] == ["AUTH_OK", "AUTH_OK"]
    assert await speaker.so_far() == []


@pytest.mark.parametrize("way", ["header", "token", "accessToken"])
async def test_a_bad_token_in_the_handshake_is_refused_there(scenario: ChatScenario, way: str) -> None:
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    headers["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    query = f"?{way}=nonsense"
    if way == "header":
        headers["Authorization"], query = f"Bearer {signed(7, exp=1)}", ""
    address = f"http://127.0.0.1:{scenario.harness.port}/ws{query}"
    async with scenario.http.get(address, headers=headers) as answer:
        assert (answer.status, await answer.text()) == (401, "invalid_access_token")


async def test_no_token_in_auth_is_missing_token(scenario: ChatScenario) -> None:
    await refused_at_auth(scenario, "missing_token")
    await refused_at_auth(scenario, "missing_token", token="")
    await refused_at_auth(scenario, "missing_token", token=None)


BAD_TOKENS = {
    "nonsense": "nonsense",
    "three parts of nothing": "a.b.c",
    "expired": signed(7, exp=int(time.time()) - 1),
    "alg none": jwt.encode(claims(7), "", algorithm="none"),
    "wrongly signed": jwt.encode(claims(7), "x" * 40, algorithm="HS256"),
    "another algorithm": jwt.encode(claims(7), DEVELOPMENT_SECRET * 2, algorithm="HS512"),
    "a refresh token": signed(7, typ="refresh"),
    "made tomorrow": signed(7, iat=int(time.time()) + 86_400),
    "for tomorrow": signed(7, nbf=int(time.time()) + 86_400),
    "no typ": signed(7, typ=None),
    "another issuer": signed(7, iss="somebody"),
    "no uid": signed(7, uid=None),
    "a uid that is a text": signed(7, uid="7"),
    "a uid of nobody": signed(0),
    "no expiry": signed(7, exp=None),
    "a session version that is none": signed(7, sv="x"),
}


@pytest.mark.parametrize("case", BAD_TOKENS)
async def test_a_bad_token_is_invalid(scenario: ChatScenario, case: str) -> None:
    await refused_at_auth(scenario, "invalid_token", token=BAD_TOKENS[case])


async def test_a_token_from_before_the_last_login_is_session_invalid(scenario: ChatScenario) -> None:
    uid = scenario.uid()
    await scenario.login(uid)
    await refused_at_auth(scenario, "session_invalid", token=token(uid, version=0))
    speaker = await scenario.stranger(uid=uid)
    await speaker.auth(token(uid, version=1))


async def test_a_handshake_token_from_before_the_last_login_is_session_invalid(scenario: ChatScenario) -> None:
    uid = scenario.uid()
    await scenario.login(uid)
    speaker = await scenario.stranger(uid=uid, query=f"?token={token(uid)}")
    await speaker.expect("AUTH_FAIL", reason="session_invalid")
    assert await speaker.until_closed() == Close.UNAUTHORIZED


@pytest.mark.parametrize("type", ["SINGLE_CHAT", "ACK", "REAUTH", "FRIEND_REQUEST", "CALL_INVITE", "NO_SUCH_TYPE"])
async def test_frame_before_auth_is_unauthorized(scenario: ChatScenario, type: str) -> None:
    speaker = await scenario.stranger()
    await speaker.say(type, clientMsgId="x", to="7", body="hello", token=token(7))
    await speaker.refused("unauthorized")
    assert await speaker.until_closed() == Close.UNAUTHORIZED


async def test_ping_is_answered_before_and_after_auth_and_pong_is_accepted(scenario: ChatScenario) -> None:
    speaker = await scenario.stranger()
    await speaker.say("PONG")
    await speaker.say("PING")
    told = await speaker.next()
    assert (set(told), told["type"]) == ({"type", "ts"}, "PONG")
    await speaker.auth()
    await speaker.say("PONG")
    assert await speaker.so_far() == []


async def test_frames_right_after_auth_are_handled_in_order(scenario: ChatScenario) -> None:
    """Existing clients do not all wait for AUTH_OK."""
    speaker, other = await scenario.stranger(), await scenario.user()
    await speaker.say("AUTH", token=token(speaker.uid))
    for number in range(400):
        await speaker.chat(other.uid, f"{number}", f"n{number}")
    for number in range(400):
        assert (await other.expect("SINGLE_CHAT"))["body"] == f"{number}"
    assert not [frame for frame in speaker.heard if frame["type"] == "ERROR"]


# -- tokens that end -------------------------------------------------------------------------------


async def test_reauth_before_the_end_of_a_token_prolongs_it(scenario: ChatScenario) -> None:
    speaker = await scenario.stranger()
    ends = int(time.time()) + 2
    await speaker.auth(signed(speaker.uid, exp=ends))
    await speaker.say("REAUTH", token=token(speaker.uid))
    assert (await speaker.expect("AUTH_OK"))["from"] == str(speaker.uid)
    await wait_until(lambda: time.time() > ends, TIMEOUT_S)
    assert await speaker.so_far() == []


async def test_reauth_after_the_end_of_a_token_is_in_time_too(scenario: ChatScenario) -> None:
    speaker = await scenario.stranger()
    ends = int(time.time()) + 2
    await speaker.auth(signed(speaker.uid, exp=ends))
    await wait_until(lambda: time.time() > ends, TIMEOUT_S)
    await speaker.say("REAUTH", token=token(speaker.uid))
    await speaker.expect("AUTH_OK")
    assert await speaker.so_far() == []


async def test_a_frame_on_a_token_that_has_ended_is_token_expired(scenario: ChatScenario) -> None:
    speaker = await scenario.stranger()
    ends = int(time.time()) + 2
    await speaker.auth(signed(speaker.uid, exp=ends))
    await wait_until(lambda: time.time() > ends, TIMEOUT_S)
    await speaker.chat(scenario.uid())
    assert (await speaker.next())["reason"] == "token_expired"
    assert await speaker.until_closed() == Close.UNAUTHORIZED
    assert scenario.rows(speaker.uid) == []


async def test_reauth_as_another_user_ends_the_connection(scenario: ChatScenario) -> None:
    speaker = await scenario.user()
    await speaker.say("REAUTH", token=token(scenario.uid()))
    await speaker.refused("reauth_uid_mismatch")
    assert await speaker.until_closed() == Close.UNAUTHORIZED


@pytest.mark.parametrize("given", [{}, {"token": "nonsense"}, {"token": signed(7, exp=1)}], ids=["no", "bad", "ended"])
async def test_reauth_without_a_good_token_ends_the_connection(scenario: ChatScenario, given: dict[str, str]) -> None:
    speaker = await scenario.user()
    await speaker.say("REAUTH", **given)
    await speaker.expect("AUTH_FAIL", reason="invalid_token" if given else "missing_token")
    assert await speaker.until_closed() == Close.UNAUTHORIZED


async def test_after_a_login_the_older_connection_ends_with_one_of_its_next_frames(scenario: ChatScenario) -> None:
    speaker = await scenario.user()
    await scenario.login(speaker.uid)

    began = time.monotonic()
    while (frame := await _ping(speaker))["type"] == "PONG":
        assert time.monotonic() - began < TIMEOUT_S
        await wait_until(after(0.1), TIMEOUT_S)
    assert frame["reason"] == "session_invalid"
    assert await speaker.until_closed() == Close.UNAUTHORIZED


async def _ping(speaker: ChatSpeaker) -> dict[str, object]:
    await speaker.say("PING")
    return await speaker.next()


async def test_silent_connection_stays_open_after_a_login(scenario: ChatScenario) -> None:
    silent, speaker = await scenario.pair()
    await scenario.login(silent.uid)
    name = await speaker.chat(silent.uid, "still there?")
    await speaker.saved(name)
    assert (await silent.expect("SINGLE_CHAT"))["body"] == "still there?"


async def test_reauth_with_a_token_of_the_new_login_keeps_the_connection(scenario: ChatScenario) -> None:
    speaker = await scenario.user()
    version = await scenario.login(speaker.uid)
    await speaker.say("REAUTH", token=token(speaker.uid, version=version))
    await speaker.expect("AUTH_OK")
    for _ in range(3):
        assert await speaker.so_far() == []


# -- one connection a user -------------------------------------------------------------------------


@pytest.mark.parametrize("there", [0, 1], ids=["on one instance", "on another instance"])
async def test_a_second_connection_ends_the_first(scenario: ChatScenario, there: int) -> None:
    first = await scenario.user(0)
    second = await scenario.user(there, first.uid)
    await first.refused("kicked")
    assert await first.until_closed() == Close.REPLACED
    friend = await scenario.user()
    await friend.chat(second.uid, "to the new one")
    assert (await second.expect("SINGLE_CHAT"))["body"] == "to the new one"


@pytest.mark.parametrize("there", [0, 1], ids=["on one instance", "on two instances"])
async def test_one_of_several_simultaneous_connections_of_a_user_stays(scenario: ChatScenario, there: int) -> None:
    for _ in range(20):
        uid = scenario.uid()
        both = [await scenario.stranger(at, uid) for at in (0, there, 0, there)]
        await asyncio.gather(*(one.say("AUTH", token=token(uid)) for one in both))
        ends = [asyncio.create_task(one.until_closed()) for one in both]
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while sum(end.done() for end in ends) < 3:
                    await asyncio.wait([end for end in ends if not end.done()], return_when="FIRST_COMPLETED")
            (left,) = [one for one, end in zip(both, ends, strict=True) if not end.done()]
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        for one in both:
            if one is not left:
                assert one.heard[-1]["reason"] == "kicked"
        friend = await scenario.user()
        await friend.chat(uid, "to the one that is left")
        assert (await left.expect("SINGLE_CHAT"))["body"] == "to the one that is left"


# -- what frames look like, and what is wrong with them --------------------------------------------


@pytest.mark.parametrize("type", ["FRIEND_REQUEST", "GROUP_CHAT", "GROUP_CREATE", "CALL_INVITE", "CALL_X"])
async def test_types_of_later_releases_are_not_implemented_and_no_violation(scenario: ChatScenario, type: str) -> None:
    speaker = await scenario.user()
    for number in range(10):
        await speaker.say(type, clientMsgId=f"c{number}", to="7")
    for number in range(10):
        await speaker.refused("not_implemented", clientMsgId=f"c{number}")
    assert await speaker.so_far() == []


VIOLATIONS = {
    "bad_json": ["{", "", "[]", '"AUTH"', "7", '{"type":7}', '{"type":"PING","body":[]}', '{"type":"PING"} {}'],
    "missing_type": ["{}", '{"type":null}', '{"type":""}', '{"body":"x"}'],
    "not_implemented": ['{"type":"NO_SUCH"}', '{"type":"AUTH_OK"}', '{"type":"ping"}', '{"type":"ERROR"}'],
}


@pytest.mark.parametrize(("reason", "text"), [(reason, text) for reason, texts in VIOLATIONS.items() for text in texts])
async def test_the_fourth_violation_within_ten_seconds_ends_the_connection(
    scenario: ChatScenario, reason: str, text: str
) -> None:
    speaker = await scenario.user()
    for _ in range(3):
        await speaker.text(text)
        assert (await speaker.next())["reason"] == reason
    assert await speaker.so_far() == []
    await speaker.text(text)
    assert (await speaker.next())["reason"] == reason
    assert await speaker.until_closed() == Close.BAD_MESSAGE


async def test_violations_of_different_kinds_count_together(scenario: ChatScenario) -> None:
    speaker = await scenario.user()
    for text in ("{", "{}", '{"type":"NO_SUCH"}', "{"):
        await speaker.text(text)
    assert await speaker.until_closed() == Close.BAD_MESSAGE
    reasons = [frame["reason"] for frame in speaker.heard]
    assert reasons == ["bad_json", "missing_type", "not_implemented", "bad_json"]


async def test_a_binary_frame_is_bad_json(scenario: ChatScenario) -> None:
    speaker = await scenario.user()
    await speaker.ws.send_bytes(b'{"type":"PING"}')
    await speaker.refused("bad_json")
    assert await speaker.so_far() == []


async def test_a_frame_of_64_kib_is_read_and_one_byte_more_ends_the_connection(scenario: ChatScenario) -> None:
    speaker = await scenario.user()
    frame = '{"type":"PING","unknown":"' + "x" * 65_536
    await speaker.text(frame[: 65_536 - 2] + '"}')
    await speaker.expect("PONG")
    await speaker.text(frame[: 65_537 - 2] + '"}')
    assert await speaker.until_closed() == Close.TOO_BIG


async def test_sender_of_a_message_is_set_by_the_server(scenario: ChatScenario) -> None:
    alice, bob = await scenario.pair()
    await alice.chat(bob.uid, **{"from": str(bob.uid)})
    assert (await bob.expect("SINGLE_CHAT"))["from"] == str(alice.uid)


async def test_page_of_another_host_is_refused(scenario: ChatScenario) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await scenario.stranger(origin="https://elsewhere.example")
    assert refused.value.status == 403
