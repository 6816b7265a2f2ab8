from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dragoman.config import load
from dragoman.instance.chat_tokens import chat_tokens
from dragoman.instance.redis_check import CannotStart

SECRET = "a-secret-of-more-than-thirty-two-bytes"


def test_tokens_are_made_as_the_settings_say() -> None:
    with capture_logs() as logs:
        tokens = chat_tokens(load(flags={"security.secret": SECRET, "chat.issuer": "us", "chat.access_ttl_s": 5}))
    assert not logs
    assert tokens.read_access(tokens.access(7, 0, 100.0), 104.0).exp == 105


def test_the_log_says_once_that_the_development_secret_is_in_use() -> None:
    with capture_logs() as logs:
        chat_tokens(load())
    (line,) = logs
    assert "development secret" in line["event"]
    assert "change-me" not in repr(line)


def test_an_instance_without_its_file_of_secrets_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="cannot be read"):
        chat_tokens(load(flags={"security.secret_file": str(tmp_path / "gone")}))
