"""In CI a missing part fails the run: a skipped test would pass for a tested part."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
