"""The fixtures that other tests stand on."""

import pytest
import redis

from support.redis_servers import RedisAt, own, urls_from


def test_a_single_server_is_reached_by_tcp_and_by_socket(redis_server: RedisAt) -> None:
    for url in (redis_server.url, redis_server.unix_url):
        with redis.Redis.from_url(url, protocol=2) as client:
            assert client.ping()


def test_the_old_server_is_redis_6_2(old_redis_server: RedisAt) -> None:
    assert "redis_version:6.2" in own(old_redis_server.server).call("INFO", "server")


@pytest.mark.cluster
def test_a_cluster_is_reached_by_any_of_its_urls(redis_cluster: RedisAt) -> None:
    with redis.RedisCluster.from_url(redis_cluster.urls[-1], protocol=2) as client:
        assert client.set("key", "value")
        assert client.get("key") == b"value"


def test_the_shared_redis_is_what_the_environment_says(
    shared_redis: RedisAt, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared_redis is request.getfixturevalue(f"redis_{'cluster' if shared_redis.mode == 'cluster' else 'server'}")
    monkeypatch.setenv("LINGUA_TEST_REDIS_CLUSTER_URLS", "redis://a:1, redis://b:2,")
    assert urls_from("LINGUA_TEST_REDIS_CLUSTER_URLS") == ("redis://a:1", "redis://b:2")


def test_a_test_that_kills_skips_where_the_redis_is_not_ours() -> None:
    with pytest.raises(pytest.skip.Exception, match="needs a Redis of its own"):
        own(None)
