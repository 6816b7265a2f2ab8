"""Audio as the protocol carries it: base64 in JSON, runs of Opus packets, pcm16, binary frames.

"opus" is a run of [u16 little-endian length][one Opus packet], 20 ms a packet: durations are counted, never estimated.
Runs joined are a longer run. Nothing here decodes sound.
"""

from array import array
from enum import IntEnum
from math import hypot, sqrt
from struct import Struct
from sys import byteorder
from typing import NamedTuple

import pybase64
from msgspec import Raw, json

from dragoman.protocol.codes import BadAudio

OPUS = "opus"
PCM16 = "pcm16"
OPUS_PACKET_MS = 20
# CELT, 20 ms, mono, nothing to say: the shortest packet every Opus decoder plays as silence.
SILENCE_PACKET = b"\xf8\xff\xfe"
# Counting packets blocks the event loop. A message of 1 MB can hold 350,000 packets of one byte, which would delay all
# other clients for 60 ms, so the count is bounded: 5 minutes for an utterance, 1 minute for a chunk.
MAX_PACKETS = 15_000
MAX_CHUNK_PACKETS = 3_000


def opus_packets(run: bytes, max_packets: int = MAX_PACKETS) -> int:
    """How many packets are in the run. Raises BadAudio for a broken run and for one of more than `max_packets`."""
    at, end, packets = 0, len(run), 0
    while at + 2 < end:
        length = run[at] | run[at + 1] << 8
        if length == 0:
            break
        at += 2 + length
        packets += 1
        if packets > max_packets:
            seconds = max_packets * OPUS_PACKET_MS // 1000
            raise BadAudio(f"The audio has more than {max_packets} Opus packets, {seconds} s, in one message.")
    if at != end:
        broken = packets if at < end else packets - 1  # the last one that was counted is cut short
        raise BadAudio(f"The audio is not a run of Opus packets: packet {broken} is broken.")
    return packets


def opus_run(packets: list[bytes]) -> bytes:
    return b"".join(len(packet).to_bytes(2, "little") + packet for packet in packets)


def duration_ms(format: str, data: bytes, sample_rate: int, max_packets: int = MAX_PACKETS) -> int:
    if format == OPUS:
        return opus_packets(data, max_packets) * OPUS_PACKET_MS
    if format != PCM16:
        raise BadAudio(f"The audio format {format[:32]!r} is not known; use opus or pcm16.")
    if len(data) % 2:
        raise BadAudio("The audio is not pcm16: an odd number of bytes.")
    return len(data) // 2 * 1000 // sample_rate


def pcm16_rms(data: bytes, every: int = 1) -> float:
    """Root mean square of the samples, or of `every` so-manieth of them, 0 to 32,768: 0 is silence."""
    samples = array("h", data)[::every]
    if byteorder == "big":
        samples.byteswap()
    return hypot(*samples) / sqrt(len(samples)) if samples else 0.0


def decode_base64(raw: Raw) -> bytes:
    """The bytes of a base64 JSON string in a Raw; empty if it is absent."""
    try:
        return pybase64.b64decode(memoryview(raw)[1:-1], validate=True)
    except ValueError:
        pass
    try:
        # Some encoders escape / as \\/ and = as \\u003d: worth a second attempt, not a scan of every chunk.
        return pybase64.b64decode(json.decode(raw, type=str), validate=True)
    except ValueError:
        raise BadAudio("The audio is not valid base64.") from None


def encode_base64(data: bytes) -> Raw:
    """A base64 JSON string, ready to be a field of a message."""
    return Raw(b'"%b"' % pybase64.b64encode(data))


NO_AUDIO = encode_base64(b"")


class FrameKind(IntEnum):
    CHUNK = 1
    FINAL = 2


class AudioFrame(NamedTuple):
    kind: FrameKind
    session_id: str
    seq: int
    ts_low32: int
    is_final: bool
    audio: bytes


#   0      1         2..5     6..9              10        11
#   kind   id bytes  seq LE   unix ms, low 32   is_final  0        id…  audio…
#   `------------- both kinds ------------'     `-- chunk only --'      chunk only
_HEAD = Struct("<BBII")
_CHUNK_HEAD = Struct("<BBIIBx")


def parse_frame(data: bytes) -> AudioFrame:
    if len(data) < _HEAD.size:
        raise BadAudio("The binary frame is shorter than its header.")
    kind, id_length, seq, ts_low32 = _HEAD.unpack_from(data)
    if kind not in (FrameKind.CHUNK, FrameKind.FINAL):
        raise BadAudio(f"The binary frame type {kind} is not known.")
    id_at = _CHUNK_HEAD.size if kind == FrameKind.CHUNK else _HEAD.size
    audio_at = id_at + id_length
    if len(data) < audio_at:
        raise BadAudio("The binary frame ends within its session_id.")
    try:
        session_id = data[id_at:audio_at].decode()
    except UnicodeDecodeError:
        raise BadAudio("The session_id of the binary frame is not valid UTF-8.") from None
    if kind == FrameKind.FINAL:
        return AudioFrame(FrameKind.FINAL, session_id, seq, ts_low32, True, b"")
    return AudioFrame(FrameKind.CHUNK, session_id, seq, ts_low32, data[10] != 0, data[audio_at:])


def build_frame(frame: AudioFrame) -> bytes:
    session_id = frame.session_id.encode()
    if frame.kind == FrameKind.FINAL:
        return _HEAD.pack(frame.kind, len(session_id), frame.seq, frame.ts_low32) + session_id
    head = _CHUNK_HEAD.pack(frame.kind, len(session_id), frame.seq, frame.ts_low32, frame.is_final)
    return b"".join((head, session_id, frame.audio))


def full_timestamp(ts_low32: int, now_ms: int) -> int:
    """The unix ms nearest to `now_ms` whose low half is `ts_low32`."""
    half = 1 << 31
    return now_ms + ((ts_low32 - now_ms + half) % (1 << 32)) - half
