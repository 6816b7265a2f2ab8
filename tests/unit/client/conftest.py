import pytest

from dragoman.client import Session
from support.waiting import Enter
from unit.client.fake_server import FakeServer, serving, session_at


@pytest.fixture
def server(enter: Enter) -> FakeServer:
    return enter(serving())


@pytest.fixture
def session(enter: Enter, server: FakeServer) -> Session:
    """A session that is open at `server`."""
    return enter(session_at(server))
