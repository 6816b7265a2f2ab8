"""Decisions: pure objects that take `now` and return values.

Nothing here awaits, reads a clock, does I/O or logs; the only randomness is the generator passed in. Time is seconds
of one monotonic clock unless a name ends in `_ms`. The caller passes in events, carries out
what is returned, and sleeps until `deadline()`.
"""
