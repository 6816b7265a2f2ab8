import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dragoman.config.secrets import read_secrets
from dragoman.domain.keyring import Keyring, name_of
from dragoman.instance.locksmith import Locksmith

OLD = "an-old-secret-of-more-than-thirty-two-bytes"
NEW = "a-newer-secret-of-more-than-thirty-two-bytes"


class Stage:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.write_text(OLD)
        self.ring = Keyring((OLD,))
        self.smith = Locksmith(self.ring, lambda: read_secrets(file))

    def look(self) -> list[dict[str, Any]]:
        """What is logged when it looks once."""
        with capture_logs() as lines:
            asyncio.run(self.smith.run_once())
        assert OLD not in repr(lines)
        assert NEW not in repr(lines)
        return [dict(line) for line in lines]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "secrets")


def test_a_file_that_did_not_change_is_no_news(stage: Stage) -> None:
    assert stage.look() == stage.look() == []


def test_what_the_file_holds_now_is_accepted_from_now_on_and_said_once(stage: Stage) -> None:
    stage.file.write_text(f"{NEW}\n{OLD}\n")
    (line,) = stage.look()
    assert line["event"] == "the secrets have changed"
    assert (line["signs"], line["accepted"], line["before"]) == (
        name_of(NEW), [name_of(NEW), name_of(OLD)], [name_of(OLD)],
    )  # fmt: skip
    assert list(stage.ring) == [NEW, OLD]
    assert stage.look() == []


def test_a_file_put_in_the_place_of_another_is_read(stage: Stage, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.write_text(NEW)
    fresh.replace(stage.file)
    assert len(stage.look()) == 1
    assert list(stage.ring) == [NEW]


@pytest.mark.parametrize("text", ["", "short", "\n".join((OLD, NEW, OLD + NEW))])
def test_a_file_that_is_wrong_changes_nothing_and_is_complained_of_once(stage: Stage, text: str) -> None:
    stage.file.write_text(text)
    (line,) = stage.look()
    assert (line["log_level"], line["event"]) == ("warning", "the secrets stay as they were")
    assert stage.look() == []
    assert list(stage.ring) == [OLD]


def test_a_file_that_goes_away_changes_nothing_and_what_comes_back_counts(stage: Stage) -> None:
    stage.file.unlink()
    assert len(stage.look()) == 1
    stage.file.write_text(NEW)
    assert len(stage.look()) == 1
    assert list(stage.ring) == [NEW]
