import pytest

from dragoman.cli.main import run
from dragoman.cli.node import _chosen, _setup, _step
from support.engines import needs_wheels


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--url", "http://127.0.0.1:5010"), "--url 'http://127.0.0.1:5010' is not an address like ws://127.0.0.1"),
        (("--url", "nonsense"), "--url 'nonsense' is not an address like ws://127.0.0.1"),
        (("--url", "ws://127.0.0.1:99999/ws/node"), "--url 'ws://127.0.0.1:99999/ws/node' is not an address"),
        (("--engine", "whisper"), "There is no engine 'whisper'; there are: sim, local, openai."),
        (("--recognise", "whisper"), "--recognise 'whisper' is not there; there are: pocketsphinx, openai."),
        (("--translate", "nllb"), "--translate 'nllb' is not there; there are: apertium, openai, libretranslate."),
        (("--engine", "sim", "--synthesise", "espeak"), "--engine sim does all three steps; leave it out to choose"),
        (("--languages", " ,"), "--languages names none: write them with commas, as in en,es,zh."),
        (("--failure", "0.7", "--silence", "0.7"), "Failure"),
        (("--slots", "0"), "Invalid value for '--slots'"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(
    args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["node", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"dragoman: {sentence}")
    assert err.count("\n") == 1


def test_steps_that_are_named_take_the_place_of_those_of_the_engine() -> None:
    assert _chosen("local", (None, "libretranslate", None)) == ["pocketsphinx", "libretranslate", "espeak"]
    assert _chosen("openai", (None, None, "espeak")) == ["openai", "openai", "espeak"]


def test_keys_and_addresses_come_from_the_environment_a_steps_own_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-all")
    monkeypatch.setenv("TRANSLATE_API_KEY", "key-of-one")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gpu/v1")
    one, other = (_step(step, "openai", None, "", "", False) for step in ("recognise", "translate"))
    assert (one.key, other.key, one.url) == ("key-of-all", "key-of-one", "http://gpu/v1")
    assert _step("synthesise", "espeak", None, "", "", False).key == ""
    assert _step("translate", "openai", "http://here/v1", "", "", False).url == "http://here/v1"


def test_a_recogniser_on_this_machine_takes_no_more_jobs_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    here, there = (_step("recognise", name, None, "", "", False) for name in ("pocketsphinx", "openai"))
    assert _setup([here] * 3, None, None, 11).slots == 2
    assert _setup([there] * 3, None, ["en"], 11).slots == 4
    assert _setup([here] * 3, 3, None, 11).slots == 3


@needs_wheels
@pytest.mark.parametrize("url", [None, "https://api.openai.com/v1/"])
def test_openai_without_a_key_is_refused_with_what_to_set(
    url: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "RECOGNISE_API_KEY", "TRANSLATE_API_KEY", "SYNTHESISE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("dragoman.logs.configure", lambda *_: None)  # it would outlive this test
    urls = [] if url is None else ["--translate-url", url]
    assert run(["node", "--engine", "openai", *urls]) == 1
    _, err = capsys.readouterr()
    assert err == (
        "dragoman: OpenAI's server at https://api.openai.com/v1 needs a key, and none is set. What helps: set "
        "OPENAI_API_KEY; or, for a server of your own, OPENAI_BASE_URL\n"
    )


@needs_wheels
def test_what_is_missing_is_one_sentence_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("dragoman.logs.configure", lambda *_: None)  # it would outlive this test
    assert run(["node", "--engine", "local"]) == 1
    _, err = capsys.readouterr()
    assert err.startswith("dragoman: The program espeak-ng is not installed; the program apertium is not installed.")
    assert err.endswith("What helps: apt-get install espeak-ng apertium-eng-spa\n")
    assert err.count("\n") == 1
