import msgspec
import pytest

from dragoman.store.instances import Instances, Presence


def test_presence_carries_its_incarnation_and_survives_the_way_through_json() -> None:
    told = Presence("i1", "a1", host="h", pid=7, draining=True)
    assert Instances.parse(msgspec.json.encode(told)) == told


@pytest.mark.parametrize("data", [None, b"", b"{", b"alive", b"\xff\xfe", b'{"instance":"\xff","incarnation":"a"}'])
def test_a_presence_that_is_not_there_or_does_not_parse_is_none(data: bytes | None) -> None:
    assert Instances.parse(data) is None
