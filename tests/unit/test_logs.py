"""Logs: how lines look, each in a process of its own because they are set up once for all of it; writer; limiter."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from dragoman.logs import MAX_KINDS, Limiter, Writer
from support.waiting import wait_for

SCRIPT = """
import sys
from dragoman import logs
logs.configure(sys.argv[1], sys.argv[2], worker=7)
import logging, structlog, warnings
log = structlog.get_logger("ours")
log.debug("hidden")
log.info("hello", answer=42)
token = "a secret in a local variable"
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
    logging.getLogger("aiohttp.server").exception("a library %s", "failed")
logging.getLogger("some.library").info("hidden")
logging.getLogger("dragoman.node").info("of ours")
warnings.warn("mind that", stacklevel=1)
print("rich" in sys.modules)
"""


def logged(level: str, form: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, level, form], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize("form", ["auto", "json"])
def test_every_line_is_json_where_there_is_no_terminal_also_those_of_libraries(form: str) -> None:
    out, err = logged("info", form)
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["event"] for line in lines][:4] == ["hello", "failed", "a library failed", "of ours"]
    assert "mind that" in lines[4]["event"]
    assert len(lines) == 5
    assert all(line["worker"] == 7 and line["timestamp"] for line in lines)
    assert lines[0]["answer"] == 42
    assert all("ZeroDivisionError" in line["exception"] for line in lines[1:3])
    assert out == "False\n"


def test_text_has_plain_tracebacks_without_what_was_in_the_variables() -> None:
    out, err = logged("info", "text")
    assert "hello" in err
    assert err.count("ZeroDivisionError") == 2
    assert "a secret" not in err
    assert not err.startswith("{")
    assert out == "False\n"


def test_the_level_hides_what_is_below_it() -> None:
    _, err = logged("warning", "json")
    assert [json.loads(line)["event"] for line in err.splitlines()][:2] == ["failed", "a library failed"]
    _, err = logged("debug", "json")
    assert [json.loads(line)["event"] for line in err.splitlines()][:2] == ["hidden", "hello"]


NASTY = """
import sys
from dragoman import logs
logs.configure("info", sys.argv[1])
import logging, structlog
nasty = "\\x1b]52;c;QQ\\x07\\x9b2J\\u202e\\nforged"
structlog.get_logger().warning(nasty, node=nasty, names=[nasty])
logging.getLogger("aiohttp").warning("of a library: %s", nasty)
try:
    raise ValueError(nasty)
except ValueError:
    structlog.get_logger().exception("failed")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_log_escapes_terminal_control_sequences(form: str) -> None:
    done = subprocess.run([sys.executable, "-c", NASTY, form], capture_output=True, check=True)
    err = done.stderr.decode()
    assert [char for char in err if not char.isprintable() and char != "\n"] == []
    assert [line for line in err.splitlines() if line.startswith("forged")] == (["forged"] if form == "text" else [])


# -- the writer ----------------------------------------------------------------------------------


