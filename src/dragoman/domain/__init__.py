"""What we decide: pure objects that take `now` and return values.

Nothing here awaits, reads a clock, does I/O or logs; the only randomness is the generator passed in. Time is seconds
of one monotonic clock unless a name ends in `_ms`. The shell around an object pumps: it hands in what happened,
carries out what comes back, and sleeps until `deadline()`.
"""
