"""`make` installs the packages of the locks, and `make dist` builds a wheel that runs in an empty environment."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dragoman import __version__
from support.commands import serve
from support.waiting import wait_for

ROOT = Path(__file__).parents[2]
OLD_PIP = "pip==23.0.1"
TREE = ("Makefile", "README.md", "LICENSE", "pyproject.toml", "requirements.lock", "requirements-dev.lock", "src")
INSTALL_S = 600.0
# The tests run in an environment that is installed already, so nothing is installed again.
MAKE = ("make", "-C", str(ROOT), f"BIN={Path(sys.executable).parent}", "-o", ".venv/.ready", "-o", ".venv/.run")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every package of the locks, and of each a newer release that nothing has tested."""
    folder = tmp_path_factory.mktemp("index")
    lock = ROOT / "requirements-dev.lock"
    ran((sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-r", str(lock), "-d", str(folder)))
    ran((sys.executable, "-m", "pip", "download", "-q", "--no-deps", OLD_PIP, "-d", str(folder)))
    for name in re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==", lock.read_text(encoding="utf-8"), re.MULTILINE):
        newer_release(folder, name.replace("-", "_"))
    return folder


def newer_release(folder: Path, name: str) -> None:
    """An empty wheel of a version above every real one."""
    about = f"{name}-9999.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-9999.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 9999.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", f"{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")


@pytest.fixture
def machine(tmp_path: Path, index: Path) -> "Machine":
    return Machine(tmp_path / "dragoman", index)


class Machine:
    """A copy of the project with the pip of an old Python, that reaches `index` and no network."""

    def __init__(self, folder: Path, index: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in TREE:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, folder / name)
        self.env = {
            "PATH": os.environ["PATH"],
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(index),
            "PIP_CONFIG_FILE": "/dev/null",
        }
        self.run(sys.executable, "-m", "venv", ".venv")
        self.run(".venv/bin/python", "-m", "pip", "install", "-q", OLD_PIP)

    def run(self, *command: str, code: int = 0) -> str:
        return ran(command, self.folder, self.env, code)


def ran(command: tuple[str, ...], folder: Path = ROOT, env: dict[str, str] | None = None, code: int = 0) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_make_installs_the_lock_with_an_old_pip_though_newer_releases_exist(machine: Machine) -> None:
    assert machine.run(".venv/bin/pip", "--version").startswith("pip 23.0.1 ")
    machine.run("make", ".venv/.run")
    listed = machine.run(".venv/bin/pip", "list", "--format=freeze")
    assert "9999.0" not in listed
    assert not re.search("^(mypy|playwright|pytest|pixeltable)", listed, re.MULTILINE)
    assert "Usage: dragoman" in machine.run(".venv/bin/dragoman", "--help")
    machine.run("make", "install")
    assert "9999.0" not in machine.run(".venv/bin/pip", "list", "--format=freeze")
    machine.run(".venv/bin/mypy", "--version")
    machine.run(".venv/bin/pip", "check")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_make_explains_what_to_do_when_a_package_is_missing(machine: Machine, tmp_path: Path) -> None:
    machine.env["PIP_FIND_LINKS"] = str(tmp_path / "empty")
    said = machine.run("make", "install", code=2)
    assert "the installation failed" in said
    assert "'make clean' removes .venv" in said


@pytest.mark.long
@pytest.mark.timeout(600)
def test_built_wheel_runs_the_demo_in_an_empty_environment(tmp_path: Path) -> None:
    dist, environment = tmp_path / "dist", tmp_path / "environment"
    ran((*MAKE, "dist", f"DIST={dist}"))
    assert sorted(file.name for file in dist.iterdir()) == [
        f"dragoman-{__version__}-py3-none-any.whl",
        f"dragoman-{__version__}.tar.gz",
    ]
    ran((sys.executable, "-m", "venv", str(environment)))
    python = environment / "bin" / "python"
    install = (str(python), "-m", "pip", "install", "-q")
    ran((*install, "--no-deps", "--require-hashes", "-r", str(ROOT / "deploy" / "requirements.lock")))
    # Without an index: the lock must have installed every package that the extra needs.
    ran((*install, "--no-index", "--find-links", str(dist), f"dragoman[server]=={__version__}"))
    with serve(tmp_path / "demo", "--engine", "sim", command="demo", python=python) as demo:
        demo.until("Ctrl-C ends everything.")
        wait_for(lambda: len(demo.get("/api/v1/cluster")[1]["nodes"]) == 2, "both nodes")
        assert demo.end() == 0


def test_audit_says_that_nothing_was_checked_when_no_advisory_service_answers() -> None:
    """The proxy is a port on which nothing listens."""
    done = subprocess.run(
        (*MAKE, "audit"),
        env={**os.environ, "HTTPS_PROXY": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1", "NO_PROXY": ""},
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert "the packages were NOT checked: no advisory service can be asked from here." in done.stdout
    assert "Error 3" in done.stderr
