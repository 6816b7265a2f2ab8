"""What is said at the start about a Redis that others could use, and the password from a file."""

from pathlib import Path

import pytest

from dragoman.config import load
from dragoman.instance.redis_check import CannotStart, credentials_of, unsafe
from dragoman.store.link import Address

REDIS = "scheduler.phase2.redis"


def warnings(url: str, **settings: object) -> list[str]:
    flags = {f"{REDIS}.{name}": value for name, value in settings.items()}
    return list(unsafe(load(flags={"scheduler.phase2.enabled": True, f"{REDIS}.url": url, **flags})))


@pytest.mark.parametrize("url", ["redis://127.0.0.1", "redis://localhost:6379", "redis://[::1]", "unix:///run/r.sock"])
def test_a_redis_of_this_machine_needs_neither_password_nor_tls(url: str) -> None:
    assert warnings(url) == []


def test_a_redis_elsewhere_is_warned_of_until_it_has_a_password_and_tls() -> None:
    tls, password = warnings("redis://redis.example")
    assert ("without TLS" in tls, "no password" in password) == (True, True)
    assert warnings("redis://:pw@redis.example") == [tls]
    assert warnings("rediss://redis.example") == [password]
    assert warnings("rediss://:pw@redis.example") == []


def test_every_server_of_a_cluster_is_looked_at() -> None:
    urls = ["rediss://:pw@a.example", "redis://:pw@b.example"]
    flags = {"scheduler.phase2.enabled": True, f"{REDIS}.mode": "cluster", f"{REDIS}.cluster_urls": urls}
    (warning,) = unsafe(load(flags=flags))
    assert "without TLS" in warning


def test_a_password_in_a_file_is_used_for_urls_without_one(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from the file\n")
    assert warnings("rediss://redis.example", password_file=str(file)) == []
    credentials = credentials_of(load(flags={f"{REDIS}.password_file": str(file)}).scheduler.phase2.redis)
    assert Address.parse("redis://h", credentials).password == "from the file"
    assert Address.parse("redis://:of%20its%20own@h", credentials).password == "of its own"
    assert Address.parse("redis://h", credentials).at("other", 1).password == "from the file"
    assert "from the file" not in repr(credentials)


@pytest.mark.parametrize("text", [None, "", "\n", "  \nsecond line"])
def test_a_file_without_a_password_keeps_an_instance_from_starting(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "password"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CannotStart, match="password_file"):
        warnings("redis://redis.example", password_file=str(file))
