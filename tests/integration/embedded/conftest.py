import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import Descendants, StartParent


@pytest.fixture
def start_parent() -> Iterator[StartParent]:
    """Start `parent.py`; gives the process and the pid of what it started in turn."""
    started: list[subprocess.Popen[str]] = []
    below = Descendants()

    def start(*arguments: str) -> tuple["subprocess.Popen[str]", int]:
        script = Path(__file__).with_name("parent.py")
        parent = subprocess.Popen([sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True)
        started.append(parent)
        assert parent.stdout is not None
        told = parent.stdout.readline()
        below.of(parent.pid)
        return parent, int(told)

    yield start
    for parent in started:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
    below.kill()
