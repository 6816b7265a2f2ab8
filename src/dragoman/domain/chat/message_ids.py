"""serverMsgId: a number that rises, made without asking anybody.

     63             22        12         0
     0 | 41 bit ms  | 10 bit   | 12 bit   |
       since EPOCH  | worker   | count    |

It is positive as a signed 64-bit integer and lasts until 2093. Two living instances never have the same worker, so
they never make the same id; one instance never makes an id at or below one it has made:

- when the clock steps back it goes on from where it was, as if no time had passed;
- after 4096 ids in one millisecond it takes from the next one, and runs ahead of the clock by as much as it must.

It rises per maker alone; that it also rises per sender, wherever the sender connects, is the shard's care (`above`).
"""

from collections.abc import Callable
from typing import Final

EPOCH_MS: Final = 1_704_067_200_000  # 2024-01-01T00:00:00Z
WORKERS: Final = 1 << 10
_COUNTS: Final = 1 << 12
_WORKER_SHIFT: Final = 12
_TIME_SHIFT: Final = 22
_MAX_TIME: Final = (1 << 41) - 1


class MessageIds:
    def __init__(self, worker: int) -> None:
        if not 0 <= worker < WORKERS:
            raise ValueError(f"a worker is a number from 0 to {WORKERS - 1}, not {worker}")
        self._worker_bits = worker << _WORKER_SHIFT
        # Of the last id. Time 0 is never used, so that a small number is no id of ours.
        self._time, self._count = 1, -1

    def draw(self, now_ms: int, above: int = 0) -> int:
        """The next id: greater than each drawn before, and than `above`."""
        time, count = now_ms - EPOCH_MS, 0
        if time <= self._time:
            time, count = self._time, self._count + 1
            if count == _COUNTS:
                time, count = time + 1, 0
        id = time << _TIME_SHIFT | self._worker_bits | count
        if id <= above:
            # Not further than needed: at the same millisecond, where our worker is the higher one.
            time, count = above >> _TIME_SHIFT, 0
            if time << _TIME_SHIFT | self._worker_bits <= above:
                time += 1
            id = time << _TIME_SHIFT | self._worker_bits
        if time > _MAX_TIME:
            raise OverflowError("no message ids are left: they reach to the year 2093")
        self._time, self._count = time, count
        return id


def first_id_of(ms: int) -> int:
    """All ids of messages that were accepted before then are lower."""
    return max(ms - EPOCH_MS, 0) << _TIME_SHIFT


class IdMaker:
    """The ids of one instance, whatever worker number it has at the moment; `clock` is unix ms."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._ids: MessageIds | None = None
        self._last = 0

    def use(self, worker: int) -> None:
        self._ids = MessageIds(worker)

    def draw(self, above: int = 0) -> int:
        assert self._ids is not None
        self._last = self._ids.draw(self._clock(), max(above, self._last))
        return self._last

    def rise(self, above: int) -> None:
        """Another instance, whose clock is ahead, has made this id: ours are higher from now on."""
        self._last = max(self._last, above)


def time_of(id: int) -> int:
    """When it was made, unix ms; ahead of that by what its maker had borrowed."""
    return (id >> _TIME_SHIFT) + EPOCH_MS


def made_by_us(id: int) -> bool:
    """Whether a server of ours can have made this id; that one has is for the archive to say.

    Its time says nothing: one instance whose clock is ahead lifts the ids of all (`above`), for as long as it was so.
    """
    return id >> _TIME_SHIFT > 0 and 0 < id < 1 << 63
