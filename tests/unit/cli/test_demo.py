import io

import pytest

from dragoman.cli import debian
from dragoman.cli.demo import Choice, _choose, _demonstrating
from dragoman.cli.failure import Failure
from dragoman.config import load_with_sources
from engines_here import needs_apertium, needs_espeak, needs_wheels

pytestmark = needs_wheels


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Nothing is installed; what is asked to be is listed, in vain."""
    asked: list[list[str]] = []
    monkeypatch.setenv("PATH", "/nowhere")

    def install(packages: list[str]) -> str:
        asked.append(packages)
        return "no network"

    monkeypatch.setattr(debian, "install", install)
    return asked


def test_auto_simulates_where_nothing_can_be_installed_and_says_why(
    bare: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = _choose("auto", True)
    assert chosen.kind == "simulated"
    assert "nothing is really translated. The program espeak-ng is not installed" in chosen.why
    assert "(no network); what helps: apt-get install espeak-ng apertium-eng-spa" in chosen.why
    assert bare == [["apertium-eng-spa", "espeak-ng"]]
    assert "installing apertium-eng-spa espeak-ng with apt-get, at most 90 s …" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "asked"), [("y\n", [["apertium-eng-spa", "espeak-ng"]]), ("n\n", []), ("\n", [])])
def test_root_at_a_terminal_is_asked_before_anything_is_installed(
    bare: list[list[str]], monkeypatch: pytest.MonkeyPatch, answer: str, asked: list[list[str]]
) -> None:
    monkeypatch.setattr(debian, "can_install", lambda: True)
    keys = io.StringIO(answer)
    monkeypatch.setattr(keys, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", keys)
    assert _choose("auto", None).engine == "sim"
    assert bare == asked


@pytest.mark.parametrize(("root", "terminal"), [(True, False), (False, True)])
def test_without_a_terminal_or_root_nobody_is_asked_and_nothing_is_installed(
    bare: list[list[str]], monkeypatch: pytest.MonkeyPatch, root: bool, terminal: bool
) -> None:
    monkeypatch.setattr(debian, "can_install", lambda: root)
    keys = io.StringIO("y\n")
    monkeypatch.setattr(keys, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdin", keys)
    assert _choose("auto", None).engine == "sim"
    assert bare == []
    assert keys.read() == "y\n"


def test_nothing_is_installed_if_nothing_may_be_or_is_needed(bare: list[list[str]]) -> None:
    assert _choose("auto", False).engine == "sim"
    assert _choose("sim", True) == Choice("sim", ", as asked for")
    assert bare == []


def test_local_and_nothing_else_is_a_failure_where_it_cannot_be(bare: list[list[str]]) -> None:
    with pytest.raises(Failure, match="What helps: apt-get install espeak-ng apertium-eng-spa"):
        _choose("local", True)
    with pytest.raises(Failure, match="There is no engine 'gpu' for the demo; there are: auto, local, sim"):
        _choose("gpu", True)


@needs_apertium
@needs_espeak
def test_auto_takes_local_where_all_is_there() -> None:
    assert _choose("auto", False).engine == "local"


def test_local_nodes_may_take_their_time_unless_the_settings_say_otherwise() -> None:
    plain, strict = load_with_sources(), load_with_sources(flags={"speech.attempt_timeout_ms": 5000})
    assert _demonstrating(plain, "local").speech.attempt_timeout_ms == 25_000
    assert _demonstrating(plain, "sim").speech.attempt_timeout_ms == plain.config.speech.attempt_timeout_ms
    assert _demonstrating(strict, "local").speech.attempt_timeout_ms == 5000
    assert _demonstrating(plain, "sim").chat.two_phase.enabled
