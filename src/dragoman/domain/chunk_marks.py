"""Which chunks of a client are settled: every byte of them is in a cut, or was dropped as silence.

A cut may split a chunk. After a resume the client sends that chunk again, and the part that was settled is skipped.
"""

from collections import deque
from typing import NamedTuple


class AudioMark(NamedTuple):
    """Up to where the audio of a client is settled."""

    seq: int | None = None  # the highest of the whole chunks; None: none since the last time
    split_seq: int | None = None  # the chunk after them, of which only a part is settled
    split_bytes: int = 0


class ChunkMarks:
    __slots__ = ("_into", "_marks")

    def __init__(self) -> None:
        # The chunks that are not settled: number, size, and how much of it was settled before a resume.
        self._marks: deque[tuple[int | None, int, int]] = deque()
        self._into = 0  # how many bytes of the first one are settled

    def add(self, seq: int | None, size: int, skipped: int = 0) -> None:
        """`skipped`: bytes before these that were settled before a resume."""
        if not size and self._marks and not self._marks[-1][1]:
            earlier, *_ = self._marks.pop()  # a client may send any number of empty messages
            seq = max((one for one in (earlier, seq) if one is not None), default=None)
        self._marks.append((seq, size, skipped))

    def settle(self, size: int) -> AudioMark:
        """The next `size` bytes are settled, and messages without audio between and behind them."""
        seqs, self._into = [], self._into + size
        while self._marks and self._marks[0][1] <= self._into:
            seq, whole, _ = self._marks.popleft()
            self._into -= whole
            if seq is not None:
                seqs.append(seq)
        split, _, skipped = self._marks[0] if self._marks else (None, 0, 0)
        into = self._into + skipped
        return AudioMark(max(seqs, default=None), *((split, into) if split is not None and into else ()))
