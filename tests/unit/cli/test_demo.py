import io

import pytest

from dragoman.cli import demo
from dragoman.cli.demo import Choice, _choose, _demonstrating
from dragoman.cli.failure import Failure
from dragoman.config import load_with_sources
from support.engines import needs_apertium, needs_espeak, needs_wheels

pytestmark = needs_wheels


ALL = "espeak-ng apertium-eng-spa"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is installed, apt-get neither."""
    monkeypatch.setenv("PATH", "/nowhere")


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, keys: str, *, root: bool = True, terminal: bool = True) -> None:
    typed = io.StringIO(keys)
    monkeypatch.setattr(typed, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdin", typed)
    monkeypatch.setattr(demo, "_can_install", lambda: root)


@pytest.mark.usefixtures("bare")
def test_auto_simulates_where_nothing_can_be_installed_and_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    chosen = _choose("auto", True)
    assert chosen.kind == "simulated"
    assert "nothing is really translated. The program espeak-ng is not installed" in chosen.why
    assert f"(there is no apt-get); what helps: apt-get install {ALL}" in chosen.why
    assert f"installing {ALL} with apt-get, at most 90 s …" in capfd.readouterr().err


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("answer", "installs"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_root_at_a_terminal_is_asked_before_anything_is_installed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], answer: str, installs: bool
) -> None:
    at_a_terminal(monkeypatch, answer)
    assert _choose("auto", None).engine == "sim"
    assert (f"installing {ALL}" in capfd.readouterr().err) == installs


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("root", "terminal"), [(True, False), (False, True)])
def test_without_a_terminal_or_root_nobody_is_asked_and_nothing_is_installed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], root: bool, terminal: bool
) -> None:
    at_a_terminal(monkeypatch, "y\n", root=root, terminal=terminal)
    assert _choose("auto", None).engine == "sim"
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("bare")
def test_nothing_is_installed_if_nothing_may_be_or_is_needed(capfd: pytest.CaptureFixture[str]) -> None:
    assert _choose("auto", False).engine == "sim"
    assert _choose("sim", True) == Choice("sim", ", as asked for")
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("bare")
def test_local_and_nothing_else_is_a_failure_where_it_cannot_be() -> None:
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
