import re
from collections.abc import Callable

import pytest

from dragoman.protocol import ids

UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (ids.session_id, r"s-[0-9A-F]{32}"),
        (ids.node_id, r"node-[0-9A-F]{8}"),
        (ids.job_id, rf"job-{UUID4}"),
        (ids.turn_id, UUID4),
        (ids.trace_id, UUID4),
        (ids.resume_token, r"[A-Za-z0-9_-]{32}"),
    ],
)
def test_an_id_has_its_shape_and_is_new_every_time(make: Callable[[], str], shape: str) -> None:
    first, second = make(), make()
    assert re.fullmatch(shape, first)
    assert first != second


def test_group_and_request_are_named_after_what_they_belong_to() -> None:
    assert ids.group_id("s-1", 3) == "group_s-1_3"
    assert ids.request_id("s-1", 3, "en") == "s-1:3:en"
