import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.waiting import Descendants, wait_for

HERE = Path(__file__).parent
Supervise = Callable[..., "Supervised"]


class Supervised:
    """A supervisor in a process of its own, with the workers of `worker.py`."""

    def __init__(self, folder: Path, strange: str, **settings: Any) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._below = Descendants()
        self._output = (folder / "output.txt").open("a+")
        self._start = self._output.tell()
        config = {
            "server": {"port": 0, "drain_s": 0.0, **settings.pop("server", {})},
            "embedded": {"data_dir": str(folder / "data"), **settings.pop("embedded", {})},
            **settings,
        }
        worker = [sys.executable, str(HERE / "worker.py"), str(folder), strange]
        self.process = subprocess.Popen(
            [sys.executable, HERE / "run_supervisor.py", json.dumps(config), *worker],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    @property
    def output(self) -> str:
        self._output.seek(self._start)
        return self._output.read()

    def ready(self) -> dict[str, Any]:
        def told() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.output
            line = next((line for line in self.output.splitlines() if line.startswith("READY ")), None)
            return None if line is None else json.loads(line.removeprefix("READY "))

        return wait_for(told, "the supervisor to be ready") or {}

    def hello(self, number: int, life: int) -> dict[str, Any]:
        """What a worker was told, and its pid."""
        path = self.folder / f"{number}-{life}.json"
        wait_for(path.exists, f"life {life} of worker {number}")
        told: dict[str, Any] = json.loads(path.read_text())
        return told

    def below(self) -> list[int]:
        return self._below.of(self.process.pid)

    def send(self, number: signal.Signals) -> None:
        self.below()
        self.process.send_signal(number)

    def exit_code(self, timeout_s: float = 60.0) -> int:
        return self.process.wait(timeout_s)

    def close(self) -> None:
        self.below()
        self.process.kill()
        self.process.wait()
        self._below.kill()
        self._output.close()


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    """Start a supervisor; `supervise("stubborn", server={…})` gives strange workers and settings."""
    started: list[Supervised] = []

    def start(strange: str = "nothing", folder: Path | None = None, **settings: Any) -> Supervised:
        started.append(Supervised(folder or tmp_path / "run", strange, **settings))
        return started[-1]

    yield start
    for each in started:
        each.close()
