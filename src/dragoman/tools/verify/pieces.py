"""Audio in which every tenth of a second is numbered, so that every word can be accounted for.

A *piece* is a chunk of five packets, each with the number of the piece in it. The server does not look into packets, so
the audio of a job shows exactly which pieces arrived, in what order, and whether one arrived twice. Silent pieces have
negative numbers: a node answers a job that has only those with an empty result.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from struct import Struct

from dragoman.protocol import audio

PIECE_MS = 100
_PACKETS = PIECE_MS // audio.OPUS_PACKET_MS
_TOC = b"\xf8"  # 20 ms of CELT, mono: what an Opus packet of that length begins with
_NUMBER = Struct("<i")
_FILL = bytes(27)  # packets as large as those of speech: a server withholds short finals of small ones
_PACKET_BYTES = 2 + len(_TOC) + _NUMBER.size + len(_FILL)


def sound(numbers: Iterable[int]) -> bytes:
    """The audio of these pieces, a run of packets."""
    return audio.opus_run([_TOC + _NUMBER.pack(number) + _FILL for number in numbers for _ in range(_PACKETS)])


def decode(run: bytes) -> list[int]:
    """The pieces of audio. Half a piece, or one twice in a row, counts as a piece of its own."""
    starts = range(2 + len(_TOC), len(run), _PACKET_BYTES)
    numbers = [_NUMBER.unpack_from(run, at)[0] for at in starts]
    found = list[int]()
    for number, packets in groupby(numbers):
        found += [number] * -(-len(list(packets)) // _PACKETS)
    return found


def text(numbers: Sequence[int]) -> str:
    """`[3, 4, 5, 9]` is '3-5 9'."""
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in _runs(numbers))


def of_text(words: str) -> list[int]:
    """What `text` wrote. Raises ValueError."""
    found = list[int]()
    for word in words.split():
        first, dash, last = word.partition("-")
        found += range(int(first), int(last) + 1) if first and dash else [int(word)]
    return found


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of numbers that follow each other; silence does not get into them."""
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < len(numbers) and numbers[at] > 0 and numbers[end] == numbers[end - 1] + 1:
            end += 1
        yield numbers[at], numbers[end - 1]
        at = end
