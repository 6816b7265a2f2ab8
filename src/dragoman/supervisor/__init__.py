"""The parent process on one machine: it runs the private Redis and the workers, and opens no socket itself.

    run() ─ probe the port ─ lock the data directory ─┬─ keep Redis running      (stopped last)
                                                      ├─ keep worker 1 running   (one instance each,
                                                      └─ keep worker N running    behind one SO_REUSEPORT port)

A worker gets its configuration in one JSON line on its stdin, and answers once on a pipe: *ready* or *failed*. The
supervisor restarts what ends, and nothing that it started outlives it.
"""

from dragoman.supervisor.main import Ready, run

__all__ = ["Ready", "run"]
