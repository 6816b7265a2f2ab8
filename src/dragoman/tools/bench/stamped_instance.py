"""An instance whose turn ids are moments: each tells when its first utterance was cut, on the clock of this machine.

A `job_assign` carries the turn id, so a node on the same machine knows how long the job was on its way, and nothing
had to be added to the path that is measured.
"""

from time import monotonic_ns

from dragoman.instance.__main__ import main
from dragoman.protocol import ids

if __name__ == "__main__":
    ids.turn_id = lambda: str(monotonic_ns())
    main()
