"""`make audit`: do the locked dependencies have holes that are known?

pip-audit asks, from an environment of its own that is thrown away, so that it is none of our dependencies. It calls the
day fair when nobody answered it, so its word is not taken for it: every package must have been looked up, and a release
that is known to have a hole must be found to have one. The exit code tells apart: 0 no known holes, 1 some, 3 it could
not be asked. `python -m dragoman.cli.advisories LOCK…` does it for the Makefile.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dragoman.cli import output

PIP_AUDIT: Final = "pip-audit>=2.9,<3"
SERVICES: Final = ("pypi", "osv")
CONTROL: Final = ("jinja2", "2.10")  # has a hole, and that is known since 2019
PATIENCE_S: Final = 300.0
FAIR, HOLES, UNASKED = 0, 1, 3

Run = Callable[[Sequence[str]], str]  # what a program printed; raises CannotAsk


class CannotAsk(Exception):
    """Nothing is known; `str()` says why."""


@dataclass(slots=True)
class Findings:
    holes: list[str] = field(default_factory=list)
    fair: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)


def read(told: str) -> Findings:
    """What pip-audit says in JSON; one that was skipped was not looked up."""
    try:
        rows: list[dict[str, Any]] = json.loads(told)["dependencies"]
    except (ValueError, KeyError, TypeError):
        raise CannotAsk("pip-audit answered nothing that can be read") from None
    found = Findings()
    for row in rows:
        name = f"{row['name']} {row.get('version', '')}".strip()
        if "skip_reason" in row:
            found.unasked.append(name)
        elif row["vulns"]:
            found.holes += [f"{name}: {hole['id']}, mended in {_mended(hole)}" for hole in row["vulns"]]
        else:
            found.fair.append(name)
    return found


def _mended(hole: dict[str, Any]) -> str:
    return ", ".join(hole.get("fix_versions") or ()) or "no release yet"


def ask(run: Run, folder: Path, locks: Sequence[str], service: str) -> Findings:
    """All packages of all locks; raises CannotAsk where an answer would mean nothing."""
    control = folder / "control.txt"
    control.write_text("{}=={}\n".format(*CONTROL))
    asking = ("--disable-pip", "--no-deps", "--progress-spinner=off", "-f", "json", "-s", service, "-r")
    if not read(run([*asking, str(control)])).holes:
        raise CannotAsk(f"{service} does not know of the hole in {' '.join(CONTROL)}, so it would know of no other")
    found = Findings()
    for lock in locks:
        one = read(run([*asking, lock]))
        found.holes += [hole for hole in one.holes if hole not in found.holes]
        found.fair += one.fair
        found.unasked += [name for name in one.unasked if name not in found.unasked]
    return found


def verdict(run: Run, folder: Path, locks: Sequence[str], say: Callable[[str], None]) -> int:
    """Of the first service that answers."""
    for service in SERVICES:
        try:
            found = ask(run, folder, locks, service)
        except CannotAsk as why:
            say(f"NOT ASKED: {service}: {why}.")
            continue
        for hole in found.holes:
            say(f"HOLE: {hole}")
        for name in found.unasked:
            say(f"NOT ASKED: {service} does not know {name}.")
        if found.holes:
            return HOLES
        if not found.unasked:
            say(f"{service} knows of no hole in {len(set(found.fair))} packages of {', '.join(locks)}.")
        return UNASKED if found.unasked else FAIR
    say("Whether the dependencies have known holes could NOT be checked here: no advisory service answers.")
    return UNASKED


def installed(folder: Path) -> Path:
    """pip-audit, in an environment of its own."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    _printed([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PIP_AUDIT], (0,))
    return python


def _printed(command: Sequence[str], fine: Sequence[int] = (0, 1)) -> str:
    """pip-audit exits with 1 for holes, and for troubles of its own as well: those print no JSON."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, "NO_COLOR": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotAsk(f"{type(error).__name__} of {Path(command[0]).name}") from None
    if done.returncode not in fine:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CannotAsk(f"{' '.join(Path(word).name for word in command[:4])} failed: {last}")
    return done.stdout


def main(locks: Sequence[str], say: Callable[[str], None] = output.line) -> int:
    with tempfile.TemporaryDirectory(prefix="dragoman-audit-") as made:
        folder = Path(made)
        try:
            python = installed(folder / "venv")
        except CannotAsk as why:
            say(f"Whether the dependencies have known holes could NOT be checked here: {why}.")
            return UNASKED
        return verdict(lambda args: _printed([str(python), "-m", "pip_audit", *args]), folder, locks, say)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
