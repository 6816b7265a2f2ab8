"""What a client of /ws/session is told while its instance may not act."""

import json
from typing import Any
from unittest.mock import Mock

from dragoman.gateway.session_endpoint import RESUME_AFTER_MS, SessionEndpoint


def test_client_is_paused_with_all_its_sessions_when_its_messages_wait_for_the_lease() -> None:
    held: list[int] = []
    sessions, conn = Mock(), Mock()
    sessions.of_socket = lambda socket: [Mock(client_paused=held.append)] * 2 if socket is conn else []
    unused: Any = None
    endpoint = SessionEndpoint(
        sessions, unused, unused, unused, lambda *work: False, lambda: False, unused, max_sessions=1
    )
    endpoint.text(conn, b"{}")
    endpoint.binary(conn, b"")
    (frame,) = [call.args[0] for call in conn.send.call_args_list]
    told = json.loads(frame)
    assert (told["action"], told["resume_after_ms"]) == ("PAUSE", RESUME_AFTER_MS)
    assert held == [RESUME_AFTER_MS] * 2
