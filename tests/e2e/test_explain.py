"""`dragoman explain`: a real job, told in words."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dragoman.client import Result
from dragoman.tools.processes import InstanceProcess
from e2e.test_client import environment, run_of, session_at
from support.redis_servers import RedisAt


@pytest.fixture(scope="module")
def here(redis_server: RedisAt, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstanceProcess]:
    with asyncio.Runner() as runner, ExitStack() as ends:
        flags: dict[str, Any] = {"speech__max_duration_ms": 500, "node": {"node_id": "n1"}}
        standing = environment(redis_server, tmp_path_factory.mktemp("here"), **flags)
        _, (instance,) = runner.run(standing.__aenter__())
        ends.callback(lambda: runner.run(standing.__aexit__(None, None, None)))
        yield instance


async def explain(instance: InstanceProcess, *args: str) -> tuple[int, str, str]:
    command = [
        sys.executable,
        "-m",
        "dragoman.cli.main",
        "explain",
        "--url",
        f"http://127.0.0.1:{instance.port}",
        *args,
    ]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def spoken(instance: InstanceProcess) -> list[Result]:
    """A turn of two utterances: the first cut by its length, the second by hand."""
    async with session_at(instance) as session:
        await session.send(run_of(30))
        await session.send(run_of(10), final=True)
        await session.finish()
        return [event async for event in session if isinstance(event, Result)]


async def test_explain_describes_a_job_in_sentences(here: InstanceProcess) -> None:
    first, second = await spoken(here)
    status, out, _ = await explain(here, first.job_id)
    assert status == 0
    words = " ".join(out.split())
    assert f"What {first.job_id}: utterance 0 of session {first.session_id}, en → es" in words
    assert "Where 1 node could serve en → es. It is the first job of its turn" in words
    assert "recorded" in words
    assert "ms of work)" in words
    assert "End It was translated by n1, at the first attempt." in words
    assert max(map(len, out.splitlines())) <= 80
    status, out, _ = await explain(here, second.job_id)
    assert "Chosen: n1, which has the earlier jobs of this turn." in " ".join(out.split())


async def test_explain_last_describes_the_newest_job(here: InstanceProcess) -> None:
    _, second = await spoken(here)
    status, out, _ = await explain(here, "last")
    assert (status, f"What {second.job_id}: utterance 1 of session" in " ".join(out.split())) == (0, True)


async def test_explain_json_is_the_answer_of_the_api(here: InstanceProcess) -> None:
    first, _ = await spoken(here)
    status, out, _ = await explain(here, first.job_id, "--json")
    told = json.loads(out)
    assert (status, told["job_id"], told["receipt"]["chosen"]) == (0, first.job_id, "n1")


@pytest.mark.parametrize("job", ["job-unknown", "../a b?c#d"])
async def test_explain_of_an_unknown_job_prints_one_sentence(job: str, here: InstanceProcess) -> None:
    status, out, err = await explain(here, job)
    assert (status, out) == (1, "")
    assert err == "dragoman: Dragoman answers: no such job, or it ended too long ago.\n"
