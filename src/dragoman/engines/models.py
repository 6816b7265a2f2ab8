"""The models of real engines: which there are, where they belong on disk, and whether they are the right ones.

`models.toml` beside this module is the manifest. Each model has a folder of its own below the folder of all models
(`--models`, $DRAGOMAN_MODELS): `whisper:base` is in `whisper-base`. A model that is not in the manifest may be put
there by hand, or named by its path: `--recognise whisper:./my-model`.
"""

import hashlib
import os
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from dragoman.engines.engine import Missing

VARIABLE = "DRAGOMAN_MODELS"
MANIFEST = Path(__file__).with_name("models.toml")
GET = "dragoman models get "
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    name: str  # within the folder of the model
    size: int
    sha256: str
    parts: tuple[str, ...] = ()  # members of the archives of the packages, to be joined


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    part: str  # recognise, translate or speak
    extra: str
    licence: str
    about: str
    known: str  # how its SHA-256 are known: see the manifest
    hub: str
    revision: str
    files: tuple[File, ...]
    folder: str = ""  # on the hub
    packages: tuple[str, ...] = ()  # of registries, as "pip name==version" or "npm name@version"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def on_hub(self, file: File) -> str:
        """The path of the file below the address of the hub."""
        folder = f"{self.folder}/" if self.folder else ""
        return f"{self.hub}/resolve/{self.revision}/{folder}{file.name}"


class State(StrEnum):
    THERE = "there"
    INCOMPLETE = "incomplete"
    MISSING = "missing"


def manifest(path: Path = MANIFEST) -> dict[str, Model]:
    """The models by name."""
    return {name: _model(name, entry) for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items()}


@cache
def known() -> dict[str, Model]:
    return manifest()


def _model(name: str, entry: dict[str, Any]) -> Model:
    files = tuple(
        File(file["name"], file["size"], file["sha256"], tuple(file.get("parts", ()))) for file in entry.pop("file")
    )
    return Model(name, files=files, packages=tuple(entry.pop("packages", ())), **entry)


def models_dir(given: Path | None = None) -> Path:
    """The folder of all models: as given, else $DRAGOMAN_MODELS, else that of the user's data."""
    if given is not None:
        return given
    if named := os.environ.get(VARIABLE):
        return Path(named)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "dragoman" / "models"


def folder_of(name: str, models: Path) -> Path:
    return models / name.replace(":", "-")


def state(model: Model, models: Path) -> State:
    """By the sizes of its files, so that it is quick: `wrong_files` reads them."""
    folder = folder_of(model.name, models)
    right = [_size(folder / file.name) == file.size for file in model.files]
    if all(right):
        return State.THERE
    return State.INCOMPLETE if any(right) or any(folder.rglob("*.part")) else State.MISSING


def wrong_files(model: Model, models: Path, read: Callable[[int], None] = lambda size: None) -> Iterator[str]:
    """What is wrong with each file that is not as the manifest says. `read` is called with the bytes that were read."""
    for file in model.files:
        path = folder_of(model.name, models) / file.name
        if not path.is_file():
            yield f"{path} is missing"
        elif path.stat().st_size != file.size:
            yield f"{path} has {path.stat().st_size} bytes instead of {file.size}"
        elif sha256_of(path, read) != file.sha256:
            yield f"{path} has other content than the manifest names"


def sha256_of(path: Path, read: Callable[[int], None] = lambda size: None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while block := content.read(_BLOCK):
            digest.update(block)
            read(len(block))
    return digest.hexdigest()


def found_folder(engine: str, model: str, models: Path, needed: tuple[str, ...]) -> Path:
    """The folder of the model of an engine, which has the files `needed`. Raises Missing."""
    name = f"{engine}:{model}"
    by_path = os.sep in model or model.startswith(".")
    folder = Path(model) if by_path else folder_of(name, models)
    lacking = [file for file in needed if not (folder / file).is_file()]
    if lacking and name in known() and not by_path:
        raise Missing(f"The model {name} is not in {models}", GET + name)
    if lacking:
        raise Missing(f"The model {name} is not there", f"put {', '.join(needed)} into {folder}")
    return folder


def folders_like(prefix: str, models: Path) -> list[Path]:
    """The folders of models whose names begin so, in order."""
    return sorted(folder for folder in models.glob(f"{prefix}*") if folder.is_dir())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
