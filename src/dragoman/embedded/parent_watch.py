"""Child processes that do not outlive their parent, however it ends.

A `Child` is started by the script `exec_with_parent`, which binds itself to its parent in one of two ways:

- *kernel* (Linux): PR_SET_PDEATHSIG. It fires when the *thread* that started the child ends, so it is used only from
  the main thread.
- *watch* (elsewhere): a small watcher process reads a pipe that only the parent has open for writing. The end of the
  pipe means that the parent has ended.

A script instead of `preexec_fn`, which runs Python between fork and exec and may deadlock when there are threads.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from signal import Signals
from typing import IO

_EXEC_WITH_PARENT = Path(__file__).with_name("exec_with_parent.py")


class Child:
    """A process in a session of its own that gets `dies_by` when this process ends.

    `output` takes both what it prints and its errors; without it they go where ours go. `user`: the id of another user
    to run as, which only root can give.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        dies_by: Signals,
        watch: bool | None = None,
        pass_fds: Sequence[int] = (),
        stdin: int = subprocess.DEVNULL,
        output: IO[bytes] | None = None,
        user: int | None = None,
    ) -> None:
        if watch is None:
            watch = sys.platform != "linux" or threading.current_thread() is not threading.main_thread()
        self._pipe: int | None = None
        watched: list[int] = []
        if watch:
            read_end, self._pipe = os.pipe()
            watched = [read_end]
        bound = [_EXEC_WITH_PARENT, str(os.getpid()), str(int(dies_by)), *(map(str, watched) if watched else [""])]
        bound.append("" if user is None else str(user))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", *bound, *command],
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                pass_fds=(*pass_fds, *watched),
                start_new_session=True,
            )
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in watched:
                os.close(descriptor)

    @property
    def pid(self) -> int:
        return self.process.pid

    def ended(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.process.poll()

    def signal(self, number: Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code, or None when it still runs after `timeout_s`."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def wait_or_kill(self, timeout_s: float) -> None:
        """Wait for its end, kill it if it still runs after `timeout_s`, and close it."""
        if self.wait(timeout_s) is None:
            self.process.kill()
            self.wait()
        self.close()

    async def until_ended(self) -> int:
        """The exit code, once there is one; a thread waits, which costs the same everywhere and needs no SIGCHLD."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()

        def finish(code: int) -> None:
            if not future.done():
                future.set_result(code)

        def watch() -> None:
            code = self.process.wait()
            # The loop may have been closed meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(finish, code)

        threading.Thread(target=watch, name=f"end of {self.pid}", daemon=True).start()
        return await future

    def close(self) -> None:
        """Close the pipe to the watcher; to be called after the process has ended."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