class Pipe:
    """A pipe in packet mode: each read returns what one write wrote."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe2(os.O_DIRECT)

    def read(self) -> str:
        return os.read(self.read_end, 65536).decode()

    def fill(self) -> int:
        """With packets of one byte; how many it takes."""
        os.set_blocking(self.write_end, False)
        count = 0
        with contextlib.suppress(BlockingIOError):
            while os.write(self.write_end, b"x"):
                count += 1
        os.set_blocking(self.write_end, True)
        return count


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    for end in (made.read_end, made.write_end):
        with contextlib.suppress(OSError):
            os.close(end)


def test_writer_makes_one_write_of_each_line(pipe: Pipe) -> None:
    """As print and structlog write it: the text, and then its end."""
    writer = Writer(pipe.write_end)
    print("first", file=writer)
    writer.write('{"event":"second"}\n')
    writer.write("of several\nlines\n")
    assert [pipe.read() for _ in range(3)] == ["first\n", '{"event":"second"}\n', "of several\nlines\n"]


def test_writer_neither_raises_nor_waits_when_the_pipe_is_closed(pipe: Pipe) -> None:
    os.close(pipe.read_end)
    writer = Writer(pipe.write_end)
    writer.write("into the void\n")
    assert writer.drain(30)
    assert writer.dropped == 1


def test_writer_drops_and_counts_lines_above_its_bound_while_the_pipe_is_not_read(pipe: Pipe) -> None:
    filled = pipe.fill()
    writer = Writer(pipe.write_end, max_bytes=30, dropped_line=lambda count: f"dropped {count}")
    writer.write("taken by the thread\n")
    wait_for(lambda: writer._writing)
    for number in range(10):
        writer.write(f"line {number:04}\n")  # 10 bytes each
    assert not writer.drain(0)
    assert writer.dropped == 7
    assert {pipe.read() for _ in range(filled)} == {"x"}
    told = [pipe.read() for _ in range(5)]
    assert told == ["taken by the thread\n", "dropped 7\n", "line 0000\n", "line 0001\n", "line 0002\n"]
    writer.write("as before\n")
    assert pipe.read() == "as before\n"


def test_process_with_a_full_pipe_comes_to_its_end(pipe: Pipe) -> None:
    pipe.fill()
    script = "from dragoman import logs; logs.configure('info', 'json'); import structlog\n"
    script += "structlog.get_logger().info('x' * 9999); logs.say('y' * 9999); 1 / 0"
    done = subprocess.run([sys.executable, "-c", script], stdout=pipe.write_end, stderr=pipe.write_end, timeout=60)
    assert done.returncode == 1


# -- the limiter ---------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def limited(limiter: Limiter, event: str = "Redis is away", by: object = True, **fields: object) -> bool:
    """Whether the line is written at once."""
    try:
        limiter(None, "warning", {"level": "warning", "event": event, "limited": by, **fields})
    except structlog.DropEvent:
        return False
    return True


def test_limiter_writes_the_first_line_of_a_kind_and_one_for_the_rest_of_each_second() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    assert [limited(limiter, job=number) for number in range(5)] == [True, False, False, False, False]
    assert limited(limiter, "another cause")
    assert limiter.due() == []
    clock.now += 1.0
    assert limiter.due() == [{"level": "warning", "event": "Redis is away", "job": 4, "repeated": 4}]
    assert not limited(limiter, job=5)
    assert limited(limiter, "another cause")
    clock.now += 1.0
    assert [line["repeated"] for line in limiter.due()] == [1]
    clock.now += 1.0
    assert limiter.due() == []
    assert limiter.next_due_s() is None
    assert limited(limiter, job=6)


def test_limiter_shows_the_line_whose_named_field_is_largest() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    for total_ms in (700, 600, 900, 800):
        limited(limiter, "slow", "totalMs", totalMs=total_ms)
    clock.now += 1.5
    assert limiter.due() == [{"level": "warning", "event": "slow", "totalMs": 900, "repeated": 3}]


def test_limiter_counts_the_lines_of_each_node_by_themselves() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    assert [limited(limiter, each="node", node=name) for name in "aaba"] == [True, False, True, False]
    clock.now += 1.0
    assert [(line["node"], line["repeated"]) for line in limiter.due()] == [("a", 2)]


def test_limiter_keeps_no_more_kinds_than_its_bound_however_many_nodes_there_are() -> None:
    limiter = Limiter(Clock())
    written = sum(limited(limiter, each="node", node=str(number)) for number in range(5000))
    assert written == MAX_KINDS + 1


def test_limiter_leaves_other_lines_alone() -> None:
    limiter = Limiter(Clock())
    line = {"level": "info", "event": "hello"}
    assert limiter(None, "info", dict(line)) == limiter(None, "info", dict(line)) == line


def test_summary_is_written_when_its_second_is_over_without_another_line() -> None:
    script = """
import sys, time
from dragoman import logs
logs.configure("info", "json", worker=7)
import structlog
for number in range(1000):
    structlog.get_logger().warning("flood", number=number, limited=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stdin is not None
        lines: list[dict[str, int]] = []
        while sum(line.get("repeated", 1) for line in lines) < 1000:
            lines.append(json.loads(process.stderr.readline()))
        process.stdin.close()
        assert process.stderr.read() == b""
    assert (lines[0]["number"], lines[-1]["number"]) == (0, 999)
    assert all(line["worker"] == 7 for line in lines)
