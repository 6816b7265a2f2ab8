"""Logs, each in a process of its own: they are set up once for all of it."""

import json
import subprocess
import sys

import pytest

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
