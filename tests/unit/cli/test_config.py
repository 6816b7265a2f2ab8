import json
import tomllib
from pathlib import Path

import pytest

from dragoman.cli.main import run
from dragoman.config.catalog import SETTINGS
from dragoman.config.reference import example, markdown

SECRET = "a-secret-of-more-than-thirty-two-bytes"


def output(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(["config", *args]) == 0
    return capsys.readouterr().out


def test_check_says_that_everything_is_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "check") == "OK: every setting has its default.\n"


def test_check_names_every_source(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("config.toml").write_text("[speech]\npause_ms = 500\nreorder_ms = 5\n")
    monkeypatch.setenv("DRAGOMAN_LOG__LEVEL", "debug")
    assert output(capsys, "check", "--set", "server.port=6000") == (
        "OK: 2 from config.toml, 1 from the environment (DRAGOMAN_LOG__LEVEL), 1 from the command line; "
        "every other setting has its default.\n"
    )


def test_check_names_the_present_name_of_a_setting_with_an_old_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "check", "--set", "speech.max_sessions=7") == (
        "speech.max_sessions (the command line) is now limits.sessions. The old name still works.\n"
        "OK: 1 from the command line; every other setting has its default.\n"
    )


def test_check_fails_on_a_contradiction(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", "--set", "server.host=0.0.0.0"]) == 2
    assert "but security.secret is not set: set it" in capsys.readouterr().err


def test_show_prints_toml_with_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output(capsys, "show")
    assert len(shown.splitlines()) == len(SETTINGS)
    assert tomllib.loads(shown)["scheduler"]["phase2"]["redis"]["key_prefix"] == "dragoman"


def test_show_tells_where_values_come_from_but_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_SECURITY__SECRET", SECRET)
    assert output(capsys, "show", "--changed", "--set", "log.level=debug") == (
        'security.secret = "***"  # DRAGOMAN_SECURITY__SECRET\nlog.level = "debug"      # the command line\n'
    )


def test_show_as_json_holds_value_source_and_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_SPEECH__PAUSE_MS", "500")
    shown = json.loads(output(capsys, "show", "--json"))
    assert list(shown) == list(SETTINGS)
    assert shown["speech.pause_ms"] == {"value": 500, "source": "env", "place": "DRAGOMAN_SPEECH__PAUSE_MS"}
    assert shown["server.allowed_origins"] == {"value": [], "source": "default", "place": None}


def test_doc_prints_the_reference_and_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "doc") == markdown()
    assert output(capsys, "doc", "--example") == example()


def test_exposed_check_prints_a_line_per_requirement_and_fails_if_one_is_not_met(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["config", "check", "--exposed"]) == 1
    out, err = capsys.readouterr()
    assert "problem  secret: no secret is set: anybody can connect. To do: set security.secret_file" in out
    assert "ok       origins: Only named https pages may connect, or none but those of this host." in out
    assert "of 12 requirements for a server on the internet are not met." in err


def test_exposed_check_succeeds_if_all_requirements_are_met(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_SECURITY__SECRET", SECRET)
    out = output(capsys, "check", "--exposed", "--set", "server.trusted_proxies=192.0.2.9")
    assert out.endswith("All 12 requirements for a server on the internet are met.\n")


def test_url_is_refused_without_exposed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", "--url", "http://127.0.0.1:1"]) == 2
    assert "--url goes with --exposed." in capsys.readouterr().err


def test_server_that_does_not_answer_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", "--exposed", "--url", "http://127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1 cannot be asked" in capsys.readouterr().err
