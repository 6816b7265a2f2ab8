"""Which finals are withheld as quiet: audio of a real Opus encoder, in chunks as the original web client sends them."""

from collections.abc import Iterator

import pytest

from dragoman.domain.segmenter import Cut, Output, Segmenter, SegmenterSettings, Withheld
from dragoman.engines import Sound
from dragoman.protocol.audio import OPUS_PACKET_MS, duration_ms
from support.engines import english, needs_espeak, needs_wheels

pytestmark = needs_wheels

RATE, CHUNK_MS = 16_000, 256
WORDS = ("Yes", "No", "I", "Hm", "Go")


def silence(ms: int) -> bytes:
    return bytes(2 * RATE * ms // 1000)


def chunks(run: bytes) -> Iterator[bytes]:
    """What is encoded every 256 ms: 12 or 13 packets."""
    begin = at = packets = number = 0
    while at < len(run):
        at += 2 + (run[at] | run[at + 1] << 8)
        packets += 1
        if packets * OPUS_PACKET_MS >= (number + 1) * CHUNK_MS - OPUS_PACKET_MS or at == len(run):
            yield run[begin:at]
            begin, number = at, number + 1


def finals(run: bytes) -> list[Output]:
    """Every chunk is followed by a final, as after 3 s of quiet."""
    segmenter, outputs = Segmenter(SegmenterSettings(), lambda: "turn"), list[Output]()
    for number, chunk in enumerate(chunks(run)):
        now = number * CHUNK_MS / 1000
        outputs += segmenter.chunk(chunk, duration_ms("opus", chunk, RATE), False, now)
        outputs += segmenter.chunk(b"", 0, True, now)
    return outputs + segmenter.poll(float("inf"))


def test_finals_with_encoded_silence_are_withheld() -> None:
    outputs = finals(Sound(silence(5000), RATE).opus())
    assert len(outputs) >= 19
    assert {type(output) for output in outputs} == {Withheld}


@needs_espeak
@pytest.mark.parametrize("loudness", [1.0, 0.05])
@pytest.mark.parametrize("word", WORDS)
async def test_final_with_a_word_of_300_ms_is_cut(word: str, loudness: float) -> None:
    spoken = (await english(word)).at(RATE)
    samples = memoryview(spoken.pcm).cast("h")
    length = 300 * RATE // 1000
    begin = max(range(0, max(1, len(samples) - length), 160), key=lambda at: sum(map(abs, samples[at : at + length])))
    quieter = b"".join(
        round(sample * loudness).to_bytes(2, "little", signed=True) for sample in samples[begin : begin + length]
    )
    run = Sound(silence(140) + quieter + silence(140), RATE).opus()
    [output] = Segmenter(SegmenterSettings(), lambda: "turn").chunk(run, duration_ms("opus", run, RATE), True, 0.0)
    assert isinstance(output, Cut)


@needs_espeak
async def test_finals_after_a_sentence_are_withheld_from_its_end_on() -> None:
    spoken = (await english()).at(RATE)
    outputs = finals(Sound(spoken.pcm + silence(3000), RATE).opus())
    kinds = [type(output) for output in outputs]
    assert kinds[0] is Cut
    assert kinds[-10:] == [Withheld] * 10
