"""A simulated node: needs no models, and fails on request. For tests, benchmarks and a first try.

Its results name the utterance and the session, or repeat the text, so that a test can check them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from dragoman.node.capabilities import Capabilities
from dragoman.node.job import Job, Result
from dragoman.node.node import Node, Timing
from dragoman.node.preview import PreviewStream
from dragoman.protocol import audio


class SimulatedFailure(Exception):
    """A failure that the settings asked for."""


@dataclass(frozen=True, slots=True)
class SimSettings:
    """`failure`, `empty` and `silence` are probabilities, together at most 1."""

    delay_ms: float = 300.0
    jitter_ms: float = 100.0  # ± around the delay
    failure: float = 0.0
    empty: float = 0.0
    silence: float = 0.0  # the job gets no result; the server must cancel it after its timeout
    die_after: int | None = None  # jobs; the next one makes the node cut its connection and end
    partials: int = 1
    words_per_s: float = 3.0  # of speech, in previews
    preview_ms: float = 0.0  # that a preview works on each piece of audio
    tts_ms: int = 400
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.words_per_s < 0 or self.preview_ms < 0:
            raise ValueError("words_per_s and preview_ms are not negative")
        if min(self.failure, self.empty, self.silence) < 0 or self.failure + self.empty + self.silence > 1:
            raise ValueError("failure, empty and silence are probabilities, together at most 1")


class SimEngine:
    """The handler. With one slot and a seed, a run can be repeated."""

    def __init__(self, settings: SimSettings) -> None:
        self.died = asyncio.Event()  # set by the first job after `die_after`
        self._settings = settings
        self._random = Random(settings.seed)
        self.jobs_started = 0

    async def __call__(self, job: Job) -> Result | None:
        settings = self._settings
        self.jobs_started += 1
        if settings.die_after is not None and self.jobs_started > settings.die_after:
            self.died.set()
            await asyncio.Event().wait()
        draw = self._random.random()
        delay_s = max(0.0, settings.delay_ms + self._random.uniform(-1, 1) * settings.jitter_ms) / 1000
        text = job.text if job.is_text else f"utterance {job.utterance_index} of {job.session_id}"
        partials = 0 if job.is_text else settings.partials
        for part in range(partials):
            await asyncio.sleep(delay_s / (partials + 1))
            job.partial(text[: len(text) * (part + 1) // (partials + 1)])
        await asyncio.sleep(delay_s / (partials + 1))
        if draw < settings.failure:
            raise SimulatedFailure(f"as requested, on {job.what}")
        if draw < settings.failure + settings.empty:
            return None
        if draw < settings.failure + settings.empty + settings.silence:
            await asyncio.Event().wait()
        return self._result(job, text)

    async def preview(self, stream: PreviewStream) -> None:
        """Says as many words as were spoken at the configured rate."""
        duration_ms = 0
        async for piece in stream:
            await asyncio.sleep(self._settings.preview_ms / 1000)
            duration_ms += stream.duration_ms(piece)
            spoken = int(duration_ms * self._settings.words_per_s / 1000)
            if spoken:
                words = f"utterance {stream.utterance_index} of {stream.session_id}".split()
                words += [f"word{number}" for number in range(len(words), spoken)]
                stream.partial(" ".join(words[:spoken]))

    def _result(self, job: Job, text: str) -> Result:
        packets = self._settings.tts_ms // audio.OPUS_PACKET_MS if job.pipeline.use_tts else 0
        return Result(
            text_asr="" if job.is_text else text,
            text_translated=f"[{job.tgt_lang}] {text}" if job.pipeline.use_nmt else "",
            tts_audio=audio.opus_run([audio.SILENCE_PACKET] * packets),
            extra=None if job.is_text else {"audio_ms": job.duration_ms},
        )


async def run_sim_node(
    url: str | Sequence[str],
    settings: SimSettings | None = None,
    *,
    languages: Sequence[str] = ("en", "es", "zh"),
    slots: int = 4,
    previews: int | None = None,
    text_only: bool = False,
    node_id: str | None = None,
    token: str | None = None,
    signals: bool = False,
    timing: Timing | None = None,
) -> None:
    """Run a simulated node until it is drained, stopped, cancelled, or dead by `die_after`.

    It also serves text jobs, from any language into each of `languages`; if `text_only`, nothing else. `previews` as in
    Capabilities.
    """
    engine = SimEngine(settings or SimSettings())
    speech = () if text_only else languages
    pairs = [("auto", one) for one in languages]
    capabilities = Capabilities(speech, speech, languages, slots, text_pairs=pairs, previews=previews)
    node = Node(url, engine, capabilities, node_id=node_id, token=token, timing=timing)
    loop = asyncio.get_running_loop()
    dying = loop.create_task(engine.died.wait())
    dying.add_done_callback(lambda task: None if task.cancelled() else node.die())
    try:
        await node.run(signals=signals)
    finally:
        dying.cancel()
