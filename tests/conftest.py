"""What every test may ask for: an event loop here, a Redis in the plugins.

`async def test_…` runs on the loop of `runner`, so fixtures can open connections on it before and close them after.
"""

import asyncio
import inspect
import os
import signal
from collections.abc import Generator, Iterator
from typing import cast

import hypothesis
import pytest
import uvloop

# How fast a machine draws examples says nothing about what is tested.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a shell, and every process the tests start would inherit it: Ctrl-C is tested too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# With CI=true a skipped test counts as failed: a missing part must not pass for a tested one. Only a test whose reason
# begins with these words may be skipped there.
DOES_NOT_APPLY = "does not apply: "

pytest_plugins = ["redis_servers", "redis_fixtures", "sql_servers"]

# Below the time-out of pytest-timeout, whose signal does not get through to a uvloop that has nothing to do.
PATIENCE_S = 200.0


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
    patience_s = asked.args[0] * 5 / 6 if asked is not None else PATIENCE_S

    async def bounded() -> None:
        async with asyncio.timeout(patience_s):
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
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as made:
        yield made
