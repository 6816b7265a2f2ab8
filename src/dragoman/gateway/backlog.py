"""How long the oldest byte has been waiting for a slow reader. Pure: sizes and times are passed in."""


class Backlog:
    """The age of what a peer has not read, from byte counts alone.

    A mark stands behind the last byte that was queued when it was set; once that has gone out the mark moves to the
    end of what is queued then. So a reader that keeps up has a young mark, and no byte waits longer than twice the
    age at which one gives up.
    """

    __slots__ = ("_mark", "_queued", "_since")

    def __init__(self, size: int, now: float) -> None:
        self._queued = self._mark = size
        self._since = now

    def grew(self, size: int) -> None:
        self._queued += size

    def age(self, size: int, now: float) -> float:
        """Seconds that the oldest of the `size` bytes still waiting has been waiting, at least."""
        if self._queued - size >= self._mark:
            self._mark = self._queued
            self._since = now
        return now - self._since
