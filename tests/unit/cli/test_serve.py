import time

from dragoman.cli.serve import IMPORTED, process_started


def test_process_started_includes_the_time_to_load_python() -> None:
    assert process_started() <= IMPORTED + 0.02  # the kernel counts in hundredths
    assert time.monotonic() - process_started() < 24 * 3600
