from itertools import product
from pathlib import Path

import pytest

from dragoman.config import Config, ConfigError, load
from dragoman.config.catalog import SETTINGS
from dragoman.config.checks import ORDER, Below, check
from dragoman.config.secrets import DEVELOPMENT_SECRET, is_loopback
from support.tables import for_each

SECRET = "a-secret-of-more-than-thirty-two-bytes"
REDIS = "scheduler.phase2.redis"


def problems(**flags: object) -> tuple[str, ...]:
    """Settings are written with two underscores for a dot, as in the environment."""
    try:
        load(flags={name.replace("__", "."): value for name, value in flags.items()})
    except ConfigError as error:
        return error.sentences
    return ()


def only(**flags: object) -> str:
    (sentence,) = problems(**flags)
    return sentence


def test_the_defaults_agree_with_each_other() -> None:
    assert list(check(Config())) == []


@for_each(ORDER)
def test_two_settings_in_the_wrong_order_are_both_named(rule: Below) -> None:
    lower, upper = SETTINGS[rule.lower], SETTINGS[rule.upper]
    with pytest.raises(ConfigError) as raised:
        load(flags={lower.key: lower.meta.le, upper.key: upper.meta.ge})
    assert any(
        f"{lower.key} (" in sentence and f"{rule.relation} {upper.key} (" in sentence
        for sentence in raised.value.sentences
    )


def test_seconds_and_milliseconds_are_compared_as_times() -> None:
    assert problems(scheduler__phase2__instance_presence_ttl_seconds=14) == ()
    assert only(scheduler__phase2__instance_presence_ttl_seconds=15) == (
        "scheduler.phase2.instance_presence_ttl_seconds (15) must be below speech.reservation_ttl_ms (15000), or the "
        "slots of a dead instance's jobs are reserved by others before its jobs are taken over."
    )


def test_some_settings_may_be_equal() -> None:
    assert problems(speech__attempt_timeout_ms=60000) == ()
    assert len(problems(speech__attempt_timeout_ms=60001)) == 1


def test_a_redis_that_is_not_joined_is_a_contradiction() -> None:
    assert only(scheduler__phase2__redis__url="redis://a") == (
        "scheduler.phase2.redis.url is set but scheduler.phase2.enabled is false: set scheduler.phase2.enabled = true "
        "to join that Redis, or remove scheduler.phase2.redis.url to run a private one."
    )
    sentence = only(scheduler__phase2__redis__cluster_urls="redis://a", scheduler__phase2__redis__mode="cluster")
    assert "cluster_urls is set but scheduler.phase2.enabled is false" in sentence


@pytest.mark.parametrize(("mode", "missing"), [("single", "url"), ("cluster", "cluster_urls")])
def test_joining_without_saying_where_is_a_contradiction(mode: str, missing: str) -> None:
    sentence = only(scheduler__phase2__enabled=True, scheduler__phase2__redis__mode=mode)
    assert sentence == (
        f"scheduler.phase2.enabled is true and scheduler.phase2.redis.mode is {mode}, but {REDIS}.{missing} is not set."
    )


@pytest.mark.parametrize(
    ("mode", "given", "missing"), [("single", "cluster_urls", "url"), ("cluster", "url", "cluster_urls")]
)
def test_an_address_of_the_other_mode_is_pointed_out(mode: str, given: str, missing: str) -> None:
    flags = {"scheduler.phase2.enabled": True, f"{REDIS}.mode": mode, f"{REDIS}.{given}": "redis://a"}
    sentence = only(**flags)
    assert f"{REDIS}.{missing} is not set ({REDIS}.{given} is, which belongs to the other mode)." in sentence


def test_addresses_of_both_modes_are_one_too_many() -> None:
    sentence = only(
        scheduler__phase2__enabled=True,
        scheduler__phase2__redis__url="redis://a",
        scheduler__phase2__redis__cluster_urls="redis://a,redis://b",
    )
    assert (
        sentence
        == f"{REDIS}.cluster_urls is set but {REDIS}.mode is single, which uses {REDIS}.url: remove one of them."
    )


@for_each(["redis://a", "redis://:pw@a:6379/0", "rediss://a", "unix:///run/r.sock", "redis://[::1]:1"])
def test_addresses_of_a_redis_are_accepted(url: str) -> None:
    assert problems(scheduler__phase2__enabled=True, scheduler__phase2__redis__url=url) == ()


@for_each(["a:6379", "http://pa55@a", "redis://", "unix://", "redis://pa55@a:port", "redis://[pa55", "redis://a/pa55"])
def test_invalid_redis_url_is_refused_without_showing_it(url: str) -> None:
    sentence = only(scheduler__phase2__enabled=True, scheduler__phase2__redis__url=url)
    assert sentence.startswith(f"{REDIS}.url must be like redis://host:6379/0")
    assert "pa55" not in sentence


def test_every_address_of_a_cluster_is_looked_at() -> None:
    sentence = only(
        scheduler__phase2__enabled=True,
        scheduler__phase2__redis__mode="cluster",
        scheduler__phase2__redis__cluster_urls=["redis://a", "unix:///b"],
    )
    assert sentence.startswith(f"{REDIS}.cluster_urls must be a list of URLs")


def test_an_utterance_must_fit_into_an_inbox_entry() -> None:
    assert problems(speech__binary_frames=True) == ()
    assert problems(server__max_frame_bytes=1300000) == ()
    for flags in ({"limits.frame_bytes": 1500000}, {"speech.max_buffer_bytes": 900000}):
        sentence = only(**flags)
        assert "limits.frame_bytes (" in sentence
        assert "speech.max_buffer_bytes (" in sentence
    assert len(problems(server__max_frame_bytes=1300000, speech__binary_frames=True)) == 1


