import pytest

from dragoman.client.chat import Chat
from support.waiting import Enter
from unit.client.chat.fake_chat_server import FakeChatServer, Peer, chatting


@pytest.fixture
def connected(enter: Enter) -> tuple[FakeChatServer, Peer, Chat]:
    return enter(chatting())


@pytest.fixture
def server(connected: tuple[FakeChatServer, Peer, Chat]) -> FakeChatServer:
    return connected[0]


@pytest.fixture
def peer(connected: tuple[FakeChatServer, Peer, Chat]) -> Peer:
    """The server's end of the first connection of `chat`."""
    return connected[1]


@pytest.fixture
def chat(connected: tuple[FakeChatServer, Peer, Chat]) -> Chat:
    return connected[2]
