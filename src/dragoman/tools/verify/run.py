"""A verification from beginning to end: one phase a fault, each with ledgers of its own, each judged alone.

    load ─ strike ─ mend ─ … ─ load ends ─ all is settled ─ the stores at rest ─ verdict ─ one row

A cluster goes through as many phases as it can; one that does not become whole again after a fault is a finding, and
what remains gets a new one. So does what needs another durability of Redis.
"""

import asyncio
import dataclasses
import math
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from random import Random
from signal import SIGINT, SIGTERM
from typing import TypeVar

from dragoman.embedded.binary import ServerBinary
from dragoman.tools.verify import pieces
from dragoman.tools.verify.check import Disturbance, Forgiven, judge
from dragoman.tools.verify.crowds import Crowds, Ledgers
from dragoman.tools.verify.errors import CannotRun
from dragoman.tools.verify.facts import Facts, gather
from dragoman.tools.verify.fault_names import TITLES
from dragoman.tools.verify.faults import BY_NAME, HEALTHY, Blow, Fault, Scene
from dragoman.tools.verify.node_events import NodeEvent, read
from dragoman.tools.verify.recovery import QUESTIONS, Connection, Message, Told, recovered
from dragoman.tools.verify.rows import Row, merged
from dragoman.tools.verify.schedule import Phase, phases
from dragoman.tools.verify.settings import Fsync, Setup
from dragoman.tools.verify.speech_ledger import SpeechLedger
from dragoman.tools.verify.stage import Stage
from dragoman.tools.verify.waiting import until

SILENCE_PATIENCE_S = 5.0
WHOLE_PATIENCE_S = 180.0  # a cluster that is not whole again by then never will be
SPREAD_PATIENCE_S = 5.0
RECOVERY_PATIENCE_S = 5.0  # with which load goes on so that recovery can be seen; no promise depends on it
CLASS_S = 2.0  # what a Redis that writes every second may take with it

Result = TypeVar("Result")
OnStep = Callable[[str], None]
OnRow = Callable[[Row], None]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be verified. The healthy case always comes first, for comparison.

    `seconds` of load are shared by all faults; each gets at least what one strike needs.
    """

    setup: Setup
    faults: tuple[Fault, ...]
    seed: int = 1
    seconds: float = 0.0
    repeat: int = 1

    @property
    def possible(self) -> list[Fault]:
        asked = (HEALTHY, *(fault for fault in self.faults if fault is not HEALTHY))
        return [fault for fault in asked if not fault.missing(self.setup)]

    @property
    def steps(self) -> int:
        """Rows to come, and clusters to be started."""
        return self.repeat * (len(self.possible) + len({fault.fsync for fault in self.possible}))


@dataclass(frozen=True, slots=True)
class Outcome:
    rows: list[Row]
    seconds: float
    kept: Path | None  # logs and events of what was broken

    @property
    def holds(self) -> bool:
        return all(row.holds for row in self.rows)


async def verify(order: Order, binary: ServerBinary, on_step: OnStep, on_row: OnRow) -> Outcome:
    began, rows = time.monotonic(), list[Row]()
    folder = Path(tempfile.mkdtemp(prefix="dragoman-verify-"))
    try:
        for seed in range(order.seed, order.seed + order.repeat):
            played = await Round(order, seed, binary, folder / f"seed-{seed}", on_step, on_row).play()
            rows += [row.of_seed(seed) for row in played]
    finally:
        broken = not all(row.holds for row in rows)
        if not broken:
            shutil.rmtree(folder, ignore_errors=True)
    rows += [Row(fault.name, fault.title, absent=why) for fault in order.faults if (why := fault.missing(order.setup))]
    in_order = sorted(merged(rows), key=lambda row: list(TITLES).index(row.fault))
    return Outcome(in_order, time.monotonic() - began, folder if broken else None)


async def until_ended(work: Awaitable[Result]) -> Result:
    """Ctrl-C and SIGTERM end it in good order, with KeyboardInterrupt: no process and no folder is left."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (SIGINT, SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def told_settings(order: Order, outcome: Outcome) -> dict[str, object]:
    """What was run, for the file: enough to run it again."""
    setup = dataclasses.asdict(order.setup)
    del setup["path"]  # by seed
    asked = {"seed": order.seed, "seconds": order.seconds, "repeat": order.repeat}
    return {**setup, **asked, "faults": [fault.name for fault in order.faults], "took_s": round(outcome.seconds, 1)}


