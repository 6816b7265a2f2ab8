import re
from collections import Counter
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


@pytest.mark.parametrize(("make", "bits"), [(ids.session_id, 128), (ids.resume_token, 192)])
def test_what_must_not_be_guessed_is_drawn_whole_from_the_secrets_of_the_machine(
    make: Callable[[], str], bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def urandom(size: int) -> bytes:
        drawn.append(size)
        return b"\0" * size

    monkeypatch.setattr("secrets.token_bytes", urandom)
    made = {make(), make()}
    assert len(made) == 1, "nothing else is in it"
    assert drawn == [bits // 8] * 2


@pytest.mark.parametrize(("make", "fixed", "letters"), [(ids.session_id, 2, 16), (ids.resume_token, 0, 64)])
def test_no_letter_of_what_must_not_be_guessed_is_likelier_than_another(
    make: Callable[[], str], fixed: int, letters: int
) -> None:
    """A generator with a fixed part, or a weak one, shows in places where some letters hardly come up."""
    made = [make()[fixed:] for _ in range(letters * 100)]
    assert len(set(made)) == len(made)
    for place in zip(*made, strict=True):
        counts = Counter(place)
        assert len(counts) == letters
        assert max(counts.values()) < 200  # of 100 on average: ten standard deviations


def test_group_and_request_are_named_after_what_they_belong_to() -> None:
    assert ids.group_id("s-1", 3) == "group_s-1_3"
    assert ids.request_id("s-1", 3, "en") == "s-1:3:en"


@pytest.mark.parametrize(
    ("owner", "tenant"),
    [
        ("acme/ann", "acme"),
        ("default/a/b", "default"),
        ("~chat/7", "default"),
        ("~anonymous/local", "default"),
        ("", ""),
    ],
)
def test_chat_users_and_anonymous_clients_belong_to_the_default_tenant(owner: str, tenant: str) -> None:
    assert ids.tenant_of(owner) == tenant
