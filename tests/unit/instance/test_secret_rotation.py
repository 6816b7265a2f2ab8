import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dragoman.config.secrets import read_secrets
from dragoman.domain.signing_keys import SigningKeys, name_of
from dragoman.instance.secret_rotation import SecretRotation

OLD = "an-old-secret-of-more-than-thirty-two-bytes"
NEW = "a-newer-secret-of-more-than-thirty-two-bytes"


class Stage:
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
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "secrets")


def test_an_unchanged_file_is_not_logged(stage: Stage) -> None:
    assert stage.run() == stage.run() == []


def test_changed_secrets_are_accepted_and_logged_once(stage: Stage) -> None:
    stage.file.write_text(f"{NEW}\n{OLD}\n")
    (line,) = stage.run()
    assert line["event"] == "secrets changed"
    assert (line["signs"], line["accepted"], line["before"]) == (
        name_of(NEW), [name_of(NEW), name_of(OLD)], [name_of(OLD)],
    )  # fmt: skip
    assert list(stage.keys) == [NEW, OLD]
    assert stage.run() == []


def test_a_replaced_file_is_read(stage: Stage, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.write_text(NEW)
    fresh.replace(stage.file)
    assert len(stage.run()) == 1
    assert list(stage.keys) == [NEW]


@pytest.mark.parametrize("text", ["", "short", "\n".join((OLD, NEW, OLD + NEW))])
def test_an_invalid_file_changes_nothing_and_is_logged_once(stage: Stage, text: str) -> None:
    stage.file.write_text(text)
    (line,) = stage.run()
    assert (line["log_level"], line["event"]) == ("warning", "secrets not changed")
    assert stage.run() == []
    assert list(stage.keys) == [OLD]


def test_a_missing_file_changes_nothing_until_it_is_back(stage: Stage) -> None:
    stage.file.unlink()
    assert len(stage.run()) == 1
    stage.file.write_text(NEW)
    assert len(stage.run()) == 1
    assert list(stage.keys) == [NEW]
