import asyncio

import pytest

from dragoman.tools.bench import load
from dragoman.tools.bench.load import Going, drive, percentile


async def asked_again(caller: int, going: Going) -> int:
    calls = 0
    while going.on or not calls:
        await asyncio.sleep(0)
        calls += 1
    return calls


async def test_every_caller_has_its_number_and_its_calls_are_summed() -> None:
    seen = set()

    async def once(caller: int, going: Going) -> int:
        seen.add(caller)
        return caller

    found = await drive(once, 5, 0.01)
    assert seen == {0, 1, 2, 3, 4}
    assert found.calls == 10


async def test_the_load_ends_when_its_time_is_up() -> None:
    found = await drive(asked_again, 3, 0.02)
    assert found.calls > 3
    assert found.per_s == found.calls / found.seconds
    assert found.us_each(2.0) == pytest.approx(2e6 / found.calls)


async def test_a_load_of_no_time_at_all_still_calls_once() -> None:
    assert (await drive(asked_again, 4, 0.0)).calls >= 4


async def test_the_first_caller_that_fails_ends_the_load_with_its_error() -> None:
    ended = []

    async def fails(caller: int, going: Going) -> int:
        if caller == 1:
            raise LookupError("no such thing")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(caller)
        return 0

    with pytest.raises(LookupError, match="no such thing"):
        await drive(fails, 3, 60)
    assert sorted(ended) == [0, 2]


async def test_what_is_never_answered_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PATIENCE_S", 0.01)

    async def forever(caller: int, going: Going) -> int:
        await asyncio.get_running_loop().create_future()
        return 0

    with pytest.raises(TimeoutError):
        await drive(forever, 2, 0.01)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7.0], 0.5, 7.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([float(n) for n in range(1, 101)], 1.0, 100.0),
        ([1.0, 2.0], 0.0, 1.0),
    ],
)
def test_a_percentile_is_a_value_that_occurred(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
