import msgspec
import pytest

from dragoman.domain.fleet import Node
from dragoman.store.nodes import VERSION, Snapshot, parse_snapshot

FULL = Snapshot(
    id="n1",
    epoch=7,
    instance="i1",
    slots=4,
    asr=["de", "en"],
    semantic=["en"],
    tts=["en"],
    ready=["asr"],
    features=["job_ack"],
    gpu_queue=2,
    running=3,
    draining=True,
    public=False,
    tenant="acme",
    version="1.2",
    platform="linux",
    seen_ms=99,
)


@pytest.mark.parametrize("snapshot", [FULL, Snapshot("n1", 1, "i1")])
def test_a_snapshot_survives_the_way_through_json(snapshot: Snapshot) -> None:
    assert parse_snapshot(msgspec.json.encode(snapshot)) == snapshot


def test_a_snapshot_becomes_the_node_that_placement_knows() -> None:
    assert FULL.node() == Node(
        id="n1",
        epoch=7,
        instance="i1",
        slots=4,
        asr=frozenset({"de", "en"}),
        semantic=frozenset({"en"}),
        tts=frozenset({"en"}),
        ready=frozenset({"asr"}),
        features=frozenset({"job_ack"}),
        gpu_queue=2,
        running=3,
        draining=True,
        public=False,
        tenant="acme",
        seen_ms=99,
    )
    assert Snapshot("n1", 1, "i1").node().ready is None, "not told is not the same as nothing ready"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"id":"\xff","epoch":1,"instance":"i"}', b'{"id":"n1"}', b'{"id":1}'],
)
def test_what_does_not_parse_is_nothing(data: bytes) -> None:
    assert parse_snapshot(data) is None


def test_a_snapshot_of_a_later_release_is_left_for_a_newer_instance() -> None:
    assert parse_snapshot(msgspec.json.encode(Snapshot("n1", 1, "i1", v=VERSION + 1))) is None


def test_fields_of_a_later_release_within_the_same_version_are_ignored() -> None:
    assert parse_snapshot(b'{"id":"n1","epoch":1,"instance":"i1","colour":"red"}') == Snapshot("n1", 1, "i1")