def test_the_port_is_none_of_the_admin_ports() -> None:
    assert problems(server__admin_port=5008) == ()
    sentence = only(server__admin_port=5008, server__workers=2)
    assert sentence == (
        "server.port (5010) lies among the admin ports, which go from server.admin_port (5008) to 5010: "
        "move one of them."
    )


def test_free_ports_never_collide() -> None:
    assert problems(server__port=0, server__admin_port=0, server__workers=64) == ()


def test_every_worker_has_room_for_its_admin_port() -> None:
    assert "server.workers (10)" in only(server__admin_port=65530, server__workers=10)


@for_each(["app.example.com", "https://a/", "https://a/b", "ftp://a", "https://"])
def test_impossible_origin_is_refused(origin: str) -> None:
    assert f"holds {origin!r}, which is no origin" in only(server__allowed_origins=[origin])
    assert problems(server__allowed_origins="https://a, http://b:8080, *") == ()


@for_each(product(["server.host", "server.admin_host"], ["0.0.0.0", "::", "192.168.1.5", "example.com"]))
def test_nothing_listens_beyond_loopback_without_a_secret(key: str, host: str) -> None:
    sentence = only(**{key: host})
    assert sentence.startswith(f"{key} is {host!r}, which others can reach, but security.secret is not set: set it")
    assert "DRAGOMAN_SECURITY__SECRET=" in sentence
    assert "security.insecure_allow_anonymous = true" in sentence
    assert problems(**{key: host, "security.secret": SECRET}) == ()
    assert problems(**{key: host, "security.insecure_allow_anonymous": True}) == ()


@for_each(["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_secret(host: str) -> None:
    assert is_loopback(host)
    assert problems(server__host=host) == ()


def test_a_short_secret_is_refused_without_showing_it() -> None:
    sentence = only(security__secret="hunter2")
    assert sentence.startswith("security.secret is too short to be safe")
    assert "hunter2" not in sentence


def test_a_previous_secret_alone_is_a_contradiction() -> None:
    sentence = only(security__previous_secret=SECRET)
    assert "security.previous_secret is set but security.secret is not" in sentence
    assert SECRET not in sentence


@pytest.mark.parametrize("key", ["security.secret", "security.previous_secret"])
def test_secrets_stand_in_a_file_or_in_the_settings_and_not_in_both(key: str) -> None:
    sentence = only(**{"security.secret_file": "secrets", key: SECRET})
    assert sentence.startswith(f"security.secret_file and {key} are both set")
    assert problems(security__secret_file="secrets", server__host="0.0.0.0") == ()


@pytest.mark.parametrize("where", ["server.host", "server.admin_host"])
def test_the_development_secret_is_for_loopback_only(where: str) -> None:
    known, other = {"security.secret": DEVELOPMENT_SECRET}, {"security.secret": SECRET}
    assert problems(**known) == ()
    sentence = only(**known, **{where: "0.0.0.0"})
    assert sentence.startswith(
        f"{where} is '0.0.0.0', which others can reach, but security.secret is the development secret"
    )
    assert DEVELOPMENT_SECRET not in sentence
    assert len(problems(**known, **{where: "0.0.0.0", "security.insecure_allow_anonymous": True})) == 1
    previous = {"security.previous_secret": DEVELOPMENT_SECRET}
    assert "security.previous_secret is the development secret" in only(**other, **previous, **{where: "0.0.0.0"})


def test_a_contradiction_between_file_and_environment_is_found(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[scheduler.phase2]\nenabled = true\n[scheduler.phase2.redis]\nurl = 'redis://a'\n")
    with pytest.raises(ConfigError, match=r"url is set but scheduler\.phase2\.enabled is false"):
        load(path, {"DRAGOMAN_SCHEDULER__PHASE2__ENABLED": "false"})


@for_each([["10.0.0.5"], ["10.1.0.0/16", "2001:db8::/32"], []])
def test_proxies_are_addresses_and_networks(proxies: list[str]) -> None:
    assert problems(server__trusted_proxies=proxies) == ()


@for_each(["balancer", "10.0.0.5/24", "10.0.0.5:80", ""])
def test_a_proxy_that_is_neither_address_nor_network_is_named(proxy: str) -> None:
    sentence = only(server__trusted_proxies=[proxy])
    assert sentence.startswith(f"server.trusted_proxies holds {proxy!r}: ")
    assert sentence.endswith("Write 10.0.0.5 or 10.1.0.0/16.")


@pytest.mark.parametrize("everybody", ["0.0.0.0/0", "::/0"])
def test_trusting_every_address_as_a_proxy_is_refused(everybody: str) -> None:
    assert "anybody can claim any address" in only(server__trusted_proxies=[everybody])


def test_the_proxy_protocol_needs_to_know_the_proxies() -> None:
    assert "server.trusted_proxies is empty" in only(server__proxy_protocol=True)
    assert problems(server__proxy_protocol=True, server__trusted_proxies=["10.0.0.5"]) == ()


def test_files_for_tls_need_a_url_with_tls_and_a_certificate_its_key() -> None:
    joined = {"scheduler__phase2__enabled": True, "scheduler__phase2__redis__url": "rediss://h"}
    pair = {"scheduler__phase2__redis__tls_cert_file": "c", "scheduler__phase2__redis__tls_key_file": "k"}
    assert problems(**joined, **pair) == ()
    plain = joined | {"scheduler__phase2__redis__url": "redis://h"}
    assert "write rediss://" in only(**plain, scheduler__phase2__redis__tls_ca_file="ca")
    for alone in pair:
        assert "a certificate is shown with its key" in only(**joined, **{alone: "x"})