class Round:
    """All faults once around, with the draws of one seed."""

    def __init__(
        self, order: Order, seed: int, binary: ServerBinary, folder: Path, on_step: OnStep, on_row: OnRow
    ) -> None:
        self.order, self.seed, self.binary, self.folder = order, seed, binary, folder
        self.setup = order.setup.of_seed(seed)
        self._on_step, self._on_row = on_step, on_row
        self._stages = 0

    async def play(self) -> list[Row]:
        takes = [(fault.name, fault.takes(self.setup.lengths)) for fault in self.order.possible]
        planned = phases(self.seed, takes, self.order.seconds)
        rows = list[Row]()
        for fsync, group in groupby(planned, key=lambda one: BY_NAME[one.fault].fsync):
            left = list(group)
            while left:
                rows += await self._on_one_stage(fsync, left)
        return rows

    async def _on_one_stage(self, fsync: Fsync, left: list[Phase]) -> list[Row]:
        """Takes from `left` as many as one cluster gets through."""
        setup, rows = self.setup, list[Row]()
        self._stages += 1
        folder = self.folder / f"stage-{self._stages}"
        folder.mkdir(parents=True)
        self._on_step("starting a cluster")
        async with Stage.open(setup, fsync, self.binary, folder) as stage:
            async with Crowds.open(stage.ports, self.seed, setup.speakers, setup.chatters) as crowds:
                part = Part(setup, Scene(stage, crowds, setup.lengths))
                while left and part.is_whole:
                    phase = left.pop(0)
                    self._on_step(BY_NAME[phase.fault].title)
                    rows.append(await part.play(phase))
                    self._on_row(rows[-1])
        return rows


