"""Where a setting comes from, and how its text becomes a value."""

from pathlib import Path

import pytest

from dragoman.config.catalog import SETTINGS
from dragoman.config.checks import Problem
from dragoman.config.load import FLAG, Given, Source, from_env, from_file, from_flags, typed
from support.tables import for_each


def sentences_of_file(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return [problem.sentence.replace(str(path), "config.toml") for problem in from_file(path)[1]]


def sentences_of_env(**env: str) -> list[str]:
    return [problem.sentence for problem in from_env(env)[1]]


def test_a_file_gives_what_it_sets_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[server]\nport = 6000\n[scheduler.phase2.redis]\nurl = "redis://a"\n[speech]\n')
    source = Source("file", str(path))
    assert from_file(path) == (
        [Given("server.port", 6000, source), Given("scheduler.phase2.redis.url", "redis://a", source)],
        [],
    )


def test_an_unknown_key_in_a_file_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    assert sentences_of_file(tmp_path, "[server]\nprot = 6000\n") == [
        "server.prot in config.toml is not a setting; did you mean server.port?"
    ]


def test_an_unknown_section_is_named_once_with_the_nearest_one(tmp_path: Path) -> None:
    assert sentences_of_file(tmp_path, "[speach]\npause_ms = 1\nreorder_ms = 2\n") == [
        "speach in config.toml is not a setting; did you mean speech?"
    ]


def test_a_name_like_no_other_leads_to_the_reference(tmp_path: Path) -> None:
    assert sentences_of_file(tmp_path, "[zzz]\n") == [
        "zzz in config.toml is not a setting; `dragoman config doc` lists them all."
    ]


def test_a_value_where_a_section_belongs_is_refused(tmp_path: Path) -> None:
    assert sentences_of_file(tmp_path, "server = 5010\n") == [
        "server in config.toml is a section, [server], and cannot have a value itself."
    ]


@pytest.mark.parametrize("section", ["", "[speech]", "[speech.release]", "[scheduler.phase2]"])
@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("gap_timeout_ms", "replaced by speech.release.ack_timeout_ms"),
        ("timeout_node_id", "replaced by affinity_node_id, which each turn keeps"),
        ("max_duration_node_id", "replaced by affinity_node_id, which each turn keeps"),
    ],
)
def test_retired_names_say_what_replaced_them(tmp_path: Path, section: str, name: str, replacement: str) -> None:
    (sentence,) = sentences_of_file(tmp_path, f"{section}\n{name} = 1\n")
    assert f"{name} in config.toml is no longer a setting" in sentence
    assert replacement in sentence


def test_retired_names_are_refused_from_the_environment_and_the_command_line() -> None:
    assert (
        "DRAGOMAN_SPEECH__MAX_DURATION_NODE_ID is no longer a setting"
        in sentences_of_env(DRAGOMAN_SPEECH__MAX_DURATION_NODE_ID="x")[0]
    )
    assert "ack_timeout_ms" in sentences_of_env(DRAGOMAN_GAP_TIMEOUT_MS="1")[0]
    assert "on the command line is no longer" in from_flags({"speech.gap_timeout_ms": 3})[1][0].sentence


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert [p.sentence for p in from_file(path)[1]] == [f"{path} cannot be read: no such file or directory."]


def test_a_file_that_is_not_toml_says_where(tmp_path: Path) -> None:
    (sentence,) = sentences_of_file(tmp_path, "[server]\nport 5010\n")
    assert sentence.startswith("config.toml is not valid TOML: ")
    assert "line 2" in sentence


def test_a_file_that_is_not_text_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in from_file(path)[1][0].sentence


def test_variables_name_their_section_with_two_underscores() -> None:
    given, problems = from_env({"DRAGOMAN_SCHEDULER__PHASE2__REDIS__URL": "redis://a", "PATH": "/bin"})
    assert given == [
        Given("scheduler.phase2.redis.url", "redis://a", Source("env", "DRAGOMAN_SCHEDULER__PHASE2__REDIS__URL"))
    ]
    assert not problems


def test_an_unknown_variable_is_named_with_the_nearest_one() -> None:
    assert sentences_of_env(DRAGOMAN_LOG__LEVL="debug") == [
        "DRAGOMAN_LOG__LEVL is not a setting; did you mean DRAGOMAN_LOG__LEVEL?"
    ]


def test_a_setting_written_with_single_underscores_is_a_mistake() -> None:
    assert sentences_of_env(DRAGOMAN_SERVER_PORT="6000") == [
        "DRAGOMAN_SERVER_PORT is not a setting; did you mean DRAGOMAN_SERVER__PORT?"
    ]


def test_variables_of_others_that_only_look_like_ours_are_left_alone() -> None:
    kubernetes = {
        "DRAGOMAN_PORT": "tcp://10.0.0.7:5010",
        "DRAGOMAN_SERVICE_HOST": "10.0.0.7",
        "DRAGOMAN_PORT_5010_TCP_ADDR": "10.0.0.7",
        "DRAGOMAN_SERVER_PORT": "tcp://10.0.0.7:5010",
    }
    assert from_env({**kubernetes, "DRAGOMAN_CONFIG": "x.toml", "DRAGOMANIA": "1"}) == ([], [])


