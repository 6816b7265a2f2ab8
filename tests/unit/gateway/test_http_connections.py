from dragoman.gateway.http_connections import Unread


def test_who_reads_nothing_grows_old() -> None:
    unread = Unread(now=10.0)
    assert unread.age(500, now=11.0) == 0.0
    assert unread.age(500, now=14.0) == 3.0


def test_who_reads_a_little_now_and_then_stays_young() -> None:
    unread = Unread(now=10.0)
    assert [unread.age(size, now) for size, now in [(500, 11.0), (499, 14.0), (498, 17.0)]] == [0.0, 0.0, 0.0]


def test_who_has_nothing_to_read_stays_young() -> None:
    unread = Unread(now=10.0)
    assert [unread.age(0, now) for now in (11.0, 99.0)] == [0.0, 0.0]
