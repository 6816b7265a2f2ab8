"""A verification from beginning to end: one phase a fault, each with its own ledgers, each judged alone.

    load ─ fault ─ repair ─ … ─ load ends ─ everything settles ─ the stores at rest ─ verdict ─ one row

One cluster goes through as many phases as it can. If it does not recover from a fault, that is a finding, and the
remaining phases get a new cluster; so do faults that need another durability of Redis.
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
from dragoman.tools.processes import CannotRun, until
from dragoman.tools.verify import TITLES, pieces
from dragoman.tools.verify.check import judge
from dragoman.tools.verify.clients import Clients, Ledgers
from dragoman.tools.verify.environment import Environment, Fsync, Setup
from dragoman.tools.verify.facts import Disturbance, Facts, Tolerated, gather
from dragoman.tools.verify.faults import (
    BY_NAME,
    HEALTHY,
    QUESTIONS,
    Connection,
    Fault,
    FaultContext,
    Injection,
    Message,
    Record,
    recovered,
)
from dragoman.tools.verify.recordings import NodeEvent, read
from dragoman.tools.verify.results import Row, merged
from dragoman.tools.verify.speech_ledger import SpeechLedger

SILENCE_TIMEOUT_S = 5.0
RECOVERY_TIMEOUT_S = 180.0  # a cluster that has not recovered by then never will
SPREAD_TIMEOUT_S = 5.0
MEASURE_TIMEOUT_S = 5.0  # of further load, so that recovery can be measured; no promise depends on it
CLASS_S = 2.0  # of writes that a Redis that syncs every second may lose

Result = TypeVar("Result")
OnStep = Callable[[str], None]
OnRow = Callable[[Row], None]


# -- when each fault is injected -------------------------------------------------------------------
# The draws of one fault do not depend on which others are chosen, so a run of one alone repeats what happened to it in
# a run of all.

# Load before the first fault and after the last, so that every fault meets work under way and leaves some to do.
BEFORE_S = 0.7
AFTER_S = 0.5


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """`at_s` after the load began; `seed` draws the target and everything else that the fault leaves open."""

    at_s: float
    seed: str


@dataclass(frozen=True, slots=True)
class Phase:
    fault: str
    injections: tuple[ScheduledFault, ...]
    load_s: float


def phase(seed: int, fault: str, load_s: float, takes_s: float) -> Phase:
    """`takes_s`: about the time from one injection to recovery. There is at least one injection; none if it is 0."""
    if takes_s <= 0:
        return Phase(fault, (), max(load_s, BEFORE_S + AFTER_S))
    room_s = load_s - BEFORE_S - AFTER_S
    count = max(1, int(room_s / takes_s))
    rng = Random(f"{seed}/{fault}")
    share_s = max(room_s / count, takes_s)
    injections = [
        ScheduledFault(BEFORE_S + number * share_s + rng.uniform(0, share_s - takes_s), f"{seed}/{fault}/{number}")
        for number in range(count)
    ]
    return Phase(fault, tuple(injections), max(load_s, BEFORE_S + count * takes_s + AFTER_S))


def phases(seed: int, faults: Sequence[tuple[str, float]], seconds: float) -> list[Phase]:
    """One phase for each (name, takes_s), with `seconds` of load: first what each needs, the rest evenly."""
    least = [BEFORE_S + takes_s + AFTER_S for _, takes_s in faults]
    spare_s = max(0.0, seconds - sum(least)) / max(1, len(faults))
    return [phase(seed, name, need + spare_s, takes_s) for (name, takes_s), need in zip(faults, least, strict=True)]


# -- the run ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """What to verify. The healthy case always comes first, for comparison.

    `seconds` of load are shared by all faults; each gets at least what one injection needs.
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
    evidence: Path | None  # logs and events, if a promise was broken

    @property
    def holds(self) -> bool:
        return all(row.holds for row in self.rows)


async def verify(order: Order, binary: ServerBinary, on_step: OnStep, on_row: OnRow) -> Outcome:
    began, rows = time.monotonic(), list[Row]()
    folder = Path(tempfile.mkdtemp(prefix="dragoman-verify-"))
    try:
        for seed in range(order.seed, order.seed + order.repeat):
            played = await Round(order, seed, binary, folder / f"seed-{seed}", on_step, on_row).run()
            rows += [row.of_seed(seed) for row in played]
    finally:
        broken = not all(row.holds for row in rows)
        if not broken:
            shutil.rmtree(folder, ignore_errors=True)
    rows += [Row(fault.name, fault.title, skipped=why) for fault in order.faults if (why := fault.missing(order.setup))]
    in_order = sorted(merged(rows), key=lambda row: list(TITLES).index(row.fault))
    return Outcome(in_order, time.monotonic() - began, folder if broken else None)


