import msgspec
import pytest

from dragoman.store.jobs import Binding, Jobs


def test_a_binding_survives_the_way_through_json_with_its_version() -> None:
    data = msgspec.json.encode(Binding("j1", "i1"))
    assert Jobs.parse_binding(data) == Binding("j1", "i1")
    assert b'"v":1' in data


@pytest.mark.parametrize(
    "data", [None, b"", b"{", b"j1", b'{"job_id":"j1"}', b"\xff", b'{"job_id":"\xff","driver":"i"}']
)
def test_no_binding_or_one_that_does_not_parse_is_none(data: bytes | None) -> None:
    assert Jobs.parse_binding(data) is None
