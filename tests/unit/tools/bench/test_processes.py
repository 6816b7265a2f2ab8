import os
import resource
from tempfile import TemporaryFile

from dragoman.tools.bench.processes import cpu_s, last_words, rss_bytes


def test_the_cpu_time_of_a_process_is_what_it_counts_itself() -> None:
    before = cpu_s(os.getpid())
    counted = sum(os.times()[:2])
    tick_s = 0.02  # both are told in ticks of the clock
    assert before - tick_s <= counted <= cpu_s(os.getpid()) + tick_s


def test_the_memory_of_a_process_is_below_its_largest_so_far() -> None:
    assert 0 < rss_bytes(os.getpid()) <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 * 1.1


def test_the_last_words_are_the_last_line_that_says_something() -> None:
    with TemporaryFile() as log:
        assert last_words(log) == "nothing was said"
        log.write(b"first\n" + b"x" * 10_000 + b"\nlast one\n\n")
        log.flush()
        assert last_words(log) == "last one"