async def until_ended(work: Awaitable[Result]) -> Result:
    """Ctrl-C and SIGTERM end it with KeyboardInterrupt, and no process and no folder is left."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (SIGINT, SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def settings_of(order: Order, outcome: Outcome) -> dict[str, object]:
    """The settings of the run, enough to repeat it."""
    setup = dataclasses.asdict(order.setup)
    asked = {"seed": order.seed, "seconds": order.seconds, "repeat": order.repeat}
    return {**setup, **asked, "faults": [fault.name for fault in order.faults], "took_s": round(outcome.seconds, 1)}


class Round:
    """All faults once, with the draws of one seed."""

    def __init__(
        self, order: Order, seed: int, binary: ServerBinary, folder: Path, on_step: OnStep, on_row: OnRow
    ) -> None:
        self.order, self.seed, self.binary, self.folder = order, seed, binary, folder
        self.setup = order.setup.of_seed(seed)
        self._on_step, self._on_row = on_step, on_row
        self._environments = 0

    async def run(self) -> list[Row]:
        takes = [(fault.name, fault.takes(self.setup.lengths)) for fault in self.order.possible]
        planned = phases(self.seed, takes, self.order.seconds)
        rows = list[Row]()
        for fsync, group in groupby(planned, key=lambda one: BY_NAME[one.fault].fsync):
            left = list(group)
            while left:
                rows += await self._on_one_cluster(fsync, left)
        return rows

    async def _on_one_cluster(self, fsync: Fsync, left: list[Phase]) -> list[Row]:
        """Takes from `left` as many phases as one cluster gets through."""
        setup, rows = self.setup, list[Row]()
        self._environments += 1
        folder = self.folder / f"environment-{self._environments}"
        folder.mkdir(parents=True)
        self._on_step("starting a cluster")
        async with Environment.open(setup, fsync, self.binary, folder) as environment:
            counts = (setup.speakers, setup.chat_users, setup.room_members)
            async with Clients.open(environment.ports, self.seed, *counts) as clients:
                phases = PhaseRunner(setup, FaultContext(environment, clients, setup.lengths))
                while left and phases.has_recovered:
                    phase = left.pop(0)
                    self._on_step(BY_NAME[phase.fault].title)
                    rows.append(await phases.run(phase))
                    self._on_row(rows[-1])
        return rows


class PhaseRunner:
    """One cluster, and one phase after the other on it."""

    def __init__(self, setup: Setup, context: FaultContext) -> None:
        self.setup, self.context = setup, context
        self.has_recovered = True
        self._before: Facts | None = None

    async def run(self, phase: Phase) -> Row:
        fault, clients = BY_NAME[phase.fault], self.context.clients
        await self._spread()
        ledgers = clients.begin()
        if fault.rooms:
            await clients.rooms.open()
        began = time.monotonic()
        clients.start(self.setup.messages_per_s, self.setup.utterances_per_s, self.setup.captions_per_s)
        injections, findings, notes = list[Injection](), list[str](), list[str]()
        try:
            await self._inject(fault, phase, began, injections, ledgers)
        except CannotRun as error:
            self.has_recovered = False
            findings.append(f"not recovered: {error}")
        await clients.stop()
        # Not a verdict: late is not lost. The checker finds what never arrives.
        notes += [f"outstanding: {one}" for one in await self._outstanding(ledgers)]
        await until(lambda: not _unprocessed_silence(ledgers.speech, self.context.environment), SILENCE_TIMEOUT_S)
        row = await self._judged(fault, ledgers, began, injections)
        return dataclasses.replace(row, findings=(*findings, *row.findings), notes=(*notes, *row.notes))

    async def _outstanding(self, ledgers: Ledgers) -> list[str]:
        """What is outstanding when nothing more arrives: a slow machine gets the time it needs."""
        before = -1
        while outstanding := await self.context.clients.settle(self.context.lengths.timeout_s):
            now = ledgers.chat.count(lambda entry: entry.saved_at is not None) + len(ledgers.chat.acknowledged_at)
            now += sum(len(one.events) for one in ledgers.rooms.members)
            now += sum(len(one.answers) + len(one.failures) for one in ledgers.speech.sessions.values())
            if now == before:
                break
            before = now
        return outstanding

    async def _spread(self) -> None:
        """After a fault all users may be at one instance; the next fault should find some at each."""
        for name in self.context.environment.names:
            owners = await self.context.environment.user_instances()
            if owners and name not in owners.values():
                self.context.clients.move(list(owners)[::2])
                await until(lambda: self._has_users(name), SPREAD_TIMEOUT_S)  # noqa: B023

    async def _has_users(self, name: str) -> bool:
        return name in (await self.context.environment.user_instances()).values()

    async def _inject(
        self, fault: Fault, phase: Phase, began: float, injections: list[Injection], ledgers: Ledgers
    ) -> None:
        for scheduled in phase.injections:
            await _sleep_until(began + scheduled.at_s)
            injections.append(Injection())
            await fault.inject(self.context, Random(scheduled.seed), injections[-1])
            await self.context.environment.wait_until_healthy(RECOVERY_TIMEOUT_S)
            injections[-1].recovered_at = time.monotonic()
            await until(lambda: self._is_measured(fault, injections[-1], ledgers), MEASURE_TIMEOUT_S)
        await _sleep_until(began + phase.load_s)

    def _is_measured(self, fault: Fault, injection: Injection, ledgers: Ledgers) -> bool:
        """Whether every recovery time of this fault is known; most are measured by chat users."""
        events = (
            read(self.context.environment.recording_files, since=injection.injected_at - 1)
            if fault.load == "speech"
            else ()
        )
        answers = recovered(fault.name, [injection], _record(ledgers, events))
        return answers.keys() == QUESTIONS.get(fault.name, {}).keys() or not self.setup.chat_users

    async def _judged(self, fault: Fault, ledgers: Ledgers, began: float, injections: Sequence[Injection]) -> Row:
        environment = self.context.environment
        sessions, timeout_s = ledgers.speech.sessions, self.context.lengths.timeout_s
        facts = await gather(environment.stores, sessions, began, timeout_s, ledgers.rooms)
        events = read(environment.recording_files)
        allowed, rules = tolerated(fault, environment, injections), environment.rules(disturbed=bool(injections))
        verdict = judge(
            ledgers.chat,
            ledgers.speech,
            events,
            facts,
            allowed,
            before=self._before,
            rules=rules,
            rooms=ledgers.rooms,
        )
        self._before = facts
        return Row(
            fault.name,
            fault.title,
            len(injections),
            verdict.promised,
            verdict.kept,
            verdict.lost,
            verdict.tolerated_lost,
            verdict.duplicated,
            verdict.out_of_order,
            verdict.late,
            recovered(fault.name, injections, _record(ledgers, events)),
            tuple(map(str, verdict.findings)),
            verdict.notes,
            remark=fault.remark(self.setup),
        )


def tolerated(fault: Fault, environment: Environment, injections: Sequence[Injection]) -> Tolerated:
    """What Redis may lose by its durability class, and which instances were disturbed when."""
    may_lose = fault.fsync == "everysec" and fault.redis == "single"
    return Tolerated(
        [(injection.injected_at - CLASS_S, injection.injected_at) for injection in injections] if may_lose else (),
        [
            Disturbance(injection.injected_at, injection.recovered_at or math.inf, _ports(environment, injection))
            for injection in injections
        ],
    )


def _ports(environment: Environment, injection: Injection) -> frozenset[int] | None:
    if injection.target in environment.names:
        return frozenset({environment.ports[environment.names.index(injection.target)]})
    return None


def _unprocessed_silence(speech: SpeechLedger, environment: Environment) -> set[int]:
    """Silent pieces that no node has processed: their speakers get no answer to wait for."""
    sent = {piece for one in speech.sessions.values() for given in one.given for piece in given.pieces if piece < 0}
    if not sent:
        return sent
    return sent - {piece for event in read(environment.recording_files) for piece in pieces.of_text(event.pieces)}


def _record(ledgers: Ledgers, events: Sequence[NodeEvent]) -> Record:
    entries, sessions = ledgers.chat.entries.values(), ledgers.speech.sessions.values()
    messages = [Message(one.name.sender, one.sent_at, one.accepted_at, one.saved_at) for one in entries]
    resumed = [Connection(one.id, at) for one in sessions for at in one.resumed_at]
    return Record(messages, events, [*(Connection(*one) for one in ledgers.chat.connected), *resumed])


async def _sleep_until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        await asyncio.sleep(left)
