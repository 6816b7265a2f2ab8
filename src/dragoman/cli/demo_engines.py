"""The engines of the nodes of `dragoman demo`: the best that is there, after one question whether to get better ones.

What real engines need is large, so it is not part of the installation: libraries (360 MB on disk, from
requirements-engines.lock), models (240 MB), packages of Debian. If standard input is a terminal, the command asks once
whether to get what is missing; otherwise it downloads nothing.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dragoman.cli import output
from dragoman.cli.models import DEMO, get_model, megabytes
from dragoman.cli.output import USAGE, Failure

if TYPE_CHECKING:
    from dragoman.engines.engine import Missing
    from dragoman.engines.models import Model

AUTO, LOCAL, SIM = "auto", "local", "sim"
BETWEEN = ("en", "es")
INSTALL_TIMEOUT_S = 90.0
LIBRARIES_MB = 360
_APT_GET = "apt-get install "
_LOCK = "requirements-engines.lock"
_DECLINED = "demo-declined"  # below the folder of the models: the question was answered with no
_NAMES = {"whisper": "Whisper", "apertium": "Apertium", "nllb": "NLLB", "opus-mt": "OPUS-MT", "piper": "Piper"}
_NAMES |= {"kokoro": "Kokoro", "espeak": "espeak-ng"}


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine of the nodes, the reason to print, and the engines of the three steps if they are real ones."""

    engine: str
    why: str
    steps: tuple[str, str, str] | None = None

    @property
    def kind(self) -> str:
        return "simulated" if self.engine == SIM else self.engine

    @property
    def options(self) -> list[str]:
        """For `dragoman node`."""
        names = zip(("--recognise", "--translate", "--synthesise"), self.steps or (), strict=False)
        return ["--engine", self.engine, *(word for pair in names for word in pair)]


def choose(engine: str, may_install: bool | None) -> Choice:
    """Choose the engine of the nodes. Raises Failure if `local` is requested and not installed."""
    if engine not in (AUTO, LOCAL, SIM):
        raise Failure(f"--engine {engine!r} is unknown. Choose one of: {AUTO}, {LOCAL}, {SIM}.", USAGE)
    if engine == SIM:
        return Choice(SIM, "no real translation, as requested by --engine sim")
    from dragoman.engines.catalog import best_local

    lacks, not_installed = _lacks(), ""
    wanted = Wanted.of(lacks)
    if _agrees(wanted, may_install):
        not_installed = wanted.install()
        lacks = _lacks()
    if lacks is None:
        return _with(best_local(BETWEEN))
    tried = f" ({not_installed})" if not_installed else ""
    if engine == LOCAL:
        raise Failure(f"{lacks.what}{tried}. To fix it: {lacks.remedy}", 1)
    return Choice(SIM, f"no real translation. {lacks.what}{tried}. To fix it: {lacks.remedy}")


def _lacks() -> "Missing | None":
    from dragoman.engines.catalog import best_local, local_lacks

    return asyncio.run(local_lacks(best_local(BETWEEN)))


def _with(steps: tuple[str, str, str]) -> Choice:
    if steps[0] == "pocketsphinx":
        return Choice(LOCAL, "offline, English → Spanish, demo quality", steps)
    used = ", ".join(_NAMES[step.partition(":")[0]] for step in steps)
    return Choice(LOCAL, f"offline, English ↔ Spanish, with {used}", steps)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What would make the nodes better, and can be had by this user on this machine."""

    packages: tuple[str, ...]  # of Debian
    lock: Path | None  # of the libraries
    models: "tuple[Model, ...]"

    @classmethod
    def of(cls, lacks: "Missing | None") -> "Wanted":
        from dragoman.engines.catalog import best_local
        from dragoman.engines.engine import has_module
        from dragoman.engines.models import State, known, models_dir, state

        packages: tuple[str, ...] = ()
        if lacks is not None and lacks.remedy.startswith(_APT_GET):
            packages = tuple(lacks.remedy.removeprefix(_APT_GET).split())
        lock = Path(__file__).parents[3] / _LOCK
        has_libraries = has_module("faster_whisper") and has_module("kokoro_onnx")
        if best_local(BETWEEN)[0] != "pocketsphinx" or not (has_libraries or lock.is_file()):
            return cls(packages, None, ())
        folder = models_dir()
        missing = (known()[name] for name in DEMO if state(known()[name], folder) is not State.THERE)
        return cls(packages, None if has_libraries else lock, tuple(missing))

    def __bool__(self) -> bool:
        return bool(self.packages or self.lock or self.models)

    @property
    def question(self) -> str:
        return f"{'; '.join(self._parts())}? Then the nodes really translate, in both directions."

    def _parts(self) -> Iterator[str]:
        if self.packages:
            yield f"Install {' '.join(self.packages)} with apt-get"
        size_mb = sum(model.size for model in self.models) // 1_000_000 + (LIBRARIES_MB if self.lock else 0)
        if size_mb:
            names = ", ".join(["their libraries"] * bool(self.lock) + [model.name for model in self.models])
            yield f"{'get' if self.packages else 'Get'} real engines ({names}; {size_mb} MB)"

    def install(self) -> str:
        """Returns why something was not installed, or an empty string. What fails leaves the other engines usable."""
        reasons: list[str] = []
        if self.packages:
            command = [sys.executable, "-m", "dragoman.tools.debian", "--timeout", f"{INSTALL_TIMEOUT_S:g}"]
            done = subprocess.run([*command, *self.packages], stdout=subprocess.PIPE, text=True, check=False)
            reasons.append(done.stdout.strip())
        if self.lock is not None:
            output.error(f"Installing the libraries of real engines from {_LOCK} …")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            if subprocess.run([*pip, "--require-hashes", "-r", str(self.lock)], check=False).returncode:
                reasons.append("the libraries of real engines could not be installed")
        for model in self.models:
            reasons.append(_got(model))
        return "; ".join(filter(None, reasons))


def _got(model: "Model") -> str:
    from dragoman.engines.models import models_dir

    try:
        get_model(model, models_dir())
    except Failure as failure:
        output.error(failure)
        return f"{model.name} ({megabytes(model.size)}) could not be downloaded"
    return ""


def _agrees(wanted: Wanted, may_install: bool | None) -> bool:
    """The user's answer to one question, which a no answers for later runs as well."""
    from dragoman.engines.models import models_dir

    if may_install is not None:
        return may_install and bool(wanted)
    if not wanted or not sys.stdin.isatty() or (wanted.packages and not _can_install()):
        return False
    declined = models_dir() / _DECLINED
    if declined.exists():
        return False
    agreed = typer.confirm(wanted.question)
    if not agreed:
        with suppress(OSError):
            declined.parent.mkdir(parents=True, exist_ok=True)
            declined.touch()
        output.error("Not asked again; --install-engines gets them later.")
    return agreed


def _can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None
