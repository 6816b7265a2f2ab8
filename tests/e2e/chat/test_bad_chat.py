"""Bad input to chat gets a clear answer and costs nobody else anything.

In every test two healthy users go on chatting meanwhile: each message is saved, arrives, and is told delivered.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dragoman.protocol.codes import Close
from dragoman.tools.verify.clients import token
from support.chat import SAVE_FIRST, ChatScenario, ChatSpeaker, module_chat_harness, new_chat_scenario
from support.gateway import CLOSE, RawClient, frame, upgrade, websocket
from support.speech import TIMEOUT_S, Harness, after, scenario_on_harness
from support.waiting import wait_until

ODD = "a\x1b[31m\r\n\t\x7f\u2028\ufeff\U0001f600\U0010ffff\"\\'${7*7}<b>"
PACE_S = 0.05
STRANGERS = 2000


harness = module_chat_harness(
    {
        **SAVE_FIRST,
        "chat__auth_timeout_s": 5.0,
        "limits__out_queue_bytes": 2_097_152,
        "limits__out_queue_age_s": 60.0,
        "limits__pre_session_connections": STRANGERS + 100,
    }
)


async def chat_on(alice: ChatSpeaker, bob: ChatSpeaker, said: list[int]) -> None:
    while True:
        id = await alice.saved(await alice.chat(bob.uid, f"healthy {len(said)}"))
        got = await bob.expect("SINGLE_CHAT")
        assert (got["serverMsgId"], got["body"]) == (str(id), f"healthy {len(said)}")
        await bob.ack(str(id), "read", alice.uid)
        await alice.expect("ACK", ackType="read", serverMsgId=str(id))
        assert not [heard for heard in alice.heard + bob.heard if heard["type"] == "ERROR"]
        alice.heard.clear()
        said.append(id)
        await wait_until(after(PACE_S), TIMEOUT_S)


@asynccontextmanager
async def with_healthy_client(harness: Harness) -> AsyncIterator[ChatScenario]:
    """A scenario during which two others go on undisturbed, and after it as well."""
    async with new_chat_scenario(harness) as scenario, new_chat_scenario(harness) as other:
        said: list[int] = []
        chatting = asyncio.create_task(chat_on(*await other.pair(), said))
        try:
            await wait_until(lambda: said or chatting.done(), TIMEOUT_S)
            yield scenario
            more = len(said) + 2
            await wait_until(lambda: len(said) > more or chatting.done(), TIMEOUT_S)
        finally:
            chatting.cancel()
            done = await asyncio.gather(chatting, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError), done[0]


scenario = scenario_on_harness(with_healthy_client)


async def until_close(client: RawClient) -> tuple[list[bytes], int]:
    """The messages before the close frame, and its code."""
    heard: list[bytes] = []
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            opcode, payload = await client.frame()
            if opcode == CLOSE:
                return heard, int.from_bytes(payload[:2], "big")
            heard.append(payload)


async def pour(client: RawClient, data: list[bytes]) -> None:
    try:
        for one in data:
            await client.send(one)
    except ConnectionError:
        pass


async def stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# -- what cannot be read ---------------------------------------------------------------------------

NONSENSE: list[tuple[bytes, str]] = [
    (b"", "bad_json"),
    (b"\x00", "bad_json"),
    (b"nul", "bad_json"),
    (b"[" * 60_000, "bad_json"),
    (b'{"a":' * 10_000, "bad_json"),
    (b'{"type":"PING"', "bad_json"),
    (b'\xef\xbb\xbf{"type":"PING"}', "bad_json"),
    (b'{"type":"PING","body":"\xff\xfe"}', "bad_json"),
    (b'{"type":"PING","body":"\\ud800"}', "bad_json"),
    (b'{"type":"PING","body":"\\u0000"}', "bad_json"),
    (b'{"type":["PING"]}', "bad_json"),
    (b'{"type":"SINGLE_CHAT","clientMsgId":7,"to":"7","body":"x"}', "bad_json"),
    (b'{"type":"SINGLE_CHAT","clientMsgId":"n","to":{"a":1},"body":"x"}', "bad_json"),
    (b'{"type":"SINGLE_CHAT","clientMsgId":"n","to":"7","body":["x"]}', "bad_json"),
    (b'{"type":"SINGLE_CHAT","clientMsgId":"n","to":true,"body":"x"}', "bad_json"),
    (b'{"type":"SINGLE_CHAT","clientMsgId":"n","to":1e400,"body":"x"}', "bad_json"),
    (b'{"type":"SINGLE_CHAT","clientMsgId":"n","to":"9223372036854775808","body":"x"}', "missing_to"),
    (b'{"type":"SINGLE_CHAT","clientMsgId":"n","to":9223372036854775808,"body":"x"}', "missing_to"),
    (b'{"type":"SINGLE_CHAT","clientMsgId":"n","to":1.5,"body":"x"}', "missing_to"),
    (b'{"type":"ACK","ackType":"read","serverMsgId":1e30}', "missing_server_msg_id"),
    (b"{}", "missing_type"),
    (b'{"type":"NO_SUCH_TYPE"}', "not_implemented"),
    ('{"type":"\U0001f600"}'.encode(), "not_implemented"),
]


async def test_invalid_frame_is_answered_and_the_connection_stays_open(scenario: ChatScenario) -> None:
    for data, reason in NONSENSE:
        async with websocket(scenario.harness, "/ws", receive_bytes=4096) as client:
            await client.send(frame(1, json.dumps({"type": "AUTH", "token": token(scenario.uid())}).encode()))
            assert b"AUTH_OK" in await client.message()
            await client.send(frame(1, data))
            told = json.loads(await client.message())
            assert (told["type"], told["reason"]) == ("ERROR", reason), data[:80]
            await client.send(frame(1, b'{"type":"PING"}'))
            assert b"PONG" in await client.message()


async def test_odd_characters_do_no_harm_and_arrive_unchanged(scenario: ChatScenario) -> None:
    alice, bob = await scenario.pair()
    await alice.say("SINGLE_CHAT", clientMsgId=ODD, to=str(bob.uid), body=ODD, msgType=ODD, token=ODD, ackType=ODD)
    got = await bob.expect("SINGLE_CHAT")
    assert (got["clientMsgId"], got["body"], got["msgType"]) == (ODD, ODD, ODD)
    id = await alice.saved(ODD)
    await alice.chat(scenario.uid(), "other", ODD)
    assert (await alice.refused("duplicate_msg_id_mismatch"))["clientMsgId"] == ODD
    await bob.ack(ODD)
    await bob.refused("missing_server_msg_id")
    await bob.ack(str(id), ODD)
    await bob.refused("unknown_ack_type")
    await alice.say("SINGLE_CHAT", clientMsgId="n", to=ODD, body="x")
    await alice.refused("missing_to")
    await alice.say(ODD)
    await alice.refused("not_implemented")
    await alice.say("REAUTH", token=ODD)
    await alice.expect("AUTH_FAIL", reason="invalid_token")
    await bob.ack(str(id))
    assert await bob.so_far() == []


# -- sizes and speeds ------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False], ids=["a user", "a stranger"])
@pytest.mark.parametrize("data", [b"{}", b'{"type":"PING"}'], ids=["nonsense", "pings"])
async def test_a_million_tiny_frames_close_the_connection(scenario: ChatScenario, known: bool, data: bytes) -> None:
    async with websocket(scenario.harness, "/ws", receive_bytes=4096) as client:
        if known:
            await client.send(frame(1, json.dumps({"type": "AUTH", "token": token(scenario.uid())}).encode()))
            assert b"AUTH_OK" in await client.message()
        sending = asyncio.create_task(pour(client, [frame(1, data) * 1000] * 1000))
        heard, code = await until_close(client)
        assert code == (Close.BAD_MESSAGE if data == b"{}" else Close.RATE)
        assert len(heard) < 4000
        await stop(sending)


async def test_a_million_websocket_pings_close_the_connection(scenario: ChatScenario) -> None:
    async with websocket(scenario.harness, "/ws", receive_bytes=4096) as client:
        sending = asyncio.create_task(pour(client, [frame(9, b"") * 1000] * 1000))
        assert (await until_close(client))[1] == Close.RATE
        await stop(sending)


async def test_client_that_never_reads_is_closed_and_gets_its_messages_later(scenario: ChatScenario) -> None:
    async with websocket(scenario.harness, "/ws", receive_bytes=4096) as client:
        uid = scenario.uid()
        await client.send(frame(1, json.dumps({"type": "AUTH", "token": token(uid)}).encode()))
        assert b"AUTH_OK" in await client.message()
        alice = await scenario.user()

        async def cut_off() -> bool:
            owner = await scenario.redis.call("EXISTS", f"{scenario.harness.prefix}:users:owner:{{user:{uid}}}")
            return not owner

        sent = 0
        while not await cut_off():
            assert sent < 3000
            for _ in range(50):
                await alice.chat(uid, "x" * 4000, f"n{sent}")
                sent += 1
            for number in range(sent - 50, sent):
                await alice.saved(f"n{number}")
            alice.heard.clear()
        bob = await scenario.user(uid=uid)
        for number in range(sent):
            assert (await bob.expect("SINGLE_CHAT"))["clientMsgId"] == f"n{number}"


# -- many clients ----------------------------------------------------------------------------------


async def test_two_thousand_silent_connections_are_closed_and_block_no_other_client(scenario: ChatScenario) -> None:
    others: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def come() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", scenario.harness.port)
        others.append((reader, writer))
        writer.write(upgrade("/ws"))
        await reader.readuntil(b"\r\n\r\n")

    for _ in range(STRANGERS // 100):
        await asyncio.gather(*(come() for _ in range(100)))
    latecomer = await scenario.user()
    assert await latecomer.so_far() == []
    async with asyncio.timeout(TIMEOUT_S):
        close_frames = await asyncio.gather(*(reader.read() for reader, _ in others))
    assert all(b"auth_timeout" in close_frame for close_frame in close_frames)
    assert await latecomer.so_far() == []
    for _, writer in others:
        writer.close()
