"""Programs of the system that engines run: one answer of a program, the end of a family of them."""

import asyncio
import contextlib
import os
import shutil
import signal

from dragoman.engines.engine import APT, EngineFailed, Missing

END_S = 1.0
MAX_ANSWER = 1 << 20  # of one that answers line by line


def found(program: str, package: str) -> str:
    """Its path. Raises Missing."""
    path = shutil.which(program)
    if path is None:
        raise Missing(f"The program {program} is not installed", APT + package)
    return path


async def started(*command: str, stderr: int = asyncio.subprocess.DEVNULL) -> asyncio.subprocess.Process:
    """In a session of its own: Ctrl-C is for the node, which lets its jobs finish."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            limit=MAX_ANSWER,
            start_new_session=True,
            # Where no locale is set, as in a container, they would take ñ for two letters.
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Cancelled half-way it would leave a program behind that nobody knows.
        await end(await starting)
        raise


async def output(*command: str, given: bytes = b"") -> bytes:
    """What the program writes for what it is given. Raises EngineFailed; cancelled, the program is killed."""
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
    """All of it and the end, or as much as the program took before it ended."""
    # RuntimeError is uvloop's word for a pipe that is closed already.
    with contextlib.suppress(ConnectionError, RuntimeError):
        stdin.write(given)
        await stdin.drain()
    await _closed(stdin)


async def _closed(stdin: asyncio.StreamWriter) -> None:
    stdin.close()
    with contextlib.suppress(ConnectionError, RuntimeError):
        await stdin.wait_closed()


async def end(child: asyncio.subprocess.Process) -> None:
    """Of a child that leads a session: everything it started goes with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()
    if child.stdin is not None:
        await _closed(child.stdin)
    # To their ends, so that nothing of it is left in the event loop.
    for stream in filter(None, (child.stdout, child.stderr)):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await stream.read()
