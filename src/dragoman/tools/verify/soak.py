"""The long verification: `python -m dragoman.tools.verify.soak --minutes 30`.

It runs all faults on four kinds of cluster, with new seeds until the time is over, and then writes the page of
guarantees. Every number on the page comes from the results, which have the form that `dragoman verify --json` writes.

A round that has begun is finished, so a run takes a little longer than asked for. Exit status as of `dragoman verify`.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.embedded.binary import EngineError, ServerBinary, find_server
from dragoman.tools.processes import CannotRun
from dragoman.tools.report import machine
from dragoman.tools.verify import results
from dragoman.tools.verify.environment import Setup
from dragoman.tools.verify.faults import FAULTS
from dragoman.tools.verify.results import COLUMNS, Row, merged
from dragoman.tools.verify.run import Order, Outcome, settings_of, until_ended, verify

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
        """Every kind at least once, then in turns."""
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until or not all(self._rounds.values()):
            kind = min(KINDS, key=lambda one: self._rounds[one])
            await self._round(kind)

    async def _round(self, kind: Setup) -> None:
        order = Order(kind, FAULTS, self._seed + self._rounds[kind], self._seconds)
        _print(f"{kind.redis} Redis, {kind.database}, seed {order.seed}")
        outcome = await verify(order, self._binary, lambda step: None, lambda row: None)
        self._rounds[kind] += 1
        self._took_s[kind] += outcome.seconds
        self._rows[kind] += outcome.rows
        for sentence in results.findings(outcome.rows):
            _print(f"  {sentence}")
        if outcome.evidence is not None:
            _print(f"  logs and events are in {outcome.evidence}")

    def found(self) -> list[dict[str, Any]]:
        """In the form of `dragoman verify --json`, one for each kind."""
        return [self._file(kind) for kind in KINDS]

    def _file(self, kind: Setup) -> dict[str, Any]:
        rows = merged(self._rows[kind])
        order = Order(kind, FAULTS, self._seed, self._seconds, self._rounds[kind])
        return results.as_json(rows, settings_of(order, Outcome(rows, self._took_s[kind], None)), self._on)


HEAD = """\
# Guarantees, as measured

Written by `make soak`. Clients spoke, chatted and shared a room through the SDKs while faults were injected into a
private cluster, again and again; then what had been promised to them was compared with what the stores had.
[Verify](verify.md) says what the columns mean and how a run works.

"""
REPEAT = """\
## Repeat it

```sh
make soak                # half an hour, all four kinds of cluster; writes this page
make soak MINUTES=3      # the same, shorter
dragoman verify          # a minute, one kind of cluster
```
"""


def page(found: Sequence[Mapping[str, Any]], minutes: float) -> str:
    """`found`: one file of `dragoman verify` for each kind of cluster."""
    return HEAD + _summary(found, minutes) + "".join(_section(one) for one in found) + REPEAT


def _summary(found: Sequence[Mapping[str, Any]], minutes: float) -> str:
    first = found[0]
    machine = first["machine"]
    faults, promised = (int(sum(one["figures"][name] for one in found)) for name in ("times", "promised"))
    lost, tolerated = (int(sum(one["figures"][name] for one in found)) for name in ("lost", "tolerated"))
    broken = int(sum(one["figures"]["broken"] for one in found))
    lines = [
        f"- Commit `{first['commit']}`",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, "
        f"Python {machine['python']}; load {machine['load_before']} before it began",
        f"- {minutes:.0f} minutes, {faults:,} faults, {promised:,} promised messages, utterances and captions",
        f"- {lost:,} of them lost; {tolerated:,} more lost within the durability class of their Redis",
        f"- Verdict: {'every promise held' if not broken else f'{broken} rows with a broken promise'}",
    ]
    return "\n".join(lines) + "\n\n"


def _section(one: Mapping[str, Any]) -> str:
    setup = one["settings"]
    title = f"{'Redis Cluster' if setup['redis'] == 'cluster' else 'One Redis'}, {_DATABASES[setup['database']]}"
    load = (
        f"{setup['instances']} instances, {setup['nodes']} nodes, {setup['speakers']} speakers, {setup['chat_users']} "
        f"chat users, {setup['room_members']} members of a room; {setup['messages_per_s']:g} messages, "
        f"{setup['utterances_per_s']:g} utterances and {setup['captions_per_s']:g} captions a second; "
        f"seeds {setup['seed']} to {setup['seed'] + setup['repeat'] - 1}, {setup['took_s'] / 60:.0f} minutes."
    )
    rows = [_line(COLUMNS), _line(["---", *["--:"] * (len(COLUMNS) - 3), "---", "---"])]
    rows += [_line(_cells(row)) for row in one["rows"]]
    findings = [f"- {row['title']}: {finding}" for row in one["rows"] for finding in row["findings"]]
    broken = "\nBroken:\n\n" + "\n".join(findings) + "\n" if findings else ""
    return f"## {title}\n\n{load}\n\n" + "\n".join(rows) + "\n" + broken + "\n"


_DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["skipped"]:
        return [row["title"], *["–"] * (len(COLUMNS) - 3), row["skipped"], row["verdict"]]
    lost = f"{row['lost']} + {row['tolerated']} in class" if row["tolerated"] else str(row["lost"])
    recovery = ", ".join(f"{question} {seconds:.2f} s" for question, seconds in row["recovery_s"].items()) or "–"
    recovery += f"; {row['remark']}" if row["remark"] else ""
    counts = [str(row[name]) for name in ("times", "promised", "kept")]
    rest = [str(row[name]) for name in ("duplicated", "out_of_order", "late")]
    return [row["title"], *counts, lost, *rest, recovery, row["verdict"]]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _print(sentence: str) -> None:
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
        print("soak: stopped; every process has ended, and nothing is written", file=sys.stderr)
        return 130
    given.page.write_text(page(soak.found(), (time.monotonic() - began) / 60), encoding="utf-8")
    _print(f"{given.page} is written: {'every promise held' if soak.holds else 'a promise was broken'}")
    return 0 if soak.holds else 1


if __name__ == "__main__":
    sys.exit(main())
