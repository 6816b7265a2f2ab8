"""What an operator sees of the cluster, from any instance."""

import pytest

from dragoman.instance.services import Stores
from dragoman.services.metrics import Metrics
from dragoman.services.report import Report
from dragoman.services.speech.fleet_view import FleetView
from dragoman.store.nodes import Snapshot
from integration.services.members import Join, said


@pytest.fixture
def view(stores: Stores) -> FleetView:
    return FleetView(stores.nodes, stores.storm, Metrics(), presence_ttl_s=60)


@pytest.fixture
def report(stores: Stores, view: FleetView) -> Report:
    return Report(
        "a",
        stores.instances,
        stores.inboxes,
        stores.letters,
        view.fleet,
        stores.nodes,
        stores.reservations,
        stores.storm,
        default_slots=4,
    )


async def test_report_of_an_empty_cluster_is_empty(report: Report) -> None:
    told = await report.cluster()
    assert told.pop("now_ms") > 0
    assert told == {
        "reported_by": "a",
        "instances": [],
        "nodes": [],
        "node_count": 0,
        "dead_letters": {},
    }


async def test_report_lists_living_and_dead_instances_with_their_inboxes(join: Join, report: Report) -> None:
    a, b = await join("a"), await join("b")
    await b.push(said("waits"))
    await a.push_raw("unreadable", "entry")
    await a.reader.run_once()
    await b.die()
    told = await report.cluster()
    [first, second] = told["instances"]
    assert (first["instance"], first["alive"], first["host"], first["pid"]) == ("a", True, "here", 7)
    assert first["inbox"] == {"waiting": 0, "bytes": 0, "added": 1, "done": 0, "dead": 1, "oldest_ms": None}
    assert (second["instance"], second["alive"]) == ("b", False)
    assert second["inbox"]["waiting"] == 1
    assert told["dead_letters"] == {"a": 1}


async def test_report_lists_nodes_with_their_reservations(report: Report, view: FleetView, stores: Stores) -> None:
    text = [("en", "es")]
    view.seen(
        Snapshot("n2", 5, "b", slots=2, asr=["en", "de"], semantic=["es"], text=text, ready=["asr"], draining=True)
    )
    view.seen(Snapshot("n1", 1, "a"))
    for job in ("j1", "j2"):
        await stores.reservations.reserve("n2", job, 2)
    told = await report.cluster()
    assert told["node_count"] == 2
    [first, second] = told["nodes"]
    assert (first["node_id"], first["slots"], first["reserved"], first["ready"]) == ("n1", 4, 0, None)
    assert second == {
        "node_id": "n2",
        "instance": "b",
        "epoch": 5,
        "slots": 2,
        "reserved": 2,
        "running": 0,
        "draining": True,
        "languages": {"asr": ["de", "en"], "semantic": ["es"], "tts": [], "text": [("en", "es")]},
        "ready": ["asr"],
        "tenant": "default",
        "cooling_until_ms": {},
        "failing": None,
    }


async def test_report_lists_paused_nodes_with_the_remaining_time(
    report: Report, view: FleetView, stores: Stores
) -> None:
    view.seen(Snapshot("cool", 1, "a"))
    view.seen(Snapshot("failing", 1, "a"))
    await stores.storm.report("cool", "nmt@1")
    await stores.storm.pause("failing")
    told = await report.cluster()
    [cool, failing] = told["nodes"]
    assert list(cool["cooling_until_ms"]) == ["nmt@1"]
    assert cool["failing"] is None
    assert failing["failing"]["pauses"] == 1
    assert failing["failing"]["paused_until_ms"] - told["now_ms"] <= 2000


async def test_report_omits_expired_reservations(report: Report, view: FleetView, stores: Stores) -> None:
    """Nobody may have looked at the node since: expired ones go when the next is made."""
    view.seen(Snapshot("n", 1, "a", slots=2))
    for job in ("lapsed", "held"):
        await stores.reservations.reserve("n", job, 2)
    await stores.redis.call("ZADD", stores.keys.reserved("n"), 1, "lapsed")
    [node] = (await report.cluster())["nodes"]
    assert node["reserved"] == 1


async def test_a_large_fleet_is_counted_but_not_listed_whole(
    report: Report, view: FleetView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.services.report.MAX_NODES", 3)
    for number in range(5):
        view.seen(Snapshot(f"n{number}", 1, "a"))
    told = await report.cluster()
    assert (told["node_count"], [node["node_id"] for node in told["nodes"]]) == (5, ["n0", "n1", "n2"])
