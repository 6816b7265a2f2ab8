"""The local view of the fleet, refreshed from what changed in Redis."""

import asyncio
from functools import partial

import msgspec
import pytest

from dragoman.instance.services import Stores
from dragoman.protocol.peer import CoolingDown, NodeLost, NodeSeen, SlotFreed
from dragoman.services.metrics import Metrics
from dragoman.services.speech.fleet_view import FleetView
from dragoman.store.nodes import Snapshot


@pytest.fixture
def view(stores: Stores) -> FleetView:
    return FleetView(stores.nodes, stores.storm, Metrics(), presence_ttl_s=60)


def ids(view: FleetView) -> list[str]:
    return sorted(node.id for node in view.fleet.nodes())


async def test_refresh_finds_nodes_with_a_heartbeat(view: FleetView, stores: Stores) -> None:
    for node in ("n1", "n2"):
        await stores.nodes.write(Snapshot(node, 1, "a", slots=3))
    await view.run_once()
    assert ids(view) == ["n1", "n2"]
    await stores.nodes.write(Snapshot("n3", 1, "a"))
    await stores.nodes.write(Snapshot("n1", 1, "a", slots=5))
    await view.run_once()
    assert ids(view) == ["n1", "n2", "n3"]
    changed = view.fleet.get("n1")
    assert changed is not None
    assert changed.slots == 5


async def test_a_node_whose_keys_are_gone_is_lost(stores: Stores) -> None:
    lost: list[tuple[str, int]] = []
    view = FleetView(stores.nodes, stores.storm, Metrics(), presence_ttl_s=60)
    view.on_lost(lambda node, epoch: lost.append((node, epoch)))
    await stores.nodes.write(Snapshot("n", 7, "a"))
    await view.run_once()
    await stores.nodes.gone("n")
    await view.run_once()
    assert (ids(view), lost) == ([], [("n", 7)])


async def test_silent_node_is_lost_without_an_announcement(stores: Stores) -> None:
    view = FleetView(stores.nodes, stores.storm, Metrics(), presence_ttl_s=0)
    await stores.nodes.write(Snapshot("n", 7, "a"))
    await view.run_once()
    assert ids(view) == []


async def test_an_older_epoch_does_not_replace_a_newer_one(view: FleetView, stores: Stores) -> None:
    view.seen(Snapshot("n", 2, "b"))
    await stores.nodes.write(Snapshot("n", 1, "a"))
    await view.run_once()
    known = view.fleet.get("n")
    assert known is not None
    assert (known.epoch, known.instance) == (2, "b")
    view.on_announcement(NodeLost("n", 1))
    assert ids(view) == ["n"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xff", b'{"id":"bad"}', b'{"id":"bad","epoch":1,"v":2}'])
async def test_a_snapshot_that_cannot_be_read_hides_one_node_only_and_is_replaced(
    view: FleetView, stores: Stores, data: bytes
) -> None:
    for node in ("good", "bad"):
        await stores.nodes.write(Snapshot(node, 1, "a"))
    await stores.redis.call("SET", stores.keys.node_snapshot("bad"), data, "PX", 60_000)
    await view.run_once()
    assert ids(view) == ["good"]
    await stores.nodes.write(Snapshot("bad", 1, "a"))
    await view.run_once()
    assert ids(view) == ["bad", "good"]


async def test_waiting_placement_resumes_when_a_node_or_a_slot_is_free(view: FleetView, stores: Stores) -> None:
    await stores.nodes.write(Snapshot("n", 1, "a"))
    waiting = view.next_change("default/ann")
    await view.run_once()
    await waiting
    waiting = view.next_change("default/ann")
    view.on_announcement(SlotFreed("n"))
    await waiting


async def test_clients_take_turns_for_a_free_slot(view: FleetView) -> None:
    order: list[str] = []
    for job in ("eve-1", "eve-2", "eve-3", "ann-1", "eve-4", "bob-1"):
        view.next_change(job.partition("-")[0]).add_done_callback(partial(lambda name, _: order.append(name), job))
    view.on_announcement(SlotFreed("n"))
    await asyncio.sleep(0)
    assert order == ["eve-1", "ann-1", "bob-1", "eve-2", "eve-3", "eve-4"]


async def test_announced_node_is_usable_before_a_refresh(view: FleetView) -> None:
    view.on_announcement(NodeSeen(msgspec.Raw(msgspec.json.encode(Snapshot("n", 1, "a")))))
    view.on_announcement(NodeSeen(msgspec.Raw(b'"not a snapshot"')))
    view.on_announcement(CoolingDown("n", "tts", 60_000))
    assert ids(view) == ["n"]
