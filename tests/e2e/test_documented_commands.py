"""The commands of the pages, run as a reader would type them, and the output that is shown beside them.

A demo with simulated nodes serves them. What differs from run to run is compared as a placeholder: ids, numbers, paths,
the names of nodes and what they translate.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from dragoman.embedded.engine import free_port
from support.commands import Dragoman, environment, serve
from support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ("chat", "monitor", "operate", "upgrade")
PAGES = ("README.md", "docs/quickstart.md", *(f"docs/guides/{guide}.md" for guide in GUIDES))
CHEAP = re.compile(r"dragoman (?:config |db |token (?:client|node|operator) |verify --list)")
PLACEHOLDERS = (
    (r"  \S[^\n]*?  →  \S[^\n]*?  \[", "  TEXT → TEXT ["),
    (r"\b(job|s)-[\w…-]+", r"\1-ID"),
    (r"/room/[\w-]+", "/room/ID"),
    (r"\b[\w.]+(?:-[\w.]+)*-\d+-[0-9a-f]{6}\b", "INSTANCE"),
    (r"\b(?:local|sim)-\d+", "NODE"),
    (r"…?/\S*/data\b", "DATA"),
    (r"\b(instance|node)s\b", r"\1"),
    (r" \(\d+ ms [^)]*\)", ""),  # times that are shown only if they are long
    (r"\d[\d.,]*", "0"),
)


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, re.M | re.S)


def transcripts() -> dict[str, str]:
    """Each command and the output shown beside it. `make run` is the demo itself."""
    texts = [block for page in PAGES for block in blocks(page, "console")]
    found = [each for text in texts for each in re.findall(r"^ *\$ (.+)\n((?:(?! *\$ ).*\n?)*)", text, re.M)]
    return {re.sub(r"explain job-\S+", "explain last", command): shown for command, shown in found}


DEAD_LETTER = re.compile(r"vm-\w+-\w+/\d+-\d+")
NOT_RUN = ("curl", "dragoman chat status")  # with ids of jobs and messages that were
TRANSCRIPTS = {command: shown for command, shown in transcripts().items() if not command.startswith(NOT_RUN)}
DEMO = TRANSCRIPTS.pop("make run")


def cheap_commands() -> list[str]:
    pages = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
    lines = (
        line.partition(" #")[0].strip() for page in pages for block in blocks(page, "sh") for line in block.splitlines()
    )
    return sorted({line for line in lines if CHEAP.match(line)})


def shape(text: str) -> str:
    for pattern, placeholder in PLACEHOLDERS:
        text = re.sub(pattern, placeholder, text)
    return " ".join(text.split())


def shell(folder: Path, command: str, **variables: str) -> str:
    """The output of a command; `dragoman` and `.venv/bin/dragoman` are those of these tests."""
    script = folder / ".venv/bin/dragoman"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m dragoman.cli.main "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    env = environment(PATH=f"{script.parent}:/usr/bin:/bin", **variables)
    done = subprocess.run(
        ["sh", "-ec", command], cwd=folder, env=env, stdout=PIPE, stderr=STDOUT, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dragoman]:
    folder = tmp_path_factory.mktemp("demo")
    port = free_port()
    (folder / "config.toml").write_text(f"[server]\nport = {port}\n", encoding="utf-8")
    with serve(folder, "--engine", "sim", "--workers", "2", "--port", str(port), command="demo") as running:
        running.until("Ctrl-C ends everything.")
        wait_for(lambda: len(running.get("/api/v1/cluster")[1]["nodes"]) == 2, "both nodes")
        for name in ("alice", "bob"):  # only users who have logged in once can be found by their name
            shell(folder, f"dragoman chat --as {name} --to 999 < /dev/null")
        yield running


def make_dead_letter(demo: Dragoman) -> None:
    with demo.redis() as redis:
        instance = redis.call("SMEMBERS", "dragoman:v1:instances:all")[0]
        entry = ("v", "1", "type", "assign", "trace_id", "t", "size", "9", "data", b"\0 no JSON")
        redis.call("XADD", f"dragoman:streams:{{instance:{instance}}}:inbox", "*", *entry)
    wait_for(lambda: "assign" in shell(demo.folder, "dragoman dlq list"), "the dead letter")


@pytest.mark.parametrize("command", TRANSCRIPTS)
def test_command_prints_what_the_page_shows(demo: Dragoman, command: str) -> None:
    shown, letter = TRANSCRIPTS[command], DEAD_LETTER.search(command)
    if command == "dragoman dlq list":
        make_dead_letter(demo)
    if letter:
        (found,) = json.loads(shell(demo.folder, "dragoman dlq list --json"))
        command = command.replace(letter[0], f"{found['instance']}/{found['id']}")
    assert shape(shell(demo.folder, command)) == shape(shown)


def test_demo_prints_what_the_page_shows(demo: Dragoman) -> None:
    lines = [line for line in DEMO.splitlines() if line.strip() != "…" and "local nodes" not in line]
    assert [line for line in lines if shape(line) not in shape(demo.out)] == []


@pytest.mark.parametrize("command", cheap_commands())
def test_documented_command_succeeds(tmp_path: Path, command: str) -> None:
    shell(tmp_path, command, DRAGOMAN_SECURITY__SECRET="0123456789abcdef" * 4)
