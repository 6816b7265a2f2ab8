"""Where the server cuts sound that no test chose for it: sentences of espeak-ng with pauses of 300 to 2,000 ms, alone
and in noise, music and coughs."""

import os
import subprocess
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from math import pi, sin, sqrt
from pathlib import Path
from random import Random

import pytest

from dragoman.domain.endpointer import Endpointer
from dragoman.domain.segmenter import Cut, Output, Reason, Segmenter, SegmenterSettings, Silence, TurnEnded
from dragoman.engines import Sound
from dragoman.engines.download import NotFetched, fetch
from dragoman.engines.kokoro import Kokoro
from dragoman.engines.models import known
from dragoman.protocol.audio import pcm16_rms
from dragoman.services.speech.session_input import VoiceDetector
from support.engines import needs_espeak, needs_real_engines, needs_wheels

pytestmark = [needs_espeak, needs_wheels]

SILENCE_MS, CHUNK_MS = 500, 100
PAUSES_MS = (300, 700, 1000, 400, 2000, 750, 1500, 700)
SENTENCES = {
    "en": ("we have a big problem", "yes", "the train leaves tomorrow morning at seven", "please sit down"),
    "es": ("tenemos un problema muy grande", "sí", "el tren sale mañana a las siete", "siéntese por favor"),
    "de": ("wir haben ein großes Problem", "ja", "der Zug fährt morgen früh um sieben", "bitte setzen Sie sich"),
    "fr": ("nous avons un gros problème", "oui", "le train part demain matin", "asseyez-vous"),
    "en+f3": ("tell me what happened", "no", "she sells three boxes of fish on the market", "stop"),
    "pt": ("nós temos um grande problema", "sim", "o trem parte amanhã de manhã", "por favor"),
}
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


@cache
def spoken(text: str, voice: str, rate: int) -> "array[int]":
    """Without the silence around it."""
    command = ("espeak-ng", "-v", voice, "-s", "150", "--stdout", text)
    wav = subprocess.run(command, check=True, capture_output=True, timeout=30).stdout
    samples = array("h", Sound(wav[44 : len(wav) & ~1], 22_050).at(rate).pcm)
    loud = [at for at, sample in enumerate(samples) if abs(sample) > 200]
    return samples[loud[0] : loud[-1] + 1]


