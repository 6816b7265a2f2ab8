"""The endpoint of speech clients: back-pressure without a lease, and the holder of a session."""

import json
from typing import Any
from unittest.mock import Mock

import pytest

from dragoman.domain.limits.sessions import Holder
from dragoman.gateway.authentication import Principal
from dragoman.gateway.session_endpoint import RESUME_AFTER_MS, SessionEndpoint


def test_client_is_paused_with_all_its_sessions_when_its_messages_wait_for_the_lease() -> None:
    paused: list[int] = []
    sessions, conn = Mock(), Mock()
    sessions.of_socket = lambda socket: [Mock(client_paused=paused.append)] * 2 if socket is conn else []
    unused: Any = None
    endpoint = SessionEndpoint(
        sessions, unused, unused, unused, unused, lambda *work: False, lambda: False, unused, unused
    )
    endpoint.text(conn, b"{}")
    endpoint.binary(conn, b"")
    (frame,) = [call.args[0] for call in conn.send.call_args_list]
    message = json.loads(frame)
    assert (message["action"], message["resume_after_ms"]) == ("PAUSE", RESUME_AFTER_MS)
    assert paused == [RESUME_AFTER_MS] * 2


@pytest.mark.parametrize(("address", "counted"), [("192.0.2.7", "192.0.2.7"), ("127.0.0.1", ""), ("::1", "")])
def test_session_is_counted_for_the_address_of_its_connection_unless_that_is_this_machine(
    address: str, counted: str
) -> None:
    sessions, conn, authenticator, unused = Mock(), Mock(), Mock(), Mock()
    conn.peer, conn.headers, conn.query = (address, 1), {}, {}
    authenticator.identify = lambda kind, token: Principal(kind, "ann", "acme", gateway=True)
    endpoint = SessionEndpoint(
        sessions,
        unused,
        unused,
        unused,
        authenticator,
        lambda work, *args: work(*args) is None,
        lambda: False,
        unused,
        unused,
    )
    init = {"type": "session_init", "client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
    endpoint.text(conn, json.dumps(init).encode())
    (_, _, holder), _ = sessions.open.call_args
    assert holder == Holder("acme/ann", counted, gateway=True)
