"""The schema of the configuration, how it is loaded and how it is displayed."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dragoman.config import Config, ConfigError, Source, load, load_with_sources, masked, masked_url
from dragoman.config.catalog import MOVED, RETIRED, SECTIONS, SETTINGS, Setting, nearest, plain
from dragoman.config.checks import Problem
from dragoman.config.reference import example, limits_markdown, markdown, toml_value
from dragoman.config.schema import Redis, Security
from dragoman.config.secrets import DEVELOPMENT_SECRET, BadSecrets, chat_secrets, has_secret, secrets_of
from dragoman.config.section import Limit
from dragoman.gateway.counters import Counters
from dragoman.protocol.chat import Reason
from dragoman.protocol.chat_http import Code
from dragoman.protocol.codes import Close, ErrorCode, RoomErrorCode
from dragoman.services.metrics import Metrics
from support.tables import for_each

every_setting = for_each(SETTINGS.values(), lambda setting: setting.key)


@every_setting
def test_every_setting_is_documented_in_a_sentence(setting: Setting) -> None:
    assert setting.description.endswith(".")
    assert setting.description[0].isupper() or setting.description.startswith("`")
    assert "|" not in setting.description  # it would end the cell of the table


@every_setting
def test_every_number_has_both_bounds_and_a_default_within(setting: Setting) -> None:
    if setting.kind in ("integer", "number"):
        assert setting.meta.ge is not None
        assert setting.meta.le is not None
        assert " to " in setting.allowed_briefly
    assert msgspec.convert(setting.default, setting.annotation) == setting.default


@every_setting
def test_units_decide_the_kind_of_number(setting: Setting) -> None:
    if setting.name.endswith("_per_s"):
        return
    if setting.name.endswith(("_s", "_seconds")):
        assert setting.kind == "number"
    if setting.name.endswith(("_ms", "_bytes")):
        assert setting.kind == "integer"


@every_setting
def test_every_variable_leads_back_to_its_setting(setting: Setting) -> None:
    assert re.fullmatch(r"DRAGOMAN_[A-Z0-9_]+", setting.variable)
    assert setting.variable.removeprefix("DRAGOMAN_").lower().replace("__", ".") == setting.key


def test_every_section_says_what_it_is_about() -> None:
    assert all(section.__doc__ for section in SECTIONS.values())
    assert list(SECTIONS)[:4] == ["server", "scheduler", "scheduler.phase2", "scheduler.phase2.redis"]


@for_each(
    [
        ("server.prot", "server.port"),
        ("servr.port", "server.port"),
        ("pause_ms", "speech.pause_ms"),
        ("server.pause_ms", "speech.pause_ms"),
        ("scheduler.redis.url", "scheduler.phase2.redis.url"),
        ("scheduler.phase2.node_snapshot.enable", "scheduler.phase2.node_snapshot.enabled"),
        ("speach", "speech"),
        ("zzz.qqq", None),
    ]
)
def test_the_nearest_known_name_is_found(typed: str, meant: str | None) -> None:
    assert nearest(typed) == meant


def test_numbers_are_written_as_people_write_them() -> None:
    assert [plain(6.0), plain(0.5), plain(7)] == ["6", "0.5", "7"]


SECRET = "a-secret-of-more-than-thirty-two-bytes"


@for_each(
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://me:pa55@host:6379/0", "redis://me:***@host:6379/0"),
        ("rediss://:pa55@host", "rediss://:***@host"),
        ("redis://pa55@host", "redis://***@host"),
        ("redis://me:pa@55/x@host", "redis://me:***@host"),
        ("redis://me:pa:55@host", "redis://me:***@host"),
        ("REDIS://me:pa55@host", "REDIS://me:***@host"),
        ("RedisS://:pa55@host", "RedisS://:***@host"),
        (" redis://me:pa55@host", " redis://me:***@host"),
        ("re\tdis://me:pa\n55@host", "re\tdis://me:***@host"),
        ("PostgreSQL+x://me:pa55@host/db?SSLPassword=pa55", "PostgreSQL+x://me:***@host/db?SSLPassword=***"),
        ("me:pa55@host", "me:***@host"),
        ("unix:///run/r.sock?db=1&password=pa55&x=1", "unix:///run/r.sock?db=1&password=***&x=1"),
        ("", ""),
    ]
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert masked_url(url) == shown


def test_secrets_and_passwords_are_masked_and_everything_else_is_shown() -> None:
    config = load(
        flags={
            "security.secret": SECRET,
            "scheduler.phase2.enabled": True,
            "scheduler.phase2.redis.mode": "cluster",
            "scheduler.phase2.redis.cluster_urls": ["redis://me:pa55@a", "redis://b"],
        }
    )
    shown = masked(config)
    assert list(shown) == list(SETTINGS)
    assert shown["security.secret"] == "***"
    assert shown["security.previous_secret"] == ""
    assert shown["scheduler.phase2.redis.cluster_urls"] == ["redis://me:***@a", "redis://b"]
    assert shown["server.port"] == 5010
    assert "pa55" not in str(shown)
    assert SECRET not in str(shown)


@for_each([(0.0, 1800.0), (1.0, 86_400.0), (7.0, 1800.0)])
def test_messages_are_kept_as_long_as_a_repetition_is_recognised(days: float, idempotency_s: float) -> None:
    assert (
        load(flags={"chat.retention_days": days, "chat.idempotency_ttl_s": idempotency_s}).chat.retention_days == days
    )


def test_shorter_retention_than_the_idempotency_time_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"chat\.retention_days \(0\.01\) must be 0 or at least chat\.idempotency_ttl_s"
    ):
        load(flags={"chat.retention_days": 0.01})


def test_one_problem_reads_as_a_sentence_and_several_as_a_list() -> None:
    first, second = Problem(("a",), "a is wrong."), Problem(("b",), "b is wrong.")
    assert str(ConfigError([first])) == "a is wrong."
    assert str(ConfigError([first, second])) == "the configuration has 2 problems:\n  - a is wrong.\n  - b is wrong."


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text("[speech]\npause_ms = 1000\nreorder_ms = 100\ntts_max_ms = 1000\n")
    return path


def test_nothing_configured_is_the_defaults() -> None:
    assert load() == Config()


def test_the_environment_wins_over_the_file_and_flags_over_both(config_file: Path) -> None:
    env = {"DRAGOMAN_SPEECH__REORDER_MS": "200", "DRAGOMAN_SPEECH__TTS_MAX_MS": "2000"}
    speech = load(config_file, env, {"speech.tts_max_ms": 3000}).speech
    assert (speech.pause_ms, speech.reorder_ms, speech.tts_max_ms) == (1000, 200, 3000)
    assert speech.max_duration_ms == 10000


def test_every_setting_knows_where_it_came_from(config_file: Path) -> None:
    loaded = load_with_sources(config_file, {"DRAGOMAN_SPEECH__REORDER_MS": "200"}, {"speech.tts_max_ms": 3000})
    assert loaded.sources["speech.pause_ms"] == Source("file", str(config_file))
    assert loaded.sources["speech.reorder_ms"] == Source("env", "DRAGOMAN_SPEECH__REORDER_MS")
    assert loaded.sources["speech.tts_max_ms"] == Source("flag")
    assert loaded.sources["speech.max_attempts"] == Source("default")


def test_a_value_set_to_its_default_still_wins_over_a_lower_source(config_file: Path) -> None:
    assert load(config_file, {}, {"speech.pause_ms": 3000}).speech.pause_ms == 3000


def test_a_wrong_value_that_is_overridden_does_not_matter(config_file: Path) -> None:
    config_file.write_text("[speech]\npause_ms = 'long'\n")
    assert load(config_file, {"DRAGOMAN_SPEECH__PAUSE_MS": "500"}).speech.pause_ms == 500


def test_all_problems_are_reported_together(config_file: Path) -> None:
    config_file.write_text("[server]\nprot = 1\nworkers = 0\n[speech]\nattempt_timeout_ms = 70000\n")
    with pytest.raises(ConfigError) as raised:
        load(config_file, {"DRAGOMAN_LOG__LEVEL": "loud"})
    assert len(raised.value.sentences) == 4
    text = str(raised.value)
    assert text.startswith("the configuration has 4 problems:\n  - server.prot")
    for part in ("server.workers must be", "log.level must be", "speech.attempt_timeout_ms (70000) must not be above"):
        assert part in text


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


def test_a_section_may_be_empty(config_file: Path) -> None:
    config_file.write_text("[server]\n[scheduler.phase2.redis]\n")
    assert load(config_file) == Config()


ROOT = Path(__file__).resolve().parents[3]


@for_each(
    [
        ("docs/reference/configuration.md", markdown, "dragoman config doc > docs/reference/configuration.md"),
        ("docs/reference/limits.md", limits_markdown, "dragoman config doc --limits > docs/reference/limits.md"),
        ("config.example.toml", example, "dragoman config doc --example > config.example.toml"),
    ]
)
def test_the_files_are_what_the_types_say(file: str, made: Callable[[], str], command: str) -> None:
    assert (ROOT / file).read_text() == made(), f"make it anew: {command}"


def test_the_reference_names_every_setting_and_every_retired_name() -> None:
    text = markdown()
    for setting in SETTINGS.values():
        assert f"## `[{setting.section}]`" in text
        assert f"| `{setting.name}` | `{toml_value(setting.default)}` |" in text
    assert all(f"- `{name}`: " in text for name in RETIRED)


def test_the_example_as_it_is_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(example())
    assert load(path) == Config()


def test_the_example_with_every_line_in_effect_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(re.sub(r"(?m)^# (?=\w+ = )", "", example()))
    assert path.read_text().count(" = ") >= len(SETTINGS)
    assert load(path) == Config()


def test_values_are_written_as_toml() -> None:
    values: list[object] = [True, 5, 6.0, 0.5, 'a"b', ("x", "y"), []]
    assert [toml_value(value) for value in values] == ["true", "5", "6", "0.5", '"a\\"b"', '["x", "y"]', "[]"]


def test_a_configuration_survives_the_way_to_another_process() -> None:
    config = msgspec.structs.replace(
        Config(),
        security=Security(secret=SECRET),
        scheduler=msgspec.structs.replace(
            Config().scheduler,
            phase2=msgspec.structs.replace(
                Config().scheduler.phase2, enabled=True, redis=Redis(mode="cluster", cluster_urls=("redis://a:1",))
            ),
        ),
    )
    assert Config.from_json(config.to_json()) == config


def test_config_from_json_is_validated() -> None:
    with pytest.raises(msgspec.ValidationError):
        Config.from_json('{"server": {"port": 99999}}')
    with pytest.raises(msgspec.ValidationError):
        Config.from_json('{"server": {"prot": 1}}')


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Config().server.port = 1  # type: ignore[misc]


def test_the_repr_tells_no_secret() -> None:
    redis = Redis(url="redis://me:pa55@host", cluster_urls=("redis://me:pa55@host",))
    assert repr(Security(secret=SECRET, issuer="us")) == (
        "Security(secret=…, previous_secret='', secret_file='', issuer='us', leeway_s=10.0, "
        "chat_tokens_for_speech=False, insecure_allow_anonymous=False)"
    )
    assert "pa55" not in repr(redis)
    assert "dragoman" in repr(redis)


OLD = "an-old-secret-of-more-than-thirty-two-bytes"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    return tmp_path / "secrets"


def refusal(secret_file: Path, **flags: object) -> str:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    with pytest.raises(BadSecrets) as refused:
        secrets_of(load(flags={"security.secret_file": str(secret_file), **named}))
    assert str(secret_file) in str(refused.value)
    return str(refused.value)


def test_chat_tokens_are_signed_with_the_secret_and_those_of_the_previous_one_are_accepted() -> None:
    config = load(flags={"security.secret": SECRET, "security.previous_secret": OLD})
    assert chat_secrets(config) == secrets_of(config) == (SECRET, OLD)
    assert has_secret(config)


def test_with_no_secret_set_they_are_signed_with_the_development_secret() -> None:
    config = load()
    assert chat_secrets(config) == (DEVELOPMENT_SECRET,) == ("change-me-please-change-me-please-change-me",)
    assert secrets_of(config) == ()
    assert not has_secret(config)


def test_a_file_holds_one_secret_a_line_the_first_to_sign_with(secret_file: Path) -> None:
    config = load(flags={"security.secret_file": str(secret_file)})
    secret_file.write_text(f"  {SECRET}  \r\n\n{OLD}\n")
    assert secrets_of(config) == chat_secrets(config) == (SECRET, OLD)
    secret_file.write_text(OLD)
    assert secrets_of(config) == (OLD,)
    assert has_secret(config)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "holds no secrets"),
        (b"\n  \n", "holds no secrets"),
        (b"hunter2\n", "too short"),
        (f"{SECRET}\nhunter2\n".encode(), "too short"),
        (f"{SECRET}\n{OLD}\n{SECRET}x".encode(), "holds 3 secrets"),
        (b"\xff" * 40, "is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_never_quoted(secret_file: Path, text: bytes, why: str) -> None:
    secret_file.write_bytes(text)
    sentence = refusal(secret_file)
    assert why in sentence
    assert "hunter2" not in sentence
    assert SECRET not in sentence


def test_a_file_that_is_not_there_is_named(secret_file: Path) -> None:
    assert "no such file" in refusal(secret_file)


@pytest.mark.parametrize("where", ["server__host", "server__admin_host"])
@pytest.mark.parametrize("text", [DEVELOPMENT_SECRET, f"{SECRET}\n{DEVELOPMENT_SECRET}"])
def test_a_file_with_the_development_secret_is_for_loopback_only(secret_file: Path, text: str, where: str) -> None:
    secret_file.write_text(text)
    assert "0.0.0.0" in refusal(secret_file, **{where: "0.0.0.0"})
    assert DEVELOPMENT_SECRET in secrets_of(load(flags={"security.secret_file": str(secret_file)}))


LIMITS: dict[str, Limit] = {key: setting.limit for key, setting in SETTINGS.items() if setting.limit}


def metric_names() -> set[str]:
    registry = Metrics().registry
    registry.register(Counters())
    return {f"{one.name}_total" if one.type == "counter" else one.name for one in registry.collect()}


def test_every_setting_of_the_section_is_a_limit() -> None:
    assert {key for key in SETTINGS if key.startswith("limits.")} <= set(LIMITS)


def test_metric_of_every_limit_exists() -> None:
    assert {limit.metric.partition("{")[0] for limit in LIMITS.values()} <= metric_names()


@for_each(LIMITS)
def test_answer_of_a_limit_is_one_of_the_protocol(key: str) -> None:
    answer = LIMITS[key].answer
    for code in re.findall(r"(?:close|a node) (\d{4})\b", answer):
        assert int(code) in list(Close)
    for word in re.findall(r"\b[A-Z]+_[A-Z_]+\b", answer):
        assert word in [*ErrorCode, *RoomErrorCode]
    for word in re.findall(r"`ERROR (\w+)`", answer):
        assert word in list(Reason)
    for number in re.findall(r"\b(\d{5})\b", answer):
        assert int(number) in list(Code)
    for status in re.findall(r"HTTP (\d{3})", answer):
        assert f'status="{status}"' in LIMITS[key].metric


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_old_name_sets_the_same_value_in_every_source(old: str, new: str, tmp_path: Path) -> None:
    assert old not in SETTINGS
    default = SETTINGS[new].default
    value = default + 1
    section, _, name = old.rpartition(".")
    file = tmp_path / "config.toml"
    file.write_text(f"[{section}]\n{name} = {value}\n")
    expected = load(flags={new: value})
    assert expected != load()
    assert load(file) == expected
    assert load(env={"DRAGOMAN_" + old.upper().replace(".", "__"): str(value)}) == expected
    assert load(flags={old: value}) == expected
    assert load_with_sources(file).old_keys == {new: old}


def test_later_source_wins_whatever_name_it_uses(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[speech]\nmax_sessions = 7\n")
    loaded = load_with_sources(file, flags={"limits.sessions": 8})
    assert (loaded.config.limits.sessions, loaded.old_keys) == (8, {})


def test_source_that_sets_both_names_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[speech]\nmax_sessions = 7\n[limits]\nsessions = 8\n")
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert refused.value.sentences == (
        f"speech.max_sessions in {file} is the old name of limits.sessions, which is set as well: remove one.",
    )
