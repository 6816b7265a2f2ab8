"""The supervisor as a process: run_supervisor.py <configuration as JSON> <worker command …>; READY is one line."""

import json
import sys

from dragoman.config import Config
from dragoman.supervisor import Ready, run


def tell(ready: Ready) -> None:
    told = {"elapsed_s": ready.elapsed_s, "port": ready.port, "workers": ready.workers}
    if ready.engine is not None:
        told |= {"redis": ready.engine.pid, "url": ready.engine.url}
    print("READY " + json.dumps(told), flush=True)


sys.exit(run(Config.from_json(sys.argv[1]), worker_command=sys.argv[2:], on_ready=tell))
