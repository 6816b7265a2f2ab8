"""What has ended is gone at once: nothing of it waits for the collector of cycles, which stops all while it looks.

A thousand jobs a second, or ten thousand connections that go in the same moment, would otherwise be a pause of tenths
of a second some time later.
"""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest

from integration.speech.test_resumption import Client
from support.chat import ChatSpeaker
from support.cluster import Speaker
from support.in_process import SELDOM_RENEWED, TIMEOUT_S, InProcessInstance, OpenInstance
from support.waiting import wait_until


@contextmanager
def nothing_left_to_the_collector() -> Iterator[None]:
    """An AssertionError that names what of ours was in a cycle when it ended."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("dragoman."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left


async def rest(instance: InProcessInstance) -> None:
    """Nobody is connected, no job is driven, no task is under way."""
    listener, dispatcher = instance.instance.ports.listener, instance.services.dispatcher
    await wait_until(lambda: not listener.connections and not len(dispatcher), TIMEOUT_S)
    await instance.services.tasks.settled()


def door(instance: InProcessInstance, path: str) -> str:
    return f"ws://127.0.0.1:{instance.instance.ports.listener.port}{path}"


async def test_jobs_that_are_answered_leave_nothing_to_the_collector(open_instance: OpenInstance) -> None:
    instance = await open_instance(**SELDOM_RENEWED)  # a lease that lapses is replaced, and left to the collector
    node = await instance.node("n", working=True)
    client = Client()
    await client.open(instance)
    await client.spoken(instance, node, 0)
    await client.hears(0)
    with nothing_left_to_the_collector():
        for index in range(1, 6):
            client.utter(instance, index)
            await client.hears(*range(index + 1))
        await rest(instance)


async def test_a_chat_connection_that_ends_leaves_nothing_to_the_collector(open_instance: OpenInstance) -> None:
    instance = await open_instance(chat__two_phase__enabled=True, **SELDOM_RENEWED)
    async with aiohttp.ClientSession() as http:
        with nothing_left_to_the_collector():
            for uid in range(1, 6):
                speaker = ChatSpeaker(uid, await http.ws_connect(door(instance, "/ws")))
                await speaker.auth()
                await speaker.chat(uid + 1)
                await speaker.expect("ACK", ackType="saved")
                await speaker.ws.close()
            await rest(instance)


@pytest.mark.parametrize("resume", [False, True], ids=["over with its socket", "that can resume"])
async def test_a_session_that_ends_leaves_nothing_to_the_collector(open_instance: OpenInstance, resume: bool) -> None:
    instance = await open_instance(**SELDOM_RENEWED)
    await instance.node("n", working=True)
    async with aiohttp.ClientSession() as http:
        with nothing_left_to_the_collector():
            for _ in range(5):
                speaker = Speaker(await http.ws_connect(door(instance, "/ws/session")))
                await speaker.init(resume=resume)
                await speaker.utterance(0)
                await speaker.result(0)
                await speaker.say("session_close", session_id=speaker.session_id, reason="done")
                await speaker.until(lambda message: message["type"] == "session_close_ack")
                await speaker.ws.close()
            await rest(instance)
