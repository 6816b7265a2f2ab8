"""What an instance checks and loads when it starts, and the secrets it rotates."""

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own
import pytest
from structlog.testing import capture_logs

from dragoman.config import Loaded, load, load_with_sources
from dragoman.config.secrets import DEVELOPMENT_SECRET, read_secrets
from dragoman.domain.revocation import SigningKeys, name_of
from dragoman.instance.chat_settings import SecretRotation, chat_tokens, load_words
from dragoman.instance.exposed import CHECKLIST, check_configuration
from dragoman.instance.process import is_dead, machine, raise_file_limit, start_ticks
from dragoman.instance.redis_check import CannotStart, credentials_of, unsafe
from dragoman.store.instances import Presence
from dragoman.store.link import Address
from support.tables import for_each
from support.waiting import wait_for

SECRET = "a-secret-of-more-than-thirty-two-bytes"


def test_tokens_are_made_as_the_settings_say() -> None:
    with capture_logs() as logs:
        tokens = chat_tokens(load(flags={"security.secret": SECRET, "chat.issuer": "us", "chat.access_ttl_s": 5}))
    assert not logs
    assert tokens.read_access(tokens.access(7, 0, 100.0), 104.0).exp == 105


def test_the_log_says_that_chat_uses_the_development_secret_when_no_secret_is_set() -> None:
    with capture_logs() as logs:
        chat_tokens(load())
    (line,) = logs
    assert line["event"].startswith("security.secret is not set, so chat tokens are signed with the development secret")
    assert line["log_level"] == "info"


@pytest.mark.parametrize("place", ["security.secret", "security.secret_file"])
def test_the_log_warns_that_the_secret_is_the_development_secret_when_it_was_set_to_it(
    place: str, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(DEVELOPMENT_SECRET)
    file.chmod(0o600)
    with capture_logs() as logs:
        chat_tokens(load(flags={place: DEVELOPMENT_SECRET if place == "security.secret" else str(file)}))
    (line,) = logs
    assert line["event"].startswith("the secret in use is the development secret, which is public")
    assert line["log_level"] == "warning"
    assert "change-me" not in repr(line)


def test_an_instance_without_its_file_of_secrets_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="cannot be read"):
        chat_tokens(load(flags={"security.secret_file": str(tmp_path / "gone")}))


@pytest.mark.parametrize(
    ("mode", "why"),
    [(0o600, ""), (0o400, ""), (0o640, "read"), (0o604, "read"), (0o620, "write"), (0o602, "write"), (0o666, "write")],
)
def test_the_log_warns_of_a_file_of_secrets_that_others_can_read_or_write(tmp_path: Path, mode: int, why: str) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(mode)
    with capture_logs() as logs:
        chat_tokens(load(flags={"security.secret_file": str(file)}))
    told = [(line["log_level"], line["event"].partition(":")[0], line["file"]) for line in logs]
    assert told == ([("warning", f"others can {why} it", str(file))] if why else [])


def test_word_filter_reads_one_word_per_line(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes("\ufeffdarn\r\n\n  傻瓜 \nc++ now".encode())
    assert load_words(file) == ["darn", "傻瓜", "c++ now"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"chat\.words_file '.*none\.txt' cannot be read: No such file"):
        load_words(tmp_path / "none.txt")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "words.bin"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CannotStart, match="is not UTF-8 text"):
        load_words(file)


