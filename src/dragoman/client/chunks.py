"""Audio cut into pieces that a message may carry: whole samples, whole packets, never more than asked for.

This has nothing to do with utterances: those are cut by the server, or by the speaker's own hand.
"""

from collections.abc import Iterator

from dragoman.protocol.audio import OPUS, OPUS_PACKET_MS

CHUNK_MS = 256
# 64 KB in a message, where three bytes of audio are four of base64.
MAX_CHUNK_BYTES = 48_000


def split(
    format: str, audio: bytes, sample_rate: int, piece_ms: int | None = None, max_bytes: int = MAX_CHUNK_BYTES
) -> Iterator[bytes]:
    """Pieces of about `piece_ms`, or as long as `max_bytes` allows. The audio is whole: see `duration_ms`."""
    if format == OPUS:
        packets = None if piece_ms is None else max(1, round(piece_ms / OPUS_PACKET_MS))
        yield from _split_run(audio, packets, max_bytes)
    else:
        step = pcm_bytes(sample_rate, piece_ms, max_bytes)
        for at in range(0, len(audio), step):
            yield audio[at : at + step]


def pcm_bytes(sample_rate: int, piece_ms: int | None = None, max_bytes: int = MAX_CHUNK_BYTES) -> int:
    """How many bytes of pcm16 a piece has: an even number."""
    samples = max_bytes // 2 if piece_ms is None else max(1, sample_rate * piece_ms // 1000)
    return 2 * min(samples, max_bytes // 2)


def _split_run(run: bytes, packets: int | None, max_bytes: int) -> Iterator[bytes]:
    begin = at = count = 0
    while at < len(run):
        after = at + 2 + (run[at] | run[at + 1] << 8)
        if count and (count == packets or after - begin > max_bytes):
            yield run[begin:at]
            begin, count = at, 0
        at, count = after, count + 1
    if at > begin:
        yield run[begin:at]
