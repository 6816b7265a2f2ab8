"""`dragoman smoke`: two instances on one Redis, a node on the first, a session on the second, and the way of a result.

Everything is what a user would start: two configuration files, two `dragoman serve`, one `dragoman node`. It shows
that instances find each other before anybody builds on it.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from signal import SIGTERM
from typing import Annotated, Any

import aiohttp
import typer

from dragoman.cli import output
from dragoman.cli.output import Failure
from dragoman.cli.settings import option
from dragoman.client import Result, Session
from dragoman.embedded.binary import EngineError, find_server
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer, free_port
from dragoman.embedded.parent_watch import Child
from dragoman.protocol.audio import SILENCE_PACKET, opus_run
from dragoman.tools.processes import until

END_S = 10.0
READY_PATIENCE_S = 30.0
LANGUAGES = "en,es"

CONFIG = """\
[server]
port = {port}
admin_port = 0

[scheduler.phase2]
enabled = true
instance_id = "{name}"

[scheduler.phase2.redis]
url = "{redis}"
key_prefix = "{prefix}"

[log]
level = "warning"
"""


def smoke(
    redis: Annotated[
        str | None, option("--redis", metavar="URL", help="Use this Redis; without, a private one.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the two configuration files where they are.")] = False,
) -> int:
    """Start two instances with a node on one and a session on the other, and show the way of the result."""
    folder = Path(tempfile.mkdtemp(prefix="dragoman-smoke-"))
    try:
        with ExitStack() as stack:
            return asyncio.run(_run(stack, folder, redis))
    except EngineError as error:
        raise Failure(f"{error}", 1) from None
    finally:
        if keep:
            output.line(f"configurations: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


async def _run(stack: ExitStack, folder: Path, redis_url: str | None) -> int:
    """What is started ends with `stack`, in reverse order."""
    if redis_url is None:
        redis_url = stack.enter_context(RedisServer(find_server(), folder / "redis", port=CHOOSE_PORT)).tcp_url
    ports = {"smoke-a": free_port(), "smoke-b": free_port()}
    prefix = f"smoke-{folder.name[-8:]}"
    for name, port in ports.items():
        file = folder / f"{name}.toml"
        file.write_text(CONFIG.format(name=name, port=port, redis=redis_url, prefix=prefix))
        _start(stack, folder, "--config", str(file), "serve")
        output.line(f"{name}: {file}, port {port}")
    a, b = ports["smoke-a"], ports["smoke-b"]
    await asyncio.gather(*(_until(port, "/health/ready", lambda told: told["ready"]) for port in (a, b)))
    node = ("--url", f"ws://127.0.0.1:{a}/ws/node", "--languages", LANGUAGES, "--node-id", "smoke-node")
    _start(stack, folder, "node", "--quiet", *node)
    await _until(b, "/api/v1/cluster", lambda told: told["node_count"] > 0)
    output.line("the node dialled in to smoke-a; smoke-b knows it")
    return await _speak(a, b)


async def _speak(a: int, b: int) -> int:
    async with Session(f"ws://127.0.0.1:{b}/ws/session", src="en", tgt="es") as session:
        await session.utterance(opus_run([SILENCE_PACKET] * 50))
        result = None
        async with asyncio.timeout(READY_PATIENCE_S):
            async for event in session:
                if isinstance(event, Result):
                    result = event
                    break
    if result is None:
        raise Failure("no result came back.", 1)
    job = await _get(b, f"/api/v1/jobs/{result.job_id}")
    done = {port: await _done(port) for port in (a, b)}
    for line in (
        f"client  ─▶ smoke-b          an utterance of 1 s, cut by hand: {job['job_id']}",
        f"smoke-b ─▶ smoke-a's inbox  job_assign for {job['node_id']}   ({done[a]} entries worked there)",
        f"smoke-a ─▶ {job['node_id']}       over its socket",
        f"smoke-a ─▶ smoke-b's inbox  job_ack, job_started, job_result   ({done[b]} entries worked there)",
        f"smoke-b ─▶ client           {result.text_translated!r}, outcome {job['outcome']}, attempt {job['attempt']}",
    ):
        output.line(line)
    crossed = job["node_id"] == "smoke-node" and min(done.values()) > 0
    output.line("OK: the result crossed both instances." if crossed else "The result did not cross the instances.")
    return 0 if crossed else 1


def _start(stack: ExitStack, folder: Path, *arguments: str) -> None:
    with (folder / "smoke.log").open("ab") as output:
        child = Child([sys.executable, "-m", "dragoman.cli.main", *arguments], dies_by=SIGTERM, output=output)
    stack.callback(child.wait_or_kill, END_S)
    stack.callback(child.signal, SIGTERM)  # first


async def _get(port: int, path: str) -> Any:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}{path}") as answer:
        return await answer.json()


async def _until(port: int, path: str, wanted: Callable[[Any], bool]) -> None:
    """Ask until the answer is wanted."""

    async def met() -> bool:
        try:
            return wanted(await _get(port, path))
        except aiohttp.ClientError:
            return False

    if not await until(met, READY_PATIENCE_S):
        raise Failure(f"http://127.0.0.1:{port}{path} did not become what it should in {READY_PATIENCE_S:g} s.", 1)


async def _done(port: int) -> int:
    """How many inbox entries the instance at this port has worked."""
    samples = await _get(port, "/api/v1/metrics")
    return int(sum(value for name, value in samples.items() if name.startswith("dragoman_inbox_done_total")))
