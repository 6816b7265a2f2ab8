import asyncio
import threading

import pytest

from dragoman.node.threads import Threads
from support.waiting import wait_until


async def test_a_function_runs_in_another_thread_and_its_value_comes_back() -> None:
    threads = Threads(1, "test")
    assert await threads.run(divmod, 7, 2) == (3, 1)
    assert (await threads.run(threading.current_thread)).name.startswith("test")
    threads.close()


async def test_what_it_raises_is_raised_here() -> None:
    threads = Threads(1, "test")
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)
    assert await threads.run(divmod, 7, 2) == (3, 1)
    threads.close()


async def test_stop_iteration_which_no_future_can_hold_is_a_runtime_error() -> None:
    threads = Threads(1, "test")
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.run(next, iter(()))
    threads.close()


async def test_no_more_run_at_a_time_than_there_are_threads() -> None:
    threads, gate = Threads(2, "test"), threading.Event()
    seen: list[int] = []

    def wait(number: int) -> None:
        seen.append(number)
        gate.wait(60)

    calls = [asyncio.ensure_future(threads.run(wait, number)) for number in range(3)]
    await wait_until(lambda: len(seen) == 2)
    gate.set()
    await asyncio.gather(*calls)
    assert seen == [0, 1, 2]
    threads.close()


async def test_what_is_cancelled_while_it_waits_for_a_thread_never_runs() -> None:
    threads, gate = Threads(1, "test"), threading.Event()
    seen: list[str] = []
    first = asyncio.ensure_future(threads.run(gate.wait, 60))
    second = asyncio.ensure_future(threads.run(seen.append, "second"))
    third = asyncio.ensure_future(threads.run(seen.append, "third"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second})
    gate.set()
    await asyncio.gather(first, third)
    assert seen == ["third"]
    threads.close()


async def test_threads_nobody_needs_any_more_end_and_take_nothing() -> None:
    threads = Threads(2, "test")
    mine = await asyncio.gather(threads.run(threading.current_thread), threads.run(threading.current_thread))
    threads.close()
    await wait_until(lambda: not any(thread.is_alive() for thread in mine))
    with pytest.raises(RuntimeError, match="closed"):
        await threads.run(divmod, 7, 2)
