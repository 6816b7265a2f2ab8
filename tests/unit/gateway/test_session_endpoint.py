"""The endpoint of speech clients: back-pressure without a lease, and the holder of a session."""

import json
from typing import Any
from unittest.mock import Mock

from dragoman.domain.limits.sessions import MAX_WAIT_S, Holder
from dragoman.gateway.authentication import Principal
from dragoman.gateway.session_endpoint import RESUME_AFTER_MS, SessionEndpoint
from dragoman.protocol.codes import Close
from support.tables import for_each


def test_client_is_paused_with_all_its_sessions_when_its_messages_wait_for_the_lease() -> None:
    paused: list[int] = []
    sessions, conn = Mock(), Mock(peer=("192.0.2.7", 1))
    sessions.count_message.return_value = 0.0
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


@for_each([("192.0.2.7", "192.0.2.7"), ("127.0.0.1", ""), ("::1", "")])
def test_session_is_counted_for_the_address_of_its_connection_unless_that_is_this_machine(
    address: str, counted: str
) -> None:
    sessions, conn, authenticator, unused = Mock(), Mock(), Mock(), Mock()
    conn.peer, conn.headers, conn.query = (address, 1), {}, {}
    sessions.count_message.return_value = 0.0
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


def slowed_down(wait_s: float) -> Mock:
    """The connection of a client without a token whose message was handled, and that has to wait for so long."""
    sessions, conn, unused = Mock(), Mock(peer=("192.0.2.7", 1), headers={}, query={}), Mock()
    sessions.count_message.return_value = wait_s
    guard = lambda work, *args: work(*args) is None  # noqa: E731
    endpoint = SessionEndpoint(sessions, unused, unused, unused, unused, guard, lambda: False, unused, unused)
    endpoint.text(conn, b"no message")
    (holder,), _ = sessions.count_message.call_args
    assert holder.account == "192.0.2.7"
    return conn


def test_next_message_of_a_client_that_makes_too_much_work_is_handled_later() -> None:
    conn = slowed_down(0.3)
    conn.hold.assert_called_once_with(0.3)
    conn.close.assert_not_called()


def test_client_that_makes_too_much_work_with_too_many_connections_is_closed() -> None:
    conn = slowed_down(MAX_WAIT_S + 0.1)
    assert conn.close.call_args.args[0] == Close.RATE
    conn.hold.assert_not_called()
