"""What a connection may take its time for, and how much it may say; with short settings."""

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

from dragoman.archive import NewMessage, Status
from dragoman.protocol.codes import Close
from e2e.chat.chat_stage import chat_stage, visiting_chat
from e2e.speech_stage import PATIENCE_S, Stage
from key_leaks import Onlooker
from redis_servers import RedisAt
from waiting import wait_until

PER_S = 50
SHORT: dict[str, object] = {
    "chat__auth_timeout_s": 1.0,
    "chat__ping_idle_s": 0.5,
    "chat__silent_s": 2.0,
    "chat__max_frames_per_s": PER_S,
    "server__ping_idle_s": 0.5,  # so that silence is looked for often enough
    "server__ping_reply_s": 1.5,
}


@pytest.fixture(scope="module")
def stage(redis_server: RedisAt, onlooker: Onlooker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with chat_stage(redis_server, tmp_path_factory.mktemp("chat-limits"), onlooker, SHORT) as up:
        yield up


async def test_who_does_not_say_who_it_is_in_time_is_told_and_closed(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        silent, pinging = await visit.stranger(), await visit.stranger()
        await pinging.say("PING")
        for one in (silent, pinging):
            await one.refused("auth_timeout")
            assert await one.until_closed() == Close.UNAUTHORIZED


async def test_who_is_told_nothing_for_long_is_pinged_in_json(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        speaker = await visit.user()
        for _ in range(2):
            assert "ts" in await speaker.expect("PING")
            await speaker.say("PONG")


async def test_who_answers_pings_of_the_socket_stays(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        speaker = await visit.user()
        began = time.monotonic()
        while time.monotonic() - began < 2.5:  # longer than it may be silent
            await speaker.expect("PING")
        assert await speaker.so_far() == []


async def test_who_says_nothing_for_long_is_closed(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        speaker = await visit.user(autoping=False)
        assert await speaker.until_closed() == Close.TIMEOUT


async def test_too_many_frames_a_second_end_the_connection_with_a_reason(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        speaker = await visit.user()
        for _ in range(10 * PER_S):
            await speaker.say("PING")
        assert await speaker.until_closed() == Close.RATE
        assert speaker.heard[-1]["reason"] == "too_many_requests"
        assert len(speaker.heard) < 4 * PER_S


async def test_receiver_that_catches_up_may_acknowledge_each_message_as_fast_as_it_can(stage: Stage) -> None:
    """More than the connection may say in a second, and more than the gateway lets through at once."""
    async with visiting_chat(stage) as visit:
        sender, to, count = visit.uid(), visit.uid(), 12 * PER_S
        rows = [NewMessage((n << 22) + to % 1000, f"m{n}", sender, to, "TEXT", f"{n}", 1) for n in range(1, count + 1)]
        await visit.archive.save(rows)
        receiver = await visit.user(0, to)
        got = [(await receiver.expect("SINGLE_CHAT"))["serverMsgId"] for _ in rows]
        for kind in ("delivered", "read"):
            for id in got:
                await receiver.ack(id, kind, sender)
        assert not [frame for frame in await receiver.so_far() if frame["type"] == "ERROR"]

        async def is_read() -> bool:
            return await visit.status(rows[-1].id) is Status.READ

        await wait_until(is_read, PATIENCE_S)
        for _ in range(10 * PER_S):
            await receiver.ack(got[0], "read", sender)
        assert await receiver.until_closed() == Close.RATE


async def test_too_many_frames_before_auth_end_the_connection_too(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        speaker = await visit.stranger()
        for _ in range(10 * PER_S):
            await speaker.say("PING")
        assert await speaker.until_closed() == Close.RATE
        assert speaker.heard[-1]["reason"] == "too_many_requests"


@pytest.mark.long
async def test_who_is_read_late_because_the_database_is_away_did_not_speak_too_fast(stage: Stage) -> None:
    """What it said while it was not read comes all at once, which is not its fault."""
    async with visiting_chat(stage) as visit:
        speaker, to = await visit.user(), visit.uid()
        texts = [
            json.dumps({"type": "SINGLE_CHAT", "clientMsgId": f"n{n}", "to": str(to), "body": "x" * 1000})
            for n in range(600)
        ]
        began = time.monotonic()

        async def speak() -> None:
            for number, text in enumerate(texts):
                await speaker.text(text)
                await wait_until(lambda: time.monotonic() - began >= number / (PER_S * 0.8), PATIENCE_S)  # noqa: B023

        speaking = asyncio.create_task(speak())
        with visit.database_away():
            await wait_until(lambda: time.monotonic() - began > 12, PATIENCE_S)
        await speaking
        heard = 0
        while heard < 600:
            told = await speaker.next()
            if told["type"] == "PING":
                continue
            assert told.get("ackType") == "saved" or told["reason"] == "server_busy", told
            heard += 1
