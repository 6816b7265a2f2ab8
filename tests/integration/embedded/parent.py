"""A process for the tests to kill: it starts something bound to itself, tells the pid, and waits for ever.

parent.py sleeper <watch: 0 or 1>      a process that would sleep for minutes
parent.py thread                       the same, from a thread that ends at once
parent.py server <data directory>      a Redis server
"""

import signal
import sys
import threading
from pathlib import Path

from dragoman.embedded.binary import find_server
from dragoman.embedded.engine import RedisServer
from dragoman.embedded.parent_watch import Child


def sleeper(watch: bool | None) -> Child:
    command = [sys.executable, "-c", "import time; time.sleep(300)"]
    return Child(command, dies_by=signal.SIGKILL, watch=watch)


def from_a_thread() -> Child:
    started: list[Child] = []
    thread = threading.Thread(target=lambda: started.append(sleeper(None)))
    thread.start()
    thread.join()
    return started[0]


def main() -> None:
    match sys.argv[1:]:
        case ["sleeper", watch]:
            held: Child | RedisServer = sleeper(watch == "1")
        case ["thread"]:
            held = from_a_thread()
        case ["server", directory]:
            held = RedisServer(find_server(), Path(directory))
            held.start()
        case _:
            sys.exit(2)
    print(held.pid, flush=True)
    signal.pause()


main()
