"""A verification from beginning to end: one phase a fault, each with ledgers of its own, each judged alone.

    load ─ strike ─ mend ─ … ─ load ends ─ all is settled ─ the stores at rest ─ verdict ─ one row

A cluster goes through as many phases as it can; one that does not become whole again after a fault is a finding, and
what remains gets a new one. So does what needs another durability of Redis.
"""

import asyncio
import dataclasses
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from random import Random

from dragoman.archive import Stored
from dragoman.archive.places import sqlite_path
from dragoman.archive.rows import COLUMNS, stored
from dragoman.embedded.binary import ServerBinary
from dragoman.verify.chat_ledger import ChatLedger
from dragoman.verify.crowds import Crowds, Ledgers
from dragoman.verify.errors import CannotRun
from dragoman.verify.fault_names import TITLES
from dragoman.verify.faults import BY_NAME, HEALTHY, Blow, Fault, Scene
from dragoman.verify.node_events import read
from dragoman.verify.recovery import Message, recovered
from dragoman.verify.rows import Row, merged
from dragoman.verify.schedule import Phase, phases
from dragoman.verify.settings import Fsync, Setup
from dragoman.verify.stage import Stage

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
            for row in await Round(order, seed, binary, folder / f"seed-{seed}", on_step, on_row).play():
                rows.append(row)
    finally:
        broken = not all(row.holds for row in rows)
        if not broken:
            shutil.rmtree(folder, ignore_errors=True)
    rows += [Row(fault.name, fault.title, absent=why) for fault in order.faults if (why := fault.missing(order.setup))]
    in_order = sorted(merged(rows), key=lambda row: list(TITLES).index(row.fault))
    return Outcome(in_order, time.monotonic() - began, folder if broken else None)


def told_settings(order: Order, outcome: Outcome) -> dict[str, object]:
    """What was run, for the file: enough to run it again."""
    setup = dataclasses.asdict(order.setup)
    asked = {"seed": order.seed, "seconds": order.seconds, "repeat": order.repeat}
    return {**setup, **asked, "faults": [fault.name for fault in order.faults], "took_s": round(outcome.seconds, 1)}


class Round:
    """All faults once around, with the draws of one seed."""

    def __init__(
        self, order: Order, seed: int, binary: ServerBinary, folder: Path, on_step: OnStep, on_row: OnRow
    ) -> None:
        self.order, self.seed, self.binary, self.folder = order, seed, binary, folder
        self._on_step, self._on_row = on_step, on_row
        self._stages = 0

    async def play(self) -> list[Row]:
        setup = self.order.setup
        takes = [(fault.name, fault.takes(setup.lengths)) for fault in self.order.possible]
        planned = phases(self.seed, takes, self.order.seconds)
        rows = list[Row]()
        for fsync, group in groupby(planned, key=lambda one: BY_NAME[one.fault].fsync):
            left = list(group)
            while left:
                rows += await self._on_one_stage(fsync, left)
        return rows

    async def _on_one_stage(self, fsync: Fsync, left: list[Phase]) -> list[Row]:
        """Takes from `left` as many as one cluster gets through."""
        setup, rows = self.order.setup, list[Row]()
        self._stages += 1
        folder = self.folder / f"stage-{self._stages}"
        folder.mkdir(parents=True)
        self._on_step("starting a cluster")
        async with Stage.open(setup, fsync, self.binary, folder) as stage:
            async with Crowds.open(stage.ports, self.seed, setup.speakers, setup.chatters) as crowds:
                while left:
                    phase = left.pop(0)
                    self._on_step(BY_NAME[phase.fault].title)
                    row, whole = await self._phase(phase, Scene(stage, crowds, setup.lengths))
                    rows.append(row)
                    self._on_row(row)
                    if not whole:
                        break
        return rows

    async def _phase(self, phase: Phase, scene: Scene) -> tuple[Row, bool]:
        """Its row, and whether the cluster is whole afterwards."""
        fault, setup, crowds = BY_NAME[phase.fault], self.order.setup, scene.crowds
        ledgers = crowds.begin()
        began = time.monotonic()
        crowds.talk(setup.messages_per_s, setup.utterances_per_s)
        blows, findings = list[Blow](), list[str]()
        try:
            for strike in phase.strikes:
                await _sleep_until(began + strike.at_s)
                blow = Blow()
                blows.append(blow)
                await fault.strike(scene, Random(strike.seed), blow)
                await scene.stage.until_well(scene.lengths.patience_s)
                blow.well_at = time.monotonic()
            await _sleep_until(began + phase.load_s)
        except CannotRun as error:
            findings.append(f"not whole again: {error}")
        whole = not findings
        await crowds.stop_talking()
        findings += [f"unsettled: {one}" for one in await crowds.quiet(scene.lengths.patience_s)]
        return await self._judged(fault, scene, ledgers, blows, findings), whole

    async def _judged(
        self, fault: Fault, scene: Scene, ledgers: Ledgers, blows: Sequence[Blow], findings: Sequence[str]
    ) -> Row:
        chat = ledgers.chat
        rows = [row for row in await _rows(scene.stage.database) if (row.from_user, row.client_msg_id) in chat.entries]
        broken = [*findings, *chat.check(rows, ack_grace_s=scene.lengths.presence_s + scene.lengths.patience_s)]
        told = chat.count(lambda entry: entry.accepted_at is not None)
        seconds = recovered(fault.name, blows, _messages(chat), read(scene.stage.witness_files))
        return Row(
            fault.name, fault.title, len(blows), told, told - len(broken), recovery=seconds, findings=tuple(broken)
        )


async def _rows(database: str) -> list[Stored]:
    with closing(sqlite3.connect(sqlite_path(database))) as db:
        return [stored(row) for row in db.execute(f"SELECT {COLUMNS} FROM message ORDER BY id")]


def _messages(ledger: ChatLedger) -> list[Message]:
    return [
        Message(entry.name.sender, entry.sent_at, entry.accepted_at, entry.saved_at)
        for entry in ledger.entries.values()
    ]


async def _sleep_until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        await asyncio.sleep(left)
