"""A simulated engine: a node that needs no models, with the faults one asks for.

For tests, benchmarks and a first look. Its answers say which job they are for, so that a ledger can check them.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from dragoman.node.job import Job, Result
from dragoman.node.node import Node, Timing
from dragoman.protocol import audio


class SimulatedFailure(Exception):
    """A failure that was asked for."""


@dataclass(frozen=True, slots=True)
class SimSettings:
    """`failure`, `empty` and `silence` are probabilities of a job; together at most 1."""

    delay_ms: float = 300.0
    jitter_ms: float = 100.0  # ± around the delay
    failure: float = 0.0
    empty: float = 0.0
    silence: float = 0.0  # never answers; the server's time-out must cancel the job
    die_after: int | None = None  # jobs begun; the next one ends the node without a word
    partials: int = 1
    tts_ms: int = 400
    seed: int | None = None

    def __post_init__(self) -> None:
        if min(self.failure, self.empty, self.silence) < 0 or self.failure + self.empty + self.silence > 1:
            raise ValueError("failure, empty and silence are probabilities, together at most 1")


class SimEngine:
    """The handler. One random generator an engine: with one slot and a seed, a run can be repeated."""

    def __init__(self, settings: SimSettings, die: Callable[[], None] = lambda: None) -> None:
        self._settings = settings
        self._die = die
        self._random = Random(settings.seed)
        self.begun = 0

    async def __call__(self, job: Job) -> Result | None:
        settings = self._settings
        self.begun += 1
        if settings.die_after is not None and self.begun > settings.die_after:
            self._die()
            await asyncio.Event().wait()
        draw = self._random.random()
        delay_s = max(0.0, settings.delay_ms + self._random.uniform(-1, 1) * settings.jitter_ms) / 1000
        text = f"utterance {job.utterance_index} of {job.session_id}"
        for part in range(settings.partials):
            await asyncio.sleep(delay_s / (settings.partials + 1))
            job.partial(text[: len(text) * (part + 1) // (settings.partials + 1)])
        await asyncio.sleep(delay_s / (settings.partials + 1))
        if draw < settings.failure:
            raise SimulatedFailure(f"as asked, on {text}")
        if draw < settings.failure + settings.empty:
            return None
        if draw < settings.failure + settings.empty + settings.silence:
            await asyncio.Event().wait()
        return self._result(job, text)

    def _result(self, job: Job, text: str) -> Result:
        packets = self._settings.tts_ms // audio.OPUS_PACKET_MS if job.pipeline.use_tts else 0
        return Result(
            text_asr=text,
            text_translated=f"[{job.tgt_lang}] {text}" if job.pipeline.use_nmt else "",
            tts_audio=audio.opus_run([audio.SILENCE_PACKET] * packets),
            extra={"audio_ms": job.duration_ms},
        )


async def run_sim_node(
    url: str | Sequence[str],
    settings: SimSettings | None = None,
    *,
    languages: Sequence[str] = ("en", "es", "zh"),
    slots: int = 4,
    node_id: str | None = None,
    token: str | None = None,
    signals: bool = False,
    on_registered: Callable[[str], None] | None = None,
    timing: Timing | None = None,
) -> None:
    """Be a simulated node until drained, stopped, cancelled, or dead by `die_after`."""
    engine = SimEngine(settings or SimSettings(), die=lambda: node.die())
    node = Node(
        url,
        engine,
        languages=languages,
        slots=slots,
        node_id=node_id,
        token=token,
        on_registered=on_registered,
        timing=timing,
    )
    await node.run(signals=signals)
