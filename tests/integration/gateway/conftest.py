import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture
def runner(runner: asyncio.Runner) -> Iterator[asyncio.Runner]:
    """What a callback raises fails its test."""
    failures: list[dict[str, object]] = []
    runner.get_loop().set_exception_handler(lambda loop, context: failures.append(context))
    yield runner
    assert not failures
