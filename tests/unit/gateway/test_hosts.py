import pytest
from structlog.testing import capture_logs

from dragoman.gateway.handshake import OriginAllowList, Reject, Request
from dragoman.gateway.hosts import is_ours, logged, own_names_only


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


def _from(origin: str) -> Request:
    return Request("GET", "/ws/session", {}, {"host": "127.0.0.1:5010", "origin": origin}, ("127.0.0.1", 1))


@pytest.mark.parametrize(
    "origin", ["http://localhost:9001", "http://127.0.0.1:3000", "http://[::1]:8080", "https://localhost"]
)
def test_a_page_from_another_port_of_this_machine_may_connect_if_loopback_origins_are_allowed(origin: str) -> None:
    assert OriginAllowList(also=is_ours)(_from(origin)) is None
    assert OriginAllowList()(_from(origin)) is not None


@pytest.mark.parametrize("origin", ["null", "", "http://evil.example", "http://localhost.evil.example", "http://"])
def test_other_pages_may_not_connect_if_loopback_origins_are_allowed(origin: str) -> None:
    assert OriginAllowList(also=is_ours)(_from(origin)) is not None


def test_a_refused_origin_gets_a_sentence_with_its_name_and_the_setting_to_change() -> None:
    refusal = OriginAllowList()(_from("http://other.example:9001"))
    assert refusal is not None
    assert (refusal.status, refusal.body) == (
        403,
        "pages from the origin http://other.example:9001 may not connect; server.allowed_origins lists those that may",
    )


def test_a_refused_origin_is_logged_with_the_setting_to_change_and_not_more_often_than_other_lines() -> None:
    check = logged(OriginAllowList())
    with capture_logs() as lines:
        assert check(_from("http://127.0.0.1:5010")) is None
        assert check(_from("http://other.example:9001")) is not None
    (line,) = lines
    assert (line["log_level"], line["limited"]) == ("warning", True)
    assert (line["origin"], line["path"], line["setting"]) == (
        "http://other.example:9001",
        "/ws/session",
        "server.allowed_origins",
    )
