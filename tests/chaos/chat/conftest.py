import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from chaos.chat.chat_server import ChatServer, chat_server
from support.redis_servers import RedisAt


@pytest.fixture
def server(runner: asyncio.Runner, redis_at: RedisAt, prefix: str, tmp_path: Path) -> Iterator[ChatServer]:
    """Ended before the keys of the test are looked at."""
    stack = AsyncExitStack()
    yield runner.run(stack.enter_async_context(chat_server(redis_at, tmp_path, prefix)))
    runner.run(stack.aclose())
