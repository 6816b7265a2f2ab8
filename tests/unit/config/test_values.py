import pytest

from dragoman.config.catalog import SETTINGS
from dragoman.config.errors import Problem
from dragoman.config.sources import FLAG, Given, Source
from dragoman.config.values import typed

FILE = Source("file", "config.toml")


def from_env(key: str, text: str) -> object:
    return typed(SETTINGS[key], Given(key, text, Source("env", SETTINGS[key].variable)))


def refusal(key: str, value: object, source: Source = FILE) -> str:
    problem = typed(SETTINGS[key], Given(key, value, source))
    assert isinstance(problem, Problem)
    assert problem.keys == (key,)
    return problem.sentence


@pytest.mark.parametrize(
    ("key", "text", "value"),
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
    ],
)
def test_text_is_parsed_by_the_type_of_its_setting(key: str, text: str, value: object) -> None:
    found = from_env(key, text)
    assert found == value
    assert type(found) is type(value)
    assert typed(SETTINGS[key], Given(key, text, FLAG)) == value


def test_a_whole_number_serves_where_fractions_are_allowed() -> None:
    assert typed(SETTINGS["server.drain_s"], Given("server.drain_s", 3, FILE)) == 3.0


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
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
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence(key: str, value: object, sentence: str) -> None:
    found = refusal(key, value)
    assert found.startswith(sentence)
    assert found.endswith("(config.toml).")


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
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
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(key: str, text: str, sentence: str) -> None:
    assert refusal(key, text, Source("env", SETTINGS[key].variable)) == sentence


@pytest.mark.parametrize(
    "key",
    [
        "security.secret",
        "security.previous_secret",
        "scheduler.phase2.redis.url",
        "scheduler.phase2.redis.cluster_urls",
    ],
)
def test_no_refusal_shows_what_could_be_a_secret(key: str) -> None:
    for value in (4711, ["a", 4711], {"4711": 1}):
        assert "4711" not in refusal(key, value)
