"""Programs that engines run: find one, start one, get its output, kill it with all its children."""

import asyncio
import contextlib
import os
import shutil
import signal

from dragoman.engines.engine import APT, EngineFailed, Missing

END_S = 1.0
MAX_LINE = 1 << 20


def found(program: str, package: str) -> str:
    """The path of the program. Raises Missing."""
    path = shutil.which(program)
    if path is None:
        raise Missing(f"The program {program} is not installed", APT + package)
    return path


async def started(*command: str, stderr: int = asyncio.subprocess.DEVNULL) -> asyncio.subprocess.Process:
    """Start a program in a session of its own: Ctrl-C must reach only the node, which finishes its jobs."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            limit=MAX_LINE,
            start_new_session=True,
            # Without a locale, as in a container, programs would read ñ as two letters.
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Otherwise the program would go on without anyone to end it.
        await end(await starting)
        raise


async def output(*command: str, given: bytes = b"") -> bytes:
    """The output of the program for the input `given`. Raises EngineFailed. Kills the program if cancelled."""
    child = await started(*command, stderr=asyncio.subprocess.PIPE)
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        feeding, reading = feed(child.stdin, given), (child.stdout.read(), child.stderr.read())
        _, out, err = await asyncio.gather(feeding, *reading)
        await child.wait()
    except BaseException:
        await asyncio.shield(end(child))
        raise
    if child.returncode != 0:
        why = err.decode(errors="replace").strip().splitlines()
        raise EngineFailed(f"{os.path.basename(command[0])} failed: {why[-1] if why else f'exit {child.returncode}'}")
    return out


async def feed(stdin: asyncio.StreamWriter, given: bytes) -> None:
    """Write all input and close the pipe; or as much as the program read before it ended."""
    # uvloop raises RuntimeError if the pipe is closed already.
    with contextlib.suppress(ConnectionError, RuntimeError):
        stdin.write(given)
        await stdin.drain()
    await _closed(stdin)


async def _closed(stdin: asyncio.StreamWriter) -> None:
    stdin.close()
    with contextlib.suppress(ConnectionError, RuntimeError):
        await stdin.wait_closed()


async def end(child: asyncio.subprocess.Process) -> None:
    """Kill the program and everything that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()
    if child.stdin is not None:
        await _closed(child.stdin)
    # Read the pipes to their ends, so that nothing of them stays in the event loop.
    for stream in filter(None, (child.stdout, child.stderr)):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await stream.read()
