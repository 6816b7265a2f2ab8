import io

import pytest

from dragoman.cli import demo
from dragoman.cli.demo import Choice, _choose, _for_demo
from dragoman.cli.failure import Failure
from dragoman.config import load_with_sources
from support.engines import needs_apertium, needs_espeak, needs_wheels

pytestmark = needs_wheels


ALL = "espeak-ng apertium-eng-spa"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is installed, not even apt-get."""
    monkeypatch.setenv("PATH", "/nowhere")


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, keys: str, *, root: bool = True, terminal: bool = True) -> None:
    typed = io.StringIO(keys)
    monkeypatch.setattr(typed, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdin", typed)
    monkeypatch.setattr(demo, "_can_install", lambda: root)


@pytest.mark.usefixtures("bare")
def test_auto_chooses_simulated_nodes_and_says_why_when_engines_cannot_be_installed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    chosen = _choose("auto", True)
    assert chosen.kind == "simulated"
    assert "no real translation. The program espeak-ng is not installed" in chosen.why
    assert f"(there is no apt-get). To fix it: apt-get install {ALL}" in chosen.why
    assert f"installing {ALL} with apt-get, at most 90 s …" in capfd.readouterr().err


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("answer", "installs"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_demo_asks_root_at_a_terminal_before_it_installs_engines(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], answer: str, installs: bool
) -> None:
    at_a_terminal(monkeypatch, answer)
    assert _choose("auto", None).engine == "sim"
    assert (f"installing {ALL}" in capfd.readouterr().err) == installs


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("root", "terminal"), [(True, False), (False, True)])
def test_demo_installs_nothing_without_a_terminal_or_without_root(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], root: bool, terminal: bool
) -> None:
    at_a_terminal(monkeypatch, "y\n", root=root, terminal=terminal)
    assert _choose("auto", None).engine == "sim"
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("bare")
def test_demo_installs_nothing_when_it_may_not_or_need_not(capfd: pytest.CaptureFixture[str]) -> None:
    assert _choose("auto", False).engine == "sim"
    assert _choose("sim", True) == Choice("sim", "no real translation, as requested by --engine sim")
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("bare")
def test_demo_fails_when_the_requested_engine_is_missing_or_unknown() -> None:
    with pytest.raises(Failure, match="To fix it: apt-get install espeak-ng apertium-eng-spa"):
        _choose("local", True)
    with pytest.raises(Failure, match=r"--engine 'gpu' is unknown. Choose one of: auto, local, sim"):
        _choose("gpu", True)


@needs_apertium
@needs_espeak
def test_auto_chooses_local_nodes_when_the_engines_are_installed() -> None:
    assert _choose("auto", False).engine == "local"


def test_demo_raises_timeouts_for_local_nodes_unless_configured() -> None:
    plain, strict = load_with_sources(), load_with_sources(flags={"speech.attempt_timeout_ms": 5000})
    assert _for_demo(plain, "local").speech.attempt_timeout_ms == 25_000
    assert _for_demo(plain, "sim").speech.attempt_timeout_ms == plain.config.speech.attempt_timeout_ms
    assert _for_demo(strict, "local").speech.attempt_timeout_ms == 5000
    assert _for_demo(plain, "sim").chat.two_phase.enabled
