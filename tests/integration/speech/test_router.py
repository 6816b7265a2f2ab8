"""What was in a dead instance's inbox goes where it belongs; what finds no room there is not lost without a word."""

import asyncio

import msgspec
import pytest

from dragoman.protocol.codec import encode
from dragoman.protocol.node import JobCancel
from dragoman.protocol.peer import Assign, Bounced, CancelJob, FromNode
from dragoman.services.routing import router
from dragoman.services.routing.handlers import drop
from dragoman.store.inbox import InboxSettings
from support.in_process import TIMEOUT_S, InProcessInstance, OpenInstance
from support.waiting import wait_until

ASSIGN = Assign("nobody", 1, "job", 1, "a", msgspec.Raw(b"{}"))
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
    open_instance: OpenInstance, message: Assign | Bounced
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
    open_instance: OpenInstance, message: Assign | Bounced | FromNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who makes a dead letter of it."""
    monkeypatch.setattr(router, "FULL_INBOX_TIMEOUT_S", 0.1)
    _, b, heard = await two(open_instance)
    fill(b)
    with pytest.raises(router.NoRoom, match="the inbox of a is full"):
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
