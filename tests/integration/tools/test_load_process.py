"""A load process is any module that plays; PING under a load is the smallest."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.tools.processes import CannotRun, LoadProcess
from support.waiting import alive, wait_for


@asynccontextmanager
async def load_process(module: str = "dragoman.tools.bench.measure") -> AsyncIterator[LoadProcess]:
    with tempfile.TemporaryDirectory() as folder, LoadProcess(module, Path(folder) / "log") as started:
        yield started


async def test_load_process_reports_an_error_and_continues() -> None:
    async with load_process() as pinger:
        with pytest.raises(CannotRun, match="could not do `time`"):
            await pinger.call("time", host="127.0.0.1")
        with pytest.raises(CannotRun, match="could not do `dance`: 'dance'"):
            await pinger.call("dance")


async def test_load_process_reports_a_failed_start() -> None:
    async with load_process("dragoman.tools.bench.no_such_module") as nobody:
        with pytest.raises(CannotRun, match=r"could not do `time`: it ended: .*No module named"):
            await nobody.call("time")


async def test_it_is_gone_when_it_is_closed() -> None:
    async with load_process() as pinger:
        assert alive(pinger.pid)
    wait_for(lambda: not alive(pinger.pid), "its end")
