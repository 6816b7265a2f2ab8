"""Print the path of every other Python that Dragoman supports and this machine has, one a line: for `make test-all`.

A command on the PATH may be a stub that names an interpreter which is not selected, so each is run before it counts.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST, NEWEST = 11, 15
_ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


def others() -> Iterator[str]:
    for minor in range(OLDEST, NEWEST + 1):
        if minor != sys.version_info.minor:
            yield from [path for path in candidates(minor) if runs(path, f"3.{minor}")][:1]


def candidates(minor: int) -> Iterator[str]:
    name = f"python3.{minor}"
    if found := shutil.which(name):
        yield found
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from (str(path) for path in sorted(versions.glob(f"3.{minor}.*/bin/{name}")))


def runs(path: str, version: str) -> bool:
    try:
        said = subprocess.run((path, "-c", _ASK), capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.stdout.strip() == version


if __name__ == "__main__":
    print(*others(), sep="\n")
