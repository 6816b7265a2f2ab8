"""The page that a long verification writes: what was promised, how often it was tried, and what was found.

Made from the same JSON that `dragoman verify --json` writes, one for each kind of cluster, and from nothing else: no
number on the page was typed by anybody.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.tools.verify.table import COLUMNS

HEAD = """\
# Guarantees, as measured

Written by `make soak`, not by hand. People spoke and chatted through the SDKs while a cluster of their own was broken,
again and again; afterwards what they had been told was compared with what the stores had. What the columns mean, and
how a run goes: [Verify](verify.md).

"""
REPEAT = """\
## Do it again

```sh
make soak                # half an hour, all four; writes this page
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
    strikes, told = (int(sum(one["figures"][name] for one in found)) for name in ("times", "told"))
    lost, forgiven = (int(sum(one["figures"][name] for one in found)) for name in ("lost", "forgiven"))
    broken = int(sum(one["figures"]["broken"] for one in found))
    lines = [
        f"- Commit `{first['commit']}`",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, "
        f"Python {machine['python']}; load {machine['load_before']} before it began",
        f"- {minutes:.0f} minutes, {strikes:,} faults, {told:,} messages and utterances that somebody was told about",
        f"- {lost:,} of them lost; {forgiven:,} more lost within the durability class that was told for that Redis",
        f"- Verdict: {'every promise held' if not broken else f'{broken} lines with a broken promise'}",
    ]
    return "\n".join(lines) + "\n\n"


def _section(one: Mapping[str, Any]) -> str:
    told = one["settings"]
    title = f"{'Redis Cluster' if told['redis'] == 'cluster' else 'One Redis'}, {_DATABASES[told['database']]}"
    load = (
        f"{told['instances']} instances, {told['nodes']} nodes, {told['speakers']} speakers, {told['chatters']} "
        f"chatters; {told['messages_per_s']:g} messages and {told['utterances_per_s']:g} utterances a second; seeds "
        f"{told['seed']} to {told['seed'] + told['repeat'] - 1}, {told['took_s'] / 60:.0f} minutes."
    )
    rows = [_line(COLUMNS), _line(["---", *["--:"] * (len(COLUMNS) - 3), "---", "---"])]
    rows += [_line(_cells(row)) for row in one["rows"]]
    said = [f"- {row['title']}: {finding}" for row in one["rows"] for finding in row["findings"]]
    broken = "\nBroken:\n\n" + "\n".join(said) + "\n" if said else ""
    return f"## {title}\n\n{load}\n\n" + "\n".join(rows) + "\n" + broken + "\n"


_DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["absent"]:
        return [row["title"], *["–"] * (len(COLUMNS) - 3), row["absent"], row["verdict"]]
    lost = f"{row['lost']} + {row['forgiven']} in class" if row["forgiven"] else str(row["lost"])
    recovery = ", ".join(f"{question} {seconds:.2f} s" for question, seconds in row["recovery_s"].items()) or "–"
    counts = [str(row[name]) for name in ("times", "told", "kept")]
    rest = [str(row[name]) for name in ("doubled", "out_of_order", "late")]
    return [row["title"], *counts, lost, *rest, recovery, row["verdict"]]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
