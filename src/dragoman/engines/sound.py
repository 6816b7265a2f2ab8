"""Audio as engines exchange it: pcm16, one channel, any rate; and its conversion from and to the protocol's formats.

PyAV does Opus and resampling; its wheel includes libopus. It is imported when it is first used, and only in `_av`.
"""

import io
import wave
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sys import byteorder
from typing import TYPE_CHECKING, Any

from dragoman.protocol.audio import OPUS, OPUS_PACKET_MS, duration_ms, opus_run
from dragoman.protocol.codes import BadAudio

if TYPE_CHECKING:
    import av

OPUS_RATE = 16_000
OPUS_BITS_PER_S = 24_000
_DECODER_RATE = 48_000  # libopus always decodes to this rate


@dataclass(frozen=True, slots=True)
class Sound:
    """`pcm`: little-endian signed 16-bit samples, mono. `rate`: samples a second."""

    pcm: bytes
    rate: int

    @property
    def duration_ms(self) -> int:
        return len(self.pcm) // 2 * 1000 // self.rate

    @property
    def loudness(self) -> float:
        """Root mean square, 0 to 32,768: 0 is silence."""
        samples = array("h", self.pcm)
        if byteorder == "big":
            samples.byteswap()
        return float((sum(sample * sample for sample in samples) / len(samples)) ** 0.5) if samples else 0.0

    def at(self, rate: int) -> "Sound":
        """Resampled to another rate."""
        if rate == self.rate or not self.pcm:
            return Sound(self.pcm, rate)
        return Sound(b"".join(map(_samples, _resampled([_frame(self)], rate))), rate)

    def wav(self) -> bytes:
        """A WAV file."""
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(self.rate)
            writer.writeframes(self.pcm)
        return file.getvalue()

    def opus(self) -> bytes:
        """Opus packets of 20 ms at 16 kHz, as the protocol carries them."""
        if not self.pcm:
            return b""
        encoder = _av().CodecContext.create("libopus", "w")
        encoder.sample_rate, encoder.layout, encoder.format = OPUS_RATE, "mono", "s16"
        encoder.bit_rate = OPUS_BITS_PER_S
        encoder.options = {"application": "voip", "frame_duration": str(OPUS_PACKET_MS)}
        packets: list[bytes] = []
        for frame in _resampled([_frame(self)], OPUS_RATE, OPUS_RATE * OPUS_PACKET_MS // 1000):
            frame.pts = None
            packets += map(bytes, encoder.encode(frame))
        packets += map(bytes, encoder.encode(None))
        return opus_run(packets)

    @classmethod
    def of_wire(cls, data: bytes, format: str, rate: int) -> "Sound":
        """From the audio of a job. Raises BadAudio."""
        duration_ms(format, data, rate)  # raises BadAudio
        return cls._of_opus(data, OPUS_RATE) if format == OPUS else cls(data, rate)

    @classmethod
    def of_file(cls, data: bytes) -> "Sound":
        """From the content of a WAV, MP3, Ogg or FLAC file. Raises BadAudio."""
        av = _av()
        try:
            with av.open(io.BytesIO(data)) as container:
                stream = container.streams.audio[0]
                rate = stream.rate
                pieces = _resampled(container.decode(stream), rate)
                return cls(b"".join(map(_samples, pieces)), rate)
        except (av.error.FFmpegError, IndexError):
            raise BadAudio("The audio cannot be decoded: its format is unknown.") from None

    @classmethod
    def _of_opus(cls, run: bytes, rate: int) -> "Sound":
        av = _av()
        decoder = av.CodecContext.create("libopus", "r")
        decoder.sample_rate, decoder.layout = _DECODER_RATE, "mono"
        try:
            frames = [frame for packet in _packets(run) for frame in decoder.decode(av.Packet(packet))]
        except av.error.FFmpegError:
            raise BadAudio("The audio has packets that are not Opus.") from None
        return cls(b"".join(map(_samples, _resampled(frames, rate))), rate)


def _packets(run: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(run):
        length = run[at] | run[at + 1] << 8
        yield run[at + 2 : at + 2 + length]
        at += 2 + length


def _frame(sound: Sound) -> "av.AudioFrame":
    frame = _av().AudioFrame(format="s16", layout="mono", samples=len(sound.pcm) // 2)
    frame.sample_rate = sound.rate
    frame.planes[0].update(sound.pcm)
    return frame  # type: ignore[no-any-return]


def _resampled(
    frames: "Iterable[av.AudioFrame]", rate: int, samples_a_frame: int | None = None
) -> "Iterator[av.AudioFrame]":
    resampler = _av().AudioResampler(format="s16", layout="mono", rate=rate, frame_size=samples_a_frame)
    for frame in frames:
        yield from resampler.resample(frame)
    yield from resampler.resample(None)


def _samples(frame: "av.AudioFrame") -> bytes:
    return bytes(frame.planes[0])[: 2 * frame.samples]  # planes are padded


def _av() -> Any:
    import av

    return av
