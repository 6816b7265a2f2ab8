import pytest

from dragoman.gateway.handshake import Reject, Request
from dragoman.gateway.hosts import is_ours, own_names_only


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:5010", "LocalHost.:5010", "127.0.0.1", "127.0.0.1:80", "127.9.9.9", "[::1]:5010", ""],
)
def test_the_names_of_this_machine_are_ours(host: str) -> None:
    assert is_ours(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:5010",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "10.0.0.1",
        "[fe80::1]:1",
    ],
)
def test_a_name_that_points_here_is_not(host: str) -> None:
    assert not is_ours(host)
    answer = own_names_only(Request("GET", "/ws", {}, {"host": host}, ("127.0.0.1", 1)))
    assert isinstance(answer, Reject)
    assert answer.status == 421
    assert "security.secret" in answer.body


def test_a_handshake_under_our_name_goes_on() -> None:
    assert own_names_only(Request("GET", "/ws", {}, {"host": "localhost:5010"}, ("127.0.0.1", 1))) is None
