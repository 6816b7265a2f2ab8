"""Messages between instances that find no room, wait, or are not to be sent."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from dragoman.protocol.codec import encode
from dragoman.protocol.codes import Close
from dragoman.protocol.node import JobCancel
from dragoman.protocol.peer import AssignJob, Bounced, CancelJob, FromNode, JobEnded
from dragoman.protocol.session import Backpressure
from dragoman.services.loops import Tasks
from dragoman.services.routing import router
from dragoman.services.routing.router import drop
from dragoman.services.speech.session_output import Outbox
from dragoman.store.errors import RedisAway
from dragoman.store.inbox import InboxSettings
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.sessions import ResumableSessions, Resumed
from support.in_process import TIMEOUT_S, InProcessInstance, OpenInstance, RecordingSocket
from support.waiting import wait_until

ASSIGN = AssignJob("nobody", 1, "job", 1, "a", msgspec.Raw(b"{}"))
BOUNCED = Bounced("nobody", 1, "job", 1)


async def two(open_instance: OpenInstance) -> tuple[InProcessInstance, InProcessInstance, list[object]]:
    """A drives a job whose words B has to pass on; and what A hears."""
    a, b = await open_instance("a"), await open_instance("b")
    heard: list[object] = []

    a.services.handlers.register(Bounced, heard.append, rehome=drop)
    a.services.handlers.register(FromNode, heard.append, rehome=drop)
    await a.stores.jobs.create("job", {"driver": "a"}, "nobody", 1)
    return a, b, heard


def fill(instance: InProcessInstance) -> InboxSettings:
    """No inbox has room, as far as this one can tell; returns how it was before."""
    inboxes = instance.services.router.inboxes
    before, inboxes.settings = inboxes.settings, InboxSettings(maxlen=0)
    return before


@pytest.mark.parametrize("message", [ASSIGN, BOUNCED])
async def test_a_bounced_assignment_waits_for_room_in_the_inbox_of_its_driver(
    open_instance: OpenInstance, message: AssignJob | Bounced
) -> None:
    _, b, heard = await two(open_instance)
    before = fill(b)
    handing = asyncio.ensure_future(b.services.handlers.rehome(message))
    await wait_until(lambda: b.count("dragoman_inbox_push_total", verdict="FULL") >= 2, TIMEOUT_S)
    b.services.router.inboxes.settings = before
    await handing
    await wait_until(lambda: heard == [BOUNCED], TIMEOUT_S)


@pytest.mark.parametrize("message", [ASSIGN, BOUNCED, FromNode("nobody", 1, "job", [msgspec.Raw(b"{}")])])
async def test_takeover_is_notified_when_a_full_inbox_refuses_for_long(
    open_instance: OpenInstance, message: AssignJob | Bounced | FromNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who makes a dead letter of it."""
    monkeypatch.setattr(router, "FULL_INBOX_TIMEOUT_S", 0.1)
    _, b, heard = await two(open_instance)
    fill(b)
    with pytest.raises(router.InboxFull, match="the inbox of a is full"):
        await b.services.handlers.rehome(message)
    assert not heard


async def test_a_cancelled_job_waits_for_room_in_the_inbox_of_its_node_s_owner(open_instance: OpenInstance) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    node = await a.node("n")
    frame = encode(JobCancel(job_id="job", trace_id="t", reason="socket closed"))
    before = fill(b)
    handing = asyncio.ensure_future(b.services.handlers.rehome(CancelJob("n", "job", msgspec.Raw(frame))))
    await wait_until(lambda: b.count("dragoman_inbox_push_total", verdict="FULL") >= 2, TIMEOUT_S)
    b.services.router.inboxes.settings = before
    await handing
    await wait_until(lambda: node.cancelled == ["job"], TIMEOUT_S)


class Stumbling(ResumableSessions):
    """Redis refuses the first write, as it does when it has no memory left for a moment, and takes the next ones."""

    refused = False

    def write(self, *told: Any, **more: Any) -> "asyncio.Future[bytes]":
        if self.refused:
            return super().write(*told, **more)
        self.refused = True
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        answer.set_exception(RedisAway("OOM command not allowed"))
        return answer


async def test_a_message_that_was_refused_is_not_missing_before_those_that_followed_it(
    redis: Redis, keys: Keys
) -> None:
    store = Stumbling(redis, keys, owner_ttl_ms=45_000, grace_ms=30_000)
    await store.open("s", "token", "user", {})
    delivered, fenced, tasks = list[bytes](), list[JobEnded](), Tasks()
    outbox = Outbox(store, "s", 1, 0, tasks, deliver=delivered.append, on_fenced=fenced.extend, on_full=lambda: None)
    outbox.post([Backpressure(action="BUSY")], {"next_index": 1})
    outbox.post([Backpressure(action="BUSY")], {"next_index": 2})
    noted = outbox.note({"next_index": 3})
    assert await noted
    await wait_until(lambda: len(delivered) == 2, TIMEOUT_S)
    await tasks.settled()
    taken = await store.resume("s", "token", "user", 0, "b")
    assert isinstance(taken, Resumed)
    assert taken.outbox == delivered
    assert (taken.state["next_index"], fenced) == ("3", [])


@pytest.mark.parametrize(("per_address", "codes"), [(2000, [None, None, Close.OVERLOADED]), (0, [None, None, None])])
async def test_silent_connections_behind_a_balancer_do_not_block_other_clients_of_its_address(
    open_instance: OpenInstance, per_address: int, codes: list[int | None]
) -> None:
    instance = await open_instance(limits__pre_session_connections=8, limits__connections_per_address=per_address)
    room = instance.instance.ports._pre_session(1000)
    visitors = [RecordingSocket() for _ in range(3)]  # two are the share of one address
    for visitor in visitors:
        visitor.peer = ("203.0.113.7", 1)
        room.add(cast(Any, visitor), Close.IDLE, "why")
    assert [visitor.code for visitor in visitors] == codes
