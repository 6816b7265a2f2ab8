from pathlib import Path

import pytest

from dragoman.config import Config, ConfigError, Source, load, load_with_sources


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text("[speech]\npause_ms = 1000\nreorder_ms = 100\ntts_max_ms = 1000\n")
    return path


def test_nothing_configured_is_the_defaults() -> None:
    assert load() == Config()


def test_the_environment_wins_over_the_file_and_flags_over_both(file: Path) -> None:
    env = {"DRAGOMAN_SPEECH__REORDER_MS": "200", "DRAGOMAN_SPEECH__TTS_MAX_MS": "2000"}
    speech = load(file, env, {"speech.tts_max_ms": 3000}).speech
    assert (speech.pause_ms, speech.reorder_ms, speech.tts_max_ms) == (1000, 200, 3000)
    assert speech.max_duration_ms == 10000


def test_every_setting_knows_where_it_came_from(file: Path) -> None:
    loaded = load_with_sources(file, {"DRAGOMAN_SPEECH__REORDER_MS": "200"}, {"speech.tts_max_ms": 3000})
    assert loaded.sources["speech.pause_ms"] == Source("file", str(file))
    assert loaded.sources["speech.reorder_ms"] == Source("env", "DRAGOMAN_SPEECH__REORDER_MS")
    assert loaded.sources["speech.tts_max_ms"] == Source("flag")
    assert loaded.sources["speech.max_attempts"] == Source("default")


def test_a_value_set_to_its_default_still_wins_over_a_lower_source(file: Path) -> None:
    assert load(file, {}, {"speech.pause_ms": 3000}).speech.pause_ms == 3000


def test_a_wrong_value_that_is_overridden_does_not_matter(file: Path) -> None:
    file.write_text("[speech]\npause_ms = 'long'\n")
    assert load(file, {"DRAGOMAN_SPEECH__PAUSE_MS": "500"}).speech.pause_ms == 500


def test_all_problems_are_told_together(file: Path) -> None:
    file.write_text("[server]\nprot = 1\nworkers = 0\n[speech]\nattempt_timeout_ms = 70000\n")
    with pytest.raises(ConfigError) as raised:
        load(file, {"DRAGOMAN_LOG__LEVEL": "loud"})
    assert len(raised.value.sentences) == 4
    text = str(raised.value)
    assert text.startswith("the configuration has 4 problems:\n  - server.prot")
    for part in ("server.workers must be", "log.level must be", "speech.attempt_timeout_ms (70000) must not be above"):
        assert part in text


def test_one_problem_is_one_sentence() -> None:
    with pytest.raises(ConfigError) as raised:
        load(flags={"server.workers": 0})
    assert str(raised.value) == "server.workers must be a whole number from 1 to 64, not 0 (the command line)."


def test_a_refused_value_is_not_compared_with_others() -> None:
    # Left at its default of 12000 it would contradict the 10000 of the job.
    with pytest.raises(ConfigError) as raised:
        load(flags={"speech.attempt_timeout_ms": "soon", "speech.job_timeout_ms": 10000})
    assert raised.value.sentences == (
        "speech.attempt_timeout_ms must be a whole number from 10 to 600000, not the string 'soon' (the command line).",
    )


def test_a_file_that_cannot_be_read_does_not_hide_other_problems(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path / "none.toml", {"DRAGOMAN_LOG__LEVEL": "loud"})
    assert len(raised.value.sentences) == 2


def test_a_section_may_be_empty(file: Path) -> None:
    file.write_text("[server]\n[scheduler.phase2.redis]\n")
    assert load(file) == Config()
