"""Prints what `dragoman bench abuse --json FILE` measured as Markdown, for docs/internals/performance.md.

`python -m dragoman.tools.bench.abuse.page FILE`
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from dragoman.tools.bench.abuse.attacker import BY_NAME
from dragoman.tools.bench.abuse.bench import KINDS
from dragoman.tools.report import number

ROWS = 8  # of the table: the attacks that cost most


def page(found: Mapping[str, Any]) -> Iterator[str]:
    figures, ratios = found["figures"], found["ratios"]
    names = [name for name in BY_NAME if name in found["settings"]["answers"]]
    of_kind = {kind: {name: ratios[f"{name}_{kind}_p99"] for name in names} for kind in KINDS}
    medians = ", ".join(f"{median(of_kind[kind].values()):.2f} × ({kind})" for kind in KINDS)
    lost = f"{figures['healthy_lost']:.0f} of {figures['healthy_utterances']:,.0f} utterances"
    lost += f", {figures['healthy_messages']:,.0f} messages and {figures['healthy_sentences']:,.0f} sentences"
    yield f"{len(names)} attacks, {figures['wrong']:.0f} findings. The healthy clients lost {lost}."
    yield f"Memory went from {figures['rss_before_mib']:.0f} to {figures['rss_after_mib']:.0f} MiB."
    yield f"The median attack raised p99 by {medians}. The largest:\n"
    yield "| p99 before → during, ms | " + " | ".join(f"{kind} | ratio" for kind in KINDS) + " |"
    yield "|---" * (1 + 2 * len(KINDS)) + "|"
    worst = sorted(names, key=lambda name: max(of_kind[kind][name] for kind in KINDS), reverse=True)
    for name in worst[:ROWS]:
        cells = [
            f"{number(figures[f'{name}_{kind}_p99_before_ms'])} → {number(figures[f'{name}_{kind}_p99_ms'])} | "
            f"{number(of_kind[kind][name], ' ×')}"
            for kind in KINDS
        ]
        yield f"| {BY_NAME[name].title} | {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(page(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
