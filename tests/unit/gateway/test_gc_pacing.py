import gc
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.gateway.gc_pacing import ACCEPTED, PORTION, GcPacing


@contextmanager
def looks() -> Iterator[list[int]]:
    """The generations the collector looked at."""
    seen: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.disable()  # what it does by itself is not asked
    gc.callbacks.append(look)
    try:
        yield seen
    finally:
        gc.callbacks.remove(look)
        gc.enable()


def test_new_connections_are_looked_at_a_portion_at_a_time_however_many_leave_meanwhile() -> None:
    with looks() as seen:
        gc_pacing = GcPacing()
        for _ in range(PORTION // ACCEPTED - 1):
            gc_pacing.made(ACCEPTED)
        assert seen == []
        gc_pacing.made(ACCEPTED)
        assert seen == [1]
        for _ in range(2 * PORTION // ACCEPTED):
            gc_pacing.made(ACCEPTED)
        assert seen == [1, 1, 1]
