import pytest

from dragoman.store.errors import RedisAway, Refused
from dragoman.store.link import Address, ErrorReply, refusal


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://example.org", Address("example.org", 6379)),
        ("redis://example.org:7000/3", Address("example.org", 7000, db=3)),
        ("redis://example.org:7000?db=3", Address("example.org", 7000, db=3)),
        ("redis://", Address("127.0.0.1", 6379)),
        ("redis://:s%40crt@example.org/", Address("example.org", 6379, password="s@crt")),
        ("redis://us%3Aer:p%2Fw@h:1", Address("h", 1, username="us:er", password="p/w")),
        ("redis://[::1]:7001", Address("::1", 7001)),
        ("rediss://example.org", Address("example.org", 6379, tls=True)),
        ("unix:///run/re%20dis.sock", Address(path="/run/re dis.sock")),
        ("unix://me:pw@/run/redis.sock?db=2", Address(path="/run/redis.sock", username="me", password="pw", db=2)),
    ],
)
def test_an_address_is_read_from_a_url_as_redis_py_writes_it(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize("url", ["http://example.org", "example.org:6379", "", "/run/redis.sock"])
def test_what_is_no_redis_url_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(ValueError, match="a Redis URL starts with"):
        Address.parse(url)


@pytest.mark.parametrize("url", ["redis://h:port", "redis://h/first"])
def test_a_port_or_database_that_is_no_number_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        Address.parse(url)


def test_a_password_is_never_shown() -> None:
    assert "hunter2" not in repr(Address.parse("redis://:hunter2@h"))


def test_another_server_of_the_same_cluster_takes_the_same_credentials() -> None:
    there = Address.parse("rediss://me:pw@h:1/4").at("other", 2)
    assert there == Address("other", 2, username="me", password="pw", tls=True), "a Cluster has one database only"


def test_an_address_is_named_by_its_path_or_by_host_and_port() -> None:
    assert Address.parse("unix:///run/redis.sock").name == "/run/redis.sock"
    assert Address.parse("redis://h:7").name == "h:7"


@pytest.mark.parametrize("word", ["LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "TRYAGAIN", "BUSY"])
def test_a_server_that_cannot_work_now_counts_as_away(word: str) -> None:
    assert isinstance(refusal(ErrorReply(f"{word} for whatever reason")), RedisAway)


@pytest.mark.parametrize("text", ["ERR unknown command", "WRONGTYPE Operation against …", "BUSYGROUP exists", "NOAUTH"])
def test_any_other_error_is_a_refusal_with_its_word(text: str) -> None:
    error = refusal(ErrorReply(text))
    assert isinstance(error, Refused)
    assert error.word == text.split(" ")[0]
