"""An idle client as bytes."""

import json
from typing import Any

from dragoman.tools.bench.idle_socket import IdleSocket, State

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


def told(**message: Any) -> bytes:
    payload = json.dumps(message, separators=(",", ":")).encode()
    size = len(payload)
    return (bytes((0x81, size)) if size < 126 else bytes((0x81, 126)) + size.to_bytes(2, "big")) + payload


def said(data: bytes) -> Any:
    """One masked frame, its key of zeros."""
    at = 2 if data[1] & 0x7F < 126 else 4
    assert data[at : at + 4] == bytes(4)
    return json.loads(data[at + 4 :])


def opened(talk: IdleSocket, ack: bytes) -> None:
    talk.connected()
    talk.receive(SWITCHING)
    talk.receive(ack)
    assert talk.state is State.OPEN


def test_a_session_is_opened_however_the_bytes_are_cut() -> None:
    talk = IdleSocket(b"/ws/session")
    assert talk.connected().startswith(b"GET /ws/session HTTP/1.1\r\n")
    out = b"".join(talk.receive(bytes((byte,))) for byte in SWITCHING)
    assert said(out)["type"] == "session_init"
    for byte in told(type="session_init_ack", session_id="s-1", resume_token="t", message="m" * 100):
        assert talk.state is State.GREETING
        talk.receive(bytes((byte,)))
    assert talk.state is State.OPEN


def test_one_that_comes_back_resumes() -> None:
    talk = IdleSocket(b"/ws/session")
    opened(talk, told(type="session_init_ack", session_id="s-1", resume_token="t", seq=3))
    talk.begin()
    talk.connected()
    resume = said(talk.receive(SWITCHING))
    assert resume == {"type": "session_resume", "session_id": "s-1", "resume_token": "t", "last_seq": 3}
    talk.receive(told(type="session_init_ack", session_id="s-1"))
    assert (talk.state, talk.resumed) == (State.OPEN, True)


def test_one_whose_session_is_over_opens_another() -> None:
    talk = IdleSocket(b"/ws/session")
    opened(talk, told(type="session_init_ack", session_id="s-1", resume_token="t"))
    talk.begin()
    talk.connected()
    talk.receive(SWITCHING)
    again = said(talk.receive(told(type="error", code="INVALID_SESSION", message="It is over.")))
    assert again["type"] == "session_init"
    talk.receive(told(type="session_init_ack", session_id="s-2", resume_token="u"))
    assert (talk.state, talk.resumed) == (State.OPEN, False)


def test_a_chat_user_authenticates_and_answers_pings_of_both_kinds() -> None:
    talk = IdleSocket(b"/ws", b"token")
    talk.connected()
    assert said(talk.receive(SWITCHING)) == {"type": "AUTH", "token": "token"}
    talk.receive(told(type="AUTH_OK"))
    assert said(talk.receive(told(type="PING", ts=1))) == {"type": "PONG"}
    assert talk.receive(b"\x89\x02hi") == b"\x8a\x82" + bytes(4) + b"hi"


def test_why_it_is_over_is_told() -> None:
    refused = IdleSocket(b"/ws")
    refused.connected()
    refused.receive(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
    closed = IdleSocket(b"/ws", b"token")
    opened(closed, told(type="AUTH_OK"))
    closed.receive(b"\x88\x02" + (4003).to_bytes(2, "big"))
    silent = IdleSocket(b"/ws", b"token")
    opened(silent, told(type="AUTH_OK"))
    silent.lost()
    assert [one.why for one in (refused, closed, silent)] == ["HTTP 503", "4003", "closed"]