@dataclass
class Recorded:
    """Sound, and where in it someone speaks, in samples."""

    rate: int
    samples: "array[int]" = field(default_factory=lambda: array("h"))
    speech: list[tuple[int, int]] = field(default_factory=list)

    def quiet(self, duration_ms: int) -> None:
        self.samples.extend(bytes(2 * (duration_ms * self.rate // 1000))[::2])

    def say(self, text: str, voice: str) -> None:
        self.hear(spoken(text, voice, self.rate))

    def hear(self, said: "array[int]") -> None:
        self.speech.append((len(self.samples), len(self.samples) + len(said)))
        self.samples.extend(said)

    def add(self, sound: Iterable[float]) -> None:
        """Mix it in, as loud as it is."""
        mixed = zip(self.samples, sound, strict=False)
        self.samples = array("h", (max(-32_768, min(32_767, round(one + other))) for one, other in mixed))

    def loudness(self) -> float:
        return pcm16_rms(b"".join(self.samples[begin:end].tobytes() for begin, end in self.speech))

    def cuts(self) -> list[tuple[int, int, Cut]]:
        """Begin and end of each cut, in samples."""
        detector, endpointer = VoiceDetector(self.rate), Endpointer(self.rate, SILENCE_MS)
        segmenter = Segmenter(SegmenterSettings(), lambda: "turn", 0, "pcm16", endpointer)
        pcm, size = self.samples.tobytes(), self.rate * CHUNK_MS // 1000 * 2
        outputs: list[Output] = []
        for seq, begin in enumerate(range(0, len(pcm), size)):
            chunk = pcm[begin : begin + size]
            outputs += segmenter.chunk(chunk, CHUNK_MS, False, 0.0, seq, detector.hear(chunk))
        outputs += segmenter.close(0.0)
        found, seq = [], -1
        for output in outputs:
            if isinstance(output, TurnEnded):
                continue
            mark = output.settled
            seq = seq if mark.seq is None else mark.seq
            end = min(len(pcm), (seq + 1) * size + mark.split_bytes)
            if isinstance(output, Cut):
                assert output.audio == pcm[end - len(output.audio) : end]
                found.append(((end - len(output.audio)) // 2, end // 2, output))
        return found


def conversation(rate: int, voices: Sequence[str], pauses_ms: tuple[int, ...] = PAUSES_MS) -> Recorded:
    recorded = Recorded(rate)
    recorded.quiet(1000)
    texts = [(text, voice) for number in range(4) for voice in voices for text in (SENTENCES[voice][number],)]
    for (text, voice), pause_ms in zip(texts, cycle(pauses_ms), strict=False):
        recorded.say(text, voice)
        recorded.quiet(pause_ms)
    recorded.quiet(1000)
    return recorded


async def conversation_of(voice: Kokoro, pauses_ms: tuple[int, ...] = PAUSES_MS) -> Recorded:
    recorded, rate = Recorded(16_000), 16_000
    recorded.quiet(1000)
    texts = [
        (text, language) for number in range(4) for language in ("en", "es") for text in (SENTENCES[language][number],)
    ]
    for (text, language), pause_ms in zip(texts, cycle(pauses_ms), strict=False):
        samples = array("h", (await voice.synthesise(text, language)).at(rate).pcm)
        loud = [at for at, sample in enumerate(samples) if abs(sample) > 300]
        recorded.hear(samples[loud[0] : loud[-1] + 1])
        recorded.quiet(pause_ms)
    recorded.quiet(1000)
    return recorded


def noise(kind: str, loudness: float, samples: int) -> list[float]:
    random, last = Random(5), 0.0
    found = []
    for _ in range(samples):
        fresh = random.gauss(0, 1)
        last = fresh if kind == "white" else 0.98 * last + fresh
        found.append(last)
    factor = loudness / sqrt(sum(one * one for one in found) / len(found))
    return [one * factor for one in found]


def check(recorded: Recorded) -> None:
    """Every pause of 700 ms and more is found, everything said is in a cut, and no cut is inside of speech."""
    cuts, rate = recorded.cuts(), recorded.rate
    for (_, end), (begin, _) in zip(recorded.speech, recorded.speech[1:], strict=False):
        if begin - end >= 0.7 * rate:
            assert any(end < at <= begin for _, at, _ in cuts), f"the pause at {end / rate:.2f} s is not found"
    for begin, end in recorded.speech:
        assert not any(begin < at < end for _, at, _ in cuts), f"a cut in what is said at {begin / rate:.2f} s"
        assert any(first < end and begin < last for first, last, _ in cuts), f"nothing heard at {begin / rate:.2f} s"


@pytest.mark.parametrize("rate", [8000, 16_000, 22_050, 48_000])
def test_every_longer_pause_is_found_at_every_sample_rate_and_ends_the_utterance_in_time(rate: int) -> None:
    recorded = conversation(rate, ["en", "es"])
    check(recorded)
    begins = [begin for begin, _ in recorded.speech]
    for first, last, cut in recorded.cuts():
        assert cut.reason in (Reason.TIMEOUT, Reason.CLOSE)
        assert any(first <= begin + 0.06 * rate and begin - first <= 0.35 * rate for begin in begins)
        if cut.reason is Reason.TIMEOUT:
            said_until = max(end for begin, end in recorded.speech if begin < last)
            assert 0 <= (last - said_until) / rate - SILENCE_MS / 1000 <= 0.045  # one frame has 32 ms


@pytest.mark.parametrize("kind", ["white", "dark"])
@pytest.mark.parametrize("decibels", [20, 10])
def test_every_longer_pause_is_found_in_noise(kind: str, decibels: int) -> None:
    recorded = conversation(16_000, ["en", "de"])
    recorded.add(noise(kind, recorded.loudness() / 10 ** (decibels / 20), len(recorded.samples)))
    check(recorded)


@pytest.mark.long
@pytest.mark.timeout(600)
@needs_real_engines
async def test_every_longer_pause_of_a_natural_voice_is_found_in_quiet_and_in_noise(tmp_path: Path) -> None:
    folder = Path(os.environ.get("DRAGOMAN_MODELS") or tmp_path)
    try:
        fetch(known()["kokoro:int8"], folder)
    except NotFetched as error:
        pytest.skip(f"does not apply: no source of Kokoro can be reached: {error}")
    voice = Kokoro("int8", "", folder)
    await voice.open()
    recorded = await conversation_of(voice)
    await voice.close()
    check(recorded)
    for kind, decibels in (("white", 20), ("dark", 20), ("white", 10)):
        noisy = Recorded(recorded.rate, recorded.samples[:], recorded.speech)
        noisy.add(noise(kind, recorded.loudness() / 10 ** (decibels / 20), len(recorded.samples)))
        check(noisy)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["white", "dark"])
@pytest.mark.parametrize("decibels", [30, 20, 10])
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_every_longer_pause_is_found_in_noise_whoever_speaks(kind: str, decibels: int, rate: int) -> None:
    recorded = conversation(rate, list(SENTENCES))
    recorded.add(noise(kind, recorded.loudness() / 10 ** (decibels / 20), len(recorded.samples)))
    check(recorded)


def test_counting_without_a_pause_is_cut_between_two_numbers() -> None:
    recorded = Recorded(16_000)
    for number in range(50):
        recorded.say(NUMBERS[number % len(NUMBERS)], "en")
        recorded.quiet(140)
    by_length = [(first, last) for first, last, cut in recorded.cuts() if cut.reason is Reason.MAX_DURATION]
    assert len(by_length) >= 2
    for _, at in by_length:
        assert not any(begin < at < end for begin, end in recorded.speech)


def chord(rate: int, duration_ms: int, loudness: float) -> list[float]:
    """Triads of a few harmonics, half a second each."""
    found = []
    for at in range(duration_ms * rate // 1000):
        root = (220.0, 174.61, 261.63, 196.0)[at * 2 // rate % 4]
        tones = (root * interval * harmonic for interval in (1, 1.25, 1.5) for harmonic in (1, 2, 3))
        found.append(loudness / 3 * sum(sin(2 * pi * tone * at / rate) for tone in tones))
    return found


def test_pauses_are_found_after_music_and_beside_quiet_music() -> None:
    recorded = Recorded(16_000)
    recorded.quiet(4000)
    recorded.add(chord(16_000, 4000, 4000.0) + [0.0] * len(recorded.samples))
    recorded.quiet(1500)
    later = conversation(16_000, ["en"])
    later.add(chord(16_000, len(later.samples) // 16, later.loudness() / 10))
    offset = len(recorded.samples)
    recorded.samples.extend(later.samples)
    recorded.speech = [(begin + offset, end + offset) for begin, end in later.speech]
    check(recorded)


@pytest.mark.parametrize("kind", ["none", "white", "dark"])
def test_an_hour_of_a_quiet_room_makes_no_utterance_and_keeps_no_audio(kind: str) -> None:
    rate, minute = 16_000, Recorded(16_000)
    minute.quiet(60_000)
    if kind != "none":
        minute.add(noise(kind, 60, len(minute.samples)))
    detector, endpointer = VoiceDetector(rate), Endpointer(rate, SILENCE_MS)
    segmenter = Segmenter(SegmenterSettings(), lambda: "turn", 0, "pcm16", endpointer)
    pcm = minute.samples.tobytes()
    for second in range(3600):
        chunk = pcm[second % 60 * 2 * rate : (second % 60 + 1) * 2 * rate]
        outputs = segmenter.chunk(chunk, 1000, False, float(second), second, detector.hear(chunk))
        assert {type(output) for output in outputs} <= {Silence}
        assert segmenter.open_utterance is None
    assert segmenter.next_index == 0


def test_cough_in_a_pause_joins_nothing_and_is_short() -> None:
    recorded = Recorded(16_000)
    recorded.quiet(500)
    recorded.say("we have a big problem", "en")
    recorded.quiet(2500)
    recorded.say("please sit down", "en")
    recorded.quiet(1000)
    cough_at = recorded.speech[0][1] + 16_000 * 12 // 10
    random = Random(3)
    burst = [random.gauss(0, 6000) * (1 - at / 4000) for at in range(4000)]
    recorded.add([0.0] * cough_at + burst + [0.0] * len(recorded.samples))
    check(recorded)
    for first, last, cut in recorded.cuts():
        if not any(first < end and begin < last for begin, end in recorded.speech):
            assert cut.duration_ms <= 1400