class Part:
    """One cluster, and one phase after the other on it."""

    def __init__(self, setup: Setup, scene: Scene) -> None:
        self.setup, self.scene = setup, scene
        self.is_whole = True
        self._before: Facts | None = None

    async def play(self, phase: Phase) -> Row:
        fault, crowds = BY_NAME[phase.fault], self.scene.crowds
        await self._spread()
        ledgers, began = crowds.begin(), time.monotonic()
        crowds.talk(self.setup.messages_per_s, self.setup.utterances_per_s)
        blows, findings, notes = list[Blow](), list[str](), list[str]()
        try:
            await self._strike(fault, phase, began, blows, ledgers)
        except CannotRun as error:
            self.is_whole = False
            findings.append(f"not whole again: {error}")
        await crowds.stop_talking()
        # Not a verdict: what is late is not lost. What never comes is found by the judge.
        notes += [f"not yet: {one}" for one in await self._still_owed(ledgers)]
        await until(lambda: not _unheard_silence(ledgers.speech, self.scene.stage), SILENCE_PATIENCE_S)
        row = await self._judged(fault, ledgers, began, blows)
        return dataclasses.replace(row, findings=(*findings, *row.findings), notes=(*notes, *row.notes))

    async def _still_owed(self, ledgers: Ledgers) -> list[str]:
        """What is owed when nothing more comes: a slow machine gets the time it needs."""
        before = -1
        while owed := await self.scene.crowds.quiet(self.scene.lengths.patience_s):
            now = ledgers.chat.count(lambda entry: entry.saved_at is not None) + len(ledgers.chat.acknowledged_at)
            now += sum(len(one.answers) + len(one.failures) for one in ledgers.speech.sessions.values())
            if now == before:
                break
            before = now
        return owed

    async def _spread(self) -> None:
        """After a fault all may be at the instance that survived it; the next one is to find some at each."""
        for name in self.scene.stage.names:
            owners = await self.scene.stage.whereabouts()
            if owners and name not in owners.values():
                self.scene.crowds.move(list(owners)[::2])
                await until(lambda: self._somebody_is_at(name), SPREAD_PATIENCE_S)  # noqa: B023

    async def _somebody_is_at(self, name: str) -> bool:
        return name in (await self.scene.stage.whereabouts()).values()

    async def _strike(self, fault: Fault, phase: Phase, began: float, blows: list[Blow], ledgers: Ledgers) -> None:
        for strike in phase.strikes:
            await _sleep_until(began + strike.at_s)
            blows.append(Blow())
            await fault.strike(self.scene, Random(strike.seed), blows[-1])
            await self.scene.stage.until_well(WHOLE_PATIENCE_S)
            blows[-1].well_at = time.monotonic()
            await until(lambda: self._has_recovered(fault, blows[-1], ledgers), RECOVERY_PATIENCE_S)
        await _sleep_until(began + phase.load_s)

    def _has_recovered(self, fault: Fault, blow: Blow, ledgers: Ledgers) -> bool:
        """Whether all that is asked about this fault has an answer; most is asked of people who chat."""
        events = read(self.scene.stage.recording_files, since=blow.struck_at - 1) if fault.load == "speech" else ()
        answers = recovered(fault.name, [blow], _told(ledgers, events))
        return answers.keys() == QUESTIONS.get(fault.name, {}).keys() or not self.setup.chatters

    async def _judged(self, fault: Fault, ledgers: Ledgers, began: float, blows: Sequence[Blow]) -> Row:
        stage = self.scene.stage
        facts = await gather(stage.place, ledgers.speech.sessions, began, self.scene.lengths.patience_s)
        events = read(stage.recording_files)
        pardon, rules = forgiven(fault, stage, blows), stage.rules(disturbed=bool(blows))
        verdict = judge(ledgers.chat, ledgers.speech, events, facts, pardon, before=self._before, rules=rules)
        self._before = facts
        return Row(
            fault.name,
            fault.title,
            len(blows),
            verdict.told,
            verdict.kept,
            verdict.lost,
            verdict.forgiven_lost,
            verdict.doubled,
            verdict.out_of_order,
            verdict.late,
            recovered(fault.name, blows, _told(ledgers, events)),
            tuple(map(str, verdict.findings)),
            verdict.notes,
        )


def forgiven(fault: Fault, stage: Stage, blows: Sequence[Blow]) -> Forgiven:
    """What the durability class of Redis lets it forget, and when who was disturbed."""
    forgets = fault.fsync == "everysec" and fault.redis == "single"
    return Forgiven(
        [(blow.struck_at - CLASS_S, blow.struck_at) for blow in blows] if forgets else (),
        [Disturbance(blow.struck_at, blow.well_at or math.inf, _ports(stage, blow)) for blow in blows],
    )


def _ports(stage: Stage, blow: Blow) -> frozenset[int] | None:
    if blow.victim in stage.names:
        return frozenset({stage.ports[stage.names.index(blow.victim)]})
    return None


def _unheard_silence(speech: SpeechLedger, stage: Stage) -> set[int]:
    """Pieces without words that no node has heard: their speakers are told nothing, so nobody waits for them."""
    said = {piece for one in speech.sessions.values() for given in one.given for piece in given.pieces if piece < 0}
    if not said:
        return said
    return said - {piece for event in read(stage.recording_files) for piece in pieces.of_text(event.pieces)}


def _told(ledgers: Ledgers, events: Sequence[NodeEvent]) -> Told:
    entries, sessions = ledgers.chat.entries.values(), ledgers.speech.sessions.values()
    messages = [Message(one.name.sender, one.sent_at, one.accepted_at, one.saved_at) for one in entries]
    resumed = [Connection(one.id, at) for one in sessions for at in one.resumed_at]
    return Told(messages, events, [*(Connection(*one) for one in ledgers.chat.connected), *resumed])


async def _sleep_until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        await asyncio.sleep(left)
