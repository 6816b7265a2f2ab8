import asyncio

import pytest

from dragoman.engines import EngineFailed, Missing
from dragoman.engines.processes import found, output
from support.waiting import wait_until


async def test_a_program_answers_what_it_is_given() -> None:
    assert await output("cat", given=b"hello") == b"hello"


async def test_one_that_fails_is_quoted() -> None:
    with pytest.raises(EngineFailed, match="sh failed: no such luck"):
        await output("sh", "-c", "echo no such luck >&2; exit 3")
    with pytest.raises(EngineFailed, match="sh failed: exit 4"):
        await output("sh", "-c", "exit 4")


async def test_cancelled_it_ends_with_all_it_started(tmp_path: object) -> None:
    mark = f"{tmp_path}/pid"
    task = asyncio.create_task(output("sh", "-c", f"sleep 100 & echo $! > {mark}; wait"))

    def pid() -> int:
        try:
            with open(mark, encoding="ascii") as file:
                return int(file.read() or 0)
        except FileNotFoundError:
            return 0

    await wait_until(lambda: pid() > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: not _runs(pid()))


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_that_is_not_there_is_named_with_what_installs_it() -> None:
    with pytest.raises(Missing, match="nothing-like-it is not installed: apt-get install something"):
        found("nothing-like-it", "something")
