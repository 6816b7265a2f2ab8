"""What the configuration of the tests promises: runs that end, and no missing part in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAVES_A_TASK = """
import asyncio
import conftest

conftest.CLOSE_TIMEOUT_S = 0.2

async def goes_on():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def test_that_leaves_a_task():
    asyncio.get_running_loop().task = asyncio.ensure_future(goes_on())
    await asyncio.sleep(0)
"""


def test_run_ends_and_names_the_test_whose_event_loop_cannot_be_closed(tmp_path: Path) -> None:
    test = tmp_path / "test_left.py"
    test.write_text(LEAVES_A_TASK, encoding="utf-8")
    command = (sys.executable, "-m", "pytest", "-q", "-c", "pyproject.toml", "-p", "conftest", str(test))
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1, run.stdout
    assert "test_that_leaves_a_task: its event loop cannot be closed" in run.stderr


NEEDS_ENGINES = "tests/unit/cli/test_demo.py::test_auto_takes_local_where_all_is_there"


@pytest.mark.parametrize(("ci", "said", "code"), [("false", "1 skipped", 0), ("true", "a part is missing: needs", 1)])
def test_a_test_without_its_engine_is_skipped_and_in_ci_fails(tmp_path: Path, ci: str, said: str, code: int) -> None:
    without_engines = {**os.environ, "PATH": str(tmp_path), "CI": ci}
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", NEEDS_ENGINES)
    run = subprocess.run(command, cwd=ROOT, env=without_engines, capture_output=True, text=True, check=False)
    assert (run.returncode, said in run.stdout) == (code, True), run.stdout


def test_the_ci_run_requires_every_part_and_runs_the_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "export CI=true" in script
    assert "make test" in script
