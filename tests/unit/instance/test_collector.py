import gc
from collections.abc import Iterator
from weakref import ref

import pytest

from dragoman.instance.collector import LOOK_AT_ALL_S, Collector


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


async def test_it_looks_when_it_is_told_to_and_not_by_itself() -> None:
    collector = Collector()
    assert not gc.isenabled()
    gone = ref(Cycle())
    assert gone() is not None
    await collector.run_once()
    assert gone() is None


async def test_what_was_in_use_when_it_was_put_away_is_looked_at_once_an_hour() -> None:
    now = 0.0
    collector = Collector(lambda: now)
    cycle = Cycle()
    await collector.run_once()
    gone = ref(cycle)
    del cycle
    await collector.run_once()
    assert gone() is not None
    now = LOOK_AT_ALL_S
    await collector.run_once()
    assert gone() is None
