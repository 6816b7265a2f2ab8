"""Nodes of a Cluster are named by their proxies, however the bytes are cut."""

from dragoman.tools.verify.tcp_proxy import complete, renamed

PORTS = {11001: 40001, 11002: 40002}
SLOTS = b"*1\r\n*4\r\n:0\r\n:5460\r\n*3\r\n$9\r\n127.0.0.1\r\n:11001\r\n$2\r\nid\r\n*2\r\n$9\r\n127.0.0.1\r\n:11002\r\n"
MOVED = b"-MOVED 1234 127.0.0.1:11002\r\n"
AFTER = b"$5\r\nhello\r\n"


def passed_on(parts: list[bytes]) -> bytes:
    out, tail = b"", b""
    for part in parts:
        whole = tail + part
        told = complete(whole)
        out, tail = out + renamed(whole[:told], PORTS), whole[told:]
    assert tail == b"", "an answer that is whole must not be held back"
    return out


def test_nodes_are_named_by_their_proxies() -> None:
    assert passed_on([SLOTS]) == SLOTS.replace(b"11001", b"40001").replace(b"11002", b"40002")
    assert passed_on([MOVED]) == b"-MOVED 1234 127.0.0.1:40002\r\n"


def test_a_name_is_found_wherever_the_bytes_are_cut() -> None:
    said = SLOTS + MOVED + AFTER
    wanted = passed_on([said])
    for at in range(1, len(said)):
        assert passed_on([said[:at], said[at:]]) == wanted


def test_bytes_that_come_one_at_a_time_come_out_the_same() -> None:
    said = SLOTS + MOVED + AFTER
    assert passed_on([said[at : at + 1] for at in range(len(said))]) == passed_on([said])


def test_other_ports_and_other_words_stay_as_they_are() -> None:
    said = b"+127.0.0.1:11003\r\n$8\r\n:11001\r\n\r\n"
    assert passed_on([said]) == said
