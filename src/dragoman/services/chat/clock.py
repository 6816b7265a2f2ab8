"""The wall clock, in the unit of the wire. Data only: nothing is decided by comparing it with another's."""

from time import time


def now_ms() -> int:
    return int(time() * 1000)