def test_an_empty_variable_sets_only_texts_and_lists() -> None:
    env = {"DRAGOMAN_SECURITY__SECRET": "", "DRAGOMAN_SERVER__ALLOWED_ORIGINS": "", "DRAGOMAN_SERVER__PORT": ""}
    assert [given.key for given in from_env(env)[0]] == ["security.secret", "server.allowed_origins"]


def test_flags_may_be_dotted_or_nested_and_none_is_not_given() -> None:
    given, problems = from_flags({"server.port": 1, "speech": {"pause_ms": 200}, "server.host": None})
    assert given == [Given("server.port", 1, FLAG), Given("speech.pause_ms", 200, FLAG)]
    assert not problems


FILE = Source("file", "config.toml")


def read_env(key: str, text: str) -> object:
    return typed(SETTINGS[key], Given(key, text, Source("env", SETTINGS[key].variable)))


def refusal(key: str, value: object, source: Source = FILE) -> str:
    problem = typed(SETTINGS[key], Given(key, value, source))
    assert isinstance(problem, Problem)
    assert problem.keys == (key,)
    return problem.sentence


@for_each(
    [
        ("server.port", "6000", 6000),
        ("server.drain_s", "0.5", 0.5),
        ("server.drain_s", "3", 3.0),
        ("speech.binary_frames", "true", True),
        ("speech.binary_frames", "ON", True),
        ("speech.binary_frames", "0", False),
        ("log.level", "debug", "debug"),
        ("security.secret", "12345", "12345"),
        ("server.allowed_origins", "https://a, https://b,", ("https://a", "https://b")),
        ("server.allowed_origins", '["https://a", "https://b"]', ("https://a", "https://b")),
        ("server.allowed_origins", "", ()),
    ]
)
def test_text_is_parsed_by_the_type_of_its_setting(key: str, text: str, value: object) -> None:
    found = read_env(key, text)
    assert found == value
    assert type(found) is type(value)
    assert typed(SETTINGS[key], Given(key, text, FLAG)) == value


def test_a_whole_number_serves_where_fractions_are_allowed() -> None:
    assert typed(SETTINGS["server.drain_s"], Given("server.drain_s", 3, FILE)) == 3.0


@for_each(
    [
        ("server.port", "5010", "server.port must be a whole number from 0 to 65535, not the string '5010'"),
        ("server.port", 70000, "server.port must be a whole number from 0 to 65535, not 70000"),
        ("server.port", True, "server.port must be a whole number from 0 to 65535, not true"),
        ("server.port", 2**80, "server.port must be a whole number from 0 to 65535, not 1208925819614629174706176"),
        ("server.port", {"a": 1}, "server.port must be a whole number from 0 to 65535, not a table"),
        ("server.drain_s", -1, "server.drain_s must be a number from 0 to 3600, not -1"),
        ("server.drain_s", float("nan"), "server.drain_s must be a number from 0 to 3600, not nan"),
        ("server.drain_s", float("inf"), "server.drain_s must be a number from 0 to 3600, not inf"),
        ("server.host", "", "server.host must be a string that is not empty, not an empty string"),
        ("speech.binary_frames", "yes", "speech.binary_frames must be true or false, not the string 'yes'"),
        ("log.format", "xml", "log.format must be one of auto, text, json, not the string 'xml'"),
        ("server.allowed_origins", "https://a", "server.allowed_origins must be a list of strings, not the string"),
        ("server.allowed_origins", [1], "server.allowed_origins must be a list of strings, not a list"),
        (
            "scheduler.phase2.redis.key_prefix",
            "{x}",
            "scheduler.phase2.redis.key_prefix must be 1 to 120 letters, digits or any of . _ : -, not the string",
        ),
        ("log.level", "x" * 80, "log.level must be one of debug, info, warning, error, not a string"),
    ]
)
def test_a_wrong_value_is_refused_in_a_sentence(key: str, value: object, sentence: str) -> None:
    found = refusal(key, value)
    assert found.startswith(sentence)
    assert found.endswith("(config.toml).")


@for_each(
    [
        (
            "server.port",
            "70000",
            "server.port must be a whole number from 0 to 65535, not 70000 (DRAGOMAN_SERVER__PORT).",
        ),
        (
            "server.port",
            "many",
            "server.port must be a whole number from 0 to 65535, not the string 'many' (DRAGOMAN_SERVER__PORT).",
        ),
        (
            "server.allowed_origins",
            "[1",
            "server.allowed_origins must be a list of strings, not the string '[1' (DRAGOMAN_SERVER__ALLOWED_ORIGINS).",
        ),
    ]
)
def test_a_wrong_variable_is_refused_by_its_name(key: str, text: str, sentence: str) -> None:
    assert refusal(key, text, Source("env", SETTINGS[key].variable)) == sentence


@for_each(
    [
        "security.secret",
        "security.previous_secret",
        "scheduler.phase2.redis.url",
        "scheduler.phase2.redis.cluster_urls",
    ]
)
def test_no_refusal_shows_what_could_be_a_secret(key: str) -> None:
    for value in (4711, ["a", 4711], {"4711": 1}):
        assert "4711" not in refusal(key, value)
