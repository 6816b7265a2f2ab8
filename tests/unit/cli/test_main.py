"""The command line: options, addresses, exit codes."""

import io
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from dragoman import __version__
from dragoman.cli import main as cli
from dragoman.cli import models
from dragoman.cli.main import COMMANDS, Command, imported, run
from dragoman.cli.models import Choice, choose
from dragoman.cli.node import _chosen, _setup, _step
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.serve import IMPORTED, _for_demo, process_started
from dragoman.cli.settings import authority, http_url, node_url, session_url
from dragoman.config import load_with_sources
from dragoman.config.catalog import SETTINGS
from dragoman.config.reference import example, markdown
from dragoman.engines.models import folder_of, known
from support.engines import needs_apertium, needs_espeak, needs_real_engines, needs_wheels
from support.tables import for_each


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Adds a command called `probe`, the given function or Typer."""

    def add(target: object) -> None:
        monkeypatch.setattr(cli, "probe", target, raising=False)
        probe = Command("probe", "dragoman.cli.main:probe", "For a test.")
        monkeypatch.setattr(cli, "COMMANDS", (*COMMANDS, probe))

    return add


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"dragoman {__version__}\n"


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_the_help_names_every_command(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: dragoman ")
    for command in COMMANDS:
        assert f"  {command.name}" in shown
        assert command.summary[:40] in shown


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_can_be_run_and_has_a_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported(command).name == command.name
    assert command.summary.endswith(".")
    assert run([command.name, "--help"]) == 0
    assert f"Usage: dragoman {command.name} " in capsys.readouterr().out


def test_the_help_imports_none_of_what_the_commands_need() -> None:
    script = "import sys; from dragoman.cli.main import run; run([]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "dragoman.cli.main" in loaded
    assert loaded.isdisjoint({"dragoman.config", "msgspec", "rich", "redis", "aiohttp", "asyncio"})


def test_a_function_can_be_a_command(register: Callable[[object], None], capsys: pytest.CaptureFixture[str]) -> None:
    def probe(times: int = 1) -> None:
        typer.echo("ping " * times)

    register(probe)
    assert run(["probe", "--times", "2"]) == 0
    assert capsys.readouterr().out == "ping ping \n"


def test_a_failure_is_one_sentence_and_its_status(
    register: Callable[[object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def probe() -> None:
        raise Failure("the node is not there.", 3)

    register(probe)
    assert run(["probe"]) == 3
    assert capsys.readouterr() == ("", "dragoman: the node is not there.\n")


@pytest.mark.parametrize(("answer", "status"), [(None, 0), (4, 4)])
def test_a_command_may_return_its_status(register: Callable[[object], None], answer: object, status: int) -> None:
    register(lambda: answer)
    assert run(["probe"]) == status


def test_an_exit_an_interrupt_and_a_no_are_not_bugs(register: Callable[[object], None]) -> None:
    def refuse() -> None:
        raise typer.Abort

    def leave() -> None:
        raise typer.Exit(5)

    def interrupt() -> None:
        raise KeyboardInterrupt

    register(leave)
    assert run(["probe"]) == 5
    register(interrupt)
    assert run(["probe"]) == 130
    register(refuse)
    assert run(["probe"]) == 1


def test_a_bug_is_not_dressed_up(register: Callable[[object], None]) -> None:
    def probe() -> None:
        raise ZeroDivisionError

    register(probe)
    with pytest.raises(ZeroDivisionError):
        run(["probe"])


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["confg"], "dragoman: No such command 'confg'. Did you mean 'config'? Try 'dragoman --help'.\n"),
        (["config", "chek"], "dragoman: No such command 'chek'. Did you mean 'check'? Try 'dragoman config --help'.\n"),
        (["config", "check", "--foo"], "dragoman: No such option: --foo. Try 'dragoman config check --help'.\n"),
        (["--config"], "dragoman: Option '--config' requires an argument. Try 'dragoman --help'.\n"),
    ],
)
def test_a_usage_error_is_one_sentence(args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    assert capsys.readouterr() == ("", sentence)


def test_a_group_asked_for_nothing_answers_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config"]) == 2
    assert capsys.readouterr().err.startswith("Usage: dragoman config ")


@for_each(
    [
        ("127.0.0.1", "127.0.0.1:5010"),
        ("0.0.0.0", "127.0.0.1:5010"),
        ("::", "127.0.0.1:5010"),
        ("::1", "[::1]:5010"),
        ("example.com", "example.com:5010"),
    ]
)
def test_authority_is_reachable_from_this_machine(host: str, found: str) -> None:
    assert authority(host, 5010) == found


@for_each(
    [
        ("localhost:5010", "http://localhost:5010"),
        ("http://host:5010/", "http://host:5010"),
        ("ws://host:5010/ws", "http://host:5010"),
        ("https://host/behind/a/proxy", "https://host/behind/a/proxy"),
        ("[::1]:5010", "http://[::1]:5010"),
    ]
)
def test_http_url_accepts_hosts_and_urls(given: str, http: str) -> None:
    assert http_url(given) == http


@for_each(
    [
        ("ws://host:5010/ws/session", "ws://host:5010/ws/session"),
        ("ws://host:5010", "ws://host:5010/ws/session"),
        ("ws://host:5010/", "ws://host:5010/ws/session"),
        ("http://host:5010", "ws://host:5010/ws/session"),
        ("https://host", "wss://host/ws/session"),
        ("host:5010", "ws://host:5010/ws/session"),
        ("[::1]:5010", "ws://[::1]:5010/ws/session"),
        ("wss://host/behind/a/proxy?token=x", "wss://host/behind/a/proxy?token=x"),
    ]
)
def test_session_url_accepts_hosts_and_urls(given: str, websocket: str) -> None:
    assert session_url(given) == websocket
    assert node_url(given.replace("/session", "/node")) == websocket.replace("/session", "/node")


@for_each(["", "ftp://host", "http://", "ws://", "host:port", "ws://host:port", "a b", "host:0", "host\n:1"])
def test_invalid_url_is_a_usage_error(given: str) -> None:
    for read, scheme in ((http_url, "http"), (session_url, "ws"), (node_url, "ws")):
        with pytest.raises(Failure, match=f"is not an address like {scheme}://") as failure:
            read(given)
        assert failure.value.exit_code == USAGE


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
    assert "problem  secret: no secret is set: anybody can connect. To fix it: set security.secret_file" in out
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
    assert "--url is only valid with --exposed." in capsys.readouterr().err


def test_server_that_does_not_answer_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", "--exposed", "--url", "http://127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1 does not answer" in capsys.readouterr().err


pytestmark = needs_wheels


ALL = "espeak-ng apertium-eng-spa"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No program is installed, not even apt-get; and there is no model to get."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("DRAGOMAN_MODELS", str(tmp_path))
    monkeypatch.setattr(models, "DEMO", ())


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, keys: str, *, root: bool = True, terminal: bool = True) -> None:
    typed = io.StringIO(keys)
    monkeypatch.setattr(typed, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdin", typed)
    monkeypatch.setattr(models, "_can_install", lambda: root)


@pytest.mark.usefixtures("bare")
def test_auto_chooses_simulated_nodes_and_says_why_when_engines_cannot_be_installed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    chosen = choose("auto", True)
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
    assert choose("auto", None).engine == "sim"
    assert (f"installing {ALL}" in capfd.readouterr().err) == installs


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("root", "terminal"), [(True, False), (False, True)])
def test_demo_installs_nothing_without_a_terminal_or_without_root(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], root: bool, terminal: bool
) -> None:
    at_a_terminal(monkeypatch, "y\n", root=root, terminal=terminal)
    assert choose("auto", None).engine == "sim"
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("bare")
def test_demo_installs_nothing_when_it_may_not_or_need_not(capfd: pytest.CaptureFixture[str]) -> None:
    assert choose("auto", False).engine == "sim"
    assert choose("sim", True) == Choice("sim", "no real translation, as requested by --engine sim")
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("bare")
def test_demo_fails_when_the_requested_engine_is_missing_or_unknown() -> None:
    with pytest.raises(Failure, match="To fix it: apt-get install espeak-ng apertium-eng-spa"):
        choose("local", True)
    with pytest.raises(Failure, match=r"--engine 'gpu' is unknown. Choose one of: auto, local, sim"):
        choose("gpu", True)


@needs_apertium
@needs_espeak
def test_auto_chooses_local_nodes_when_the_engines_are_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAGOMAN_MODELS", str(tmp_path))
    chosen = choose("auto", False)
    assert (chosen.engine, chosen.steps) == ("local", ("pocketsphinx", "apertium", "espeak"))


@needs_apertium
@needs_espeak
@needs_real_engines
def test_demo_asks_once_whether_to_get_real_engines_and_remembers_a_no(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAGOMAN_MODELS", str(tmp_path / "models"))
    got = list[str]()
    monkeypatch.setattr(models, "get_model", lambda model, folder: got.append(model.name))
    at_a_terminal(monkeypatch, "y\n", terminal=False)
    choose("auto", None)
    assert capfd.readouterr() == ("", "")
    at_a_terminal(monkeypatch, "n\n")
    choose("auto", None)
    asked = capfd.readouterr().out
    assert "Get real engines (whisper:base, kokoro:int8; 243 MB)? Then the nodes really translate" in asked
    at_a_terminal(monkeypatch, "y\n")
    choose("auto", None)
    assert capfd.readouterr().out == ""
    assert got == []
    choose("auto", True)
    assert got == ["whisper:base", "kokoro:int8"]


@needs_apertium
@needs_real_engines
def test_demo_uses_the_models_that_are_there_in_both_directions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAGOMAN_MODELS", str(tmp_path))
    for name in ("whisper:base", "kokoro:int8", "nllb:600m"):
        for file in known()[name].files:
            path = folder_of(name, tmp_path) / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as sparse:
                sparse.truncate(file.size)
    chosen = choose("auto", None)
    assert chosen.options[2:] == [
        *("--recognise", "whisper:base", "--translate", "nllb:600m", "--synthesise", "kokoro:int8")
    ]
    assert chosen.why == "offline, English ↔ Spanish, with Whisper, NLLB, Kokoro"


def test_demo_raises_timeouts_for_local_nodes_unless_configured() -> None:
    plain, strict = load_with_sources(), load_with_sources(flags={"speech.attempt_timeout_ms": 5000})
    assert _for_demo(plain, "local").speech.attempt_timeout_ms == 25_000
    assert _for_demo(plain, "sim").speech.attempt_timeout_ms == plain.config.speech.attempt_timeout_ms
    assert _for_demo(strict, "local").speech.attempt_timeout_ms == 5000
    assert _for_demo(plain, "sim").chat.two_phase.enabled


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--url", "ftp://127.0.0.1:5010"), "--url 'ftp://127.0.0.1:5010' is not an address like ws://127.0.0.1"),
        (("--url", "ws://127.0.0.1:99999/ws/node"), "--url 'ws://127.0.0.1:99999/ws/node' is not an address"),
        (("--engine", "whisper"), "--engine 'whisper' is unknown. Choose one of: sim, local, openai."),
        (
            ("--recognise", "vosk"),
            "--recognise 'vosk' is unknown. Choose one of: pocketsphinx, whisper, openai, none.",
        ),
        (
            ("--translate", "argos"),
            "--translate 'argos' is unknown. Choose one of: apertium, bergamot, nllb, opus-mt, ",
        ),
        (("--speak", "espeak:loud"), "--synthesise 'espeak:loud' names a model, but espeak has none to choose from."),
        (("--recognise", "whisper", "--device", "tpu"), "--device 'tpu' is unknown. Choose one of: cpu, cuda, auto."),
        (
            ("--engine", "sim", "--synthesise", "espeak"),
            "--engine sim simulates all three steps. Leave it out to choose",
        ),
        (("--languages", " ,"), "--languages is empty. Separate languages with commas, as in en,es,zh."),
        (("--failure", "0.7", "--silence", "0.7"), "Failure"),
        (("--slots", "0"), "Invalid value for '--slots'"),
    ],
)
def test_wrong_options_are_reported_in_one_sentence(
    args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["node", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"dragoman: {sentence}")
    assert err.count("\n") == 1


def test_named_engines_replace_those_of_the_preset() -> None:
    assert _chosen("local", (None, "libretranslate", None)) == ["pocketsphinx", "libretranslate", "espeak"]
    assert _chosen("openai", (None, None, "espeak")) == ["openai", "openai", "espeak"]


def test_api_key_of_a_step_has_precedence_over_the_common_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-all")
    monkeypatch.setenv("TRANSLATE_API_KEY", "key-of-one")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gpu/v1")
    one, other = (_step(step, "openai", None, "", "", False) for step in ("recognise", "translate"))
    assert (one.key, other.key, one.url) == ("key-of-all", "key-of-one", "http://gpu/v1")
    assert _step("synthesise", "espeak", None, "", "", False).key == ""
    assert _step("translate", "openai", "http://here/v1", "", "", False).url == "http://here/v1"


def test_local_recogniser_has_one_slot_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    local, remote = (_step("recognise", name, None, "", "", False) for name in ("pocketsphinx", "openai"))
    assert _setup([local] * 3, None, None, 11, None, "auto", 700).slots == 2
    assert _setup([remote] * 3, None, ["en"], 11, None, "auto", 700).slots == 4
    assert _setup([local] * 3, 3, None, 11, None, "auto", 700).slots == 3


@needs_wheels
@pytest.mark.parametrize("url", [None, "https://api.openai.com/v1/"])
def test_openai_without_a_key_names_the_variable_to_set(
    url: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "RECOGNISE_API_KEY", "TRANSLATE_API_KEY", "SYNTHESISE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("dragoman.logs.configure", lambda *_: None)  # it would outlive this test
    urls = [] if url is None else ["--translate-url", url]
    assert run(["node", "--engine", "openai", *urls]) == 1
    _, err = capsys.readouterr()
    assert err == (
        "dragoman: OpenAI's server at https://api.openai.com/v1 needs a key, and none is set. To fix it: set "
        "OPENAI_API_KEY; or, for a server of your own, OPENAI_BASE_URL\n"
    )


@needs_wheels
def test_missing_engines_are_reported_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("dragoman.logs.configure", lambda *_: None)  # it would outlive this test
    assert run(["node", "--engine", "local"]) == 1
    _, err = capsys.readouterr()
    assert err.startswith("dragoman: The program espeak-ng is not installed; the program apertium is not installed.")
    assert err.endswith("To fix it: apt-get install espeak-ng apertium-eng-spa\n")
    assert err.count("\n") == 1


def test_process_started_includes_the_time_to_load_python() -> None:
    assert process_started() <= IMPORTED + 0.02  # the kernel counts in hundredths
    assert time.monotonic() - process_started() < 24 * 3600


def write(path: str, pause_ms: int) -> str:
    Path(path).write_text(f"[speech]\npause_ms = {pause_ms}\n")
    return path


def pause(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(args) == 0
    lines = capsys.readouterr().out.splitlines()
    return next(line for line in lines if line.startswith("speech.pause_ms = "))


def test_the_file_may_be_named_before_and_after_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.toml", 1111)
    assert pause(capsys, "--config", "a.toml", "config", "show").startswith("speech.pause_ms = 1111")
    assert pause(capsys, "config", "show", "--config", "a.toml").startswith("speech.pause_ms = 1111")


def test_the_nearest_naming_of_a_file_wins(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write("config.toml", 1000)
    assert pause(capsys, "config", "show").endswith("# config.toml")
    monkeypatch.setenv("DRAGOMAN_CONFIG", write("variable.toml", 2000))
    assert pause(capsys, "config", "show").endswith("# variable.toml")
    write("before.toml", 3000)
    write("after.toml", 4000)
    assert pause(capsys, "--config", "before.toml", "config", "show").endswith("# before.toml")
    assert pause(capsys, "--config", "before.toml", "config", "show", "--config", "after.toml").endswith("# after.toml")


def test_a_file_that_was_asked_for_must_be_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_CONFIG", "gone.toml")
    assert run(["config", "check"]) == 2
    assert capsys.readouterr().err == "dragoman: gone.toml cannot be read: no such file or directory.\n"


def test_overrides_before_and_after_the_command_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--set", "speech.pause_ms=1", "--set", "speech.reorder_ms=9", "config", "show", "--changed"]
    assert run([*args, "--set", "speech.pause_ms=2500"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "speech.pause_ms = 2500",
        "speech.reorder_ms = 9",
    ]


def test_an_override_without_a_value_is_refused_without_showing_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", "--set", "hunter2"]) == 2
    assert capsys.readouterr().err == "dragoman: --set takes KEY=VALUE, as in --set speech.pause_ms=2500.\n"


def test_a_value_may_contain_an_equals_sign(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--changed", "--set", "embedded.data_dir=a=b"]) == 0
    assert capsys.readouterr().out == 'embedded.data_dir = "a=b"  # the command line\n'


def test_a_wrong_configuration_ends_the_command_with_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", "--set", "server.prot=1", "--set", "server.workers=0"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dragoman: the configuration has 2 problems:\n  - server.prot")
