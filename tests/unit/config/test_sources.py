from pathlib import Path

import pytest

from dragoman.config.sources import FLAG, Given, Source, from_env, from_file, from_flags


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
