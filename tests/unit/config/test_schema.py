import msgspec
import pytest

from dragoman.config import Config, Redis, Security

SECRET = "a-secret-of-more-than-thirty-two-bytes"


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


def test_what_comes_back_from_json_is_checked_again() -> None:
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


def test_the_defaults_are_those_the_design_names() -> None:
    config = Config()
    phase2, speech = config.scheduler.phase2, config.speech
    assert (config.server.host, config.server.port, config.server.admin_port) == ("127.0.0.1", 5010, 5110)
    assert (config.limits.frame_bytes, config.server.drain_s, config.server.workers) == (1048576, 20, 1)
    assert (phase2.enabled, phase2.instance_id, phase2.owner_ttl_seconds) == (False, "auto", 45)
    assert phase2.instance_presence_ttl_seconds == 6
    assert (phase2.stream_group, phase2.stream_block_ms, phase2.stream_count) == ("scheduler", 1000, 64)
    assert (phase2.stream_maxlen, phase2.stream_max_bytes) == (10000, 268435456)
    assert (phase2.dlq_enabled, phase2.dlq_maxlen, phase2.dlq_max_deliveries) == (True, 10000, 5)
    assert (phase2.dlq_min_idle_ms, phase2.dlq_scan_interval_ms, phase2.dlq_scan_count) == (5000, 5000, 100)
    assert (phase2.redis.mode, phase2.redis.key_prefix) == ("single", "dragoman")
    snapshot = phase2.node_snapshot
    assert (snapshot.enabled, snapshot.presence_ttl_seconds) == (True, 45)
    assert (snapshot.refresh_interval_ms, snapshot.remove_stale_after_seconds) == (2000, 600)
    assert (speech.final_grace_ms, speech.pause_ms, speech.max_duration_ms) == (50, 3000, 10000)
    assert (speech.max_buffer_bytes, speech.tts_max_ms, speech.reorder_ms) == (512000, 60000, 300)
    assert (speech.placement_wait_ms, speech.job_ack_timeout_ms, speech.attempt_timeout_ms) == (2000, 2000, 12000)
    assert (speech.job_timeout_ms, speech.max_attempts, speech.node_grace_ms) == (60000, 3, 2000)
    assert (speech.reservation_ttl_ms, speech.default_slots, speech.turn_overcommit) == (15000, 4, 4)
    assert (speech.unavailable_ttl_s, speech.debounce_window_s) == (60, 5)
    assert (speech.close_wait_ms, speech.detached_session_s, speech.resume_grace_s) == (5000, 600, 30)
    assert (speech.release.ack_timeout_ms, speech.release.span, speech.binary_frames) == (5000, 1024, False)
    assert (config.embedded.data_dir, config.embedded.fsync) == ("data", "everysec")
