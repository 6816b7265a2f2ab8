"""A puppet is any module that plays; PING under a load is the smallest."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dragoman.bench.errors import BenchError
from dragoman.bench.puppet import Puppet
from processes import alive, wait_until


@asynccontextmanager
async def puppet(module: str = "dragoman.bench.ping_load") -> AsyncIterator[Puppet]:
    with tempfile.TemporaryFile() as log, await Puppet.start(module, log) as started:
        yield started


async def test_what_it_cannot_do_is_told_and_it_goes_on() -> None:
    async with puppet() as pinger:
        with pytest.raises(BenchError, match="could not do `time`"):
            await pinger.act("time", host="127.0.0.1")
        with pytest.raises(BenchError, match="could not do `dance`: 'dance'"):
            await pinger.act("dance")


async def test_one_that_cannot_begin_is_told() -> None:
    async with puppet("dragoman.bench.no_such_module") as nobody:
        with pytest.raises(BenchError, match=r"could not do `time`: it ended: .*No module named"):
            await nobody.act("time")


async def test_it_is_gone_when_it_is_closed() -> None:
    async with puppet() as pinger:
        assert alive(pinger.pid)
    wait_until(lambda: not alive(pinger.pid), "its end")
