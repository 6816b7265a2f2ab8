"""Announcements make others faster; nothing relies on them."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from dragoman.instance.services import Stores
from dragoman.protocol.peer import Announcement, CoolingDown, NodeLost, NodeSeen, SlotFreed
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Announcer
from dragoman.services.speech.fleet_view import FleetView
from dragoman.store.nodes import Snapshot
from support.redis_servers import Connect
from support.waiting import wait_until

EVERY_KIND: list[Announcement] = [
    NodeSeen(msgspec.Raw(b'{"id":"n","epoch":1,"instance":"a"}')),
    NodeLost("n", 1),
    SlotFreed("n"),
    CoolingDown("n", "tts", 60_000),
]


class Ear:
    """An announcer on a connection of its own, and what it heard."""

    def __init__(self, announcer: Announcer) -> None:
        self.announcer = announcer
        self.heard: list[Announcement] = []
        announcer.subscribe(self.heard.append)


@pytest.fixture
def ears(runner: asyncio.Runner, connect: Connect, stores: Stores) -> Iterator[list[Ear]]:
    """Two announcers that listen."""

    async def open_one(tasks: Tasks) -> Ear:
        ear = Ear(Announcer(await connect(), stores.keys, tasks))
        tasks.spawn(ear.announcer.run(), "announcer")
        await wait_until(lambda: ear.announcer.subscriber.listening)
        return ear

    tasks = Tasks()
    yield [runner.run(open_one(tasks)) for _ in range(2)]
    runner.run(tasks.cancel())


async def test_announcement_reaches_all_instances_including_the_own_one(ears: list[Ear]) -> None:
    here, there = ears
    for message in EVERY_KIND:
        here.announcer.announce(message)
    assert here.heard == EVERY_KIND
    await wait_until(lambda: len(there.heard) == len(EVERY_KIND))
    assert there.heard == EVERY_KIND


async def test_unreadable_announcement_is_skipped(ears: list[Ear], stores: Stores) -> None:
    """A later release may have announcements we do not know."""
    here, there = ears
    for data in (b"\xff", b"{}", b'{"type":"from_tomorrow"}', b"[" * 5000):
        await stores.redis.publish(stores.keys.announcements, data)
    here.announcer.announce(SlotFreed("n"))
    await wait_until(lambda: there.heard)
    assert there.heard == [SlotFreed("n")]


async def test_a_listener_that_fails_does_not_keep_the_others_from_hearing(stores: Stores) -> None:
    announcer, heard = Announcer(stores.redis, stores.keys, Tasks()), list[Announcement]()

    def fail(_: Announcement) -> None:
        raise KeyError("a bug of one listener")

    announcer.subscribe(fail)
    announcer.subscribe(heard.append)
    announcer._received(msgspec.json.encode(SlotFreed("n")))
    assert heard == [SlotFreed("n")]


async def test_refresh_finds_the_nodes_of_missed_announcements(ears: list[Ear], stores: Stores) -> None:
    here, there = ears
    told, missed = (FleetView(stores.nodes, stores.storm, Metrics(), presence_ttl_s=60) for _ in range(2))
    there.announcer.subscribe(told.on_announcement)
    for node in ("stays", "goes"):
        snapshot = Snapshot(node, 1, "a", slots=2, asr=["en"])
        await stores.nodes.write(snapshot)
        here.announcer.announce(NodeSeen(msgspec.Raw(msgspec.json.encode(snapshot))))
    await wait_until(lambda: len(told.fleet) == 2)
    await missed.run_once()
    assert len(missed.fleet) == 2
    await stores.nodes.gone("goes")
    here.announcer.announce(NodeLost("goes", 1))
    await wait_until(lambda: len(told.fleet) == 1)
    await missed.run_once()
    assert [node.id for node in missed.fleet.nodes()] == [node.id for node in told.fleet.nodes()] == ["stays"]
