"""Programs of the system that engines run: one answer of a program, the end of a family of them."""

import asyncio
import contextlib
import os
import shutil
import signal

from dragoman.engines.engine import APT, EngineFailed, Missing


def found(program: str, package: str) -> str:
    """Its path. Raises Missing."""
    path = shutil.which(program)
    if path is None:
        raise Missing(f"The program {program} is not installed", APT + package)
    return path


async def output(*command: str, given: bytes = b"") -> bytes:
    """What the program writes for what it is given. Raises EngineFailed; cancelled, the program is killed."""
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the node, which lets its jobs finish
    )
    try:
        out, err = await child.communicate(given)
    except BaseException:
        await asyncio.shield(end(child))
        raise
    if child.returncode != 0:
        why = err.decode(errors="replace").strip().splitlines()
        raise EngineFailed(f"{os.path.basename(command[0])} failed: {why[-1] if why else f'exit {child.returncode}'}")
    return out


async def end(child: asyncio.subprocess.Process) -> None:
    """Of a child that leads a session: everything it started goes with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()
