"""What a connection may take its time for, and how much it may say; with short settings."""

import asyncio
import json
import time

import pytest

from dragoman.archive import NewMessage, Status
from dragoman.protocol.codes import Close
from support.chat import ChatScenario, module_chat_harness
from support.speech import TIMEOUT_S
from support.waiting import wait_until

PER_S = 50
SHORT: dict[str, object] = {
    "chat__auth_timeout_s": 1.0,
    "chat__ping_idle_s": 0.5,
    "chat__silent_s": 2.0,
    "limits__chat_frames_per_s": PER_S,
    "server__ping_idle_s": 0.5,  # so that silence is looked for often enough
    "server__ping_reply_s": 1.5,
}


harness = module_chat_harness(SHORT)


async def test_connection_without_auth_in_time_gets_an_error_and_is_closed(scenario: ChatScenario) -> None:
    silent, pinging = await scenario.stranger(), await scenario.stranger()
    await pinging.say("PING")
    for one in (silent, pinging):
        await one.refused("auth_timeout")
        assert await one.until_closed() == Close.UNAUTHORIZED


async def test_idle_connection_is_pinged_in_json(scenario: ChatScenario) -> None:
    speaker = await scenario.user()
    for _ in range(2):
        assert "ts" in await speaker.expect("PING")
        await speaker.say("PONG")


async def test_connection_that_answers_websocket_pings_stays_open(scenario: ChatScenario) -> None:
    speaker = await scenario.user()
    began = time.monotonic()
    while time.monotonic() - began < 2.5:  # longer than it may be silent
        await speaker.expect("PING")
    assert await speaker.so_far() == []


async def test_silent_connection_is_closed(scenario: ChatScenario) -> None:
    speaker = await scenario.user(autoping=False)
    assert await speaker.until_closed() == Close.TIMEOUT


async def test_too_many_frames_a_second_end_the_connection_with_a_reason(scenario: ChatScenario) -> None:
    speaker = await scenario.user()
    for _ in range(10 * PER_S):
        await speaker.say("PING")
    assert await speaker.until_closed() == Close.RATE
    assert speaker.heard[-1]["reason"] == "too_many_requests"
    assert len(speaker.heard) < 4 * PER_S


async def test_receiver_that_catches_up_may_acknowledge_each_message_as_fast_as_it_can(scenario: ChatScenario) -> None:
    """More than the connection may say in a second, and more than the gateway lets through at once."""
    sender, to, count = scenario.uid(), scenario.uid(), 12 * PER_S
    rows = [NewMessage((n << 22) + to % 1000, f"m{n}", sender, to, "TEXT", f"{n}", 1) for n in range(1, count + 1)]
    await scenario.archive.save(rows)
    receiver = await scenario.user(0, to)
    got = [(await receiver.expect("SINGLE_CHAT"))["serverMsgId"] for _ in rows]
    for kind in ("delivered", "read"):
        for id in got:
            await receiver.ack(id, kind, sender)
    assert not [frame for frame in await receiver.so_far() if frame["type"] == "ERROR"]

    async def is_read() -> bool:
        return await scenario.status(rows[-1].id) is Status.READ

    await wait_until(is_read, TIMEOUT_S)
    for _ in range(10 * PER_S):
        await receiver.ack(got[0], "read", sender)
    assert await receiver.until_closed() == Close.RATE


async def test_too_many_frames_before_auth_end_the_connection_too(scenario: ChatScenario) -> None:
    speaker = await scenario.stranger()
    for _ in range(10 * PER_S):
        await speaker.say("PING")
    assert await speaker.until_closed() == Close.RATE
    assert speaker.heard[-1]["reason"] == "too_many_requests"


@pytest.mark.long
async def test_frames_read_late_because_the_database_is_down_do_not_exceed_the_rate(scenario: ChatScenario) -> None:
    """What it said while it was not read comes all at once, which is not its fault."""
    speaker, to = await scenario.user(), scenario.uid()
    texts = [
        json.dumps({"type": "SINGLE_CHAT", "clientMsgId": f"n{n}", "to": str(to), "body": "x" * 1000})
        for n in range(600)
    ]
    began = time.monotonic()

    async def speak() -> None:
        for number, text in enumerate(texts):
            await speaker.text(text)
            await wait_until(lambda: time.monotonic() - began >= number / (PER_S * 0.8), TIMEOUT_S)  # noqa: B023

    speaking = asyncio.create_task(speak())
    async with scenario.database_away():
        await wait_until(lambda: time.monotonic() - began > 12, TIMEOUT_S)
    await speaking
    heard = 0
    while heard < 600:
        told = await speaker.next()
        if told["type"] == "PING":
            continue
        assert told.get("ackType") == "saved" or told["reason"] == "server_busy", told
        heard += 1