def test_word_filter_names_a_line_that_is_no_word(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("darn\n" + "x" * 65)
    with pytest.raises(CannotStart, match="line 2: a word may have 64 letters"):
        load_words(file)


def test_word_filter_refuses_too_many_words(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("darn\n" * 100_001)
    with pytest.raises(CannotStart, match="100001 words"):
        load_words(file)


SIGNING_SECRET = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c"
SAFE: dict[str, object] = {
    "server.host": "127.0.0.1",
    "server.trusted_proxies": ["192.0.2.10"],
    "server.allowed_origins": ["https://app.example.com"],
}


def loaded(**changes: object) -> Loaded:
    flags = {
        **SAFE,
        "security.secret": SIGNING_SECRET,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return load_with_sources(flags=flags)


def problems(checked: Loaded) -> dict[str, list[str]]:
    return {one.name: [found.what for found in one.problems] for one in check_configuration(checked) if one.problems}


def test_safe_configuration_meets_every_requirement() -> None:
    assert problems(loaded()) == {}


def test_laptop_is_not_fit_for_the_internet() -> None:
    found = problems(load_with_sources())
    assert {"secret", "proxy", "accounts"} <= set(found)


@for_each(
    [
        ("secret", {"security__secret": "", "chat__registration": "closed"}, "no secret is set"),
        ("strong", {"security__secret": DEVELOPMENT_SECRET}, "development secret"),
        ("strong", {"security__secret": "ab" * 20}, "can be guessed"),
        ("anonymous", {"security__insecure_allow_anonymous": True}, "need no token"),
        ("proxy", {"server__trusted_proxies": []}, "no proxy is trusted"),
        ("proxy", {"server__trusted_proxies": ["10.0.0.0/8"]}, "may claim any client address"),
        ("admin", {"server__admin_host": "0.0.0.0"}, "listens on 0.0.0.0"),
        ("admin", {"server__admin_host": "8.8.8.8"}, "may be public"),
        ("origins", {"server__allowed_origins": ["*"]}, "every site"),
        ("origins", {"server__allowed_origins": ["http://app.example.com"]}, "without TLS"),
        ("accounts", {"chat__registration": "open"}, "create chat accounts"),
        ("accounts", {"chat__min_password_length": 4}, "short"),
        ("speech", {"security__chat_tokens_for_speech": True}, "every chat user"),
        (
            "redis",
            {"scheduler__phase2__enabled": True, "scheduler__phase2__redis__url": "redis://:password@10.0.0.9"},
            "without TLS",
        ),
        (
            "redis",
            {"scheduler__phase2__enabled": True, "scheduler__phase2__redis__url": "rediss://10.0.0.9"},
            "no password",
        ),
        ("database", {"archive__url": "postgresql://u:p@10.0.0.8/d"}, "without TLS"),
        ("limits", {"limits__sessions_per_address": 0}, "limits.sessions_per_address is 0"),
        ("limits", {"limits__login_attempts_per_minute": 1000}, "guessed quickly"),
    ]
)
def test_requirement_fails_for_its_own_reason(name: str, changes: dict[str, object], what: str) -> None:
    found = problems(loaded(**changes))
    assert what in "; ".join(found[name])
    assert set(found) == {name}


@for_each(
    [
        {"server__admin_host": "10.0.0.7"},
        {"server__allowed_origins": []},
        {"chat__registration": "invite"},
        {"scheduler__phase2__enabled": True, "scheduler__phase2__redis__url": "redis://127.0.0.1"},
        {"scheduler__phase2__enabled": True, "scheduler__phase2__redis__url": "rediss://:password@10.0.0.9"},
        {"archive__url": "postgresql://u:p@10.0.0.8/d?sslmode=verify-full"},
        {"archive__url": "postgresql://u:p@127.0.0.1/d"},
    ]
)
def test_safe_configuration_has_no_finding(changes: dict[str, object]) -> None:
    assert problems(loaded(**changes)) == {}


def test_file_with_a_secret_that_others_can_read_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"{SIGNING_SECRET}\n")
    flags = {**SAFE, "security.secret_file": str(file)}
    file.chmod(0o644)
    assert problems(load_with_sources(flags=flags)) == {"files": [f"{file} (security.secret_file): others can read it"]}
    file.chmod(0o600)
    assert problems(load_with_sources(flags=flags)) == {}


def test_configuration_file_that_holds_the_secret_must_not_be_readable_by_others(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[security]\nsecret = "{SIGNING_SECRET}"\n')
    file.chmod(0o640)
    assert list(problems(load_with_sources(file, flags=SAFE))) == ["files"]


def test_security_page_prints_the_checklist() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/guides/secure.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", page, re.M)
    assert rows == [(name, requirement) for name, requirement, _ in CHECKLIST]


OLD = "an-old-secret-of-more-than-thirty-two-bytes"
NEW = "a-newer-secret-of-more-than-thirty-two-bytes"


class RotationEnv:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.write_text(OLD)
        self.keys = SigningKeys((OLD,))
        self.rotation = SecretRotation(self.keys, lambda: read_secrets(file))

    def run(self) -> list[dict[str, Any]]:
        """Runs once; returns the log lines."""
        with capture_logs() as lines:
            asyncio.run(self.rotation.run_once())
        assert OLD not in repr(lines)
        assert NEW not in repr(lines)
        return [dict(line) for line in lines]


@pytest.fixture
def env(tmp_path: Path) -> RotationEnv:
    return RotationEnv(tmp_path / "secrets")


def test_an_unchanged_file_is_not_logged(env: RotationEnv) -> None:
    assert env.run() == env.run() == []


def test_changed_secrets_are_accepted_and_logged_once(env: RotationEnv) -> None:
    env.file.write_text(f"{NEW}\n{OLD}\n")
    (line,) = env.run()
    assert line["event"] == "secrets changed"
    assert (line["signs"], line["accepted"], line["before"]) == (
        name_of(NEW), [name_of(NEW), name_of(OLD)], [name_of(OLD)],
    )  # fmt: skip
    assert list(env.keys) == [NEW, OLD]
    assert env.run() == []


def test_a_replaced_file_is_read(env: RotationEnv, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.write_text(NEW)
    fresh.replace(env.file)
    assert len(env.run()) == 1
    assert list(env.keys) == [NEW]


@pytest.mark.parametrize("text", ["", "short", "\n".join((OLD, NEW, OLD + NEW))])
def test_an_invalid_file_changes_nothing_and_is_logged_once(env: RotationEnv, text: str) -> None:
    env.file.write_text(text)
    (line,) = env.run()
    assert (line["log_level"], line["event"]) == ("warning", "secrets not changed")
    assert env.run() == []
    assert list(env.keys) == [OLD]


def test_a_missing_file_changes_nothing_until_it_is_back(env: RotationEnv) -> None:
    env.file.unlink()
    assert len(env.run()) == 1
    env.file.write_text(NEW)
    assert len(env.run()) == 1
    assert list(env.keys) == [NEW]


def test_more_open_files_than_the_system_allows_are_refused() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert raise_file_limit(1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limits[1]
        assert raise_file_limit(2**62) is (limits[1] == resource.RLIM_INFINITY)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


REDIS = "scheduler.phase2.redis"


def warnings(url: str, **settings: object) -> list[str]:
    flags = {f"{REDIS}.{name}": value for name, value in settings.items()}
    return list(unsafe(load(flags={"scheduler.phase2.enabled": True, f"{REDIS}.url": url, **flags})))


@for_each(["redis://127.0.0.1", "redis://localhost:6379", "redis://[::1]", "unix:///run/r.sock"])
def test_a_redis_of_this_machine_needs_neither_password_nor_tls(url: str) -> None:
    assert warnings(url) == []


def test_a_redis_elsewhere_is_warned_of_until_it_has_a_password_and_tls() -> None:
    tls, password = warnings("redis://redis.example")
    assert ("without TLS" in tls, "no password" in password) == (True, True)
    assert warnings("redis://:pw@redis.example") == [tls]
    assert warnings("rediss://redis.example") == [password]
    assert warnings("rediss://:pw@redis.example") == []


def test_every_server_of_a_cluster_is_looked_at() -> None:
    urls = ["rediss://:pw@a.example", "redis://:pw@b.example"]
    flags = {"scheduler.phase2.enabled": True, f"{REDIS}.mode": "cluster", f"{REDIS}.cluster_urls": urls}
    (warning,) = unsafe(load(flags=flags))
    assert "without TLS" in warning


def test_a_password_in_a_file_is_used_for_urls_without_one(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from the file\n")
    assert warnings("rediss://redis.example", password_file=str(file)) == []
    credentials = credentials_of(load(flags={f"{REDIS}.password_file": str(file)}).scheduler.phase2.redis)
    assert Address.parse("redis://h", credentials).password == "from the file"
    assert Address.parse("redis://:of%20its%20own@h", credentials).password == "of its own"
    assert Address.parse("redis://h", credentials).at("other", 1).password == "from the file"
    assert "from the file" not in repr(credentials)


@pytest.mark.parametrize("text", [None, "", "\n", "  \nsecond line"])
def test_a_file_without_a_password_keeps_an_instance_from_starting(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "password"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CannotStart, match="password_file"):
        warnings("redis://redis.example", password_file=str(file))


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def presence_of(pid: int) -> Presence:
    return Presence("i", "first", pid=pid, machine=machine(), start_ticks=start_ticks(pid))


def test_process_that_was_killed_and_reaped_is_dead(child: "subprocess.Popen[bytes]") -> None:
    presence = presence_of(child.pid)
    assert not is_dead(presence)
    child.kill()
    child.wait()
    assert is_dead(presence)


def test_stopped_process_is_not_dead(child: "subprocess.Popen[bytes]") -> None:
    presence = presence_of(child.pid)
    child.send_signal(signal.SIGSTOP)
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    assert not is_dead(presence)


def test_process_that_waits_to_be_reaped_is_not_known_to_be_dead(child: "subprocess.Popen[bytes]") -> None:
    presence = presence_of(child.pid)
    child.kill()
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert not is_dead(presence)


def test_process_whose_number_another_one_has_is_dead() -> None:
    presence = presence_of(os.getpid())
    assert not is_dead(presence)
    assert is_dead(msgspec.structs.replace(presence, start_ticks=presence.start_ticks - 1))


def test_nothing_is_known_of_a_process_on_another_machine_or_of_an_older_release(
    child: "subprocess.Popen[bytes]",
) -> None:
    presence = presence_of(child.pid)
    child.kill()
    child.wait()
    boot, _, namespace = machine().partition(" ")
    for there in (f"another-boot {namespace}", f"{boot} pid:[1]", ""):
        assert not is_dead(msgspec.structs.replace(presence, machine=there))
    assert not is_dead(msgspec.structs.replace(presence, start_ticks=0))
