import json
import sys
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from dragoman.gateway.handshake import (
    OriginAllowList,
    Reject,
    Request,
    accept,
    is_loopback_host,
    log_refusals,
    loopback_hosts_only,
    parse,
    wants_websocket,
)
from support.tables import for_each

PEER = ("192.0.2.1", 4711)
HEAD = (
    b"GET /ws/session?token=t HTTP/1.1\r\nHost: here:5010\r\nUPGRADE: WebSocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
)


def _request(head: bytes = HEAD) -> Request:
    request = parse(head, PEER)
    assert isinstance(request, Request)
    return request


@for_each(
    [
        (HEAD, True),
        (b"GET / HTTP/1.1\r\nupgrade:websocket", True),
        (b"GET / HTTP/1.1\r\nUpgrade: h2c, websocket", True),
        (b"GET / HTTP/1.1\r\nUpgrade: h2c", False),
        (b"GET / HTTP/1.1\r\nX-Upgrade: websocket", False),
        (b"GET /?upgrade:websocket HTTP/1.1\r\nHost: a", False),
        (b"GET / HTTP/1.1\r\nUpgrade: websockets", False),
    ]
)
def test_websocket_upgrade_is_distinguished_from_other_requests(head: bytes, wanted: bool) -> None:
    assert wants_websocket(head) is wanted


def test_header_names_are_shared_between_requests_if_known_and_never_interned_if_not() -> None:
    """Some versions of Python never free an interned string: strange names would fill the memory."""
    strange = f"x-{uuid4()}"
    one, other = (list(_request(HEAD + f"\r\n{strange}: 1".encode()).headers) for _ in range(2))
    assert one[0] is other[0] == "host"
    assert one[-1] == strange
    copy = "".join([*strange])
    assert sys.intern(copy) is copy


def test_a_request_is_read_with_lower_case_header_names() -> None:
    request = _request(HEAD + b"\r\nX-Twice: 1\r\nx-twice: \t2 ")
    assert (request.method, request.path, dict(request.query)) == ("GET", "/ws/session", {"token": "t"})
    assert request.headers["host"] == "here:5010"
    assert request.headers["x-twice"] == "1, 2"
    assert request.peer == PEER


@for_each(
    [
        b"",
        b"GET /",
        b"GET  / HTTP/1.1",
        b"GET / HTTP/2.0",
        b"GET /\x00 HTTP/1.1",
        HEAD + b"\r\nno colon",
        HEAD + b"\r\nspace : before the colon",
        HEAD + b"\r\n folded: line",
        HEAD + b"\r\nx: a\x00b",
        HEAD + b"\r\nx: a\nb: c",
        HEAD + b"\r\nHost: elsewhere",
        HEAD + b"\r\nOrigin: http://a\r\nOrigin: http://b",
        HEAD.replace(b"token=t", b"a&" * 40),
    ]
)
def test_a_malformed_request_is_refused(head: bytes) -> None:
    refusal = parse(head, PEER)
    assert isinstance(refusal, Reject)
    assert refusal.status == 400


def test_a_request_with_too_many_headers_is_refused() -> None:
    refusal = parse(HEAD + b"\r\nx: y" * 200, PEER)
    assert isinstance(refusal, Reject)
    assert refusal.status == 431


@given(st.binary(max_size=300))
def test_any_bytes_are_either_a_request_or_a_refusal(junk: bytes) -> None:
    for head in (junk, HEAD + b"\r\n" + junk):
        request = parse(head, PEER)
        if isinstance(request, Request):
            accept(request)
            OriginAllowList()(request)


def test_a_correct_upgrade_is_accepted_with_the_digest_of_its_key() -> None:
    answer = accept(_request())
    assert isinstance(answer, bytes)
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n" in answer


def test_a_refusal_is_a_complete_json_answer() -> None:
    head, _, body = Reject(426, 'say "13"', {"Sec-WebSocket-Version": "13"}).to_bytes().partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 426 Upgrade Required",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        b"Connection: close",
        b"Sec-WebSocket-Version: 13",
    ]
    assert json.loads(body) == {"error": 'say "13"'}


@for_each(
    [
        ([], None, True),
        ([], "http://here:5010", True),
        ([], "https://HERE:5010", True),
        ([], "http://here", False),
        ([], "http://there:5010", False),
        ([], "null", False),
        ([], "", False),
        (["null"], "null", True),
        (["https://app.example.com/"], "https://app.example.com", True),
        (["https://app.example.com"], "http://app.example.com", False),
        (["*"], "http://anywhere", True),
    ]
)
def test_origins(listed: list[str], origin: str | None, let_in: bool) -> None:
    head = HEAD if origin is None else HEAD + b"\r\nOrigin: " + origin.encode()
    refusal = OriginAllowList(listed)(_request(head))
    assert (refusal is None) is let_in
    assert refusal is None or refusal.status == 403


def test_an_empty_host_is_not_the_host_of_a_page_without_one() -> None:
    request = Request("GET", "/", {}, {"origin": "null", "host": ""}, PEER)
    assert OriginAllowList()(request) is not None


@for_each(
    ["localhost", "localhost:5010", "LocalHost.:5010", "127.0.0.1", "127.0.0.1:80", "127.9.9.9", "[::1]:5010", ""]
)
def test_names_of_this_machine_are_loopback_hosts(host: str) -> None:
    assert is_loopback_host(host)


@for_each(
    [
        "evil.example",
        "evil.example:5010",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "10.0.0.1",
        "[fe80::1]:1",
    ]
)
def test_other_name_that_resolves_to_this_machine_is_no_loopback_host(host: str) -> None:
    assert not is_loopback_host(host)
    answer = loopback_hosts_only(Request("GET", "/ws", {}, {"host": host}, ("127.0.0.1", 1)))
    assert isinstance(answer, Reject)
    assert answer.status == 421
    assert "security.secret" in answer.body


def test_handshake_with_a_loopback_host_is_accepted() -> None:
    assert loopback_hosts_only(Request("GET", "/ws", {}, {"host": "localhost:5010"}, ("127.0.0.1", 1))) is None


def _from(origin: str) -> Request:
    return Request("GET", "/ws/session", {}, {"host": "127.0.0.1:5010", "origin": origin}, ("127.0.0.1", 1))


@for_each(["http://localhost:9001", "http://127.0.0.1:3000", "http://[::1]:8080", "https://localhost"])
def test_a_page_from_another_port_of_this_machine_may_connect_if_loopback_origins_are_allowed(origin: str) -> None:
    assert OriginAllowList(also=is_loopback_host)(_from(origin)) is None
    assert OriginAllowList()(_from(origin)) is not None


@for_each(["null", "", "http://evil.example", "http://localhost.evil.example", "http://"])
def test_other_pages_may_not_connect_if_loopback_origins_are_allowed(origin: str) -> None:
    assert OriginAllowList(also=is_loopback_host)(_from(origin)) is not None


def test_a_refused_origin_gets_a_sentence_with_its_name_and_the_setting_to_change() -> None:
    refusal = OriginAllowList()(_from("http://other.example:9001"))
    assert refusal is not None
    assert (refusal.status, refusal.body) == (
        403,
        "pages from the origin http://other.example:9001 may not connect; server.allowed_origins lists those that may",
    )


def test_a_refused_origin_is_logged_with_the_setting_to_change_and_not_more_often_than_other_lines() -> None:
    check = log_refusals(OriginAllowList())
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
