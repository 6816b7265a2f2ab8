from dragoman.protocol.codes import Close, may_come_back


def test_close_codes_below_4500_ask_the_peer_to_come_back() -> None:
    for close in Close:
        assert 4000 <= close <= 4999
        assert may_come_back(close) == (close < 4500)


def test_a_peer_comes_back_after_a_close_that_is_not_ours() -> None:
    assert may_come_back(1000)
    assert may_come_back(1006)
    assert may_come_back(1011)
