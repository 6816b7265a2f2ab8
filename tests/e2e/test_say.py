"""`dragoman say` as a user has it: real processes, pipes, a terminal, Ctrl-C."""

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dragoman.protocol.audio import SILENCE_PACKET, opus_run
from dragoman.tools.processes import InstanceProcess
from e2e.test_client import UNHURRIED, environment, wav_of
from support.redis_servers import RedisAt
from support.voice import vowel
from support.waiting import wait_until

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def here(redis_server: RedisAt, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstanceProcess]:
    """Cuts early, so that there is something to see early."""
    with asyncio.Runner() as runner, ExitStack() as ends:
        flags: dict[str, Any] = UNHURRIED | {"speech__max_duration_ms": 600}
        standing = environment(redis_server, tmp_path_factory.mktemp("here"), **flags)
        _, (instance,) = runner.run(standing.__aenter__())
        ends.callback(lambda: runner.run(standing.__aexit__(None, None, None)))
        yield instance


async def start(instance: InstanceProcess, folder: Path, *args: str, **pipes: Any) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "dragoman.cli.main", "say", "--url", f"127.0.0.1:{instance.port}", *args]
    streams = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    return await asyncio.create_subprocess_exec(*command, cwd=folder, **streams | pipes)


async def say(instance: InstanceProcess, folder: Path, *args: str, heard: bytes = b"") -> tuple[int, str, str]:
    """Exit status, output and errors; `heard` is its standard input."""
    process = await start(instance, folder, *args)
    out, err = await process.communicate(heard)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def no_session_is_left(instance: InstanceProcess) -> bool:
    return bool((await instance.get("/api/v1/stats"))["sessions"] == 0)


async def test_say_speaks_a_sample_without_a_file(here: InstanceProcess, tmp_path: Path) -> None:
    status, out, err = await say(here, tmp_path, "--sample", "--fast")
    assert (status, err) == (0, f"{len(out.splitlines())} utterances translated.\n")
    lines = out.splitlines()
    assert len(lines) >= 3
    for index, line in enumerate(lines):
        text = rf"utterance {index} of s-\w+"
        assert re.fullmatch(rf" +{index}  {text}  →  \[es\] {text}  \[job-[-\w]+\]", line)


async def test_say_sends_files_in_their_own_format(here: InstanceProcess, tmp_path: Path) -> None:
    (tmp_path / "speech.wav").write_bytes(wav_of(vowel(1000, 44_100), 44_100))
    (tmp_path / "speech.opus-packets").write_bytes(opus_run([SILENCE_PACKET] * 50))
    for name in ("speech.wav", "speech.opus-packets"):
        status, out, _ = await say(here, tmp_path, name, "--fast", "--from", "es", "--to", "en")
        assert (status, len(out.splitlines())) == (0, 2)
        assert "[en]" in out


async def test_say_streams_standard_input(here: InstanceProcess, tmp_path: Path) -> None:
    process = await start(here, tmp_path, "-", "--json")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(vowel(800))
    first = await process.stdout.readline()  # while more may come
    words = json.loads(first)
    assert (words["event"], words["index"], words["job_id"]) == ("partial", 0, "")
    assert words["preview_id"]
    process.stdin.close()
    rest, _ = await process.communicate()
    events = [json.loads(line) for line in rest.splitlines()]
    assert [event for event in events if event["event"] == "failed"] == []
    assert (process.returncode, events[-1]) == (0, {"event": "end", "translated": 2, "failed": 0})


async def test_say_explains_in_one_sentence_that_no_node_serves_the_pair(here: InstanceProcess, tmp_path: Path) -> None:
    (tmp_path / "long.pcm").write_bytes(vowel(2000) * 30)
    status, _, err = await say(here, tmp_path, "long.pcm", "--to", "fr")
    assert status == 1
    sentence = "dragoman: No node translates en → fr (no node for this job: no node in pool). dragoman status lists"
    assert err.splitlines()[-1].startswith(sentence)
    await wait_until(lambda: no_session_is_left(here), TIMEOUT_S)


async def test_ctrl_c_stops_speaking_and_closes_the_session(here: InstanceProcess, tmp_path: Path) -> None:
    (tmp_path / "long.pcm").write_bytes(vowel(2000) * 30)
    process = await start(here, tmp_path, "long.pcm")
    assert process.stdout is not None
    first = await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert process.returncode == 130
    translated = 1 + len(out.splitlines())
    assert f"{translated} utterance" in err.decode()
    assert "Traceback" not in err.decode()
    assert first.startswith(b"   0  ")
    await wait_until(lambda: no_session_is_left(here), TIMEOUT_S)


async def test_say_ends_without_an_error_when_its_output_is_closed(here: InstanceProcess, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    process = await start(here, tmp_path, "--fast", "--json", stdout=writes)
    os.close(writes)
    os.close(reads)
    _, err = await process.communicate()
    assert (process.returncode, err) == (1, b"")
    await wait_until(lambda: no_session_is_left(here), TIMEOUT_S)


async def test_say_shows_the_transcript_above_a_bar_on_a_terminal(here: InstanceProcess, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    env = os.environ | {"TERM": "xterm-256color"}
    process = await start(here, tmp_path, "--fast", stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    out = await asyncio.to_thread(_read_all, ours)
    assert await process.wait() == 0
    assert "waiting for the last results" in out
    assert "━━━" in out
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out).replace("\r\n", "\n")
    *lines, summary = [line for line in plain.splitlines() if line.strip()]
    count = int(summary.partition(" utterances translated.")[0])
    assert [line[:6] for line in lines[-count:]] == [f"{index:>4}  " for index in range(count)]


def _read_all(terminal: int) -> str:
    read = b""
    try:
        while data := os.read(terminal, 65536):
            read += data
    except OSError:
        pass  # nobody has the other end any more
    os.close(terminal)
    return read.decode(errors="replace")
