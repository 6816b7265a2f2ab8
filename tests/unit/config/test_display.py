import pytest

from dragoman.config import load, masked, masked_url
from dragoman.config.catalog import SETTINGS

SECRET = "a-secret-of-more-than-thirty-two-bytes"


@pytest.mark.parametrize(
    ("url", "shown"),
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
    ],
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
