"""Every test of the gateway runs on both loops: they hand a transport over in different ways."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from support.gateway import Run


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_on_loop(main: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await main()

        with asyncio.Runner(loop_factory=factory) as runner:
            failures: list[dict[str, object]] = []
            runner.get_loop().set_exception_handler(lambda loop, context: failures.append(context))
            runner.run(bounded())
            assert not failures

    return run_on_loop
