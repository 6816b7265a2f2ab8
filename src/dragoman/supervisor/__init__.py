"""The parent of everything that runs on one machine: it owns the private Redis and the workers, and no socket.

    run() ─ is the port free? ─ take the data directory ─┬─ keep Redis running      (stopped last)
                                                         ├─ keep worker 1 running   (an equal instance each,
                                                         └─ keep worker N running    behind one SO_REUSEPORT port)

A worker is told everything in one JSON line on its stdin, and answers once on a pipe: *ready* or *failed*. What dies
is started again; what it starts does not outlive it. Serving anything is left to the workers.
"""

from dragoman.supervisor.main import Ready, run
from dragoman.supervisor.settings import Settings

__all__ = ["Ready", "Settings", "run"]
