"""The long verification: `python -m dragoman.tools.verify.soak --minutes 30`.

All faults, four kinds of cluster, new seeds until the time is over; then it writes the page of guarantees.

A round that has begun is finished, so it takes a little longer than it was told. Exit status as of `dragoman verify`.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from dragoman.embedded.binary import ServerBinary, find_server
from dragoman.embedded.errors import EngineError
from dragoman.tools.bench.report import machine
from dragoman.tools.verify import table
from dragoman.tools.verify.errors import CannotRun
from dragoman.tools.verify.faults import FAULTS
from dragoman.tools.verify.guarantees import page
from dragoman.tools.verify.rows import Row, merged
from dragoman.tools.verify.run import Order, Outcome, told_settings, until_ended, verify
from dragoman.tools.verify.settings import Setup

KINDS = (
    Setup("single", "sqlite"),
    Setup("single", "postgres"),
    Setup("cluster", "sqlite"),
    Setup("cluster", "postgres"),
)


class Soak:
    def __init__(self, binary: ServerBinary, first_seed: int, seconds: float) -> None:
        self._binary, self._seed, self._seconds = binary, first_seed, seconds
        self._rows: dict[Setup, list[Row]] = {kind: [] for kind in KINDS}
        self._rounds = dict.fromkeys(KINDS, 0)
        self._took_s = dict.fromkeys(KINDS, 0.0)
        self._on = machine()

    @property
    def holds(self) -> bool:
        return all(row.holds for rows in self._rows.values() for row in rows)

    async def run(self, minutes: float) -> None:
        """Every kind once at least, then in turns."""
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until or not all(self._rounds.values()):
            kind = min(KINDS, key=lambda one: self._rounds[one])
            await self._round(kind)

    async def _round(self, kind: Setup) -> None:
        order = Order(kind, FAULTS, self._seed + self._rounds[kind], self._seconds)
        _say(f"{kind.redis} Redis, {kind.database}, seed {order.seed}")
        outcome = await verify(order, self._binary, lambda step: None, lambda row: None)
        self._rounds[kind] += 1
        self._took_s[kind] += outcome.seconds
        self._rows[kind] += outcome.rows
        for sentence in table.findings(outcome.rows):
            _say(f"  {sentence}")
        if outcome.kept is not None:
            _say(f"  logs and events are kept in {outcome.kept}")

    def found(self) -> list[dict[str, Any]]:
        """As `dragoman verify --json` would have written it, one for each kind."""
        return [self._file(kind) for kind in KINDS]

    def _file(self, kind: Setup) -> dict[str, Any]:
        rows = merged(self._rows[kind])
        order = Order(kind, FAULTS, self._seed, self._seconds, self._rounds[kind])
        return table.as_json(rows, told_settings(order, Outcome(rows, self._took_s[kind], None)), self._on)


def _say(sentence: str) -> None:
    print(f"soak: {sentence}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dragoman.tools.verify.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long, about")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next has the next")
    parser.add_argument("--seconds", type=float, default=0.0, help="of load in each round, shared by all faults")
    parser.add_argument(
        "--page", type=Path, default=Path("docs/internals/guarantees.md"), help="the page to be written"
    )
    given = parser.parse_args()
    began = time.monotonic()
    try:
        soak = Soak(find_server(""), given.seed, given.seconds)
        asyncio.run(until_ended(soak.run(given.minutes)))
    except (CannotRun, EngineError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("soak: stopped; everything that was started has ended, and nothing is written", file=sys.stderr)
        return 130
    given.page.write_text(page(soak.found(), (time.monotonic() - began) / 60), encoding="utf-8")
    _say(f"{given.page} is written: {'every promise held' if soak.holds else 'a promise was broken'}")
    return 0 if soak.holds else 1


if __name__ == "__main__":
    sys.exit(main())
