"""`make smoke`, as a newcomer runs it."""

import subprocess
import sys


def test_the_smoke_test_shows_the_way_of_a_result_across_two_instances() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman.cli.main", "smoke"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "smoke-b ─▶ smoke-a's inbox" in done.stdout
    assert "OK: the result crossed both instances." in done.stdout
