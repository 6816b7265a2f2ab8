"""What each Redis is worth, and which are refused."""

from dragoman.domain.durability import DurabilityClass, assess
from support.tables import for_each

INFO = {"redis_version": "7.2.4", "aof_enabled": "1", "aof_last_write_status": "ok"}
SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
}


@for_each(
    [
        ({}, 0, DurabilityClass.PROCESS),
        ({"appendfsync": "always"}, 0, DurabilityClass.FSYNC),
        ({"appendfsync": "no"}, 0, DurabilityClass.NONE),
        ({"appendonly": "no"}, 0, DurabilityClass.NONE),
        ({"appendonly": "no", "appendfsync": "always"}, 0, DurabilityClass.NONE),
        ({"appendonly": "no", "save": "3600 1"}, 0, DurabilityClass.NONE),
        ({}, 1, DurabilityClass.REPLICATED),
        ({"appendonly": "no"}, 1, DurabilityClass.REPLICATED),
        ({"appendfsync": "always"}, 1, DurabilityClass.FSYNC),
    ]
)
def test_the_class_follows_from_the_file_and_the_replicas(
    changed: dict[str, str], wait_replicas: int, durability: DurabilityClass
) -> None:
    assessment = assess(INFO, SETTINGS | changed, wait_replicas)
    assert assessment.durability is durability
    assert assessment.problems == []


@for_each(
    [
        ({"appendfsync": "no"}, "set appendfsync to everysec or always"),
        ({"appendonly": "no"}, "set appendonly to yes"),
        ({"appendonly": "no", "save": "3600 1"}, "snapshots only"),
    ]
)
def test_a_class_of_none_comes_with_what_to_change(changed: dict[str, str], advice: str) -> None:
    [warning] = assess(INFO, SETTINGS | changed).warnings
    assert advice in warning


def test_a_redis_that_promises_something_is_not_warned_about() -> None:
    assert assess(INFO, SETTINGS).warnings == []
    assert assess(INFO, SETTINGS | {"appendonly": "no"}, wait_replicas=1).warnings == []


def test_a_redis_whose_settings_are_forbidden_is_used_and_nothing_is_promised() -> None:
    assessment = assess(INFO, None)
    assert assessment.durability is DurabilityClass.NONE
    assert assessment.problems == []
    assert "CONFIG" in assessment.warnings[0]


def test_replicas_that_confirm_count_even_where_settings_are_forbidden() -> None:
    assert assess(INFO, None, wait_replicas=2).durability is DurabilityClass.REPLICATED


@for_each(["6.0.16", "5.0.7", "6.1.240"])
def test_a_redis_older_than_6_2_is_refused(version: str) -> None:
    [problem] = assess(INFO | {"redis_version": version}, SETTINGS).problems
    assert version in problem
    assert "use Redis 6.2 or newer" in problem


@for_each(["6.2.0", "6.2.14", "7.0.15", "10.0.0", "255.255.255", "7.2"])
def test_a_redis_from_6_2_on_is_taken(version: str) -> None:
    assert assess(INFO | {"redis_version": version}, SETTINGS).problems == []


@for_each([{}, {"redis_version": "unstable"}, {"redis_version": ""}, {"redis_version": "7"}])
def test_a_version_that_cannot_be_read_is_refused(info: dict[str, str]) -> None:
    [problem] = assess(info, SETTINGS).problems
    assert "cannot be read" in problem


@for_each(["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"])
def test_a_redis_that_may_evict_is_refused(policy: str) -> None:
    [problem] = assess(INFO, SETTINGS | {"maxmemory": "1048576", "maxmemory-policy": policy}).problems
    assert policy in problem
    assert "set maxmemory-policy to noeviction" in problem


def test_eviction_is_seen_in_info_where_settings_are_forbidden() -> None:
    [problem] = assess(INFO | {"maxmemory": "1048576", "maxmemory_policy": "volatile-lru"}, None).problems
    assert "volatile-lru" in problem


def test_a_policy_without_a_limit_evicts_nothing() -> None:
    assert assess(INFO, SETTINGS | {"maxmemory": "0", "maxmemory-policy": "allkeys-lru"}).problems == []


def test_a_limit_that_refuses_writes_is_taken() -> None:
    assert assess(INFO, SETTINGS | {"maxmemory": "1048576"}).problems == []


def test_every_durability_problem_is_reported() -> None:
    evicting = SETTINGS | {"maxmemory": "1", "maxmemory-policy": "allkeys-lru"}
    assert len(assess(INFO | {"redis_version": "5.0.0"}, evicting).problems) == 2


def test_a_file_that_cannot_be_written_is_warned_about() -> None:
    [warning] = assess(INFO | {"aof_last_write_status": "err"}, SETTINGS).warnings
    assert "disk" in warning


@for_each(
    [
        ("everysec", 0, DurabilityClass.PROCESS),
        ("everysec", 1, DurabilityClass.REPLICATED),
        ("always", 1, DurabilityClass.FSYNC),
    ]
)
def test_replicas_that_confirm_raise_the_class_while_we_run(
    appendfsync: str, replicas: int, expected: DurabilityClass
) -> None:
    assessment = assess({"redis_version": "7.2.0"}, {"appendonly": "yes", "appendfsync": appendfsync})
    assert assessment.confirmed_by(replicas) is expected
    assert assessment.confirmed_by(0) is assessment.durability
