import time

from dragoman.cli.serve import IMPORTED, started


def test_the_start_is_counted_from_the_beginning_of_the_process() -> None:
    assert started() <= IMPORTED + 0.02  # the kernel counts in hundredths
    assert time.monotonic() - started() < 24 * 3600
