"""What every test may ask for: an event loop here, a Redis in the plugins.

`async def test_…` runs on the loop of `runner`, so fixtures can open connections on it before and close them after.
"""

import asyncio
import faulthandler
import gc
import inspect
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import cast

import hypothesis
import pytest
import uvloop

from support.waiting import Enter

# How fast a machine draws examples says nothing about what is tested. `make test-all` asks for the long profile.
for profile, examples in (("normal", 40), ("long", 500)):
    hypothesis.settings.register_profile(
        profile, max_examples=examples, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("normal")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a shell, and every process the tests start would inherit it: Ctrl-C is tested too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# With CI=true a skipped test counts as failed: a missing part must not pass for a tested one. Only a test whose reason
# begins with these words may be skipped there.
DOES_NOT_APPLY = "does not apply: "

pytest_plugins = ["support.redis_servers", "support.databases", "support.preloaded"]

# Below the time-out of pytest-timeout, whose signal does not get through to a uvloop that has nothing to do.
TIMEOUT_S = 200.0
CLOSE_TIMEOUT_S = 30.0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt modules and items from garbage collection: they stay until the end, and there are many."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    if inspect.iscoroutinefunction(obj) and collector.istestfunction(obj, name):
        pytest.mark.usefixtures("runner")(obj)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    named = inspect.signature(pyfuncitem.obj).parameters
    runner = cast(asyncio.Runner, pyfuncitem.funcargs["runner"])

    asked = pyfuncitem.get_closest_marker("timeout")
    limit_s = asked.args[0] * 5 / 6 if asked is not None else TIMEOUT_S

    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in named})

    runner.run(bounded())
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if os.environ.get("CI") == "true" and report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(DOES_NOT_APPLY):
            report.outcome, report.longrepr = "failed", f"CI=true: a part is missing: {reason}"
    return report


@pytest.fixture
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """On uvloop, unless the test is parametrised with `ON_BOTH_LOOPS` of `support.waiting`."""
    on_asyncio = getattr(request, "param", "uvloop") == "asyncio"
    made = asyncio.Runner(loop_factory=asyncio.new_event_loop if on_asyncio else uvloop.new_event_loop)
    yield made
    with end_process_after(CLOSE_TIMEOUT_S, request.node, "its event loop cannot be closed"):
        made.close()


@pytest.fixture
def enter(runner: asyncio.Runner) -> Iterator[Enter]:
    stack = AsyncExitStack()
    yield lambda context: runner.run(stack.enter_async_context(context))
    runner.run(stack.aclose())


@contextmanager
def end_process_after(timeout_s: float, item: pytest.Item, why: str) -> Iterator[None]:
    """End the test process if the body takes longer, and name the test.

    uvloop waits for what a test left behind, and lets no signal through meanwhile: nothing else would end it.
    """

    def end() -> None:
        capture = item.config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture(in_=True)
        print(f"\n{item.nodeid}: {why} within {timeout_s} s", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
