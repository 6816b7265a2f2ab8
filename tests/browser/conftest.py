"""One browser and one cluster for all tests of the page: starting either costs seconds. Pages are each test's own.

Hence one event loop as well, and one worker. Tests do not meet: each speaks languages that only its own node serves.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop

from browser.harness import BrowserHarness, Windows, chromium, spoken
from support.cluster import running
from support.redis_servers import KeyInspector, RedisAt

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as made:
        yield made


@pytest.fixture(scope="session")
def browser(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    stack = AsyncExitStack()
    microphone = spoken(tmp_path_factory.mktemp("microphone") / "voice.wav")
    yield runner.run(stack.enter_async_context(chromium(microphone)))
    runner.run(stack.aclose())


@pytest.fixture(scope="session")
def harness(
    runner: asyncio.Runner, redis_server: RedisAt, key_inspector: KeyInspector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrowserHarness]:
    """Nodes come up while other tests run."""
    stack = AsyncExitStack()

    async def up() -> BrowserHarness:
        cluster = await stack.enter_async_context(running(redis_server, tmp_path_factory.mktemp("browser")))
        return await BrowserHarness.of(cluster)

    made = runner.run(up())
    yield made
    made.close()
    runner.run(stack.aclose())
    key_inspector.remove_keys(redis_server, made.cluster.prefix)


@pytest.fixture
def windows(runner: asyncio.Runner, browser: Any) -> Iterator[Windows]:
    """Pages of one test; when it is over none may have complained."""
    opened = Windows(browser)
    yield opened
    runner.run(opened.close())
    assert opened.complaints() == []
