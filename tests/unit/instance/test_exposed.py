"""The checklist for a server on the internet: each requirement is seen to fail for its own reason."""

import re
from pathlib import Path

import pytest

from dragoman.config import Loaded, load_with_sources
from dragoman.config.secrets import DEVELOPMENT_SECRET
from dragoman.instance.exposed import CHECKLIST, check_configuration

SECRET = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c"
SAFE: dict[str, object] = {
    "server.host": "127.0.0.1",
    "server.trusted_proxies": ["192.0.2.10"],
    "server.allowed_origins": ["https://app.example.com"],
}


def loaded(**changes: object) -> Loaded:
    flags = {**SAFE, "security.secret": SECRET, **{key.replace("__", "."): value for key, value in changes.items()}}
    return load_with_sources(flags=flags)


def problems(checked: Loaded) -> dict[str, list[str]]:
    return {one.name: [found.what for found in one.problems] for one in check_configuration(checked) if one.problems}


def test_safe_configuration_meets_every_requirement() -> None:
    assert problems(loaded()) == {}


def test_laptop_is_not_fit_for_the_internet() -> None:
    found = problems(load_with_sources())
    assert {"secret", "proxy", "accounts"} <= set(found)


@pytest.mark.parametrize(
    ("name", "changes", "what"),
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
    ],
)
def test_requirement_fails_for_its_own_reason(name: str, changes: dict[str, object], what: str) -> None:
    found = problems(loaded(**changes))
    assert what in "; ".join(found[name])
    assert set(found) == {name}


@pytest.mark.parametrize(
    "changes",
    [
        {"server__admin_host": "10.0.0.7"},
        {"server__allowed_origins": []},
        {"chat__registration": "invite"},
        {"scheduler__phase2__enabled": True, "scheduler__phase2__redis__url": "redis://127.0.0.1"},
        {"scheduler__phase2__enabled": True, "scheduler__phase2__redis__url": "rediss://:password@10.0.0.9"},
        {"archive__url": "postgresql://u:p@10.0.0.8/d?sslmode=verify-full"},
        {"archive__url": "postgresql://u:p@127.0.0.1/d"},
    ],
)
def test_what_is_safe_is_no_problem(changes: dict[str, object]) -> None:
    assert problems(loaded(**changes)) == {}


def test_file_with_a_secret_that_others_can_read_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\n")
    flags = {**SAFE, "security.secret_file": str(file)}
    file.chmod(0o644)
    assert problems(load_with_sources(flags=flags)) == {"files": [f"{file} (security.secret_file): others can read it"]}
    file.chmod(0o600)
    assert problems(load_with_sources(flags=flags)) == {}


def test_configuration_file_that_holds_the_secret_must_not_be_readable_by_others(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[security]\nsecret = "{SECRET}"\n')
    file.chmod(0o640)
    assert list(problems(load_with_sources(file, flags=SAFE))) == ["files"]


def test_security_page_prints_the_checklist() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/guides/secure.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", page, re.M)
    assert rows == [(name, requirement) for name, requirement, _ in CHECKLIST]
