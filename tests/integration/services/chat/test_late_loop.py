"""A loop that was too busy to read an answer of Redis in time."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.protocol.chat import decode_frame
from dragoman.store.chat.entries import AcceptReply
from dragoman.store.chat.shards import Shards
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from integration.services.chat.in_process_chat import InProcessChat, Socket

TIMEOUT_S, LATE_S = 1.0, 0.2


async def test_message_that_redis_accepted_in_time_is_accepted_though_the_loop_was_late_to_read_the_answer(
    redis: Redis, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = InProcessChat(
        "i1", 1, redis, keys, tmp_path / "chat.sqlite3", enabled=True, rollout_percent=100, accept_timeout_s=TIMEOUT_S
    )
    accept = Shards.accept

    async def accept_on_a_busy_loop(shards: Shards, *asked: Any) -> tuple[AcceptReply, int]:
        reply = asyncio.ensure_future(accept(shards, *asked))
        for _ in range(5):
            await asyncio.sleep(0)  # the question has left
        time.sleep(TIMEOUT_S + LATE_S)  # noqa: ASYNC251 - as a loop with too much to do
        return await reply

    monkeypatch.setattr(Shards, "accept", accept_on_a_busy_loop)
    socket = Socket(1)
    user = await chat.come_in(7, socket)
    said = {"type": "SINGLE_CHAT", "clientMsgId": "n", "to": 9, "body": "hi"}
    chat.admission.outbound(user).take(decode_frame(json.dumps(said).encode()))
    await chat.tasks.settled()
    assert [frame["ackType"] for frame in socket.of_type("ACK")] == ["accepted"]
    assert socket.of_type("ERROR") == []
    await chat.close()
