from dragoman.gateway.http_connections import WriteStall


def test_stall_grows_while_nothing_is_read() -> None:
    stall = WriteStall(now=10.0)
    assert stall.age(500, now=11.0) == 0.0
    assert stall.age(500, now=14.0) == 3.0


def test_stall_restarts_whenever_something_is_read() -> None:
    stall = WriteStall(now=10.0)
    assert [stall.age(size, now) for size, now in [(500, 11.0), (499, 14.0), (498, 17.0)]] == [0.0, 0.0, 0.0]


def test_there_is_no_stall_when_nothing_waits() -> None:
    stall = WriteStall(now=10.0)
    assert [stall.age(0, now) for now in (11.0, 99.0)] == [0.0, 0.0]
