from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dragoman.config import load
from dragoman.config.secrets import DEVELOPMENT_SECRET
from dragoman.instance.chat_tokens import chat_tokens
from dragoman.instance.redis_check import CannotStart

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
